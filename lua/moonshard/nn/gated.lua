-- What a gated MLP makes of the products of its first two matrices, by the name of its activation: act(gate) up, and
-- gpt-oss's swiglu_oai, which is (up + 1) gate sigmoid(1.702 gate) of a gate of at most 7 and an up of -7 to 7.

local ops = require("moonshard.tensor.ops")

local SLOPE, LIMIT = 1.702, 7

local function by_op(name)
  return function(gate, up) return ops[name](gate) * up end
end

local function swiglu_oai(gate, up)
  gate, up = ops.clamp(gate, { max = LIMIT }), ops.clamp(up, { min = -LIMIT, max = LIMIT })
  return (up + 1) * (gate * ops.sigmoid(gate * SLOPE))
end

---@type table<string, fun(gate: moonshard.Tensor, up: moonshard.Tensor): moonshard.Tensor>
return {
  silu = ops.swiglu, gelu = by_op("gelu"), gelu_tanh = by_op("gelu_tanh"), relu = by_op("relu"),
  swiglu_oai = swiglu_oai,
}
