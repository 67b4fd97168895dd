-- Units: groups of modules that are gathered together, and the unit of each parameter. A parameter belongs to the
-- innermost enclosing module that is the root of a unit; the remaining ones belong to the root unit, named "root".
--
--   units = { re[[^layers\.\d+$]] }        every module that matches the pattern
--   units = { "head", "layers" }           a string: that module, or the outermost modules below that name
--   units = { { "embed", "head" } }        a group: one unit of several modules, named after the first

local errors = require("moonshard.base.error")
local re = require("moonshard.base.re")
local rules = require("moonshard.shard.rules")

local units = {}

units.ROOT = "root"

---@class moonshard.UnitRoots
---@field name string
---@field modules moonshard.Module[] the root modules; a group has several
---@field decision moonshard.Decision? the rule that selected it

-- A group is a list of two or more patterns; a rule with a value has a boolean as its second element.
local function is_group(entry)
  return type(entry) == "table" and not re.is(entry) and (re.is(entry[2]) or type(entry[2]) == "string")
end

local function read_value(value, rule)
  if type(value) == "boolean" then return value end
  errors.raise("MS_ERULE", "units: %s has the value %s: true makes a unit, false does not", rule, tostring(value))
end

-- Converts the list to a policy: each pattern of a group becomes a rule.
local function read_policy(list)
  rules.check_names("units", list)
  local flat, group_of = {}, {}
  for _, entry in ipairs(list) do
    if is_group(entry) then
      local group = {}
      for _, pattern in ipairs(entry) do
        flat[#flat + 1] = { pattern, true, optional = entry.optional, where = entry.where }
        group_of[#flat] = group
      end
    else
      flat[#flat + 1] = entry
    end
  end
  return rules.policy("units", flat, { bare_value = true, read = read_value }), group_of
end

-- A string selects the outermost modules at or below its name: "layers" means layers.0 but not layers.0.attn.
local function is_inner_match(modules, rule_of, i)
  local up = modules[i].parent
  while up do
    if rule_of[up] == rule_of[i] then return true end
    up = modules[up].parent
  end
  return false
end

---Finds the roots of units.
---@param inventory moonshard.Inventory
---@param list table? the option `units`; nil: everything is one unit
---@return moonshard.UnitRoots[] roots in the order of modules, without the root unit
---@return table<integer, moonshard.UnitRoots> by_module by index of the root module
---@return string[] warnings
---@return moonshard.Rule[] unmatched optional rules that match no module
function units.find_roots(inventory, list)
  local roots, by_module = {}, {}
  if list == nil then return roots, by_module, {}, {} end
  if type(list) ~= "table" or re.is(list) then
    errors.raise("MS_ERULE", "units: write a list of patterns, as in { re[[^layers\\.\\d+$]] }")
  end
  local policy, group_of = read_policy(list)
  local modules, names = inventory.modules, {}
  -- The model itself, modules[1], has no name: it is the root unit.
  for i = 2, #modules do names[i - 1] = modules[i].name end
  local decisions, warnings, unmatched = policy:resolve(names, false)
  local rule_of = {}
  for i = 2, #modules do rule_of[i] = policy.rules[decisions[i - 1].rule] end

  local grouped = {}
  for i = 2, #modules do
    local decision, rule = decisions[i - 1], rule_of[i]
    if decision.value and (rule.is_regex or not is_inner_match(modules, rule_of, i)) then
      local group = group_of[decision.rule]
      local root = group and grouped[group]
      if not root then
        root = { name = modules[i].name, modules = {}, decision = decision }
        roots[#roots + 1] = root
        if group then grouped[group] = root end
      end
      table.insert(root.modules, modules[i].module)
      by_module[i] = root
    end
  end
  return roots, by_module, warnings, unmatched
end

local function unit_around(inventory, by_module, owner)
  while owner do
    if by_module[owner] then return by_module[owner] end
    owner = inventory.modules[owner].parent
  end
end

---The unit of a parameter; nil for the root unit. Raises if a tied parameter would belong to two units.
---@param inventory moonshard.Inventory
---@param by_module table<integer, moonshard.UnitRoots>
---@param entry moonshard.NamedParameter
---@return moonshard.UnitRoots?
function units.of_parameter(inventory, by_module, entry)
  local claimed, claimed_as
  for _, place in ipairs(entry.places) do
    local unit = unit_around(inventory, by_module, place.owner)
    if unit and claimed and unit ~= claimed then
      errors.raise("MS_ERULE", "units: parameter %s, also named %s, belongs to two units, %s and %s: make them one "
        .. "with the group units = { { %q, %q }, ... }, or leave both to the root unit", claimed_as, place.name,
        claimed.name, unit.name, claimed.name, unit.name)
    end
    if unit and not claimed then claimed, claimed_as = unit, place.name end
  end
  return claimed
end

return units
