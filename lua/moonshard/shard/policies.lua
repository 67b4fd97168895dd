-- The policies of ms.fully_shard: checks the values of their rules, and decides for each unit, module and parameter.
-- Every decision is stored with the rule that made it.

local errors = require("moonshard.base.error")
local options = require("moonshard.base.options")
local precision = require("moonshard.shard.precision")
local prefetch = require("moonshard.shard.prefetch")
local recompute = require("moonshard.nn.recompute")
local rules = require("moonshard.shard.rules")
local units = require("moonshard.shard.units")

local policies = {}

local RESHARD = { [true] = "always", [false] = "never", always = "always", never = "never", default = "default" }

-- A number is the size of the groups in which backward gathers: 1 keeps the weights gathered; the size of the shard
-- group reshards them completely.
local function reshard_reader(shard_size)
  return function(value, rule)
    local mode = RESHARD[value]
    if mode then return mode end
    if value == 1 then return "never" end
    if value == shard_size then return "always" end
    if type(value) ~= "number" then
      errors.invalid("reshard_after_forward: %s must be true, false, \"default\" or a number of ranks, not %s", rule,
        options.describe(value))
    end
    if value < 1 or shard_size % value ~= 0 then
      errors.invalid("reshard_after_forward: %s asks for groups of %s, which must divide the %d ranks that shard", rule,
        tostring(value), shard_size)
    end
    return value
  end
end

local function read_layout(value, rule)
  if value == "rows" or value == "ragged" then return value end
  errors.invalid("layout: %s must be \"rows\" or \"ragged\", not %s", rule, options.describe(value))
end

local function read_freeze(value, rule)
  if type(value) == "boolean" then return value end
  errors.invalid("freeze: %s must be true or false, not %s%s", rule, options.describe(value),
    rule == "the value" and "; rules are a list, as in { \"embed\" }" or "")
end

local function read_param_dtype(value, rule)
  return precision.read(rule, { param_dtype = value }).param_dtype
end

local function read_precision(value, rule)
  return precision.read(rule == "the value" and "mp_policy" or "mp_policy: " .. rule, value)
end

-- Decides one policy for all names, by a list of rules or one value for all. Options: bare_value is the value of
-- patterns without one; one_value: treat a list as a value; tied: names by their alternative names.
local function decide(self, policy, given, names, default, read, o)
  local decisions
  o = o or {}
  if rules.is_list(given) and not o.one_value then
    local warnings
    decisions, warnings, self.unmatched[policy] = rules.policy(policy, given,
      { read = read, bare_value = o.bare_value }):resolve(names, default, o.tied)
    for _, warning in ipairs(warnings) do table.insert(self.warnings, warning) end
  else
    local value = default
    self.unmatched[policy] = {}
    if given ~= nil then value = read(given, "the value") end
    decisions = {}
    for i = 1, #names do decisions[i] = { value = value, where = given ~= nil and self.where or nil } end
  end
  local by_name = {}
  for i, name in ipairs(names) do by_name[name] = decisions[i] end
  self.decisions[policy] = by_name
  return by_name
end

---Decides when each unit is resharded.
---@param self moonshard.Sharding
---@param given any as reshard_after_forward of ms.fully_shard
---@return table<string, moonshard.Decision> by_unit
function policies.reshard(self, given)
  local names = {}
  for i, unit in ipairs(self.units) do names[i] = unit.name end
  return decide(self, "reshard_after_forward", given, names, self.default_reshard or "default",
    reshard_reader(self.shard_dim < 0 and 1 or self.mesh:size(self.shard_dim)))
end

---Decides how far ahead each unit is gathered.
---@param self moonshard.Sharding
---@param given any as prefetch of ms.fully_shard
---@return table<string, moonshard.Decision> by_unit
function policies.prefetch(self, given)
  local names, known = {}, {}
  for i, unit in ipairs(self.units) do names[i], known[unit.name] = unit.name, true end
  return decide(self, "prefetch", given, names, nil, prefetch.reader(known))
end

local function decide_units(self, config)
  local names = {}
  for i, unit in ipairs(self.units) do names[i] = unit.name end
  local reshard = policies.reshard(self, config.reshard_after_forward)
  local mixed = decide(self, "mp_policy", config.mp_policy, names, precision.read("mp_policy", nil), read_precision)
  local layout = decide(self, "layout", config.layout, names, "rows", read_layout)
  for _, unit in ipairs(self.units) do
    local policy = mixed[unit.name].value
    unit.reshard, unit.layout = reshard[unit.name].value, layout[unit.name].value
    unit.param_dtype, unit.reduce_dtype = policy.param_dtype, policy.reduce_dtype
    unit.output_dtype = policy.output_dtype
  end
end

-- Rules can name any module; one value for all applies to the root modules of units.
local function decide_recompute(self, given, inventory)
  local names, modules, is_unit = {}, {}, {}
  local by_rule = rules.is_list(given) and not recompute.is_op_list(given)
  for _, unit in ipairs(self.units) do
    for _, root in ipairs(unit.name ~= units.ROOT and unit.modules or {}) do is_unit[root] = true end
  end
  for _, entry in ipairs(inventory.modules) do
    if entry.name ~= "" and (by_rule or is_unit[entry.module]) then
      names[#names + 1], modules[#modules + 1] = entry.name, entry.module
    end
  end
  local decisions = decide(self, "recompute", given, names, nil, recompute.read, { one_value = not by_rule })
  self.recompute = {}
  for i, name in ipairs(names) do self.recompute[modules[i]] = decisions[name].value end
end

local function decide_parameters(self, config)
  local names = {}
  for i, param in ipairs(self.params) do names[i] = param.fqn end
  local freeze = decide(self, "freeze", config.freeze, names, nil, read_freeze, { bare_value = true, tied = self.tied })
  local dtypes = decide(self, "param_dtype", config.param_dtype, names, nil, read_param_dtype, { tied = self.tied })
  for _, param in ipairs(self.params) do
    param.dtype = dtypes[param.fqn].value
    local decision = freeze[param.fqn]
    if decision.value == nil then decision.value = param.parameter.frozen end
    param.frozen = decision.value
  end
end

---Decides every policy of a model whose units and parameters are known.
---@param self moonshard.Sharding
---@param config table options of ms.fully_shard
---@param inventory moonshard.Inventory
function policies.decide(self, config, inventory)
  decide_units(self, config)
  decide_parameters(self, config)
  decide_recompute(self, config.recompute, inventory)
  policies.prefetch(self, config.prefetch)
end

return policies
