-- Constants of traces that are computed once, such as the weights of an interpolation or the sines of positions. Equal
-- ones are one tensor while anything uses it, so that the layers of a model share it.

local eager_values = require("moonshard.tensor.values")

local constants = {}

local made = setmetatable({}, { __mode = "v" })

---@param key string says all that the elements depend on
---@param shape integer[]
---@param fill fun(data: ffi.cdata*) writes the elements: float *
---@return moonshard.Tensor f32
function constants.get(key, shape, fill)
  local values = made[key] or eager_values.make("f32", shape, fill)
  made[key] = values
  return values
end

return constants
