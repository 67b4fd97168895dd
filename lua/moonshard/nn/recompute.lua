-- Activation checkpointing by rule: chooses the modules whose activations backward recomputes instead of keeping.
--
--   recompute = { { re[[^layers\.\d+$]], true } }                     a block keeps only its input
--   recompute = { { re[[^layers\.\d+$]], { "gelu", "layer_norm" } } } recomputes only the outputs of these ops
--
-- Each call of a chosen module is a region of the graph (runtime/graph/rewrite/recompute.c). Submodules belong to the
-- region, unless a rule gives them false; a list of ops for a submodule applies within it.

local engine = require("moonshard.base.ffi")
local errors = require("moonshard.base.error")
local nearest = require("moonshard.base.names.nearest")
local options = require("moonshard.base.checks.options")
local C, ffi = engine.C, engine.ffi

local recompute = {}

---@class moonshard.Recompute
---@field on boolean
---@field ops string? names of ops, separated by spaces; nil: every op

local function op_names()
  local names, info = {}, ffi.new("ms_op_info")
  for op = 0, C.ms_op_count() - 1 do
    engine.check(C.ms_op_describe(op, info, ffi.sizeof(info)))
    if info.internal == 0 then names[ffi.string(info.name)] = true end
  end
  return names
end

---Whether a value is a list of op names rather than a list of rules, which are tables.
---@param value any
---@return boolean
function recompute.is_op_list(value)
  if type(value) ~= "table" or #value == 0 then return false end
  for _, name in ipairs(value) do
    if type(name) ~= "string" then return false end
  end
  return true
end

---Parses the value of a rule: true or "all", false or "none", or a list of op names.
---@param value any
---@param rule string
---@return moonshard.Recompute
function recompute.read(value, rule)
  if value == true or value == "all" then return { on = true } end
  if value == false or value == "none" then return { on = false } end
  if type(value) ~= "table" or #value == 0 then
    errors.invalid("recompute: %s must be true, false or a list of ops such as { \"gelu\" }, not %s", rule,
      options.describe(value))
  end
  local known = op_names()
  for _, name in ipairs(value) do
    if not known[name] then
      errors.raise("MS_ENAME", "recompute: %s names an unknown op %s: %s", rule, tostring(name),
        nearest.advice(tostring(name), known))
    end
  end
  return { on = true, ops = table.concat(value, " ") }
end

---The current region of a trace.
---@class moonshard.Region
---@field id integer 0: none
---@field ops string?

local NONE = { id = 0 }

---@param trace moonshard.Trace
---@param region moonshard.Region
local function set(trace, region)
  if trace.region == region then return end
  trace.region = region
  engine.check(C.ms_graph_set_recompute(trace.handle, region.id, region.ops))
end

---The region outside of all modules.
---@return moonshard.Region
function recompute.none()
  return NONE
end

---Enters the region that a module's rule requires; returns the previous region.
---@param trace moonshard.Trace
---@param decision moonshard.Recompute? nil: no rule matches the module
---@return moonshard.Region before
function recompute.enter(trace, decision)
  local before = trace.region
  if not decision then return before end
  if not decision.on then
    set(trace, NONE)
  elseif before.id == 0 then
    trace.regions = trace.regions + 1
    set(trace, { id = trace.regions, ops = decision.ops })
  elseif before.ops ~= decision.ops then
    set(trace, { id = before.id, ops = decision.ops })
  end
  return before
end

recompute.leave = set

return recompute
