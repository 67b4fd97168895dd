-- ms.fully_shard: reads the options, decides every policy for every unit and parameter, and records each decision with
-- the rule that made it. The engine's model is created from these decisions when the first graph is traced.

local assign_units = require("moonshard.shard.assign_units")
local automatic = require("moonshard.shard.policies.automatic")
local engine_model = require("moonshard.shard.engine_model")
local errors = require("moonshard.base.error")
local float8 = require("moonshard.shard.policies.float8")
local meshes = require("moonshard.distributed.mesh")
local module = require("moonshard.nn.module")
local options = require("moonshard.base.checks.options")
local placements = require("moonshard.shard.policies.placements")
local policies = require("moonshard.shard.policies.policies")
local reference = require("moonshard.shard.reference")
local replicate_sync = require("moonshard.shard.policies.replicate_sync")
local roles = require("moonshard.shard.roles")
local sealed = require("moonshard.base.checks.sealed")
local single_rank = require("moonshard.distributed.single_rank")
local storage = require("moonshard.shard.policies.storage")
local strategy = require("moonshard.shard.strategy")
local tree = require("moonshard.nn.tree")
local units = require("moonshard.shard.units")
local world = require("moonshard.distributed.world")

---@class moonshard.Unit: moonshard.MixedPrecision
---@field name string FQN of its root module, or "root"
---@field module moonshard.Module its (first) root module
---@field modules moonshard.Module[] all root modules; a group has several
---@field params moonshard.ShardedParameter[]
---@field layout string "rows" or "ragged"
---@field replicate_sync "always"|moonshard.ReplicateSync
---@field fragment integer? of local SGD, from 1; nil: replicas sum its gradients in every step
---@field reshard string|integer "always", "never", "default", or the size of the groups in which backward gathers
---@field shard boolean whether the ranks that shard own parts of it; false: each has all of it
---@field shard_over_replicate boolean whether its masters and optimizer state are sharded over the replicas, too
---@field rule moonshard.Decision? the rule of `units` that selected it

---@class moonshard.ShardedParameter
---@field fqn string
---@field parameter moonshard.Parameter
---@field shape integer[]
---@field numel integer
---@field unit moonshard.Unit
---@field frozen boolean
---@field fp8 string? recipe by which its products round their operands (shard/policies/float8.lua)
---@field gather string? gathered in blocks of it (shard/policies/gather.lua)
---@field init moonshard.Initializer
---@field storage string? a type with the use `storage` (base/dtypes.lua): how it is kept; nil: as an f32 master

---@class moonshard.Sharding
---@field model moonshard.Module
---@field mesh moonshard.Mesh
---@field replicate_dim integer dimension of the mesh; -1: none
---@field shard_dim integer dimension of the mesh; -1: none
---@field context_dim integer dimension of the mesh; -1: none
---@field tensor_dim integer dimension of the mesh; -1: none
---@field sequence_parallel boolean? whether the ranks of the tensor dimension divide activations between layers
---@field local_sync moonshard.ReplicateSync? when replicas synchronise the units with a fragment
---@field is_stage boolean? whether the mesh is the slice of one pipeline stage
---@field units moonshard.Unit[] the root unit first, if it has parameters
---@field params moonshard.ShardedParameter[] in the order of the engine's indices
---@field index table<moonshard.Parameter, integer> the engine's index, from 0
---@field tied table<string, string> FQN of a tied parameter by each of its other names
---@field decisions table<string, table<string, moonshard.Decision>> by policy, then by unit or parameter
---@field owners table<string, moonshard.PolicyOwners> by policy: what it decides for
---@field recompute table<moonshard.Module, any> what backward recomputes, by module
---@field regather table<moonshard.Module, moonshard.Regather> whether backward gathers activations again, by module
---@field warnings string[] rules of these policies that never decide
---@field group_warnings string[] groups of the optimizer that never decide
---@field momentum_starts table<string, integer|false>? by parameter (momentum_starts.lua)
---@field unmatched table<string, moonshard.Rule[]> by policy: optional rules that match no name
---@field seed integer seed of the initial weights
---@field modules moonshard.NamedModule[] of the model when units and policies were decided
---@field fields moonshard.HeldField[]? modules and parameters of the model when it was sharded
---@field where string? line of the recipe that sharded the model, or first used it
---@field implicit boolean? true if the recipe did not call ms.fully_shard
---@field rank integer this process's rank in the mesh
---@field single_rank boolean? true on this rank only: the model is not sharded yet
---@field number integer? of the model, from 1, among those that its ranks have sharded
---@field default_reshard string? the strategy's value for units that no rule matches
---@field config moonshard.ShardOptions by which units and policies are decided
---@field auto moonshard.Automatic? policies that are decided with the first plan of a trainer
local Sharding = {}
Sharding.__index = Sharding

