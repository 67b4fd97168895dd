-- What checks the values of policies that are decided here alone: each reader takes a value and the rule that gives it,
-- and returns the value that is stored. Those that depend on the mesh or the units are made for a sharding.

local errors = require("moonshard.base.error")
local options = require("moonshard.base.checks.options")
local precision = require("moonshard.shard.policies.precision")
local prefetch = require("moonshard.shard.policies.prefetch")
local roles = require("moonshard.shard.roles")

local policy_readers = {}

local RESHARD = { [true] = "always", [false] = "never", always = "always", never = "never", default = "default",
  run = "run" }

-- A number is the size of the groups in which backward gathers: 1 keeps the weights gathered; the size of the shard
-- group reshards them completely.
---@param self moonshard.Sharding
---@return fun(value: any, rule: string): any
function policy_readers.reshard(self)
  local shard_size = roles.shards(self)
  return function(value, rule)
    local mode = RESHARD[value]
    if mode then return mode end
    if value == 1 then return "never" end
    if value == shard_size then return "always" end
    if type(value) ~= "number" then
      errors.invalid("reshard_after_forward: %s must be true, false, \"default\", \"run\" or a number of ranks, "
        .. "not %s", rule, options.describe(value))
    end
    if value < 1 or shard_size % value ~= 0 then
      errors.invalid("reshard_after_forward: %s asks for groups of %s, which must divide the %d ranks that shard", rule,
        tostring(value), shard_size)
    end
    return value
  end
end

---Refuses to keep a unit gathered for the whole run where nothing of it is frozen: each step changes all of it.
---@param self moonshard.Sharding
---@param decisions table<string, { value: any, rule: string?, where: string? }> by unit
function policy_readers.check_reshard(self, decisions)
  for _, unit in ipairs(self.units) do
    local decision, frozen = decisions[unit.name], false
    for _, param in ipairs(unit.params) do frozen = frozen or param.frozen end
    if decision.value == "run" and not frozen and self.config.unfrozen then -- by a merge: it trains now
      decisions[unit.name] = { value = "default", rule = decision.rule, pattern = decision.pattern,
        where = decision.where }
      unit.reshard = "default"
    elseif decision.value == "run" and not frozen then
      errors.invalid("reshard_after_forward: %s keeps unit %s gathered for the whole run, but all of its parameters "
        .. "train, so every step changes them: give \"run\" to units with frozen parameters alone, and false to "
        .. "this one", decision.pattern and ("rule %s"):format(decision.pattern) or "\"run\"", unit.name)
    end
  end
end

---@param value any
---@param rule string for messages
---@return string
function policy_readers.layout(value, rule)
  if value == "rows" or value == "ragged" then return value end
  errors.invalid("layout: %s must be \"rows\" or \"ragged\", not %s", rule, options.describe(value))
end

-- Whether the ranks of shard own parts of a unit, or each has all of it: FSDP2's ignored_params.
---@param value any
---@param rule string for messages
---@return boolean
function policy_readers.sharded(value, rule)
  if type(value) == "boolean" then return value end
  errors.invalid("shard: %s must be true or false (whole on every rank), not %s%s", rule, options.describe(value),
    rule == "the value" and "; rules are a list, as in { { \"norm\", false } }" or "")
end

-- Megatron-FSDP's outer sharding; ZeRO-1 over `replicate`.
---@param self moonshard.Sharding
---@return fun(value: any, rule: string): any
function policy_readers.over_replicate(self)
  return function(value, rule)
    if type(value) ~= "boolean" then
      errors.invalid("shard_optimizer_over_replicate: %s must be true or false, not %s", rule,
        options.describe(value))
    end
    if value and self.replicate_dim < 0 then
      errors.invalid("shard_optimizer_over_replicate: %s asks for it, but mesh %s has no dimension that replicates: "
        .. "use a mesh (replicate, shard), as in mesh = { 2, 2 }", rule, self.mesh:label())
    end
    return value
  end
end

---@param value any
---@param rule string for messages
---@return boolean
function policy_readers.freeze(value, rule)
  if type(value) == "boolean" then return value end
  errors.invalid("freeze: %s must be true or false, not %s%s", rule, options.describe(value),
    rule == "the value" and "; rules are a list, as in { \"embed\" }" or "")
end

---@param value any
---@param rule string for messages
---@return string?
function policy_readers.param_dtype(value, rule)
  return precision.read_dtype("param_dtype: " .. rule, value, "param")
end

---@param self moonshard.Sharding
---@return fun(value: any, rule: string): any
function policy_readers.precision(self)
  return function(value, rule)
    local who = rule == "the value" and "mp_policy" or "mp_policy: " .. rule
    return precision.read(who, value, { mesh = self.mesh, replicate = self.replicate_dim >= 0,
      shard = self.shard_dim >= 0 or self.context_dim >= 0 })
  end
end

---@param self moonshard.Sharding
---@return fun(value: any, rule: string): any
function policy_readers.prefetch(self)
  local known = {}
  for _, unit in ipairs(self.units) do known[unit.name] = true end
  return prefetch.reader(known)
end

---Refuses a number that is not one of units.
---@param who string for messages
---@param value number
function policy_readers.check_prefetch(who, value)
  if value >= 0 and value % 1 == 0 then return end
  errors.invalid("%s: prefetch must be at least 0 units, not %s", who, tostring(value))
end

return policy_readers
