-- A fine-tune of a folder like those of Qwen 3 on conversations, from end to end, as the guide has it
-- (recipes/guides/conversations.md): what is trained on, all losses, the answer and what is saved are the reference's
-- (tests/fixtures/chat/make.py). A step trains on all conversations, so their order plays no part.

local assert_close = require("lua.support.fixture").assert_close
local ffi = require("ffi")
local has = require("lua.support.message").has
local huggingface = require("lua.support.huggingface")
local ms = require("moonshard")
local program = require("lua.support.program")
local scratch = require("lua.support.scratch")

local FIXTURES = "tests/fixtures/chat/"
local FOLDER, SEQ, F32 = FIXTURES .. "model", 192, 1e-5
local reference = ms.safetensors.open(FIXTURES .. "reference.safetensors")

teardown(scratch.clear)

local function integers(name)
  local n = reference:tensor(name).elements
  local values, list = ffi.new("int32_t[?]", n), {}
  reference:read(name, 0, 4 * n, values)
  for i = 1, n do list[i] = values[i - 1] end
  return list
end

local function numbers(name) return huggingface.values_of(reference, name) end

-- Rows of SEQ integers.
local function rows_of(name)
  local all, rows = integers(name), {}
  for i = 0, #all / SEQ - 1 do rows[i + 1] = { unpack(all, i * SEQ + 1, (i + 1) * SEQ) } end
  return rows
end

local OPTIONS = {
  files = FIXTURES .. "chats.jsonl", tokenizer = ms.huggingface.tokenizer(FOLDER), template = "tokenizer",
  train_on = "last", seq = SEQ, batch = 1,
}

local function data_with(more)
  local o = {}
  for name, value in pairs(OPTIONS) do o[name] = value end
  for name, value in pairs(more) do o[name] = value end
  return ms.data.chat(o)
end

local function run(more)
  local metrics = scratch.path()
  local words = {
    "run", "recipes/chat.lua", "-n", "4", "mesh=2x2", "folder=" .. FOLDER, "files=" .. OPTIONS.files, "valid=0",
    "template=tokenizer", "train_on=last", "seq=" .. SEQ, "batch=2", "steps=4", "lr=1e-2", "dtype=f32",
    "--metrics", metrics,
  }
  for name, value in pairs(more) do words[#words + 1] = ("%s=%s"):format(name, value) end
  local ended = program.run(words)
  assert.equal(0, ended.status, ended.err)
  local losses = {}
  for loss in scratch.read(metrics):gmatch('"loss":([%d.]+)') do losses[#losses + 1] = tonumber(loss) end
  return losses, ended.out
end

-- The logits of the first conversation.
local function assert_logits(kind, model)
  local tokens = ms.tensor({ rows_of("tokens")[1] }, { dtype = "i32" })
  assert_close(numbers(kind .. "logits"), model(tokens):reshape(-1):tolist(), F32, kind .. "logits")
end

local function assert_copied(folder)
  for _, name in ipairs({ "tokenizer.json", "tokenizer_config.json", "generation_config.json" }) do
    assert.equal(scratch.read(FOLDER .. "/" .. name), scratch.read(folder .. "/" .. name), name)
  end
end

describe("a fine-tune of a folder on conversations", function()
  it("G5 has the tokens of the folder's template, and trains on answers alone, also where NFC joins letters", function()
    local data, tokens, targets = data_with { shuffle = false }, {}, {}
    for i, batch in data:batches(8) do
      tokens[i], targets[i] = batch.tokens:tolist()[1], batch.targets:tolist()[1]
    end
    assert.same(rows_of("tokens"), tokens)
    assert.same(rows_of("targets"), targets)
  end)

  it("G5 trains all weights as the reference library does over 2x2, evaluates, answers and exports", function()
    local tuned = scratch.path()
    local losses, out = run { save = tuned, sample = 12, prompt = "Où est le café?" }
    assert_close(numbers("losses"), losses, F32, "losses")
    has(out, "answer: " .. OPTIONS.tokenizer:decode(integers("answer")))
    assert_logits("", ms.huggingface.model(tuned))
    assert_copied(tuned)
    -- The loss on what is held out, from each conversation's.
    local of_row, weighed, count = numbers("after"), 0, 0
    local rows = rows_of("tokens")
    for _, batch in data_with({ valid_fraction = 0.5, seed = 0 }).valid:batches(4) do
      local row, trained = batch.tokens:tolist()[1], 0
      for _, target in ipairs(batch.targets:tolist()[1]) do trained = trained + (target == -100 and 0 or 1) end
      for i, found in ipairs(rows) do
        if table.concat(found, " ") == table.concat(row, " ") then weighed = weighed + of_row[i] * trained end
      end
      count = count + trained
    end
    out = select(2, run { folder = tuned, valid = 0.5, batch = 1, steps = 0 })
    assert_close({ weighed / count }, { tonumber(out:match("before: validation loss ([%d.]+)")) }, 1e-4, "validation")
  end)

  it("G5 trains adapters alone as PEFT does, and exports them and the merged model", function()
    local adapted, merged = scratch.path(), scratch.path()
    local losses = run { start = FIXTURES .. "adapters", adapters = adapted, save = merged }
    assert_close(numbers("lora.losses"), losses, F32, "losses")
    assert_logits("lora.", ms.lora.load(ms.huggingface.model(FOLDER), adapted))
    assert_logits("lora.", ms.huggingface.model(merged))
    assert_copied(merged)
    has(select(2, run { rank = 2, steps = 1 }), "1120 of them trained")
    program.refused(2, { "run", "recipes/chat.lua", "folder=" .. FOLDER, "files=" .. OPTIONS.files,
      "adapters=" .. scratch.path() }, "adapters= | rank= | start=")
  end)
end)
