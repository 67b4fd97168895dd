-- Creates the engine's model of a sharding (ms_model: units and parameters), and changes its rules during training.

local dtypes = require("moonshard.base.dtypes")
local engine = require("moonshard.base.ffi")
local float8 = require("moonshard.shard.policies.float8")
local gather = require("moonshard.shard.policies.gather")
local momentum_starts = require("moonshard.shard.momentum_starts")
local param_groups = require("moonshard.shard.param_groups")
local prefetch = require("moonshard.shard.policies.prefetch")
local settings = require("moonshard.base.settings")
local units = require("moonshard.shard.units")
local C, ffi = engine.C, engine.ffi

local engine_model = {}

-- When to reshard, and the size of the groups; 0: all ranks that shard.
local function reshard_of(value)
  if type(value) == "number" then return C.MS_RESHARD_ALWAYS, value end
  return settings.number("ms_unit_config", "reshard", value), 0
end

local function add_units(self, handle)
  local ids, out, config = {}, ffi.new("int[1]"), ffi.new("ms_unit_config")
  for _, unit in ipairs(self.units) do
    engine.check(C.ms_config_default("ms_unit_config", config, ffi.sizeof(config)))
    local given = {} -- what policies store in a unit has the name of the setting
    for _, row in ipairs(settings.rows("ms_unit_config")) do given[row.name] = unit[row.name] end
    given.root = unit.name == units.ROOT
    given.reshard, given.reshard_size = reshard_of(unit.reshard)
    settings.fill(config, "ms_unit_config", given)
    engine.check(C.ms_model_add_unit(handle, unit.name, config, out))
    ids[unit] = out[0]
  end
  return ids
end

local NONE = {}

local function add_params(self, handle, unit_ids, groups, optimizer)
  local out, config, dims = ffi.new("int[1]"), ffi.new("ms_param_config"), ffi.new("int64_t[?]", C.MS_MAX_DIMS)
  for _, param in ipairs(self.params) do
    local group = groups[param.fqn] or NONE
    engine.check(C.ms_config_default("ms_param_config", config, ffi.sizeof(config)))
    settings.fill(config, "ms_param_config", {
      init = param.init.kind, init_a = param.init.a, init_b = param.init.b, frozen = param.frozen,
      param_dtype = param.dtype, storage_dtype = param.storage,
    })
    param_groups.fill(config.group, group, momentum_starts.number(self, optimizer, param.fqn))
    local placement = param.placement or NONE
    config.tensor_axis, config.tensor_splits = placement.axis or -1, placement.splits and 1 or 0
    config.fp8, config.gather_dtype = float8.id(param), gather.id(param)
    local moments = optimizer and optimizer:moments_of(param)
    config.packed_moments = moments and dtypes.uses[moments].moment_records and 1 or 0
    local part = optimizer and not param.frozen and optimizer:part_of(param.fqn)
    config.optimizer = part and part:chosen_as() or C.MS_OPT_NONE
    config.balance = not param.frozen and param.parameter.balance or 0
    if param.parameter.balance then config.param_dtype = (dtypes.id("f32")) end
    for d, size in ipairs(param.shape) do dims[d - 1] = size end
    engine.check(C.ms_model_add_param(handle, unit_ids[param.unit], param.fqn, #param.shape, dims, config, out))
  end
end

-- The settings of every parameter, from the optimizer's groups; empty without an optimizer.
local function groups_of(self, optimizer)
  if not optimizer then return {} end
  local fqns = {}
  for i, param in ipairs(self.params) do fqns[i] = param.fqn end
  local groups, warnings = optimizer:param_groups(fqns, self.tied)
  self.group_warnings = warnings or {}
  return groups
end

local function dims_of(self)
  local dims = engine.config("ms_model_dims")
  dims.replicate, dims.shard = self.replicate_dim, self.shard_dim
  dims.context, dims.tensor = self.context_dim, self.tensor_dim
  dims.sequence_parallel = self.sequence_parallel and 1 or 0
  return dims
end

---Creates the engine's model of a sharding.
---@param self moonshard.Sharding
---@param optimizer moonshard.Optimizer?
---@return ffi.cdata* ms_model*
function engine_model.build(self, optimizer)
  local out = ffi.new("ms_model *[1]")
  engine.check(C.ms_model_new(self.seed, out))
  local handle = ffi.gc(out[0], C.ms_free)
  add_params(self, handle, add_units(self, handle), groups_of(self, optimizer), optimizer)
  engine.check(C.ms_model_shard(handle, self.mesh.handle, self.rank, dims_of(self)))
  prefetch.set(self, handle, self.decisions.prefetch)
  return handle
end

---Sets when units are resharded, for plans compiled from now on.
---@param self moonshard.Sharding
---@param handle ffi.cdata* ms_model*
---@param decisions table<string, moonshard.Decision> by unit
function engine_model.set_reshard(self, handle, decisions)
  local reshard, size = ffi.new("int[?]", #self.units), ffi.new("int[?]", #self.units)
  for i, unit in ipairs(self.units) do
    reshard[i - 1], size[i - 1] = reshard_of(decisions[unit.name].value)
  end
  engine.check(C.ms_model_set_reshard(handle, reshard, size))
end

---Sets whether the ranks of the tensor dimension divide activations between layers, for graphs traced from now on.
---@param self moonshard.Sharding
---@param handle ffi.cdata* ms_model*
---@param on boolean
function engine_model.set_sequence_parallel(self, handle, on)
  engine.check(C.ms_model_set_sequence_parallel(handle, on and 1 or 0))
  self.sequence_parallel = on
end

-- The groups of all parameters, and the same as a string of bytes.
local function settings_of(self, optimizer)
  local n, groups = #self.params, groups_of(self, optimizer)
  local filled = ffi.new("ms_param_group[?]", n)
  for i, param in ipairs(self.params) do
    param_groups.fill(filled[i - 1], groups[param.fqn], momentum_starts.number(self, optimizer, param.fqn))
  end
  return filled, ffi.string(filled, ffi.sizeof(filled))
end

---The settings of all parameters from the optimizer's groups, to compare them.
---@param self moonshard.Sharding
---@param optimizer moonshard.Optimizer
---@return string bytes equal if the settings are equal
function engine_model.describe_groups(self, optimizer)
  return (select(2, settings_of(self, optimizer)))
end

---Sets learning rates, weight decays and the like by the optimizer's groups, for plans compiled from now on.
---@param self moonshard.Sharding
---@param handle ffi.cdata* ms_model*
---@param optimizer moonshard.Optimizer
---@return string bytes as describe_groups
function engine_model.set_groups(self, handle, optimizer)
  local filled, bytes = settings_of(self, optimizer)
  engine.check(C.ms_model_set_groups(handle, filled, ffi.sizeof("ms_param_group")))
  return bytes
end

return engine_model
