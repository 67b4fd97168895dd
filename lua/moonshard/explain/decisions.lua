-- Every decision of every policy as a row: name, value, rule, and cost. The table of policies
-- (shard/policies/policies.lua) says how a decision reads and what it costs.

local dtypes = require("moonshard.base.dtypes")
local optimizers = require("moonshard.engine.optimizers")
local placements = require("moonshard.shard.policies.placements")
local plan_costs = require("moonshard.explain.plan_costs")
local policies = require("moonshard.shard.policies.policies")
local roles = require("moonshard.shard.roles")
local rules = require("moonshard.shard.rules")
local storage = require("moonshard.shard.policies.storage")
local units = require("moonshard.shard.units")

local decisions = {}

---@class moonshard.Explained
---@field name string unit, module or parameter
---@field text string the value
---@field value any the value in JSON
---@field rule moonshard.Decision? nil: the default
---@field gathered number bytes that this rank receives for it per step
---@field gathered_wire number the part of them that crosses nodes
---@field reduced number? bytes reduced over ranks for it per step
---@field reduced_wire number? the part of them that crosses nodes
---@field kept table<string, number> bytes by category
---@field in_turn boolean? rows of the policy keep their bytes at different times, so a sum of rows is their maximum

-- What a parameter's state is in 4-byte numbers, of which every rank has all; nil: of each moment this rank has what it
-- has of the parameter.
local function whole_state(optimizer, param)
  local numbers
  for _, state in ipairs(optimizers.states_of(optimizer, param)) do
    local numel = optimizers.whole_numel(state, param.shape)
    if numel then numbers = (numbers or 0) + numel end
  end
  return numbers
end

-- Bytes of optimizer state by parameter: its share of its unit's. Those of a unit differ where some moments are in 8
-- bits, with Muon for some, and with Adafactor.
local function bytes_of_states(self, unit_cost, handle, optimizer)
  local bytes, weight, all, padded = {}, {}, {}, {}
  for i, param in ipairs(self.params) do
    local owned, unit = param.frozen and 0 or plan_costs.owned(handle, i - 1), param.unit
    local whole = not param.frozen and whole_state(optimizer, param)
    local moments = optimizer.rules and #optimizers.states_of(optimizer, param) or 1
    local kept = optimizer:moments_of(param)
    local records = kept and dtypes.uses[kept].moment_records
    weight[param] = whole or owned * moments * (records and records.bytes / 4 or 1)
    all[unit] = (all[unit] or 0) + weight[param]
    padded[unit] = (padded[unit] or 0) + 4 * owned
  end
  for _, param in ipairs(self.params) do
    local cost, unit = unit_cost[param.unit], param.unit
    bytes[param] = 0
    if cost.gradients > 0 and all[unit] > 0 then
      local filled = whole_state(optimizer, param) and 1 or padded[unit] / cost.gradients
      bytes[param] = weight[param] / all[unit] * cost.optimizer * filled
    end
  end
  return bytes
end

-- A parameter's share of its unit's cost: received bytes in proportion to the bytes that are gathered, kept weights in
-- proportion to the bytes of what this rank owns, with the padding between them; state by elements.
local function costs_of_parameters(self, costs, handle, optimizer)
  local by_param, unit_cost, read, kept = {}, {}, {}, {}
  for i, unit in ipairs(self.units) do unit_cost[unit], read[unit], kept[unit] = costs[i], 0, 0 end
  local states = bytes_of_states(self, unit_cost, handle, optimizer)
  local tensor, bytes_read, bytes_kept = roles.ranks(self, "tensor"), {}, {}
  for i, param in ipairs(self.params) do
    local elements = placements.divides(self, param) and param.numel / tensor or param.numel
    bytes_read[param] = storage.gathered_bytes(self, param, elements)
    bytes_kept[param] = storage.bytes(self, param, plan_costs.owned(handle, i - 1))
    read[param.unit], kept[param.unit] = read[param.unit] + bytes_read[param], kept[param.unit] + bytes_kept[param]
  end
  for i, param in ipairs(self.params) do
    local cost, owned = unit_cost[param.unit], plan_costs.owned(handle, i - 1)
    local share, share_kept = bytes_read[param] / read[param.unit], bytes_kept[param] / math.max(1, kept[param.unit])
    by_param[param] = {
      gathered = math.floor(cost.gathered * share + 0.5),
      gathered_wire = math.floor(cost.gathered_wire * share + 0.5),
      parameters = math.floor(cost.parameters * share_kept + 0.5),
      gradients = param.frozen and 0 or 4 * owned, optimizer = states[param],
    }
  end
  return by_param