local sharding = {}

-- ---- the public calls -------------------------------------------------------------------------------------------

local SPECS = policies.add_specs(policies.options, {
  mesh = { "any" }, strategy = { "string" }, seed = { "seed", default = 0 },
  cluster = { "string" }, memory = { "number|string" },
  shared_masters = { "boolean", default = true }, sequence_parallel = { "boolean", default = false },
})

local function new_sharding(model, seed)
  return setmetatable({ model = model, group_warnings = {}, seed = seed, where = errors.caller() }, Sharding)
end

-- Decides units and policies; forgets what was decided before.
local function decide(self, inventory, config)
  self.units, self.params, self.index, self.tied = {}, {}, {}, {}
  self.decisions, self.owners, self.recompute, self.regather = {}, {}, {}, {}
  self.warnings, self.unmatched, self.config, self.modules = {}, {}, config, inventory.modules
  assign_units(self, inventory, config.units)
  policies.decide(self, config)
end

-- The sharding of each parameter, so that a single module of a model can be called. Weak: it keeps no model alive.
local owners = setmetatable({}, { __mode = "kv" })

local function claim_parameters(self)
  if not self.single_rank then rawset(self.model, "_single_rank", nil) end
  for _, param in ipairs(self.params) do owners[param.parameter] = self end
end

local function check_unclaimed(inventory)
  for _, entry in ipairs(inventory.parameters) do
    local owner = owners[entry.parameter]
    if owner and not owner.single_rank then
      errors.invalid("ms.fully_shard: %s belongs to a model that is already sharded (%s): shard a model in one "
        .. "call, in which units = { ... } groups its modules for gathering", entry.name,
        owner.where or "before")
    end
  end
end

---Reports warnings, such as rules that never decide, on rank 0.
---@param warnings string[]
function sharding.report(warnings)
  if world.rank ~= 0 then return end
  for _, warning in ipairs(warnings) do io.stderr:write("moonshard: warning: ", warning, "\n") end
end

---Reports rules that never decide, on rank 0.
---@param warnings string[]? default: those of the policies of ms.fully_shard
function Sharding:report_warnings(warnings) sharding.report(warnings or self.warnings) end

