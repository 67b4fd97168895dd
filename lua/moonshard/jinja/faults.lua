-- What is wrong with a template, or with what it does to the values that it is given: raised deep inside, where the
-- line of the template is not known, and turned into an error of the layer where the template was called.

local errors = require("moonshard.base.error")

local faults = {}

---@class moonshard.jinja.Fault
---@field status string
---@field message string
---@field line integer? of the template; nil: the line that is being evaluated
local Fault = {}
Fault.__index = Fault

---Raises a fault of the template.
---@param format string
---@param ... any arguments of string.format
function faults.raise(format, ...)
  error(setmetatable({ status = "MS_EINVAL", message = errors.format(format, ...) }, Fault), 0)
end

---Raises a fault at a line that is known, as the parser's.
---@param line integer
---@param format string
---@param ... any
function faults.at(line, format, ...)
  error(setmetatable({ status = "MS_EINVAL", message = errors.format(format, ...), line = line }, Fault), 0)
end

---Raises for what Jinja has and this interpreter has not.
---@param format string
---@param ... any
function faults.unsupported(format, ...)
  error(setmetatable({ status = "MS_EUNSUPPORTED", message = errors.format(format, ...) }, Fault), 0)
end

---Calls a function, and raises its fault as an error: "NAME:12: what is wrong".
---@param name string of the template, for messages
---@param place { line: integer, where: string? } the line that is being read or evaluated; and what the template writes
---@param call fun(...): any
---@param ... any its arguments
---@return any ... what the function returns
function faults.translate(name, place, call, ...)
  local results = { pcall(call, ...) }
  if results[1] then return unpack(results, 2, table.maxn(results)) end
  local fault = results[2]
  if getmetatable(fault) ~= Fault then error(fault, 0) end
  errors.raise(fault.status, "%s%s:%d: %s", place.where and place.where .. ": the template " or "", name,
    fault.line or place.line, fault.message)
end

return faults
