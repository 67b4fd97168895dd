-- Every decision of every policy as a row: name, value, rule, and cost.

local dtypes = require("moonshard.base.dtypes")
local plan_costs = require("moonshard.explain.plan_costs")
local prefetch = require("moonshard.shard.prefetch")
local rules = require("moonshard.shard.rules")
local units = require("moonshard.shard.units")

local decisions = {}

---The policies in display order.
decisions.POLICIES = {
  "units", "reshard_after_forward", "mp_policy", "layout", "prefetch", "recompute", "freeze", "param_dtype",
  "optimizer groups",
}

---@class moonshard.Explained
---@field name string unit, module or parameter
---@field text string the value
---@field value any the value in JSON
---@field rule moonshard.Decision? nil: the default
---@field gathered number bytes that this rank receives for it per step
---@field reduced number? bytes reduced over ranks for it per step
---@field kept table<string, number> bytes by category
---@field in_turn boolean? rows of the policy keep their bytes at different times, so a sum of rows is their maximum

local function row(name, text, value, decision, cost)
  local rule = decision and (decision.rule or decision.where) and decision or nil
  cost = cost or {}
  return { name = name, text = text, value = value, rule = rule, gathered = cost.gathered or 0, reduced = cost.reduced,
    kept = cost.kept or {} }
end

local function of_units(self, costs)
  local rows = {}
  for i, unit in ipairs(self.units) do
    local cost, count = costs[i], #unit.params
    rows[i] = row(unit.name, count == 1 and "1 parameter" or count .. " parameters", count,
      self.decisions.units[unit.name], { gathered = cost.gathered,
        kept = { parameters = cost.parameters, gradients = cost.gradients, optimizer = cost.optimizer } })
  end
  return rows
end

local function of_reshard(self, costs)
  local rows, default_kept = {}, "default: never"
  if self.is_stage then default_kept = "default: never, in a pipeline" end
  for i, unit in ipairs(self.units) do
    local decision, cost = self.decisions.reshard_after_forward[unit.name], costs[i]
    local text = tostring(decision.value)
    if text == "default" and cost.gathers > 0 then text = cost.again > 0 and "default: always" or default_kept end
    rows[i] = row(unit.name, text, decision.value, decision, { gathered = cost.again, kept = { gathered = cost.kept } })
  end
  return rows
end

local function of_precision(self, costs)
  local rows = {}
  for i, unit in ipairs(self.units) do
    local decision = self.decisions.mp_policy[unit.name]
    local value = decision.value
    local text = ("params %s, reduce %s"):format(value.param_dtype, value.reduce_dtype)
    if value.output_dtype then text = text .. ", output " .. value.output_dtype end
    rows[i] = row(unit.name, text, value, decision, { gathered = costs[i].gathered, reduced = costs[i].reduced,
      kept = { gathered = costs[i].kept } })
  end
  return rows
end

local function of_layout(self, costs)
  local rows = {}
  for i, unit in ipairs(self.units) do
    rows[i] = row(unit.name, unit.layout, unit.layout, self.decisions.layout[unit.name],
      { gathered = costs[i].gathered, kept = { parameters = costs[i].parameters } })
  end
  return rows
end

local function of_prefetch(self, costs)
  local rows = {}
  for i, unit in ipairs(self.units) do
    local decision = self.decisions.prefetch[unit.name]
    rows[i] = row(unit.name, prefetch.describe(decision.value), decision.value or "default", decision,
      { kept = { gathered = costs[i].ahead } })
    rows[i].in_turn = true
  end
  return rows
end

-- Modules that a rule matches, and modules that are units.
local function of_recompute(self, plan, order)
  local rows, is_unit = {}, {}
  for _, unit in ipairs(self.units) do
    for _, root in ipairs(unit.name ~= units.ROOT and unit.modules or {}) do is_unit[root] = true end
  end
  for _, entry in ipairs(order) do
    local decision = self.decisions.recompute[entry.name]
    if decision and (decision.rule or decision.where or is_unit[entry.module]) then
      local value = decision.value
      local text = not value and "default: no" or not value.on and "no" or value.ops or "all"
      rows[#rows + 1] = row(entry.name, text, value and value.on and (value.ops or true) or false, decision,
        { kept = { activations = plan_costs.activations(plan, entry.name) } })
    end
  end
  return rows
