-- Gathered activations by rule: chooses the modules for which backward gathers again, from the ranks of the mesh
-- dimension `tensor` or `context`, what forward gathered, instead of keeping it (runtime/graph/rewrite/regather.c).
--
--   regather = { { re[[^layers\.\d+$]], true } }
--
-- A value holds for a call of the module and of its submodules, unless a rule gives them another one. Without a rule,
-- backward gathers again if each rank would keep its own copy: on GPUs, and if a group spans hosts. On the CPU, ranks
-- of one host share one copy, so keeping it takes no more memory than the parts.

local engine = require("moonshard.base.ffi")
local errors = require("moonshard.base.error")
local options = require("moonshard.base.checks.options")
local C = engine.C

local regather = {}

---@alias moonshard.Regather "always"|"never"|"default"

---@type moonshard.Regather
regather.DEFAULT = "default"

local VALUES = {
  always = C.MS_REGATHER_ALWAYS, never = C.MS_REGATHER_NEVER, default = C.MS_REGATHER_DEFAULT,
}

---Parses the value of a rule: true or "always", false or "never", or "default".
---@param value any
---@param rule string for messages
---@return moonshard.Regather
function regather.read(value, rule)
  if value == true then return "always" end
  if value == false then return "never" end
  if not VALUES[value] then
    errors.invalid("regather: %s must be true (\"always\"), false (\"never\") or \"default\", not %s", rule,
      options.describe(value))
  end
  return value
end

---@param trace moonshard.Trace
---@param value moonshard.Regather
function regather.set(trace, value)
  if trace.regathers == value then return end
  trace.regathers = value
  engine.check(C.ms_graph_set_regather(trace.handle, VALUES[value]))
end

---Enters a module; returns the value that held before.
---@param trace moonshard.Trace
---@param decision moonshard.Regather? nil: no rule matches the module
---@return moonshard.Regather before
function regather.enter(trace, decision)
  local before = trace.regathers
  if decision then regather.set(trace, decision) end
  return before
end

return regather
