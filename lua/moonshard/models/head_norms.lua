-- Norms of queries or keys with weights of each head, as in Command R+ and StableLM 2 12B: each head is normalised over
-- its own width, and multiplied by its own row of the weight. They have no biases.

local constants = require("moonshard.tensor.constants")
local module = require("moonshard.nn.module")
local ops = require("moonshard.tensor.ops")
local parameter = require("moonshard.tensor.parameter")
local shared = require("moonshard.nn.layer")

local HeadNorms = module.define("HeadNorms")

function HeadNorms:init(config, heads)
  self._eps, self._layer_norm = config.eps, config.layer_norm
  self.weight = parameter.new({ heads, config.head_dim, init = "ones" })
end

-- A vector of the same number, of which the op multiplies all heads by one.
local function filled(value, width, dtype)
  return constants.get(("filled %d %d"):format(value, width), { width }, function(data)
    for i = 0, width - 1 do data[i] = value end
  end):cast(dtype)
end

-- x [B,T,heads,head_dim] -> the same
function HeadNorms:forward(x)
  local weight, width, attributes = shared.value_of(self, "weight"), x.shape[4], { eps = self._eps }
  local dtype = weight.dtype
  if dtype ~= "f32" then x = shared.in_dtype_of(weight, x) end
  local ones = filled(1, width, dtype)
  if not self._layer_norm then return ops.rms_norm(x, ones, attributes) * weight end
  return ops.layer_norm(x, ones, filled(0, width, dtype), attributes) * weight
end

function HeadNorms:describe() return ("%d heads of %d"):format(unpack(self.weight.shape)) end

return HeadNorms
