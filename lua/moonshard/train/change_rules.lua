-- Changes rules while a model trains. The state stays; the next step runs a different plan over it. The plan is
-- compiled and its memory checked immediately, so an impossible change raises an error here and leaves the old rules in
-- force. Plans are cached, so changing back costs nothing.
--
-- Placements decide which elements a rank owns. New ones move the state: the values go to a new one, and the old one,
-- with the plans over it, is dropped once all ranks have succeeded.
--
-- All ranks change together or none does: each reports whether it succeeded, and they compare fingerprints.

local agreement = require("moonshard.distributed.agreement")
local engine_model = require("moonshard.shard.engine_model")
local errors = require("moonshard.base.error")
local options = require("moonshard.base.checks.options")
local moment_blocks = require("moonshard.engine.moment_blocks")
local momentum_starts = require("moonshard.shard.momentum_starts")
local param_groups = require("moonshard.shard.param_groups")
local policies = require("moonshard.shard.policies.policies")
local schedule = require("moonshard.train.schedule")
local plan_cache = require("moonshard.engine.plan_cache")
local session = require("moonshard.engine.session")
local reference = require("moonshard.shard.reference")
local tree = require("moonshard.nn.tree")
local world = require("moonshard.distributed.world")

---@class moonshard.NewRules omitted fields keep their value
---@field reshard_after_forward? any as in ms.fully_shard; replaces the whole policy
---@field placements? any as in ms.fully_shard; replaces the whole policy, and moves the state
---@field sequence_parallel? boolean as in ms.fully_shard
---@field prefetch? any as in ms.fully_shard; a number applies to units that no rule matches
---@field lr number|moonshard.Schedule?
---@field groups table? the optimizer's; {} for none
---@field weight_decay number? for parameters without one from a group

local SPECS = policies.add_specs(policies.changeable, policies.add_specs(policies.moving, {
  sequence_parallel = { "boolean" }, lr = { "number|function" }, groups = { "table" }, weight_decay = { "number" },
}))

