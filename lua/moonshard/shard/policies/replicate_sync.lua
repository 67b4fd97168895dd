-- Local SGD over slow links (DiLoCo, Douillard et al. 2023): units that replicas train without each other, and when
-- they synchronise them.
--
-- A replica takes local steps with the optimizer of the trainer. Every `every` steps the mean over the replicas of what
-- the weights moved since the last sync is the gradient of an outer SGD, whose result is the next common point. With
-- `fragments` the units are in so many groups, which take turns (streaming DiLoCo, Douillard et al. 2025).

local engine = require("moonshard.base.ffi")
local errors = require("moonshard.base.error")
local options = require("moonshard.base.checks.options")
local C = engine.C

---@class moonshard.ReplicateSync
---@field every integer steps between two syncs of a unit
---@field outer moonshard.Optimizer ms.optim.sgd without dampening, weight decay and groups; its lr is a function of the
---  trainer's step
---@field fragments? integer number of groups of units, one of which is synchronised every `every / fragments` steps
---@field delay? integer steps for which the sums travel while training goes on; default 0, below `every / fragments`
---@field alpha? number local weights become synced + alpha (local - synced) after a sync; 0 (default): the synced ones

local replicate_sync = {
  ---The value of units that replicas keep equal, by summing gradients in every step.
  ALWAYS = "always",
}

local NAME = "replicate_sync"

-- ---- reading -----------------------------------------------------------------------------------------------------

local SPECS = {
  every = { "positive", required = true }, outer = { "table", required = true },
  fragments = { "positive", default = 1 }, delay = { "integer", default = 0 }, alpha = { "number", default = 0 },
}

local function check_outer(who, outer)
  if outer.kind ~= "sgd" then
    errors.invalid("%s: outer must be made by ms.optim.sgd, as in ms.optim.sgd { lr = 0.7, momentum = 0.9, "
      .. "nesterov = true }", who)
  end
  if outer.dampening ~= 0 or outer.weight_decay ~= 0 or outer.groups then
    errors.invalid("%s: outer takes lr, momentum and nesterov: leave out dampening, weight_decay and groups", who)
  end
end

local function check_steps(who, o)
  if o.every % o.fragments ~= 0 then
    errors.invalid("%s: fragments must divide every, but %d does not divide %d", who, o.fragments, o.every)
  end
  local turn = o.every / o.fragments
  if o.delay < 0 or o.delay >= turn then
    errors.invalid("%s: delay must be at least 0 and below every / fragments = %d steps, not %d", who, turn, o.delay)
  end
  if not (o.alpha >= 0 and o.alpha <= 1) then
    errors.invalid("%s: alpha must be 0 (the synced weights) to 1 (the local ones), not %g", who, o.alpha)
  end
end

---The reader of the policy.
---@param sharding moonshard.Sharding
---@return fun(value: any, rule: string): "always"|moonshard.ReplicateSync
function replicate_sync.reader(sharding)
  return function(value, rule)
    local who = rule == "the value" and NAME or NAME .. ": " .. rule
    if value == replicate_sync.ALWAYS then return value end
    if type(value) ~= "table" then
      errors.invalid("%s must be \"always\" or { every =, outer =, ... }, not %s", who, options.describe(value))
    end
    local o = options.parse(who, value, SPECS)
    check_outer(who, o.outer)
    check_steps(who, o)
    if sharding.replicate_dim < 0 then
      errors.invalid("%s: the mesh %s has no dimension replicate, so there are no replicas to synchronise: give a "
        .. "mesh { replicas, shards }", who, sharding.mesh:label())
    end
    return o
  end
end

-- ---- one schedule for a model, and its fragments -----------------------------------------------------------------

local function same(a, b)
  for name in pairs(SPECS) do
    if a[name] ~= b[name] then return false end
  end
  return true
end

local function trainable(unit)
  local elements = 0
  for _, param in ipairs(unit.params) do elements = elements + (param.frozen and 0 or param.numel) end
  return elements
end

-- Cuts the units, in order, into groups of about equal size, none of them empty.
local function cut(units, fragments)
  local total, before, fragment, held = 0, 0, 1, 0
  for _, unit in ipairs(units) do total = total + trainable(unit) end
  for i, unit in ipairs(units) do
    local middle, left = before + trainable(unit) / 2, #units - i + 1
    if held > 0 and (middle >= total * fragment / fragments or left == fragments - fragment)
      and fragment < fragments then
      fragment, held = fragment + 1, 0
    end
    unit.fragment, held = fragment, held + 1
    before = before + trainable(unit)
  end
end