---@class moonshard.ShardOptions
---@field mesh? moonshard.Mesh|integer[]|integer a mesh, { replicate, shard } sizes or one size; default: shard over all
---  ranks
---@field units? any patterns over module names, or "auto"; default: one unit
---@field reshard_after_forward? any true, false, "default", "run", a number of ranks, "auto", or rules over units
---@field mp_policy? moonshard.PrecisionOptions|"auto"|moonshard.Rule[] one for all units, or rules over units; default
---  f32
---@field layout? any "rows" (the default), "ragged", or rules over units
---@field replicate_sync? any { every, outer, fragments, delay, alpha } (local SGD, DiLoCo), "always" (the default:
---  replicas sum gradients in every step), or rules over units
---@field shard? any true (the default), false, or rules over units: whether the ranks that shard own parts of a unit,
---  or each has all of it and updates it (FSDP2's ignored_params). For small units: the sum of their gradients over
---  the ranks replaces gathers and reduce-scatters
---@field shard_optimizer_over_replicate? any true, false (the default), "auto", or rules over units: shard masters and
---  optimizer state over the replicas, too (ZeRO-1 over `replicate`, Megatron-FSDP's outer sharding "optim"); "auto":
---  false with one replica, local steps or sums in few bits
---@field prefetch? any number of units gathered ahead, "auto", or rules over units, whose values can also name units
---@field recompute? any true, false, a list of ops, "auto", { budget = "60GiB" }, or rules over modules: what backward
---  recomputes instead of keeping
---@field regather? any true, false, "default", or rules over modules: whether backward gathers activations again, from
---  the ranks of `tensor` or `context`, instead of keeping what forward gathered
---@field param_dtype? any rules over parameters with "f32" or "bf16", for parameters that differ from their unit
---@field freeze? any rules over parameters
---@field storage? any "f32" (the default), "bf16", "i8" or another type in few bits (lua/guides/fewer_bits.md), or
---  rules over frozen parameters: how they are kept and gathered; they become what kernels read where they read it. A
---  value for all is that of matrices
---@field fp8? any rules over parameters with "tensorwise", "rowwise", "rowwise_with_gw_hp", "mxfp8", "blockwise",
---  "blockwise_power_2_scale" or false: how
---  products of these weights round their operands to 8 bits
---@field gather_dtype? any "i8", or rules over parameters with "i8" or false: shards gather them in blocks of 256 codes
---  with a scale. A value for all is that of weights of two axes or more
---@field placements? any rules over parameters with { tensor = style }: how the ranks of the mesh dimension `tensor`
---  divide them: "colwise", "rowwise", "vocab", "sequence", "replicate", ms.Shard(axis) or ms.Replicate(); with heads =
---  or kv_heads = they divide so many heads, and can share those of keys
---@field sequence_parallel? boolean divide activations over `tensor` between layers, too; default false
---@field strategy? string a name of PyTorch FSDP, such as HYBRID_SHARD
---@field cluster? string the machine for which "auto" decides: the name of a described cluster, or a path
---@field memory? number|string bytes of a rank's device that "auto" may use, such as "72GiB"; default: all of it
---@field seed? integer seed of the initial weights; default 0
---@field shared_masters? boolean on the CPU, read f32 units in their owners' memory instead of copying them, and keep
---  one copy of the state per host for its replicas; default true

local numbers = {} -- by ranks: how many models these have sharded

-- Ranks that shard equal models tell them apart by the order in which they sharded them.
local function number_among(mesh, rank)
  local key = table.concat(mesh:ranks(rank), " ")
  numbers[key] = (numbers[key] or 0) + 1
  return numbers[key]
end

---Shards a model. Must be called before the model is used, and once per model.
---@param model moonshard.Module
---@param config moonshard.ShardOptions?
---@return moonshard.Module model the same model
function sharding.fully_shard(model, config)
  if not module.is(model) then
    errors.invalid("ms.fully_shard: the first argument must be a module, not %s", options.describe(model))
  end
  if module.is(rawget(model, "sharding")) then tree.inventory(model) end -- refuses the name
  if rawget(model, "sharding") then
    local format = model.sharding.implicit
      and "the model is already in use (%s), replicated because it was not sharded: call ms.fully_shard earlier"
      or "the model is already sharded (%s): give all rules in a single call"
    errors.invalid("ms.fully_shard: " .. format, model.sharding.where or "before")
  end
  config = automatic.replace(options.parse("ms.fully_shard", config, SPECS))
  local self = new_sharding(model, config.seed)
  self.shared_masters = config.shared_masters
  local inventory = tree.inventory(model)
  if #inventory.parameters == 0 then
    errors.invalid("ms.fully_shard: the model has no parameters: assign ms.parameter or layers to fields of the module")
  end
  check_unclaimed(inventory)
  self.rank, self.fields = world.rank, inventory.fields
  local dims
  if meshes.is(config.mesh) then sealed.check("ms.fully_shard", config.mesh) end
  self.mesh, dims, self.default_reshard = strategy(config)
  roles.assign(self, dims)
  self.sequence_parallel = config.sequence_parallel
  local given = meshes.is(config.mesh) and config.mesh or self.mesh -- a strategy can make one that is no slice
  self.is_stage = roles.is_stage(given)
  self.mesh:coordinate_of(self.rank) -- refuses a rank that has no place in it
  if self.shard_dim >= 0 then self.mesh:check_nodes(self.shard_dim) end
  self.auto = automatic.take(config, inventory)
  decide(self, inventory, config)
  for _, warning in pairs({ placements.unused(self), storage.larger(self) }) do table.insert(self.warnings, warning) end
  for _, warning in ipairs(roles.left_out(given)) do table.insert(self.warnings, warning) end
  replicate_sync.assign(self)
  if reference.active and self.local_sync then
    errors.invalid("moonshard check compares a run with one rank, but with replicate_sync replicas train apart: check "
      .. "the recipe without it")
  end
  if reference.active then reference.replace_sharding(self) end
  self.number = number_among(self.mesh, self.rank)
  rawset(model, "sharding", self)
  for _, param in ipairs(self.params) do
    param.parameter.frozen = param.frozen
    sealed.seal(param.parameter)
  end
  claim_parameters(self)
  self:report_warnings()
  return model
end

-- Refuses a module within a sharded model where a whole model is meant.
local function refuse_part(part)
  local around = sharding.around(part)
  if not around or around.single_rank then return end
  local name = "?"
  for _, entry in ipairs(around.modules) do
    if entry.module == part then name = entry.name end
  end
  errors.invalid("%s is a part of a model that is sharded (%s): this call takes the whole model; to train a part, give "
    .. "ms.trainer the model, forward and freeze, and to look at one, call it: part(x), part:parameter(name), "
    .. "part:state_dict()", name, around.where or "before")
end

---The sharding of a model. A model without one is replicated over all ranks (DDP), as one unit, with a warning.
---@param model moonshard.Module
---@return moonshard.Sharding
function sharding.of(model)
  if not rawget(model, "sharding") then
    refuse_part(model)
    sharding.fully_shard(model, { mesh = meshes.init_device_mesh(nil, { -1 }, { "replicate" }) })
    local self = model.sharding
    self.implicit = true
    if world.size > 1 then
      self:report_warnings({ ("%s: the model was not given to ms.fully_shard: each of the %d ranks holds all of it "
        .. "(DDP); call ms.fully_shard(model) first to shard it"):format(self.where or "recipe", world.size) })
    end
  end
  return model.sharding
end

---Raises if a module or a parameter of the model was replaced since it was sharded: the original would be trained.
function Sharding:check_unchanged()
  for _, field in ipairs(self.fields or {}) do
    if rawget(field.holder, field.key) ~= field.value then
      errors.invalid("%s was replaced after the model was sharded (%s), but the original would be trained: "
        .. "build the model first; model:set_parameter and model:load_state_dict change its values", field.name,
        self.where or "before")
    end
    if type(field.key) == "number" then tree.check_list(field.holder, field.name) end
  end
end

---A sharding over this rank only, for work before ms.fully_shard; it is not stored in the model. Initial weights use
---seed 0.
---@param model moonshard.Module
---@return moonshard.Sharding
function sharding.on_single_rank(model)
  local self = new_sharding(model, 0)
  self.single_rank, self.rank = true, 0
  self.mesh = single_rank.mesh()
  roles.assign(self, { shard = 0 })
  decide(self, tree.inventory(model), {})
  claim_parameters(self)
  return self
end

---The sharding that contains the parameters of a module: its own, or that of its model.
---@param part moonshard.Module
---@return moonshard.Sharding?
function sharding.around(part)
  if tree.is_module(part) and rawget(part, "sharding") then return part.sharding end
  local owner
  for _, entry in ipairs(tree.inventory(part).parameters) do
    owner = owner or owners[entry.parameter]
    if not owner or not owner.index[entry.parameter] then return nil end
  end
  return owner
end

-- ---- the engine's model -----------------------------------------------------------------------------------------

---The engine's model, created at the first call. The first call with an optimizer replaces it, because learning rates
---and weight decay are stored in its parameters; graphs traced earlier keep the old one.
---@param optimizer table? optimizer:param_groups(fqns) returns { [fqn] = { lr_scale =, weight_decay = } }
---@return ffi.cdata* ms_model*
function Sharding:handle(optimizer)
  if self.built and (optimizer == nil or optimizer == self.optimizer) then return self.built end
  self.built = engine_model.build(self, optimizer)
  self.optimizer = optimizer
  self:report_warnings(self.group_warnings)
  return self.built
end

---Replaces the engine's model after new placements; states and graphs of the old one keep it.
function Sharding:rebuild() self.built = engine_model.build(self, self.optimizer) end

-- ---- other decisions for the same model and mesh ----------------------------------------------------------------

local function changed(config, changes)
  local result = {}
  for _, from in ipairs({ config, changes }) do
    for name, value in pairs(from) do result[name] = value end
  end
  return result
end

-- The same model on the same mesh under other options, not built yet.
local function alternative(self, config, rank)
  local other = new_sharding(self.model, self.seed)
  for _, name in ipairs({ "shared_masters", "mesh", "sequence_parallel", "is_stage", "default_reshard", "where",
    "number" }) do
    other[name] = self[name]
  end
  other.rank = rank
  for _, role in ipairs(roles.all) do other[role.name .. "_dim"] = self[role.name .. "_dim"] end
  decide(other, tree.inventory(self.model), config)
  replicate_sync.assign(other)
  return other
end

---The same model on the same mesh under other options, as a rank of it would have it. It is not the model's: the caller
---compiles with it and drops it.
---@param changes table options of ms.fully_shard that policies read
---@param rank integer in the mesh
---@return moonshard.Sharding
function Sharding:with(changes, rank)
  local other = alternative(self, changed(self.config, changes), rank)
  other.built = engine_model.build(other, self.optimizer)
  other.optimizer = self.optimizer
  return other
end

---Shards the model again by the same rules, after parameters were removed from it, for a session of its own: rules that
---matched only those now match nothing.
---@return moonshard.Sharding the model's
function Sharding:after_removal()
  local other = alternative(self, policies.without_duty(self.config), self.rank)
  other.fields, other.implicit, other.auto = tree.inventory(self.model).fields, self.implicit, self.auto
  rawset(self.model, "sharding", other)
  for _, param in ipairs(other.params) do param.parameter.frozen = param.frozen end
  claim_parameters(other)
  return other
end

---Decides again, under other options. New units, and policies of units that nothing sets later, replace the engine's
---model; states and graphs of the old one keep it.
---@param changes table as for Sharding:with
function Sharding:decide_again(changes)
  local config = changed(self.config, changes)
  if policies.need_new_model(changes) then
    decide(self, tree.inventory(self.model), config)
    replicate_sync.assign(self)
    if self.built then self:rebuild() end
    return
  end
  self.config = config
  for _, row in ipairs(policies.options) do
    if changes[row.name] ~= nil then
      local decisions = policies.decide_one(self, row, changes[row.name])
      if row.set and self.built then row.set(self, self.built, decisions) end
      policies.store(self, row)
    end
  end
end

---Precision by module, for the roots of units.
---@return table<moonshard.Module, moonshard.MixedPrecision>
function Sharding:precision()
  local by_module = {}
  for _, unit in ipairs(self.units) do
    for _, root in ipairs(unit.modules) do by_module[root] = unit end
  end
  return by_module
end

-- What rules decided for a parameter that they did not for all of its unit: "bf16, colwise".
local function decided_alone(param)
  local texts, placement = {}, param.placement
  local function add(text) texts[#texts + 1] = text end
  if param.dtype and param.dtype ~= param.unit.param_dtype then add(param.dtype) end
  if param.storage then add("kept in " .. param.storage) end
  if float8.is_gathered(param) then add("gathered as f8e4m3")
  elseif param.fp8 then add("fp8 " .. param.fp8) end
  if param.gather then add("gathered in " .. param.gather) end
  if placement and placement.axis then add(placement.style) end
  return texts[1] and table.concat(texts, ", ")
end

---The texts that the printed model shows for root modules of units and for parameters; `frozen` and `decided`: by
---parameter.
---@return table<moonshard.Module|moonshard.Parameter|"frozen"|"decided", any>
function Sharding:marks()
  local marks, session = { frozen = {}, decided = {} }, rawget(self.model, "session")
  for _, param in ipairs(self.params) do
    marks.frozen[param.parameter] = param.frozen
    marks.decided[param.parameter] = decided_alone(param)
    local read = param.dtype or param.unit.param_dtype
    marks[param.parameter] = (param.frozen and "frozen " or "") .. read
      .. (param.storage and (" kept in %s"):format(param.storage) or "")
      .. (float8.is_gathered(param) and " gathered as f8e4m3" or "")
  end
  for _, unit in ipairs(self.units) do
    local mark = (unit.name == units.ROOT and "root unit, " or "unit, ") .. unit.param_dtype
    if unit.layout ~= "rows" then mark = mark .. ", " .. unit.layout end
    if unit.reshard ~= "default" then mark = mark .. ", reshard " .. unit.reshard end
    if session and session.unsharded[unit] then mark = mark .. ", unsharded" end
    for _, root in ipairs(unit.modules) do marks[root] = mark end
  end
  return marks
end

function Sharding:__tostring()
  return ("sharding over mesh %s: %d unit%s, %d parameters"):format(self.mesh:label(), #self.units,
    #self.units == 1 and "" or "s", #self.params)
end

return sharding