-- What ms.fully_shard decides for good, and what ms.set_rules can change.
local FIXED, CHANGEABLE = { mesh = true, strategy = true }, {}
for _, row in ipairs(policies.options) do FIXED[row.name] = SPECS[row.name] == nil or nil end
for name in pairs(SPECS) do CHANGEABLE[#CHANGEABLE + 1] = name end
table.sort(CHANGEABLE)

local MAX_RULE_SETS = 16 -- with cached plans

local OF_OPTIMIZER = { "lr", "groups", "weight_decay" }

-- How each of several optimizers gets its own.
local OF_EACH = {
  lr = "give each a schedule as its lr",
  groups = "give groups to each optimizer where its rule makes it",
  weight_decay = "give it to each optimizer where its rule makes it",
}

-- What a change that moves the state replaces.
local OF_SESSION = { "rules", "kept_rules", "plans", "train_exec" }

-- ---- the current rules, and restoring them -----------------------------------------------------------------------

local function remember(self)
  local sharding, optimizer = self.sharding, self.optimizer
  local before = { warnings = sharding.warnings, decisions = {}, settings = {}, handle = sharding:handle(),
    sequence_parallel = sharding.sequence_parallel, momentum_starts = sharding.momentum_starts }
  for _, row in ipairs(policies.moving) do before.decisions[row.name] = sharding.decisions[row.name] end
  for _, name in ipairs(OF_SESSION) do before[name] = self[name] end
  for _, row in ipairs(policies.changeable) do
    before.decisions[row.name] = sharding.decisions[row.name]
    if row.setting then before.settings[row.name] = self[row.setting.name] end
  end
  for _, name in ipairs(OF_OPTIMIZER) do before[name] = optimizer and optimizer[name] end
  return before
end

local function restore(self, before)
  local sharding, optimizer, handle = self.sharding, self.optimizer, before.handle
  sharding.built, sharding.warnings = handle, before.warnings
  for _, row in ipairs(policies.moving) do
    sharding.decisions[row.name] = before.decisions[row.name]
    policies.store(sharding, row)
  end
  engine_model.set_sequence_parallel(sharding, handle, before.sequence_parallel)
  for _, name in ipairs(OF_SESSION) do self[name] = before[name] end
  for _, row in ipairs(policies.changeable) do
    sharding.decisions[row.name] = before.decisions[row.name]
    if row.setting then self[row.setting.name] = before.settings[row.name] end
    row.set(sharding, handle, before.decisions[row.name])
  end
  if not optimizer then return end
  for _, name in ipairs(OF_OPTIMIZER) do optimizer[name] = before[name] end
  self.group_key, sharding.momentum_starts = nil, before.momentum_starts
  engine_model.set_groups(sharding, handle, optimizer)
end

-- ---- the new rules -----------------------------------------------------------------------------------------------

local function check_movable(self, name)
  self:require_weights("ms.set_rules", "change " .. name)
  if self.sharding.local_sync then
    errors.invalid("ms.set_rules: with replicate_sync the weights of replicas differ, so %s cannot change: save a "
      .. "checkpoint, and resume from it under the new rules", name)
  end
end

-- What to do where other parameters are to train from now on.
local UNFREEZE = "; what is to train later must not be frozen there: give ms.trainer freeze, which leaves parameters "
  .. "out of its steps, and let another trainer of the model train them"

local function check(self, given)
  for name in pairs(type(given) == "table" and given or {}) do
    if FIXED[name] then
      errors.raise("MS_EUNSUPPORTED", "ms.set_rules: ms.fully_shard decides %s for the whole run; what can change is "
        .. "%s%s", name, table.concat(CHANGEABLE, ", "), name == "freeze" and UNFREEZE or "")
    end
  end
  given = options.parse("ms.set_rules", given, SPECS)
  if self.sharding.auto and not reference.active then
    errors.invalid("ms.set_rules: what ms.fully_shard was given as \"auto\" is decided at the first train:step: change "
      .. "rules after it")
  end
  for _, row in ipairs(policies.changeable) do
    if row.setting and type(given[row.name]) == "number" then row.setting.check("ms.set_rules", given[row.name]) end
  end
  local decay = given.weight_decay
  if decay then param_groups.check_rate("ms.set_rules", "weight_decay", decay, 0, math.huge) end
  for _, row in ipairs(policies.moving) do
    if given[row.name] ~= nil then check_movable(self, row.name) end
  end
  for _, name in ipairs(OF_OPTIMIZER) do
    if given[name] ~= nil and not self.optimizer then
      errors.invalid("ms.set_rules: %s belongs to an optimizer, and the model has none yet: make its trainer first",
        name)
    end
    if given[name] ~= nil and self.optimizer.rules then
      errors.raise("MS_EUNSUPPORTED", "ms.set_rules: %s belongs to one optimizer, and this trainer has %s by rules: "
        .. "%s", name, self.optimizer.title, OF_EACH[name])
    end
  end
  return given
end

-- The group settings of every parameter, cached: with many parameters matching them takes longest.
local function groups_of(self)
  local optimizer, key = self.optimizer, self.group_key
  if not optimizer then return "" end
  if not key or key.optimizer ~= optimizer then
    key = { optimizer = optimizer, text = engine_model.describe_groups(self.sharding, optimizer) }
    self.group_key = key
  end
  return key.text
end

-- The rules as text, the key of cached plans. The learning rate is not part of a plan.
local function key_of(self)
  local settings = self.train_exec and self.train_exec.settings or {}
  local parts = { " |", tostring(self.sharding.sequence_parallel) }
  for _, row in ipairs(policies.changeable) do
    local setting = row.setting
    parts[#parts + 1] = row.name
    if setting then parts[#parts + 1] = self[setting.name] or settings[setting.name] or setting.default end
    for _, name in ipairs(self.sharding.owners[row.name].names) do
      parts[#parts + 1] = row.key(self.sharding.decisions[row.name][name].value)
    end
  end
  parts[#parts + 1] = groups_of(self)
  return table.concat(parts, " ")
end

-- At the first change: files the existing plans under the rules that they were compiled with.
local function name_rules(self)
  if self.rules ~= "" then return end
  self.rules = key_of(self)
  self.kept_rules = { self.rules }
  self.plans:name_rules(self.rules)
end

-- Drops the plans of the least recently used rules, so that a loop can change rules at every step.
local function keep_plans(self)
  local sets, current = {}, self.rules
  for _, rules in ipairs(self.kept_rules) do
    if rules ~= current then sets[#sets + 1] = rules end
  end
  sets[#sets + 1] = current
  self.kept_rules = sets
  if #sets <= MAX_RULE_SETS then return end
  local oldest = table.remove(sets, 1)
  self.plans:drop(function(entry) return entry.rules == oldest end)
end

-- What decides who owns which elements. Graphs and plans of the old division are not kept.
local function divide(self, given)
  local sharding, changes = self.sharding, false
  for _, row in ipairs(policies.moving) do
    if given[row.name] ~= nil then
      policies.decide_one(sharding, row, given[row.name])
      policies.store(sharding, row)
      changes = true
    end
  end
  if not changes then return end
  sharding:rebuild()
  self.plans, self.kept_rules = plan_cache.new(), {}
end

local function set_sequence_parallel(self, on)
  if on == self.sharding.sequence_parallel then return end
  engine_model.set_sequence_parallel(self.sharding, self.sharding:handle(), on)
end

-- Sets everything on this rank. Returns the plan of the next step, and its exec if it was already bound.
local function take(self, given)
  given = check(self, given)
  if reference.active then given = reference.rules(given) end
  local sharding, optimizer = self.sharding, self.optimizer
  sharding.warnings = {}
  divide(self, given)
  if given.sequence_parallel ~= nil then set_sequence_parallel(self, given.sequence_parallel) end
  local handle = sharding:handle()
  for _, row in ipairs(policies.changeable) do
    local value = given[row.name]
    if row.setting and type(value) == "number" then
      self[row.setting.name] = value
    elseif value ~= nil then
      local decisions = policies.decide_one(sharding, row, value)
      if row.check then row.check(sharding, decisions) end
      row.set(sharding, handle, decisions)
    end
  end
  if given.lr then optimizer.lr = schedule.of(given.lr) end
  if given.groups or given.weight_decay or given.lr and optimizer.groups then -- a group's lr is relative to it
    local starts = momentum_starts.now(self)
    optimizer.groups = given.groups or optimizer.groups
    momentum_starts.continue(self, starts)
    optimizer.weight_decay = given.weight_decay or optimizer.weight_decay
    self.group_key = { optimizer = optimizer, text = engine_model.set_groups(sharding, handle, optimizer) }
  end
  self.rules = key_of(self)
  local current = self.train_exec
  if not current then return nil, nil end
  local bound = self.plans:find(current.id, self.rules)
  if bound then return bound.plan, bound end
  local graph = self.plans:graph(self:graph_id(current.id)) or current.trace()
  return self:compile("train", graph, current.settings)
end

-- ---- on all ranks ------------------------------------------------------------------------------------------------

-- Runs one stage of the change; if it fails on any rank, all ranks restore the old rules.
local function carry_out(self, before, what, call, ...)
  local failed, results = self:attempt("of what set_rules found", call, ...)
  if not failed then return unpack(results, 2, 3) end
  restore(self, before)
  if not results[1] then error(results[2], 0) end
  errors.raise("MS_EMISMATCH", "ms.set_rules: rank %d could not %s, so all ranks keep the old rules", failed, what)
end

local function agree(self, compiled)
  local summary = compiled and compiled:summary()
  local high = summary and tonumber(summary.fingerprint:sub(1, 8), 16) or -1
  local low = summary and tonumber(summary.fingerprint:sub(9), 16) or -1
  for _, mine in ipairs({ high, low }) do
    if self:find_mismatch(mine, "of rules") then return false end
  end
  return true
end

local NOT_ASKED = -1 -- in place of a rate: a recipe's own function is asked by the step alone

local function rate_text(rate)
  return rate == NOT_ASKED and "given by a function" or ("%g"):format(rate)
end

-- The learning rate is not part of a plan: ranks compare the next step's. Schedules that part later are found by the
-- step in which they do.
local function check_rate(self)
  local optimizer = self.optimizer
  local rate_of = optimizer and not optimizer.rules and optimizer.lr
  local rate = rate_of and optimizer:planned_lr(self.updates + 1) or NOT_ASKED
  self:require_same(rate, "of new rates", function(rank, other)
    return ("ms.set_rules: the next step's learning rate is %s on rank %d, and %s on rank %d: give all ranks the same"
      .. " lr"):format(rate_text(rate), world.rank, rate_text(other), rank)
  end)
end

-- A rank that moves the state would wait for one that does not.
local function check_moves(self, moves)
  self:require_same(moves and 1 or 0, "of new placements", function(rank)
    return ("ms.set_rules: rank %d was %s new placements, and rank %d was%s: give all ranks the same"):format(
      world.rank, moves and "given" or "not given", rank, moves and " not" or "")
  end)
end

-- Binds the plan, if there is one, to the state, or to a new one if placements have changed. Returns both.
local function bind(self, compiled, moves)
  local state = moves and self:redivided_state() or self.state
  return compiled and self:bind(compiled, state), state
end

-- Forgets what the old placements had.
local function take_state(self, state, before)
  if state == self.state then return end
  before.plans:clear()
  self.sharding.warnings[#self.sharding.warnings + 1] = moment_blocks.describe(moment_blocks.of_move(self,
    before.handle, self.sharding:handle()))
  self.state, self.unsharded, self.moved = state, {}, true
  self.gradient_scale, self.synced_gradient_scale = nil, nil
end

local function change(self, given)
  self:gather_numbers(0, "of new rules") -- no rank changes anything before all have arrived
  name_rules(self)
  local before = remember(self)
  local compiled, bound = carry_out(self, before, "take them", take, self, given)
  carry_out(self, before, "agree on rates", check_rate, self)
  local same, moves = agree(self, compiled), self.sharding:handle() ~= before.handle and self.state ~= nil
  carry_out(self, before, "agree on placements", check_moves, self, moves)
  if moves or compiled and not (bound and same) then
    -- Binding compares fingerprints and reports differences.
    local state
    local current = self.train_exec
    bound, state = carry_out(self, before, "bind the new plan", bind, self, compiled, moves)
    take_state(self, state, before)
    if bound then self:keep(bound, current) end
  end
  self.train_exec = bound
  keep_plans(self)
  for _, row in ipairs(policies.changeable) do policies.store(self.sharding, row) end
  if bound then bound.plan.is_lent = true end
  return compiled
end

---Changes the rules of a model from the next step on. Collective.
---@param model moonshard.Module
---@param given moonshard.NewRules
---@return moonshard.Plan? plan of the next step, compiled and bound; nil before the first step
local function change_rules(model, given)
  if not tree.is_module(model) then
    errors.invalid("ms.set_rules: the first argument must be a module, not %s", options.describe(model))
  end
  local self = session.of(model)
  local compiled = agreement.uninterrupted(change, self, given)
  self.sharding:report_warnings()
  if given and given.groups then self.sharding:report_warnings(self.sharding.group_warnings) end
  return compiled
end

return change_rules
