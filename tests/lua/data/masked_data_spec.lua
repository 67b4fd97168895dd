-- Batches for masked language models: which tokens are chosen, what replaces them, states, meshes, and what is refused.

local breadth = require("lua.support.breadth")
local has = require("lua.support.message").has
local message = require("lua.support.fixture").message
local ms = require("moonshard")
local program = require("lua.support.program")
local read_by_ranks = require("lua.data.read_by_ranks")
local scratch = require("lua.support.scratch")

teardown(scratch.clear)

local TEXT = scratch.path()
scratch.write(TEXT, ("abcdefghijklmnopqrstuvwxyz"):rep(400))

local function masked(more, of_text)
  local o = { mask = 256, vocab = 256, seed = 3 }
  for name, value in pairs(more or {}) do o[name] = value end
  local text = { files = TEXT, seq = 26, global_batch = 12, seed = 5, valid_fraction = 0.1 }
  for name, value in pairs(of_text or {}) do text[name] = value end
  if text.batch then text.global_batch = nil end
  o[1] = ms.data.text(text)
  return ms.data.masked(o)
end

-- Rows { tokens, targets } as texts of numbers.
local function rows(data, steps)
  local found = {}
  for _, batch in data:batches(steps) do
    local count, length = unpack(batch.tokens.shape)
    for row = 0, count - 1 do
      local tokens, targets = {}, {}
      for i = 1, length do
        tokens[i], targets[i] = batch.tokens.data[row * length + i - 1], batch.targets.data[row * length + i - 1]
      end
      found[#found + 1] = table.concat(tokens, " ") .. " | " .. table.concat(targets, " ")
    end
  end
  return found
end

describe("ms.data.masked", function()
  it("G5 chooses 15 % of the tokens: 80 % are hidden, 10 % are any, 10 % stay", function()
    local all, chosen, hidden, kept, plain = 0, 0, 0, 0, ms.data.text {
      files = TEXT, seq = 26, global_batch = 12, seed = 5, valid_fraction = 0.1,
    }
    local clean = plain:batches(200)
    for _, batch in masked():batches(200) do
      local _, whole = clean()
      for i = 0, 12 * 26 - 1 do
        local token, target, original = batch.tokens.data[i], batch.targets.data[i], whole.tokens.data[i]
        all = all + 1
        if target == -100 then
          assert.equal(original, token)
        else
          assert.equal(original, target)
          chosen, hidden = chosen + 1, hidden + (token == 256 and 1 or 0)
          kept = kept + (token == original and 1 or 0)
          assert.is_true(token >= 0 and token <= 256)
        end
      end
    end
    assert.near(0.15, chosen / all, 0.005)
    assert.near(0.8, hidden / chosen, 0.015)
    assert.near(0.1, kept / chosen, 0.015) -- one of 256 is the same by chance
  end)

  it("G5 chooses by seed and position: other tokens in the next epoch, the same ones for validation", function()
    local function of(more) return rows(masked(more), 1) end
    assert.same(of(), of())
    assert.not_same(of(), of { seed = 4 })
    local few = masked({}, { shuffle = false, global_batch = 360, valid_fraction = 0.1 })
    local both = rows(few, 2)
    assert.not_equal(both[1], both[361])
    local data = masked()
    assert.same(rows(data.valid, 2), rows(data.valid, 2))
  end)

  it("G5 never chooses special tokens, nor the mask", function()
    for _, batch in masked({ fraction = 0.9, special = { 97, 98 }, mask = 99 }):batches(20) do
      for i = 0, 12 * 26 - 1 do
        local target = batch.targets.data[i]
        assert.is_true(target == -100 or target > 99)
      end
    end
  end)

  it("G5 has the same rows on any number of ranks, and from any state", function()
    local whole = rows(masked(), 30)
    for _, size in ipairs({ 2, 3 }) do
      local merged, states = read_by_ranks(size,
        { make = masked, rows = rows, steps = 30, stop = 11, global_batch = 12 })
      assert.same(whole, merged)
      assert.equal(states[1], states[size])
    end
    local state = masked():state()
    has(message(function() masked({ seed = 4 }):load_state(state) end), "mask_seed=3 | mask_seed=4 | same mask")
    has(message(function() masked({}, { seed = 6 }):load_state(state) end), "seed=5 | seed=6")
    has(message(function() masked({ vocab = 200 }):load_state(state) end), "mask_vocab=256 | mask_vocab=200")
    has(message(function() masked({ special = { 97 } }):load_state(state) end), "mask_special | special tokens")
    masked({ special = { 98, 97 } }):load_state(masked({ special = { 97, 98, 97 } }):state())
    local plain = ms.data.text { files = TEXT, seq = 26, global_batch = 12, seed = 5, valid_fraction = 0.1 }
    has(message(plain.load_state, plain, state), "ms.data.masked | mask=256")
    local mix = ms.data.mix { { plain } }
    local masked_mix = ms.data.masked { mix, mask = 256, vocab = 256 }
    has(message(mix.load_state, mix, masked_mix:state()), "ms.data.masked | mask=256")
    masked_mix:load_state(masked_mix:state())
  end)

  it("G5 says of a batch what ranks compare: which tokens replace others and which are never chosen", function()
    local function source(more)
      local _, batch = masked(more):batches(1)()
      return batch.source
    end
    assert.equal(source(), source())
    assert.not_equal(source(), source { vocab = 255 })
    assert.not_equal(source(), source { special = { 97 } })
  end)

  it("G5 refuses conversations, whose targets it would replace, also in a mix", function()
    local path = scratch.path() .. ".jsonl"
    scratch.write(path, ('{"prompt": "question", "completion": "answer"}\n'):rep(20))
    local chat = ms.data.chat { files = path, seq = 26, batch = 4, template = "plain" }
    has(message(ms.data.masked, { chat, mask = 256, vocab = 256 }), "ms.data.chat | ms.data.text")
    local text = ms.data.text { files = TEXT, seq = 26, batch = 4 }
    has(message(ms.data.masked, { ms.data.mix { { text }, { chat } }, mask = 256, vocab = 256 }), "ms.data.chat")
  end)

  it("G5 masks a mix", function()
    local function source() return ms.data.text { files = TEXT, seq = 26, batch = 4, valid_fraction = 0 } end
    local data = ms.data.masked { ms.data.mix { { source() }, { source() } }, mask = 256, vocab = 256 }
    assert.equal(8, #rows(data, 2))
    assert.equal(8, data:state().position)
  end)

  it("G5 refuses what makes no sense", function()
    local text = ms.data.text { files = TEXT, seq = 26, batch = 4 }
    has(message(ms.data.masked, { 5, mask = 1, vocab = 9 }), "ms.data.text | 5")
    has(message(ms.data.masked, { text, vocab = 9 }), "mask")
    has(message(ms.data.masked, { text, mask = 1 }), "vocab | tokenizer")
    has(message(ms.data.masked, { text, mask = "[MASK]", vocab = 9 }), "[MASK] | tokenizer")
    has(message(ms.data.masked, { text, mask = -1, vocab = 9 }), "mask | -1")
    has(message(ms.data.masked, { text, mask = 1, vocab = 9, fraction = 1 }), "fraction | 1")
    has(message(ms.data.masked, { text, mask = 1, vocab = 9, special = { "a" } }), "special | number 1")
    has(message(ms.data.masked, { text, mask = 1.5, vocab = 9 }), "mask | 1.5")
    has(message(ms.data.masked, { text, mask = 1, vocab = 9, special = { cls = 101 } }), "special | cls | 101")
    has(message(ms.data.masked, { text, mask = 1, vocab = 9, special = { 3, 1.5 } }), "special | number 2 | 1.5")
    has(message(ms.data.masked, { text, mask = 1, vocab = 9, special = { -1 } }), "special | number 1 | -1")
    has(message(ms.data.masked, { text, mask = "[MASK]", tokenizer = {} }), "tokenizer | ms.tokenizer(path)")
    local tokenizer = ms.tokenizer("tests/fixtures/tokenizer/good/gpt2.json")
    has(message(ms.data.masked, { text, mask = tokenizer.vocab, tokenizer = tokenizer }),
      ("mask | 0 to %d | %d"):format(tokenizer.vocab - 1, tokenizer.vocab))
    has(message(ms.data.masked, { text, mask = 1, special = { tokenizer.vocab }, tokenizer = tokenizer }),
      ("special: number 1 | 0 to %d"):format(tokenizer.vocab - 1))
    local path = scratch.path() .. ".jsonl"
    scratch.write(path, ('{"prompt": "q", "chosen": "a", "rejected": "b"}\n'):rep(5))
    local pairs_of = ms.data.preferences { files = path, seq = 20, batch = 1, template = "plain" }
    has(message(ms.data.masked, { pairs_of, mask = 1, vocab = 9 }), "pairs of answers | ms.data.text")
  end)

  it("G5 is asked for by the recipe, where a folder's tokens are others than bytes", function()
    local function refused(...)
      local folder = "folder=tests/fixtures/huggingface/bert"
      local ended = program.run({ "run", "recipes/bert.lua", "mesh=1x1", folder, ... })
      assert.not_equal(0, ended.status)
      return ended.err
    end
    has(refused(), "tokens=")
    has(refused("tokens=train.bin"), "mask=")
    has(refused("tokens=train.bin", "mask=3", "dim=64"), "folder= | dim=")
  end)

  it("G5 trains a BERT by the recipe over ranks as on one", function()
    for _, settings in ipairs(breadth.few({ { "mesh=2x1" }, { "mesh=1x2" } })) do
      local ended = program.run({ "check", "recipes/bert.lua", "-n", "2", "batch=4", "steps=3", "dim=32", "layers=2",
        "seq=32", "eval_steps=1", unpack(settings) })
      assert.equal(0, ended.status, ended.err .. ended.out)
      has(ended.out, "tolerance")
    end
  end)
end)
