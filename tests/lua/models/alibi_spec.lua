-- Biases of attention that grow with the distance (ALiBi): scores as written by hand, exact in bf16; documents,
-- windows, and what is refused. Whole models are compared with the reference in huggingface/families_spec.lua.

local alibi = require("moonshard.models.alibi")
local assert_close = require("lua.support.fixture").assert_close
local has = require("lua.support.message").has
local huggingface = require("lua.support.huggingface")
local message = require("lua.support.fixture").message
local ms = require("moonshard")
local ops = require("moonshard.tensor.ops")
local scratch = require("lua.support.scratch")

teardown(scratch.clear)

local HEADS, LENGTH, DIM = 3, 300, 4 -- longer than what eight bits count
local SCALE = 1 / math.sqrt(DIM)

local function random(seed)
  ms.manual_seed(seed)
  return ms.randn(1, LENGTH, HEADS, DIM)
end

-- Attention by a softmax over stored scores, [T,DIM] of one head.
local function by_hand(q, k, v, h, slope)
  local rows = {}
  for i = 1, LENGTH do
    local weights, sum, most, row = {}, 0, -math.huge, {}
    for j = 1, i do
      local score = 0
      for d = 1, DIM do score = score + q[1][i][h][d] * k[1][j][h][d] end
      weights[j] = score * SCALE - slope * (i - j)
      most = math.max(most, weights[j])
    end
    for j = 1, i do
      weights[j] = math.exp(weights[j] - most)
      sum = sum + weights[j]
    end
    for d = 1, DIM do
      row[d] = 0
      for j = 1, i do row[d] = row[d] + weights[j] / sum * v[1][j][h][d] end
    end
    rows[i] = row
  end
  return rows
end

local SIZES = { vocab = 41, layers = 1, dim = 24, heads = 6, ffn = 96, seq = 32 }

local function with(more)
  local o = {}
  for name, value in pairs(SIZES) do o[name] = value end
  for name, value in pairs(more) do o[name] = value end
  return o
end

describe("attention with linear biases", function()
  it("G3 has the scores that are written by hand, over long texts", function()
    local q, k, v = random(1), random(2), random(3)
    for kind, factor in pairs({ added = 1, scaled = SCALE }) do
      local joined = { alibi.join({ alibi = kind, heads = HEADS, attention_scale = SCALE }, q, k) }
      local found = ops.attention(joined[1], joined[2], v, { causal = true, scale = SCALE }):tolist()[1]
      for h, slope in ipairs(alibi.slopes(HEADS)) do
        local rows = by_hand(q:tolist(), k:tolist(), v:tolist(), h, slope * factor)
        for _, i in ipairs({ 1, 2, 100, 256, 257, LENGTH }) do
          assert_close(rows[i], found[i][h], 1e-4, ("%s, head %d, query %d"):format(kind, h, i))
        end
      end
    end
  end)

  it("G3 has slopes by powers of two, and exact biases in bf16", function()
    assert.same({ 2 ^ -2, 2 ^ -4, 2 ^ -6, 2 ^ -8 }, alibi.slopes(4))
    assert.same({ 2 ^ -2, 2 ^ -4, 2 ^ -6, 2 ^ -8, 2 ^ -1, 2 ^ -3 }, alibi.slopes(6))
    local config = { alibi = "added", heads = HEADS, attention_scale = SCALE }
    local narrow = { alibi.join(config, random(1):cast("bf16"), random(2):cast("bf16")) }
    local wide = { alibi.join(config, random(1), random(2)) }
    for i = 1, 2 do
      assert.same(wide[i]:slice(-1, DIM, DIM + 8):tolist(), narrow[i]:slice(-1, DIM, DIM + 8):cast("f32"):tolist())
    end
  end)

  it("G3 keeps documents of a row apart, each as alone, and windows hide what is before them", function()
    local packed, folder = ms.models.bloom(with { document_start = 1 }), scratch.path()
    local rows = ms.tensor({ { 1, 2, 3, 1, 4, 5 }, { 1, 9, 9, 1, 4, 5 } }, { dtype = "i32" })
    local both = packed(rows):tolist()
    assert.same(both[1][6], both[2][6])
    ms.huggingface.save(packed, folder)
    local alone = ms.huggingface.model(folder)(ms.tensor({ { 1, 4, 5 } }, { dtype = "i32" })):tolist()
    assert_close(alone[1][3], both[1][6], 1e-5, "the second document")
    local windowed = ms.models.decoder(with { alibi = "added", window = 2 })
    local seen = windowed(rows):tolist()
    assert.same(seen[1][6], seen[2][6])
    assert.are_not.same(seen[1][4], seen[2][4])
  end)

  it("G3 refuses what is not built with it", function()
    local function refused(more) return message(ms.models.decoder, with(more)) end
    has(refused { alibi = true }, 'alibi | "added" or "scaled" or false | true')
    has(refused { alibi = "added", attention_softcap = 3 }, "alibi | attention_softcap")
    has(refused { alibi = "added", rotates = { true } }, "alibi | rotates")
    has(refused { alibi = "added", rope_scaling = { type = "linear", factor = 2 } }, "alibi | rope_scaling")
    has(refused { alibi = "added", seq = 65537 }, "65537 | 65536")
    has(message(ms.huggingface.save, ms.models.llama(with { alibi = "added" }), scratch.path()), "llama | alibi")
    has(message(ms.huggingface.save, ms.models.bloom(with { ffn = 24 }), scratch.path()), "ffn | four times")
    local function folder_refused(name, change)
      return message(ms.huggingface.model, huggingface.copy_of(name, change))
    end
    has(folder_refused("bloom", huggingface.set("num_attention_heads", 4)), "n_head is 6 | num_attention_heads is 4")
    for field, value in pairs({ clip_qkv = 6, prefix_lm = true, alibi = false, alibi_bias_max = 4, odd = 1 }) do
      has(folder_refused("mpt", function(c) c.attn_config[field] = value end), "attn_config | " .. field)
    end
    has(folder_refused("mpt", huggingface.set("expansion_ratio", 2)), "expansion_ratio is 2")
  end)

  it("G3 refuses QK-clip, whose scores would have the biases", function()
    local model = ms.models.mpt(with {})
    local step = ms.trainer { model = model, optimizer = ms.optim.sgd { lr = 0.1 }, loss = ms.loss.cross_entropy,
      qk_clip = { threshold = 1 } }
    local tokens = ms.tensor({ { 1, 2, 3 } }, { dtype = "i32" })
    has(message(step.step, step, { tokens = tokens, targets = tokens }), "biases (ALiBi)")
  end)
end)
