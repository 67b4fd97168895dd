-- A function that consists of ops, under a name of its own: what its ops refuse says what the user has called, not only
-- the op inside of it.

local context = require("moonshard.base.context")
local errors = require("moonshard.base.error")

local function eager(name, ok, ...)
  if ok then return ... end
  local raised = ...
  if errors.is(raised) then raised.path = raised.path or name end
  error(raised, 0)
end

local function traced(trace, path, ...)
  trace:enter(path)
  return ...
end

---Calls f. In a trace the name ends the scope of its ops; outside, it is the path of an error.
---@param name string what the user calls: "one_hot"
---@param f function
---@param ... any its arguments
---@return any ... its results
return function(name, f, ...)
  local trace, path = context.trace, context.path
  if not trace then return eager(name, pcall(f, ...)) end
  trace:enter(path == "" and name or path .. "." .. name)
  return traced(trace, path, f(...))
end
