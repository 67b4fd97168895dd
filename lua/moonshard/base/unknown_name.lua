-- Errors about unknown names: a field of ms, ms.nn and others, which would otherwise be a nil that is called or dropped
-- from a list, and a method that a recipe calls.

local advice = require("moonshard.base.advice")
local errors = require("moonshard.base.error")

local unknown_name = {}

---Raises that a field does not exist.
---@param holder string "ms.nn"
---@param name any
---@param valid table<string, any> keys: the names that exist
function unknown_name.raise(holder, name, valid)
  name = tostring(name)
  errors.raise("MS_ENAME", "%s.%s does not exist: %s", holder, name, advice.for_field(name, valid))
end

---Raises that a method does not exist, with the nearest names.
---@param holder string "a tensor"
---@param name string
---@param valid table<string, any> keys: the methods that exist
function unknown_name.method(holder, name, valid)
  errors.raise("MS_ENAME", "%s has no method %s: %s", holder, name, advice.for_method(name, valid))
end

---Makes reading an unknown field an error.
---@generic T: table
---@param holder string "ms.nn"
---@param fields T
---@return T fields
function unknown_name.strict(holder, fields)
  return setmetatable(fields, { __index = function(_, name) unknown_name.raise(holder, name, fields) end })
end

return unknown_name
