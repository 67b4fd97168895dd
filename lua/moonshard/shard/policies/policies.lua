-- The table of policies: what recipes decide by rules, or by one value for all. A policy is a row here and its reader
-- (policy_readers.lua, or a file of its own); ms.fully_shard, ms.set_rules, the reference of `moonshard check` and
-- `moonshard explain` all work from the table. Every decision is stored with the rule that made it.

local engine_model = require("moonshard.shard.engine_model")
local float8 = require("moonshard.shard.policies.float8")
local gather = require("moonshard.shard.policies.gather")
local param_groups = require("moonshard.shard.param_groups")
local placements = require("moonshard.shard.policies.placements")
local precision = require("moonshard.shard.policies.precision")
local prefetch = require("moonshard.shard.policies.prefetch")
local re = require("moonshard.base.re")
local readers = require("moonshard.shard.policies.policy_readers")
local recompute = require("moonshard.nn.recompute")
local regather = require("moonshard.nn.regather")
local replicate_sync = require("moonshard.shard.policies.replicate_sync")
local roles = require("moonshard.shard.roles")
local rules = require("moonshard.shard.rules")
local storage = require("moonshard.shard.policies.storage")
local units = require("moonshard.shard.units")

local policies = {}

local function always(read) return function() return read end end

-- ---- the table --------------------------------------------------------------------------------------------------

---@class moonshard.PolicyRow
---@field name string the option of ms.fully_shard, and the policy in messages, explain and JSON
---@field of "unit"|"module"|"parameter" what its rules name
---@field reader (fun(self: moonshard.Sharding): fun(value: any, rule: string): any)? checks values; nil: decided
---  elsewhere, and only explained here
---@field no_option boolean? it is not an option of ms.fully_shard
---@field default (fun(self: moonshard.Sharding): any)? value of names that no rule matches; without it nil
---@field absent (fun(owner: table): any)? replaces such a nil, by unit, module or parameter
---@field bare_value any value of patterns without one
---@field applies (fun(param: moonshard.ShardedParameter, by_rules: boolean, given: any): boolean)? to which parameters
---@field left_out string? why not to the others, for rules that match only those
---@field one_value string? a value for all names in place of rules, as Lua: for messages about lists without values
---@field is_value (fun(given: any): boolean)? whether a list is one value for all instead of rules
---@field inherited boolean? a module's decision holds for its submodules, so one value for all is the model's own
---@field check (fun(self: moonshard.Sharding, decisions: table))? refuses what the other policies do not go with
---@field store (fun(owner: table, value: any, self: moonshard.Sharding))? stores the decision for an owner: a setting
---  of ms_unit_config as the unit's field of that name, which the engine then gets
---@field set (fun(self: moonshard.Sharding, handle: ffi.cdata*, decisions: table))? sets the decisions in the engine's
---  model: ms.set_rules can change the policy
---@field moves boolean? ms.set_rules can change the policy, and then moves the state, because it decides what ranks own
---@field key (fun(value: any): string)? a decision of a policy that can change, as part of the key of cached plans
---@field setting { name: string, default: any, check: fun(who: string, value: number) }? for ms.set_rules a number
---  alone is this setting of the trainer
---@field on_reference { value: any }? the reference of `moonshard check` drops the policy and decides this
---@field text fun(value: any, owner: table, cost: table, self: moonshard.Sharding): string a decision, for people
---@field json fun(value: any, owner: table): any a decision in JSON
---@field cost fun(cost: table): table what a decision costs: gathered, reduced, kept by category, and the part of
---  gathered and reduced that crosses nodes (gathered_wire, reduced_wire). It reads the
---  unit's moonshard.UnitCost, the parameter's share of it, or the module's { activations }
---@field in_turn boolean? owners keep their bytes at different times
---@field by_layer boolean? a rule for a layer is about more than its parameters, so one that owns none of a tied weight
---  still has its meaning
---@field rare boolean? explain shows it only if the recipe decides something

local function same(value) return value end

