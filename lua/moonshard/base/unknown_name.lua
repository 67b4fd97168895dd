-- Errors about a name that is not there: a field of ms, ms.nn and the like, which would otherwise be a nil that is
-- called or left out of a list, and a method that a recipe calls.

local advice = require("moonshard.base.advice")
local errors = require("moonshard.base.error")

local unknown_name = {}

---Raises that a field is not there.
---@param holder string "ms.nn"
---@param name any
---@param valid table<string, any> keys: the names that are there
function unknown_name.raise(holder, name, valid)
  name = tostring(name)
  errors.raise("MS_ENAME", "%s.%s does not exist: %s", holder, name, advice.for_field(name, valid))
end

---Raises that a method is not there, with those whose names are nearest.
---@param holder string "a tensor"
---@param name string
---@param valid table<string, any> keys: the methods that are there
function unknown_name.method(holder, name, valid)
  errors.raise("MS_ENAME", "%s has no method %s: %s", holder, name, advice.for_method(name, valid))
end

---Makes reading a field that is not there an error.
---@generic T: table
---@param holder string "ms.nn"
---@param fields T
---@return T fields
function unknown_name.strict(holder, fields)
  return setmetatable(fields, { __index = function(_, name) unknown_name.raise(holder, name, fields) end })
end

return unknown_name
