-- What Llama 4's text has and other decoders lack, against compositions of ops: attention in chunks, also of documents
-- that share a row and of texts that grow, temperatures, and weights of experts that multiply what these read.

local assert_close = require("lua.support.fixture").assert_close
local language = require("moonshard.models.language")
local masked = require("moonshard.nn.masked_attention")
local ms = require("moonshard")

local START, CHUNK = 1, 4
local SIZES = { vocab = 17, layers = 2, dim = 8, heads = 2, ffn = 12, seq = 64, experts = 3, experts_per_token = 2,
  expert_ffn = 6, shared_ffn = 6, attention_chunk_size = CHUNK, rotates = { true, false }, chunked = { true, false },
  sparse = { false, true }, attn_scale = 0.7, floor_scale = 3 }

local function model(more)
  local o = {}
  for _, source in ipairs({ SIZES, more or {} }) do
    for name, value in pairs(source) do o[name] = value end
  end
  ms.manual_seed(1)
  return ms.models.llama4_text(o)
end

local function logits(of, tokens) return of(ms.tensor({ tokens }, { dtype = "i32" })):tolist()[1] end

describe("Llama 4", function()
  it("G1 attends within chunks, the last of which can be shorter", function()
    local marks_of_chunks = require("moonshard.models.chunked_attention")
    local length = 11
    local q, k, v = ms.randn(1, length, 2, 4), ms.randn(1, length, 1, 4), ms.randn(1, length, 1, 4)
    local rows = {}
    for i = 0, length - 1 do
      rows[i + 1] = {}
      for j = 0, length - 1 do
        rows[i + 1][j + 1] = j <= i and math.floor(i / CHUNK) == math.floor(j / CHUNK) and 1 or 0
      end
    end
    local mask = ms.tensor({ { rows } }, { dtype = "u8" })
    local expected = masked(q, k, v, { causal = false, mask = mask })
    local tokens = ms.zeros({ 1, length }, { dtype = "i32" })
    local marks = marks_of_chunks({}, CHUNK, tokens)
    local found = language.attend({}, q, k, v, marks, nil, nil, { query = {}, key = {} }, 1)
    assert_close(expected:reshape(-1):tolist(), found:reshape(-1):tolist(), 1e-6, "chunks")
  end)

  it("G1 gives a document of several chunks the logits that it has alone", function()
    local packed = model { document_start = START }
    local first, second = { START, 5, 6, 7, 8, 9 }, { START, 3, 14, 15, 9, 2, 6, 5, 3, 5 }
    local both = {}
    for _, document in ipairs({ first, second }) do
      for _, token in ipairs(document) do both[#both + 1] = token end
    end
    local of_both, alone = logits(packed, both), logits(packed, second)
    for i = 1, #second do assert_close(alone[i], of_both[#first + i], 1e-5, "token " .. i) end
  end)

  it("G7 continues texts of documents and chunks with kept keys as without", function()
    for _, more in ipairs({ {}, { document_start = START } }) do
      for _, prompt in ipairs({ { 5, 6, 7 }, { START, 5, 6, START, 7, 8, 9, 2, 3, 4, 11 } }) do
        local function continue(cache)
          return select(2, ms.generate(model(more), { prompt = prompt, tokens = 20, temperature = 0, cache = cache }))
        end
        assert.same(continue(false), continue(true))
      end
    end
  end)
end)