-- In the order in which they are decided. Sections of explain have this order too, by what the policies name.
---@type moonshard.PolicyRow[]
local ROWS = {
  {
    name = "units", of = "unit",
    text = function(_, unit) return #unit.params == 1 and "1 parameter" or #unit.params .. " parameters" end,
    json = function(_, unit) return #unit.params end,
    cost = function(c)
      return { gathered = c.gathered, gathered_wire = c.gathered_wire,
        kept = { parameters = c.parameters, gradients = c.gradients, optimizer = c.optimizer } }
    end,
  },
  {
    name = "reshard_after_forward", of = "unit", reader = readers.reshard, check = readers.check_reshard,
    default = function(self) return self.default_reshard or "default" end,
    store = function(unit, value) unit.reshard = value end,
    set = engine_model.set_reshard, key = tostring, on_reference = { value = "never" },
    text = function(value, _, cost, self)
      if value ~= "default" or cost.gathers == 0 then return tostring(value) end
      if cost.again > 0 then return "default: always" end
      return self.is_stage and "default: never, in a pipeline" or "default: never"
    end,
    json = same,
    cost = function(c) return { gathered = c.again, gathered_wire = c.again_wire, kept = { gathered = c.kept } } end,
  },
  {
    name = "mp_policy", of = "unit", reader = readers.precision,
    one_value = '{ param_dtype = "bf16", reduce_dtype = "f32" }',
    default = function() return precision.read("mp_policy", nil) end,
    store = precision.store,
    text = function(value, _, _, self)
      local text = ("%s, reduce %s"):format(precision.text_of_params(value), value.reduce_dtype)
      for _, dimension in ipairs({ "shard", "replicate" }) do
        local dtype = value[dimension .. "_dtype"]
        if dtype then text = ("%s, over %s %s"):format(text, dimension, dtype) end
        if dtype and roles.ranks_of_sum(self, dimension) == 1 then text = text .. " (one rank: no sum)" end
      end
      if value.error_feedback then text = text .. " with error feedback" end
      return value.output_dtype and text .. ", output " .. value.output_dtype or text
    end,
    json = same,
    cost = function(c)
      return { gathered = c.gathered, gathered_wire = c.gathered_wire, reduced = c.reduced,
        reduced_wire = c.reduced_wire, kept = { gathered = c.kept, parameters = c.copies > 0 and c.copies or nil } }
    end,
  },
  {
    name = "layout", of = "unit", reader = always(readers.layout),
    default = function() return "rows" end,
    store = function(unit, value) unit.layout = value end,
    on_reference = { value = "rows" },
    text = same, json = same,
    cost = function(c)
      return { gathered = c.gathered, gathered_wire = c.gathered_wire, kept = { parameters = c.parameters } }
    end,
  },
  {
    name = "replicate_sync", of = "unit", reader = replicate_sync.reader,
    default = function() return replicate_sync.ALWAYS end,
    store = function(unit, value) unit.replicate_sync = value end,
    text = replicate_sync.text, json = replicate_sync.json, rare = true,
    cost = function(c) return { reduced = c.reduced, kept = { optimizer = c.optimizer } } end,
  },
  {
    name = "shard", of = "unit", reader = always(readers.sharded),
    default = function() return true end,
    store = function(unit, value) unit.shard = value end,
    on_reference = { value = true },
    text = function(value, _, _, self)
      if not value and roles.shards(self) == 1 then return "false: one rank has all of it anyway" end
      return value and "true" or "false: whole on every rank"
    end,
    json = same, rare = true,
    cost = function(c)
      return { gathered = c.gathered, gathered_wire = c.gathered_wire, reduced = c.reduced,
        reduced_wire = c.reduced_wire,
        kept = { parameters = c.parameters, gradients = c.gradients, optimizer = c.optimizer } }
    end,
  },
  {
    name = "shard_optimizer_over_replicate", of = "unit", reader = readers.over_replicate,
    default = function() return false end,
    store = function(unit, value) unit.shard_over_replicate = value end,
    on_reference = { value = false },
    text = function(value, _, cost)
      return value and cost.updated == 0 and "true: no copies to shard over" or tostring(value)
    end,
    json = same, rare = true,
    cost = function(c)
      return { gathered = c.updated, gathered_wire = c.updated_wire, reduced = c.reduced, reduced_wire = c.reduced_wire,
        kept = { parameters = c.parameters, optimizer = c.optimizer } }
    end,
  },
  {
    name = "freeze", of = "parameter", reader = always(readers.freeze), bare_value = true,
    absent = function(param) return param.parameter.frozen end,
    store = function(param, value) param.frozen = value end,
    text = function(_, param) return param.frozen and "frozen" or "trainable" end,
    json = function(_, param) return param.frozen == true end,
    cost = function(c) return { kept = { gradients = c.gradients, optimizer = c.optimizer } } end,
  },
  {
    name = "param_dtype", of = "parameter", reader = always(readers.param_dtype),
    store = function(param, value) param.dtype = value end,
    text = function(value, param) return value or "default: " .. param.unit.param_dtype end,
    json = function(value, param) return value or param.unit.param_dtype end,
    cost = function(c) return { gathered = c.gathered, gathered_wire = c.gathered_wire } end,
  },
  {
    name = "storage", of = "parameter", reader = storage.reader, applies = storage.applies,
    left_out = storage.LEFT_OUT, store = storage.store,
    text = function(value) return value or "default: f32" end, json = function(value) return value or "f32" end,
    cost = function(c) return { gathered = c.gathered, kept = { parameters = c.parameters } } end, rare = true,
  },
  {
    name = "fp8", of = "parameter", reader = always(float8.read),
    store = float8.store, text = float8.text, json = float8.json, rare = true,
    cost = function(c) return { gathered = c.gathered, gathered_wire = c.gathered_wire } end,
  },
  {
    name = "gather_dtype", of = "parameter", reader = always(gather.read), applies = gather.applies,
    store = gather.store,
    text = function(value, param) return value or storage.gathered_text(param) end,
    json = function(value) return value or false end, rare = true,
    cost = function(c) return { gathered = c.gathered, gathered_wire = c.gathered_wire } end,
  },
  {
    name = "placements", of = "parameter", reader = always(placements.read),
    store = placements.store, moves = true, on_reference = { value = nil },
    text = placements.text, json = placements.json, rare = true, by_layer = true,
    cost = function(c) return { gathered = c.gathered, kept = { parameters = c.parameters } } end,
  },
  {
    name = "recompute", of = "module", reader = always(recompute.read), is_value = recompute.is_op_list,
    store = function(module, value, self) self.recompute[module] = value end,
    on_reference = { value = nil },
    text = function(value) return not value and "default: no" or not value.on and "no" or value.ops or "all" end,
    json = function(value) return value and value.on and (value.ops or true) or false end,
    cost = function(c) return { kept = { activations = c.activations } } end,
  },
  {
    name = "regather", of = "module", reader = always(regather.read), inherited = true,
    store = function(module, value, self) self.regather[module] = value end,
    on_reference = { value = nil },
    text = function(value) return value or "default" end,
    json = function(value) return value or "default" end,
    cost = function(c) return { kept = { activations = c.activations } } end, rare = true,
  },
  {
    name = "prefetch", of = "unit", reader = readers.prefetch,
    set = prefetch.set, key = prefetch.describe,
    setting = { name = "prefetch", default = 1, check = readers.check_prefetch },
    on_reference = { value = nil },
    text = prefetch.describe,
    json = function(value) return value or "default" end,
    cost = function(c) return { kept = { gathered = c.ahead } } end, in_turn = true,
  },
  {
    name = "optimizer groups", of = "parameter", no_option = true, -- train/optim.lua decides them
    text = function(value)
      return (value.optimizer and value.optimizer .. ", " or "") .. param_groups.text(value)
        .. (value.moments and ", moments " .. value.moments or "")
    end,
    json = same,
    cost = function(c) return { kept = { optimizer = c.optimizer } } end,
  },
  {
    name = "clip_grad_norm", of = "parameter", no_option = true, rare = true, -- engine/clipping.lua decides it
    text = function(limit)
      return limit and limit > 0 and ("the norm of its rule, at most %g"):format(limit) or "not clipped"
    end,
    json = function(limit) return limit or 0 end,
    cost = function() return {} end,
  },
}

