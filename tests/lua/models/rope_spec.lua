-- Rotary positions of decoders: frequencies of pairs as the reference library computes them, what the op rotates with
-- them, and sequences that are longer than the original training's.

local has = require("lua.support.message").has
local message = require("lua.support.fixture").message
local ms = require("moonshard")
local rope = require("moonshard.models.rope")

-- Frequencies of 8 pairs, and the factor of queries and keys, by version 4.57.6 of the reference library
-- (ROPE_INIT_FUNCTIONS): lists of Qwen, DeepSeek and gpt-oss among them.
local CASES = {
  { theta = 1e6, scaling = { type = "yarn", factor = 4, original_max_position_embeddings = 32768 },
    grows = 1.13862944, 1, 0.177827939, 0.0316227786, 0.00421755994, 0.000500000024, 4.44569851e-05, 7.90569356e-06,
    1.40585337e-06 },
  { theta = 10000, scaling = { type = "yarn", factor = 40, beta_fast = 32, beta_slow = 1, mscale = 0.707,
    mscale_all_dim = 1, original_max_position_embeddings = 4096 }, grows = 0.921042355, 1, 0.316227764, 0.100000001,
    0.0239147246, 0.00512499968, 0.000849862176, 2.49999994e-05, 7.90569447e-06 },
  { theta = 150000, scaling = { type = "yarn", factor = 32, truncate = false,
    original_max_position_embeddings = 4096 }, grows = 1.34657359, 1, 0.225418001, 0.0508132726, 0.00679495931,
    0.000456483918, 1.8188337e-05, 4.09997847e-06, 9.24208962e-07 },
  { theta = 100, scaling = { type = "yarn", factor = 4, attention_factor = 1.3,
    original_max_position_embeddings = 16 }, grows = 1.3, 1, 0.351463318, 0.079056941, 0.0444569848, 0.0250000004,
    0.0140585322, 0.00790569466, 0.00444569858 },
  { theta = 10000, scaling = { type = "dynamic", factor = 3 }, grows = 1, 1, 0.316227764, 0.100000001, 0.0316227786,
    0.00999999978, 0.00316227786, 0.00100000005, 0.000316227786 },
  { theta = 10000, scaling = { type = "linear", factor = 3 }, grows = 1, 0.333333343, 0.105409257, 0.0333333351,
    0.0105409259, 0.00333333318, 0.00105409266, 0.000333333359, 0.000105409265 },
}
local LONG = {
  type = "longrope", short_factor = { 1, 1.25, 1.5, 1.75, 2, 2.25, 2.5, 2.75 },
  long_factor = { 1, 2, 4, 8, 16, 32, 48, 64 }, original_max_position_embeddings = 4096,
}
CASES[#CASES + 1] = { theta = 10000, scaling = LONG, grows = 1.19023807, 1, 0.252982229, 0.0666666701, 0.0180701576,
  0.00499999989, 0.0014054568, 0.00039999999, 0.000114991912 }
CASES[#CASES + 1] = { theta = 10000, scaling = LONG, is_long = true, grows = 1.19023807, 1, 0.158113882, 0.0250000004,
  0.00395284733, 0.000624999986, 9.88211832e-05, 2.08333331e-05, 4.94105916e-06 }

local function near(expected, found, what)
  assert.is_true(math.abs(found - expected) <= 2.5e-7 * math.abs(expected),
    ("%s: %.9g instead of %.9g"):format(what, found, expected))
end

describe("rotary positions", function()
  it("G1 have the frequencies of the reference library, for every type", function()
    for i, case in ipairs(CASES) do
      -- A part of a head, so that the table is made for every type.
      local config = { rotary_dim = 16, head_dim = 32, seq = 131072, rope_scaling = case.scaling }
      local turns = rope.rotation(config, case.theta, case.scaling, case.is_long or false).turns
      assert.same({ 2, 8 }, { turns.shape[1], turns.shape[2] })
      for p, expected in ipairs(case) do
        near(expected, turns.data[p - 1], ("case %d, pair %d"):format(i, p))
        near(case.grows, turns.data[8 + p - 1], ("case %d, factor of pair %d"):format(i, p))
      end
    end
  end)

  it("G1 turn the same pairs by a table and by the op's own frequencies", function()
    local x = ms.randn(2, 5, 3, 8)
    local whole = { head_dim = 8, seq = 16, rope_interleaved = false }
    for _, scaling in ipairs({ false, { type = "linear", factor = 3 },
      { factor = 8, low_freq_factor = 1, high_freq_factor = 4, original_max_position_embeddings = 16 } }) do
      for _, interleaved in ipairs({ false, true }) do
        whole.rope_interleaved = interleaved
        local own = rope.rotate(x, rope.rotation(whole, 100, scaling, false))
        local part = rope.rotation({ head_dim = 16, rotary_dim = 8, seq = 16, rope_interleaved = interleaved }, 100,
          scaling, false)
        local given = rope.rotate(ms.ops.concat(x, x * 2, { axis = -1 }), part)
        local rotated, rest = given:slice(-1, 0, 8), given:slice(-1, 8, 16)
        assert.is_true((rotated - own):abs():max({ all = 1 }):item() < 1e-5)
        assert.same((x * 2):tolist(), rest:tolist()) -- the rest of each head stays
      end
    end
  end)

  it("G1 of longrope are others for sequences above the original length", function()
    local model = ms.models.decoder {
      vocab = 17, layers = 1, dim = 8, heads = 2, ffn = 12, seq = 16, attention_scale = 1000, rope_scaling = {
        type = "longrope", short_factor = { 1, 1 }, long_factor = { 1, 30 }, original_max_position_embeddings = 4,
      },
    }
    local function last(tokens) return model(ms.tensor({ tokens }, { dtype = "i32" })):tolist()[1][3] end
    local short, long = last { 1, 2, 3, 4 }, last { 1, 2, 3, 4, 5 }
    local function difference(a, b)
      local most = 0
      for i in ipairs(a) do most = math.max(most, math.abs(a[i] - b[i])) end
      return most
    end
    assert.is_true(difference(short, long) > 1e-5)
    assert.is_true(difference(short, last { 1, 2, 3 }) < 1e-6)
    assert.is_true(difference(long, last { 1, 2, 3, 4, 6, 7 }) < 1e-6)
    has(message(model, ms.tensor({ { 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 1 } },
      { dtype = "i32" })), "17 tokens | seq=16")
  end)
end)
