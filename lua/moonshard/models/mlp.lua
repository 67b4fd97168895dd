-- The two-layer MLP of GPT-2, BERT and vision transformers. Its names, fc1 and fc2, are those of rules for tensor
-- parallelism (ms.rules.tensor_parallel).

local module = require("moonshard.nn.module")
local nn = require("moonshard.nn")
local ops = require("moonshard.tensor.ops")

local MLP = module.define("MLP")

---The activations that it can have, by name.
local ACTIVATIONS = { relu = true, gelu = true, gelu_tanh = true, silu = true }

function MLP:init(config, first, second)
  self.fc1 = nn.linear({ config.dim, config.ffn, bias = config.bias ~= false, init = first })
  self.fc2 = nn.linear({ config.ffn, config.dim, bias = config.bias ~= false, init = second })
  self.activation = ops[config.activation]
end

-- x [...,dim] -> [...,dim]
function MLP:forward(x)
  return self.fc2(self.activation(self.fc1(x)))
end

return {
  ACTIVATIONS = ACTIVATIONS,
  ---@param config { dim: integer, ffn: integer, activation: string, bias: boolean? } biases: default true
  ---@param first moonshard.Initializer|string of the first layer's weight
  ---@param second moonshard.Initializer|string of the second layer's
  ---@return moonshard.Module
  new = function(config, first, second) return MLP(config, first, second) end,
}