local function where(condition)
  local list = {}
  for _, row in ipairs(ROWS) do
    if condition(row) then list[#list + 1] = row end
  end
  return list
end

policies.all = ROWS
---Those that are options of ms.fully_shard.
policies.options = where(function(row) return not row.no_option end)
---Those that ms.set_rules can change where the state is.
policies.changeable = where(function(row) return row.set ~= nil end)
---Those that it can change by moving the state.
policies.moving = where(function(row) return row.moves end)
---Those that the reference of `moonshard check` drops.
policies.dropped = where(function(row) return row.on_reference ~= nil end)
---All in the order of explain's sections.
policies.shown = {}
for _, of in ipairs({ "unit", "module", "parameter" }) do
  for _, row in ipairs(where(function(each) return each.of == of end)) do table.insert(policies.shown, row) end
end

---The specs of these policies as options, for options.parse.
---@param list moonshard.PolicyRow[]
---@param specs table<string, moonshard.OptionSpec> of other options
---@return table<string, moonshard.OptionSpec> specs the same table
function policies.add_specs(list, specs)
  for _, row in ipairs(list) do specs[row.name] = { "any" } end
  return specs
end

---Whether changes need a new model of the engine, which has units and these policies of them from the start.
---@param changes table options of ms.fully_shard
---@return boolean
function policies.need_new_model(changes)
  for _, row in ipairs(ROWS) do
    if row.of == "unit" and not row.set and changes[row.name] ~= nil then return true end
  end
  return false
end

-- ---- deciding ---------------------------------------------------------------------------------------------------

local function has_rules(row, given)
  return rules.is_list(given) and not (row.is_value and row.is_value(given))
end

---The same options with all rules over parameters optional, for a model that lost some.
---@param config table options of ms.fully_shard
---@return table
function policies.without_duty(config)
  local result = { unfrozen = true }
  for name, value in pairs(config) do result[name] = value end
  for _, row in ipairs(policies.options) do
    if row.of == "parameter" and has_rules(row, config[row.name]) then
      local list = {}
      for i, entry in ipairs(config[row.name]) do
        local rule = (type(entry) ~= "table" or re.is(entry)) and { entry } or entry
        local value = rule[2]
        if value == nil then value = row.bare_value end
        list[i] = { rule[1], value, optional = true, where = rule.where }
      end
      result[row.name] = list
    end
  end
  return result
end

---The root modules of all units except the root unit.
---@param self moonshard.Sharding
---@return table<moonshard.Module, boolean>
function policies.unit_modules(self)
  local is_root = {}
  for _, unit in ipairs(self.units) do
    for _, module in ipairs(unit.name ~= units.ROOT and unit.modules or {}) do is_root[module] = true end
  end
  return is_root
end

---@class moonshard.PolicyOwners
---@field names string[]
---@field owners table[] units, parameters or modules
---@field left_out string[]? names of parameters for which the policy does not decide
---@field undecided table<string, moonshard.Decision>? the decisions of policies of which nothing is said

local NOTHING = {} -- the decision of a policy of which nothing is said

local function named(list, name_of)
  local names, owners = {}, {}
  for i, owner in ipairs(list) do names[i], owners[i] = owner[name_of], owner end
  return { names = names, owners = owners, left_out = {} }
end

local function parameters_of(self, row, given)
  local found, by_rules = { names = {}, owners = {}, left_out = {} }, has_rules(row, given)
  for _, param in ipairs(self.params) do
    if row.applies(param, by_rules, given) then
      found.names[#found.names + 1], found.owners[#found.owners + 1] = param.fqn, param
    else
      found.left_out[#found.left_out + 1] = param.fqn
    end
  end
  return found
end

local function modules_of(self, row, given)
  local found, by_rule, is_root = { names = {}, owners = {} }, has_rules(row, given), policies.unit_modules(self)
  for _, entry in ipairs(self.modules) do
    local decides = by_rule or is_root[entry.module]
    if row.inherited and not by_rule then decides = entry.name == "" else decides = decides and entry.name ~= "" end
    if decides then found.names[#found.names + 1], found.owners[#found.owners + 1] = entry.name, entry.module end
  end
  return found
end

-- What a policy decides for, and the names of parameters that it leaves out; most policies decide for all units or all
-- parameters, which are listed once. Rules can name any module; one value for all applies to the root modules of units,
-- or to the model if modules inherit it.
local function owners_of(self, row, given)
  if row.of == "module" then return modules_of(self, row, given) end
  if row.applies then return parameters_of(self, row, given) end
  local listed = self.listed
  if not listed[row.of] then
    listed[row.of] = row.of == "unit" and named(self.units, "name") or named(self.params, "fqn")
  end
  return listed[row.of]
end

-- The decisions of a policy: of one value for all, or one for each owner. Owners with a value of their own have it
-- where the policy says nothing.
local function by_names(row, of, for_all, decisions)
  local by_name, absent, own = {}, row.absent, {}
  for i, name in ipairs(of.names) do
    local decision = for_all or decisions[i]
    if absent and decision.value == nil then
      local value = absent(of.owners[i]) or false
      own[value] = own[value] or { value = value }
      decision = own[value]
    end
    by_name[name] = decision
  end
  return by_name
end

-- The same for a policy of which nothing is said, neither by the recipe nor by a default; they share the table.
local function undecided(row, of)
  if row.absent then return by_names(row, of, NOTHING) end
  of.undecided = of.undecided or by_names(row, of, NOTHING)
  return of.undecided
end

local NO_RULES = {}

---Decides one policy for everything that it names, by a list of rules or one value for all.
---@param self moonshard.Sharding
---@param row moonshard.PolicyRow with a reader
---@param given any as in ms.fully_shard
---@return table<string, moonshard.Decision> by_name owners for which one rule or value decides share a decision, and
---  policies of which nothing is said the table
function policies.decide_one(self, row, given)
  local of = owners_of(self, row, given)
  local read, default = row.reader(self), row.default and row.default(self)
  local by_name
  local warnings, unmatched = {}, {}
  if has_rules(row, given) then
    local policy = rules.policy(row.name, given, { read = read, bare_value = row.bare_value, by_layer = row.by_layer,
      one_value = row.one_value })
    local decisions
    decisions, warnings, unmatched = policy:resolve(of.names, default, row.of == "parameter" and self.tied or nil,
      row.left_out and { names = of.left_out, because = row.left_out } or nil)
    by_name = by_names(row, of, nil, decisions)
  elseif given ~= nil then
    if type(given) == "table" then rules.refuse_map(row.name, given, owners_of(self, row, NO_RULES).names) end
    by_name = by_names(row, of, { value = read(given, "the value"), where = self.where })
  else
    by_name = default == nil and undecided(row, of) or by_names(row, of, { value = default })
  end
  for _, warning in ipairs(warnings) do table.insert(self.warnings, warning) end
  self.unmatched[row.name] = unmatched
  self.decisions[row.name], self.owners[row.name] = by_name, of
  return by_name
end

---Stores the decisions of a policy in the units, parameters or modules that they are for.
---@param self moonshard.Sharding
---@param row moonshard.PolicyRow
function policies.store(self, row)
  if not row.store then return end
  local decisions, of = self.decisions[row.name], self.owners[row.name]
  for i, owner in ipairs(of.owners) do row.store(owner, decisions[of.names[i]].value, self) end
end

---Decides every policy of a model whose units and parameters are known.
---@param self moonshard.Sharding
---@param config table options of ms.fully_shard
function policies.decide(self, config)
  self.listed = {}
  for _, row in ipairs(ROWS) do
    if row.reader then
      policies.decide_one(self, row, config[row.name])
      policies.store(self, row)
    end
  end
  for _, row in ipairs(ROWS) do
    if row.check then row.check(self, self.decisions[row.name]) end
  end
end

return policies
