-- The least certainty of each element of parameters so far, of which the sensitivities of optimizers consist: how large
-- what its steps depend on was at least, relative to the largest of the model (root_sensitivity.lua).

local ffi = require("ffi")

local certainty = {}

---Takes over what is lower than before.
---@param least table<string, ffi.cdata*> by parameter: float [numel], 0 before the first value
---@param param moonshard.Param
---@param now fun(e: integer): number? of an element in the last step; nil: it has not moved
function certainty.lower(least, param, now)
  local values = least[param.fqn] or ffi.new("float[?]", param.numel)
  for e = 0, param.numel - 1 do
    local value = now(e)
    if value and (values[e] == 0 or value < values[e]) then values[e] = value end
  end
  least[param.fqn] = values
end

---Those of every element of a parameter.
---@param least table<string, ffi.cdata*>
---@param param moonshard.Param
---@param never number of an element that has not moved
---@return string bytes f32 [numel]
function certainty.bytes(least, param, never)
  local bytes, values = ffi.new("float[?]", param.numel), least[param.fqn]
  for e = 0, param.numel - 1 do bytes[e] = values and values[e] > 0 and values[e] or never end
  return ffi.string(bytes, 4 * param.numel)
end

return certainty
