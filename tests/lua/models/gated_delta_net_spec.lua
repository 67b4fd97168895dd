-- Linear attention by the gated delta rule: the reference library's numbers and gradients of its layer
-- (tests/fixtures/ops/delta_rule.py), with documents in a row too, and what is refused.

local fixture = require("lua.support.fixture")
local gated_delta_net = require("moonshard.models.gated_delta_net")
local has = require("lua.support.message").has
local ms = require("moonshard")

local message = fixture.message
local file = ms.safetensors.open("tests/fixtures/ops/delta_rule.safetensors")

local function stored(name)
  local found = file:tensor(name)
  local x = ms.zeros(found.shape, { dtype = "f32" })
  file:read(name, 0, found.bytes, x.data)
  return x
end

local function numbers(x) return x:reshape(-1):tolist() end

local LENGTH, DIM, START = 70, 8, 9
local KEY_HEADS, HEADS, KEY, VALUE, SIZE = 2, 4, 6, 5, 4
local CONFIG = {
  dim = DIM, eps = 1e-6, linear_num_key_heads = KEY_HEADS, linear_num_value_heads = HEADS, linear_key_head_dim = KEY,
  linear_value_head_dim = VALUE, linear_conv_kernel_dim = SIZE,
}

-- The layer's parameters of those of the reference, whose rows are together by key head, and channels of convolutions
-- below one another.
local function ours(prefix)
  local values, shared = HEADS / KEY_HEADS * VALUE, HEADS / KEY_HEADS
  local function of_heads(name, first, rows)
    local all = stored(prefix .. name)
    local each = all.shape[1] / KEY_HEADS
    return all:reshape(KEY_HEADS, each, DIM):slice(1, first, first + rows):reshape(KEY_HEADS * rows, DIM)
  end
  local function channels(first, count)
    return stored(prefix .. "conv1d.weight"):slice(0, first, first + count):reshape(count, SIZE)
  end
  local keys = KEY_HEADS * KEY
  return {
    ["wq.weight"] = of_heads("in_proj_qkvz.weight", 0, KEY), ["wk.weight"] = of_heads("in_proj_qkvz.weight", KEY, KEY),
    ["wv.weight"] = of_heads("in_proj_qkvz.weight", 2 * KEY, values),
    ["wz.weight"] = of_heads("in_proj_qkvz.weight", 2 * KEY + values, values),
    ["wb.weight"] = of_heads("in_proj_ba.weight", 0, shared),
    ["wa.weight"] = of_heads("in_proj_ba.weight", shared, shared),
    conv_q = channels(0, keys), conv_k = channels(keys, keys), conv_v = channels(2 * keys, HEADS * VALUE),
    a_log = stored(prefix .. "A_log"), dt_bias = stored(prefix .. "dt_bias"),
    ["norm.weight"] = stored(prefix .. "norm.weight"), ["wo.weight"] = stored(prefix .. "out_proj.weight"),
  }
end

local function tokens_of(begins)
  local row = {}
  for i = 1, LENGTH do row[i] = 0 end
  for _, at in ipairs(begins) do row[at + 1] = START end
  return ms.tensor({ row }, { dtype = "i32" })
end

local CASES = { whole = {}, documents = { 0, 2, 3, 66 } }

describe("linear attention by the gated delta rule", function()
  for name, begins in pairs(CASES) do
    it("G3 gives the reference library's numbers and gradients: " .. name, function()
      local config = setmetatable({ document_start = name == "documents" and START or nil }, { __index = CONFIG })
      local tokens, w = tokens_of(begins), stored "w"
      local model = ms.module {
        net = gated_delta_net(config, ms.init.zeros()), moved = ms.parameter { 1, LENGTH, DIM, init = "zeros" },
        forward = function(self, given) return self.net(given + self.moved, tokens) end,
      }
      ms.fully_shard(model)
      for key, value in pairs(ours "") do model:set_parameter("net." .. key, value) end
      local train = ms.trainer {
        model = model, optimizer = ms.optim.sgd { lr = 0 },
        forward = function(net, batch) return (net(batch.inputs) * w):sum() end,
      }
      train:step { inputs = stored "x" }
      fixture.assert_close(numbers(stored(name .. ".y")), numbers(model(stored "x")), 5e-6, "y")
      fixture.assert_close(numbers(stored(name .. ".dx")), numbers(train:gradient("moved")), 2e-5, "dx")
      for key, value in pairs(ours(name .. ".gradient.")) do
        fixture.assert_close(numbers(value), numbers(train:gradient("net." .. key)), 2e-5, key)
      end
    end)
  end

  it("G3 refuses a loss of the state, and gradients through a state before the first position", function()
    local k, v, g = ms.randn(1, 3, 1, 4), ms.randn(1, 3, 1, 2), ms.zeros(1, 3, 1)
    local function trained(loss)
      local model = ms.module { shift = ms.parameter { 4, init = "zeros" }, forward = loss }
      local train = ms.trainer { model = model, optimizer = ms.optim.sgd { lr = 0 },
        forward = function(net, batch) return net(batch.inputs):sum() end }
      return message(train.step, train, { inputs = k })
    end
    has(trained(function(self, x) return ms.ops.apply("gated_delta_rule", { x + self.shift, x, v, g, g })[2] end),
      "gated_delta_rule | output 2")
    local state = ms.zeros(1, 1, 4, 2)
    has(trained(function(self, x) return ms.ops.gated_delta_rule(x + self.shift, x, v, g, g, state) end),
      "gated_delta_rule | state | gradient")
  end)

  it("G3 refuses options of linear attention that make no sense", function()
    local sizes = { vocab = 17, layers = 2, dim = 8, heads = 2, ffn = 12, seq = 8 }
    local function refused(more)
      for key, value in pairs(sizes) do more[key] = value end
      return message(ms.models.decoder, more)
    end
    has(refused { linear_attention = { true, true } }, "linear_attention | linear_num_value_heads")
    has(refused { linear_key_head_dim = 4 }, "linear_key_head_dim | linear_num_value_heads")
    has(refused { linear_num_value_heads = 3, linear_num_key_heads = 2 }, "linear_num_value_heads 3 | 2")
    has(refused { linear_num_value_heads = 2, linear_attention = { true } }, "linear_attention | layer 2 is nil")
    has(refused { attn_output_gate = true, kv_lora_rank = 4, qk_nope_head_dim = 4, qk_rope_head_dim = 2,
      v_head_dim = 4 }, "attn_output_gate | kv_lora_rank")
  end)
end)