end

-- What policies decide for, by `of` of their rows: lists of { name, owner, cost }.
local function subjects_of(self, plan, costs, modules, optimizer)
  local by = { unit = {}, module = {}, parameter = {} }
  for i, unit in ipairs(self.units) do by.unit[i] = { name = unit.name, owner = unit, cost = costs[i] } end
  local by_param = costs_of_parameters(self, costs, self:handle(), optimizer)
  for i, param in ipairs(self.params) do
    by.parameter[i] = { name = param.fqn, owner = param, cost = by_param[param] }
  end
  for i, entry in ipairs(modules) do
    local cost = { activations = entry.name ~= "" and plan_costs.activations(plan, entry.name) or 0 }
    by.module[i] = { name = entry.name, owner = entry.module, cost = cost }
  end
  return by
end

-- Modules that no rule matches and that are no units have no row.
local function has_row(policy, subject, decision, is_unit)
  if policy.of ~= "module" then return true end
  return decision ~= nil and (decision.rule or decision.where or is_unit[subject.owner]) ~= nil
end

local function rows_of(self, policy, subjects, decided)
  local rows, is_unit = {}, policies.unit_modules(self)
  for _, subject in ipairs(subjects) do
    local decision, owner = decided[subject.name], subject.owner
    if has_row(policy, subject, decision, is_unit) then
      decision = decision or {}
      local cost = policy.cost(subject.cost)
      rows[#rows + 1] = {
        name = subject.name ~= "" and subject.name or units.ROOT,
        text = policy.text(decision.value, owner, subject.cost, self),
        value = policy.json(decision.value, owner), rule = (decision.rule or decision.where) and decision or nil,
        gathered = cost.gathered or 0, reduced = cost.reduced, kept = cost.kept or {}, in_turn = policy.in_turn,
        gathered_wire = cost.gathered_wire or 0, reduced_wire = cost.reduced_wire,
      }
    end
  end
  return rows
end

-- Whether a rule or one value for all decided something.
local function is_given(decided)
  for _, decision in pairs(decided) do
    if decision.rule or decision.where then return true end
  end
  return false
end

-- The optimizer's groups as decisions whose value is the settings of a parameter, with defaults.
local function groups_of(self, optimizer)
  local fqns, by_name = {}, {}
  for i, param in ipairs(self.params) do fqns[i] = param.fqn end
  local settings, decided, warnings, unmatched = optimizer:param_groups(fqns), optimizer:decide(fqns)
  for i, fqn in ipairs(fqns) do
    local moments = optimizer:moments_of(self.params[i])
    local own = { moments = optimizer.moments ~= "f32" and moments or nil } -- parameters of a group share settings[fqn]
    for name, value in pairs(settings[fqn]) do own[name] = value end
    by_name[fqn] = setmetatable({ value = own }, { __index = decided[i] })
  end
  return by_name, warnings, unmatched
end

---All decisions of a model under a plan.
---@param sharding moonshard.Sharding
---@param plan moonshard.Plan
---@param costs moonshard.UnitCost[] in the order of units
---@param optimizer moonshard.Optimizer
---@param modules moonshard.NamedModule[]
---@return table<string, moonshard.Explained[]> by policy, without rare ones that decide nothing
---@return string[] shadowed warnings about rules that never decide
---@return { policy: string, pattern: string, where: string? }[] unmatched
function decisions.of(sharding, plan, costs, optimizer, modules)
  local groups, warnings, unmatched = groups_of(sharding, optimizer)
  local clip = plan.settings.clip or {}
  local elsewhere = { [optimizer.POLICY] = { decided = groups, unmatched = unmatched },
    clip_grad_norm = { decided = clip.decided or {}, unmatched = clip.unmatched or {} } }
  local subjects, by_policy, shadowed, idle = subjects_of(sharding, plan, costs, modules, optimizer), {}, {}, {}
  for _, list in ipairs({ sharding.warnings, warnings }) do
    for _, warning in ipairs(list) do shadowed[#shadowed + 1] = warning end
  end
  for _, policy in ipairs(policies.shown) do
    local name = policy.name
    local from = elsewhere[name] or { decided = sharding.decisions[name], unmatched = sharding.unmatched[name] }
    if not policy.rare or is_given(from.decided) then
      by_policy[name] = rows_of(sharding, policy, subjects[policy.of], from.decided)
    end
    for _, rule in ipairs(from.unmatched) do
      idle[#idle + 1] = { policy = name, pattern = rules.describe(rule), where = rule.where }
    end
  end
  return by_policy, shadowed, idle
end

return decisions
