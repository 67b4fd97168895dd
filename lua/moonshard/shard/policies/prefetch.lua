-- How far ahead of its use each unit is gathered, by rule:
--
--   prefetch = 2                                              while a unit runs, the next two are gathered
--   prefetch = { { re[[^layers\.0$]], 3 }, { re[[.*]], 1 } }  three while layers.0 runs
--   prefetch = { { "layers.0", { forward = { "layers.2", "layers.1" }, backward = {} } } }
--
-- The last form names the units that are gathered when this one starts, in that order (like PyTorch's
-- set_modules_to_forward_prefetch); a list of names alone applies to forward.

local engine = require("moonshard.base.ffi")
local errors = require("moonshard.base.error")
local nearest = require("moonshard.base.names.nearest")
local options = require("moonshard.base.checks.options")
local C, ffi = engine.C, engine.ffi

local prefetch = {}

---@class moonshard.Prefetch
---@field depth integer? units gathered ahead; nil: the trainer's option
---@field forward string[]? names of units to gather, instead of a depth
---@field backward string[]?

local function check_names(list, names, rule)
  if list == nil then return nil end
  if type(list) ~= "table" then
    errors.invalid("prefetch: %s must list names of units, not %s", rule, options.describe(list))
  end
  for _, name in ipairs(list) do
    if not names[name] then
      errors.raise("MS_ENAME", "prefetch: %s names an unknown unit %s: %s", rule, tostring(name),
        nearest.advice(tostring(name), names))
    end
  end
  return list
end

---Reads the values of rules: a depth, a list of units, or lists by direction.
---@param names table<string, boolean> of units
---@return fun(value: any, rule: string): moonshard.Prefetch
function prefetch.reader(names)
  return function(value, rule)
    if type(value) == "number" then
      if value < 0 or value % 1 ~= 0 then
        errors.invalid("prefetch: %s must be 0 or more units, not %s", rule, tostring(value))
      end
      return { depth = value }
    end
    if type(value) ~= "table" then
      errors.invalid("prefetch: %s must be a number of units or lists of their names, not %s", rule,
        options.describe(value))
    end
    local lists = value
    if value[1] ~= nil or next(value) == nil then lists = { forward = value } end
    options.parse("prefetch: " .. rule, lists, { forward = { "table" }, backward = { "table" } })
    return { forward = check_names(lists.forward, names, rule), backward = check_names(lists.backward, names, rule) }
  end
end

local function set_ahead(handle, unit, backward, list, depth, indices)
  local units = list and ffi.new("int[?]", #list + 1) or nil
  for i, name in ipairs(list or {}) do units[i - 1] = indices[name] end
  engine.check(C.ms_model_set_prefetch(handle, unit, backward, list and #list or depth or -1, units))
end

---Sets the prefetch decisions in the engine's model, for plans compiled from now on.
---@param sharding moonshard.Sharding
---@param handle ffi.cdata* ms_model*
---@param decisions table<string, moonshard.Decision> by unit
function prefetch.set(sharding, handle, decisions)
  local indices = {}
  for i, unit in ipairs(sharding.units) do indices[unit.name] = i - 1 end
  for i, unit in ipairs(sharding.units) do
    local value = decisions[unit.name].value or {}
    set_ahead(handle, i - 1, 0, value.forward, value.depth, indices)
    set_ahead(handle, i - 1, 1, value.backward, value.depth, indices)
  end
end

---A decision as text.
---@param value moonshard.Prefetch?
---@return string
function prefetch.describe(value)
  if not value then return "default" end
  if value.depth then return tostring(value.depth) end
  local function list(name)
    return value[name] and ("%s {%s}"):format(name, table.concat(value[name], ", ")) or nil
  end
  local parts = {}
  for _, name in ipairs({ "forward", "backward" }) do parts[#parts + 1] = list(name) end
  return table.concat(parts, " ")
end

return prefetch