---Finds the schedule of a model whose policies are decided, and gives each of its units a fragment.
---@param sharding moonshard.Sharding receives local_sync: nil if replicas sum gradients in every step
function replicate_sync.assign(sharding)
  local units, found = {}, nil
  for _, unit in ipairs(sharding.units) do
    local o = unit.replicate_sync
    unit.fragment = nil
    if o ~= replicate_sync.ALWAYS and trainable(unit) > 0 then
      if found and not same(found, o) then
        errors.invalid("%s: unit %s has other settings than unit %s: a model has one schedule; rules choose which "
          .. "units follow it and which sync \"always\"", NAME, unit.name, units[1].name)
      end
      found = found or o
      units[#units + 1] = unit
    end
  end
  if found and found.fragments > #units then
    errors.invalid("%s: there are %d fragments, but only %d units to divide among them: give fewer fragments, or more "
      .. "units", NAME, found.fragments, #units)
  end
  for _, unit in ipairs(sharding.units) do
    if found and unit.shard_over_replicate then
      errors.invalid("%s: unit %s has shard_optimizer_over_replicate: replicas that take local steps update all of "
        .. "their weights themselves, so a model has one of the two", NAME, unit.name)
    end
  end
  if found then cut(units, found.fragments) end
  sharding.local_sync = found
end

---The decision of a unit, for people.
---@param value "always"|moonshard.ReplicateSync
---@param unit moonshard.Unit
---@return string
function replicate_sync.text(value, unit)
  if value == replicate_sync.ALWAYS or not unit.fragment then return "every step" end
  local text = ("every %d steps"):format(value.every)
  return value.fragments > 1 and ("%s, fragment %d of %d"):format(text, unit.fragment, value.fragments) or text
end

---The same for JSON.
---@param value "always"|moonshard.ReplicateSync
---@param unit moonshard.Unit
---@return any
function replicate_sync.json(value, unit)
  if value == replicate_sync.ALWAYS or not unit.fragment then return replicate_sync.ALWAYS end
  return { every = value.every, fragments = value.fragments, fragment = unit.fragment, delay = value.delay,
    alpha = value.alpha }
end

-- ---- steps -------------------------------------------------------------------------------------------------------

-- The fragment that is synchronised after a step; nil if there is none.
local function fragment_of(sync, step)
  local turn = sync.every / sync.fragments
  return step > 0 and step % turn == 0 and (step / turn - 1) % sync.fragments + 1 or nil
end

---@class moonshard.OuterParts what a step's plan does of an outer step
---@field fragment integer
---@field parts integer flags of enum ms_outer

---What a step does besides local steps. With a delay the sums of step t begin with step t + 1 and are applied at the
---end of step t + delay.
---@param sync moonshard.ReplicateSync
---@param step integer
---@return moonshard.OuterParts? nil: nothing
function replicate_sync.parts(sync, step)
  if sync.delay == 0 then
    local fragment = fragment_of(sync, step)
    return fragment and { fragment = fragment, parts = C.MS_OUTER_SEND + C.MS_OUTER_APPLY }
  end
  local sent, applied = fragment_of(sync, step - 1), fragment_of(sync, step - sync.delay)
  if not sent and not applied then return nil end
  return { fragment = sent or applied,
    parts = (sent and C.MS_OUTER_SEND or 0) + (applied and C.MS_OUTER_APPLY or 0) }
end

---The step at whose end the outer SGD applies what a step sends.
---@param sync moonshard.ReplicateSync
---@param step integer
---@return integer
function replicate_sync.applied(sync, step) return sync.delay > 0 and step - 1 + sync.delay or step end

---The fragment whose sum is on its way after a number of updates: it was sent, and its weights will be replaced.
---@param sync moonshard.ReplicateSync
---@param updates integer
---@return integer? fragment nil: there is none
---@return integer? step at whose end the sum is applied
function replicate_sync.on_its_way(sync, updates)
  for step = updates - 1, updates - sync.delay + 1, -1 do
    local fragment = fragment_of(sync, step)
    if fragment then return fragment, step + sync.delay end
  end
end

---All parts of the first fragment, in one plan: for plans that show them.
---@return moonshard.OuterParts
function replicate_sync.all_parts()
  return { fragment = 1, parts = C.MS_OUTER_SEND + C.MS_OUTER_APPLY }
end

---Whether all replicas have the same weights after a step.
---@param sync moonshard.ReplicateSync
---@param step integer
---@return boolean
function replicate_sync.is_common(sync, step)
  return sync.fragments == 1 and sync.delay == 0 and sync.alpha == 0 and step % sync.every == 0
end

---Whether a step waits for all replicas.
---@param sync moonshard.ReplicateSync
---@param step integer
---@return boolean
function replicate_sync.meets(sync, step)
  local outer = replicate_sync.parts(sync, step)
  return outer ~= nil and outer.parts ~= C.MS_OUTER_APPLY
end

---Sets the fields of an ms_plan_config.
---@param config ffi.cdata* ms_plan_config
---@param sync moonshard.ReplicateSync?
---@param outer moonshard.OuterParts? of the plan
function replicate_sync.configure(config, sync, outer)
  if not sync then return end
  config.outer_momentum, config.outer_nesterov = sync.outer.momentum, sync.outer.nesterov and 1 or 0
  config.outer_alpha, config.outer_delay = sync.alpha, sync.delay > 0 and 1 or 0
  if outer then config.outer_fragment, config.outer_parts = outer.fragment, outer.parts end
end

return replicate_sync
