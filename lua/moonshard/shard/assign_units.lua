-- The units of a sharding with their parameters: the roots that the rules of `units` find, and the root unit with what
-- remains.

local errors = require("moonshard.base.error")
local sealed = require("moonshard.base.checks.sealed")
local units = require("moonshard.shard.units")

local function new_unit(name, modules, decision)
  return { name = name, module = modules[1], modules = modules, params = {}, rule = decision }
end

---Makes the units of a sharding and gives each parameter to one.
---@param self moonshard.Sharding receives units, params, index and tied, and the decisions of `units`
---@param inventory moonshard.Inventory
---@param list table? the option `units`
return function(self, inventory, list)
  local roots, by_module, warnings, unmatched = units.find_roots(inventory, list)
  self.unmatched.units = unmatched
  for _, warning in ipairs(warnings) do table.insert(self.warnings, warning) end
  local root_unit = new_unit(units.ROOT, { self.model })
  local made, by_root = { root_unit }, {}
  self.decisions.units = {}
  for _, root in ipairs(roots) do
    if root.name == units.ROOT then
      errors.raise("MS_ENAME", "units: a module named root cannot be a unit: root is the unit of the rest")
    end
    local unit = new_unit(root.name, root.modules, root.decision)
    by_root[root] = unit
    made[#made + 1] = unit
    self.decisions.units[root.name] = root.decision
  end
  for _, entry in ipairs(inventory.parameters) do
    local root = units.of_parameter(inventory, by_module, entry)
    local unit = root and by_root[root] or root_unit
    local parameter = entry.parameter
    sealed.check("ms.fully_shard", parameter)
    local param = { fqn = entry.name, parameter = parameter, shape = parameter.shape, numel = parameter.numel,
      unit = unit, init = parameter.init }
    table.insert(unit.params, param)
    table.insert(self.params, param)
    self.index[parameter] = #self.params - 1
    for _, place in ipairs(entry.places) do
      if place.name ~= entry.name then self.tied[place.name] = entry.name end
    end
  end
  -- A unit without parameters has nothing to gather.
  for _, unit in ipairs(made) do
    if #unit.params > 0 then self.units[#self.units + 1] = unit end
  end
end