end

-- A parameter's share of its unit's cost: received bytes in proportion to the bytes that kernels read, state by
-- elements.
local function costs_of_parameters(self, costs, handle)
  local by_param, unit_cost, read = {}, {}, {}
  for i, unit in ipairs(self.units) do unit_cost[unit], read[unit] = costs[i], 0 end
  local function read_bytes(param) return param.numel * dtypes.sizes[param.dtype or param.unit.param_dtype] end
  for _, param in ipairs(self.params) do read[param.unit] = read[param.unit] + read_bytes(param) end
  for i, param in ipairs(self.params) do
    local cost, owned = unit_cost[param.unit], plan_costs.owned(handle, i - 1)
    local states = cost.gradients > 0 and cost.optimizer / cost.gradients or 0
    by_param[param] = {
      gathered = math.floor(cost.gathered * read_bytes(param) / read[param.unit] + 0.5),
      gradients = param.frozen and 0 or 4 * owned, optimizer = param.frozen and 0 or 4 * owned * states,
    }
  end
  return by_param
end

local function of_parameters(self, costs, handle, optimizer)
  local freeze, types, groups, fqns = {}, {}, {}, {}
  local by_param = costs_of_parameters(self, costs, handle)
  for i, param in ipairs(self.params) do fqns[i] = param.fqn end
  local settings, decided, warnings, unmatched = optimizer:param_groups(fqns), optimizer:decide(fqns)
  for i, param in ipairs(self.params) do
    local cost, name, group = by_param[param], param.fqn, settings[param.fqn]
    freeze[i] = row(name, param.frozen and "frozen" or "trainable", param.frozen == true, self.decisions.freeze[name],
      { kept = { gradients = cost.gradients, optimizer = cost.optimizer } })
    local dtype = self.decisions.param_dtype[name]
    types[i] = row(name, dtype.value or "default: " .. param.unit.param_dtype, dtype.value or param.unit.param_dtype,
      dtype, { gathered = cost.gathered })
    groups[i] = row(name, ("lr x %g, weight decay %g"):format(group.lr_scale, group.weight_decay), group, decided[i],
      { kept = { optimizer = cost.optimizer } })
  end
  return freeze, types, groups, warnings, unmatched
end

---All decisions of a model under a plan.
---@param sharding moonshard.Sharding
---@param plan moonshard.Plan
---@param costs moonshard.UnitCost[] in the order of units
---@param optimizer moonshard.Optimizer
---@param modules moonshard.NamedModule[]
---@return table<string, moonshard.Explained[]> by policy
---@return string[] shadowed warnings about rules that never decide
---@return { policy: string, pattern: string, where: string? }[] unmatched
function decisions.of(sharding, plan, costs, optimizer, modules)
  local freeze, types, groups, warnings, unmatched = of_parameters(sharding, costs, sharding:handle(), optimizer)
  local shadowed, idle = {}, {}
  for _, list in ipairs({ sharding.warnings, warnings }) do
    for _, warning in ipairs(list) do shadowed[#shadowed + 1] = warning end
  end
  for _, policy in ipairs(decisions.POLICIES) do
    for _, rule in ipairs(policy == "optimizer groups" and unmatched or sharding.unmatched[policy]) do
      local pattern = rules.describe(rule)
      idle[#idle + 1] = { policy = policy, pattern = pattern, where = rule.where }
    end
  end
  return {
    units = of_units(sharding, costs), reshard_after_forward = of_reshard(sharding, costs),
    mp_policy = of_precision(sharding, costs), layout = of_layout(sharding, costs),
    prefetch = of_prefetch(sharding, costs),
    recompute = of_recompute(sharding, plan, modules), freeze = freeze, param_dtype = types,
    ["optimizer groups"] = groups,
  }, shadowed, idle
end

return decisions
