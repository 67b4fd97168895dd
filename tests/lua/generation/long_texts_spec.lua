-- Models that rotate long texts by other frequencies (longrope): whether a text is long depends on its own tokens, not
-- on a longer text next to it, on padding, or on whether keys and values are kept.

local ms = require("moonshard")
local scratch = require("lua.support.scratch")

teardown(scratch.clear)

local LIMIT, SEQ, VOCAB = 8, 32, 256

local function decoder()
  local model = ms.models.llama {
    vocab = VOCAB, layers = 2, dim = 16, heads = 2, ffn = 24, seq = SEQ,
    rope_scaling = { type = "longrope", short_factor = { 1, 1, 1, 2 }, long_factor = { 4, 6, 8, 9 },
      original_max_position_embeddings = LIMIT },
  }
  ms.fully_shard(model, { seed = 3 })
  for name, parameter in model:named_parameters() do
    local shape = parameter.shape
    if #shape == 2 then model:set_parameter(name, ms.randn { shape[1], shape[2], seed = #name } * 0.4) end
  end
  return model
end

local function tokens_of(model, o)
  o.temperature, o.tokens = 0, 6
  return select(2, ms.generate(model, o))
end

-- The most likely continuation, by calls of the model with the text alone.
local function by_calls(model, prompt)
  local ids, made = { unpack(prompt) }, {}
  for i = 1, 6 do
    local logits = model(ms.tensor { ids, dtype = "i32" })
    made[i] = logits:index(0, -1):argmax(0):item()
    ids[#ids + 1] = made[i]
  end
  return made
end

describe("a long text", function()
  local short, crosses, later, long = { 7, 80 }, { 9, 3, 100, 4, 55 }, { 60, 61, 62, 9, 8, 7 }, {}
  for i = 1, 14 do long[i] = 13 * i end

  it("G7 is long by its own tokens when it is continued, alone and in a list, with and without keys and values kept",
    function()
      local model, expected = decoder(), {}
      local prompts = { short, crosses, long, later, { 1, 2, 3, 4, 5 } }
      for i, prompt in ipairs(prompts) do
        expected[i] = by_calls(model, prompt)
        assert.same(expected[i], tokens_of(model, { prompt = prompt }))
      end
      assert.same(expected, tokens_of(model, { prompt = prompts }))
      assert.same(expected, tokens_of(model, { prompt = prompts, cache = false }))
    end)

  it("is long by its own tokens when it is evaluated, whatever the length of a row", function()
    local model = decoder()
    local questions = scratch.folder() .. "/questions.jsonl"
    scratch.write(questions, '{"context": "ab", "choices": ["x", "yz"], "label": 0}\n'
      .. '{"context": "a longer one", "choices": ["x", "yz"], "label": 1}\n')
    local function scores(seq)
      return ms.evaluate.multiple_choice(model, { files = questions, seq = seq }).log_likelihoods
    end
    local function nll(text, seq) return ms.evaluate.perplexity(model, { text = text, seq = seq }).nll end
    assert.same(scores(LIMIT)[1], scores(SEQ)[1])
    assert.same(scores(16)[2], scores(SEQ)[2])
    assert.equal(nll("short", LIMIT), nll("short", SEQ))
    assert.not_equal(nll("short and more than that", LIMIT), nll("short and more than that", SEQ))
  end)
end)
