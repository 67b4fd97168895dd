-- The table of optimizers: options, state, and the engine's configuration. A new optimizer needs a row here, its
-- annotated constructor in train/optim.lua, and the engine's row (runtime/plan/optimizer.c);
-- tests/lua/project/tables_spec.lua compares the two.

local dtypes = require("moonshard.base.dtypes")
local engine = require("moonshard.base.ffi")
local errors = require("moonshard.base.error")
local nearest = require("moonshard.base.names.nearest")
local options = require("moonshard.base.checks.options")
local param_groups = require("moonshard.shard.param_groups")
local C = engine.C

local optimizers = {}

local check_rate, check_momentum = param_groups.check_rate, param_groups.check_momentum
local check_betas, check_eps = param_groups.check_betas, param_groups.check_eps

---@class moonshard.OptimizerState the state that an optimizer keeps for every trained parameter
---@field kind string its name in checkpoints
---@field what integer enum ms_tensor_kind
---@field shape? fun(shape: integer[]): integer[]? its shape, from a parameter's, or nil: a parameter of that shape has
---  none; every rank has all of it. Without this function it has the shape of the parameter, and is sharded like it

---@class moonshard.OptimizerRow
---@field kind string
---@field id integer enum ms_optimizer_kind
---@field lr number? the default; nil: recipes must give it
---@field options fun(): table<string, moonshard.OptionSpec> besides lr and groups; checkpoints record their values
---@field check fun(who: string, o: table) refuses invalid options, and gives dtypes their short names
---@field group table<string, boolean> the settings that a group can have of its own, besides lr and weight_decay
---@field check_group? fun(who: string, o: table, group: table) refuses a group that does not go with the options
---@field configure fun(config: ffi.cdata*, o: table) fills its part of an ms_plan_config
---@field states moonshard.OptimizerState[]
---@field keeps fun(o: table): boolean whether it keeps these states
---@field update_tolerance number how many times as large as a dtype's tolerance one step's update can differ
---@field training_tolerance number the same of the whole change made by training, where differences accumulate
---@field by_size "root"|"factors"|"sign"|nil divides gradients by the root of their mean square, or of one of
---  their row and column, or takes signs, so that small ones amplify rounding; check/adamw_sensitivity.lua,
---  check/adafactor_sensitivity.lua and check/lion_sensitivity.lua measure this

local ADJUSTS = { original = C.MS_MUON_ORIGINAL, match_rms_adamw = C.MS_MUON_MATCH_RMS_ADAMW }
local MOST_STEPS = 99 -- of Muon's iteration, which has converged after a few

local function check_moments(who, o)
  local moments = dtypes.of_use(o.moments, "moment")
  if not moments then
    errors.invalid("%s: moments must be %s, not %s", who, dtypes.quoted("moment"), options.describe(o.moments))
  end
  o.moments = moments
end

-- Lion's moment is not kept in 8 bits.
local function check_lion_moments(who, o)
  local moments = dtypes.of_use(o.moments, "moment")
  if moments and not dtypes.uses[moments].moment_records then
    o.moments = moments
    return
  end
  errors.raise(moments and "MS_EUNSUPPORTED" or "MS_EINVAL", "%s: moments must be \"f32\" or \"bf16\", not %s%s", who,
    options.describe(o.moments), moments and "; ms.optim.adamw and ms.optim.adam also keep theirs in 8 bits" or "")
end

-- Averages of squares by the rows of a matrix, by its columns, or by elements of what is no matrix.
local function without_axis(axis)
  return function(shape)
    if #shape < 2 then return nil end
    local of = { unpack(shape) }
    of[#of + 1 - axis] = 1
    return of
  end
end

local FACTORS = {
  { kind = "row_var", what = C.MS_TENSOR_ROW_VAR, shape = without_axis(1) },
  { kind = "col_var", what = C.MS_TENSOR_COL_VAR, shape = without_axis(2) },
  { kind = "variance", what = C.MS_TENSOR_VARIANCE,
    shape = function(shape) return #shape < 2 and { unpack(shape) } or nil end },
}

local EPS1 = 2 ^ -23 -- of f32, in which weights are

-- Whether a value is a list of at most two.
local function is_pair(value)
  if type(value) ~= "table" then return false end
  for key in pairs(value) do
    if key ~= 1 and key ~= 2 then return false end
  end
  return true
end

local function check_factor_eps(who, o)
  local given = o.eps
  if not is_pair(given) then
    errors.invalid("%s: eps must be two numbers, { 1e-7, 1e-3 }, the first of which can be nil, not %s", who,
      options.describe(given))
  end
  o.eps = { given[1] == nil and EPS1 or given[1], given[2] == nil and 1e-3 or given[2] }
  for i, eps in ipairs(o.eps) do
    if type(eps) ~= "number" then
      errors.invalid("%s: eps[%d] must be a number, not %s", who, i, options.describe(eps))
    end
    check_rate(who, ("eps[%d]"):format(i), eps, 0, math.huge)
  end
end

-- AdamW, and Adam, whose weight decay is in the gradient.
local function adam(id, weight_decay)
  return {
    id = id,
    options = function()
      return {
        betas = { "any", default = { 0.9, 0.999 } }, eps = { "number", default = 1e-8 },
        weight_decay = { "number", default = weight_decay }, moments = { "string", default = "f32" },
      }
    end,
    check = function(who, o)
      check_moments(who, o)
      check_betas(who, o.betas)
      check_eps(who, o.eps)
      check_rate(who, "weight_decay", o.weight_decay, 0, math.huge)
    end,
    group = { betas = true, eps = true },
    configure = function(config, o)
      config.beta1, config.beta2, config.eps = o.betas[1], o.betas[2], o.eps
      config.moment_dtype = dtypes.id(o.moments)
    end,
    states = {
      { kind = "exp_avg", what = C.MS_TENSOR_EXP_AVG }, { kind = "exp_avg_sq", what = C.MS_TENSOR_EXP_AVG_SQ },
    },
    keeps = function() return true end,
    -- The first steps are signs of gradients, which depend on rounding where gradients are small.
    update_tolerance = 10, training_tolerance = 10, by_size = "root",
  }
end

---@type table<string, moonshard.OptimizerRow>
local ROWS = {
  adamw = adam(C.MS_OPT_ADAMW, 0.01),
  adam = adam(C.MS_OPT_ADAM, 0),
  lion = {
    id = C.MS_OPT_LION,
    options = function()
      return {
        betas = { "any", default = { 0.9, 0.99 } }, weight_decay = { "number", default = 0 },
        moments = { "string", default = "f32" },
      }
    end,
    check = function(who, o)
      check_lion_moments(who, o)
      check_betas(who, o.betas)
      check_rate(who, "weight_decay", o.weight_decay, 0, math.huge)
    end,
    group = { betas = true },
    configure = function(config, o)
      config.beta1, config.beta2 = o.betas[1], o.betas[2]
      config.moment_dtype = dtypes.id(o.moments)
    end,
    states = { { kind = "exp_avg", what = C.MS_TENSOR_EXP_AVG } },
    keeps = function() return true end,
    -- Each step is a sign.
    update_tolerance = 10, training_tolerance = 10, by_size = "sign",
  },
  adafactor = {
    id = C.MS_OPT_ADAFACTOR, lr = 1e-2,
    options = function()
      return {
        beta2_decay = { "number", default = -0.8 }, eps = { "any", default = { nil, 1e-3 } },
        d = { "number", default = 1 }, weight_decay = { "number", default = 0 },
      }
    end,
    check = function(who, o)
      check_factor_eps(who, o)
      if not (o.beta2_decay <= 0 and o.beta2_decay > -math.huge) then
        errors.invalid("%s: beta2_decay must be at most 0 and finite, not %g", who, o.beta2_decay)
      end
      check_rate(who, "d", o.d, 1, math.huge)
      check_rate(who, "weight_decay", o.weight_decay, 0, math.huge)
    end,
    group = {},
    configure = function(config, o)
      config.adafactor_beta2_decay, config.adafactor_d = o.beta2_decay, o.d
      config.adafactor_eps1, config.adafactor_eps2 = o.eps[1], o.eps[2]
    end,
    states = FACTORS,
    keeps = function() return true end,
    update_tolerance = 10, training_tolerance = 10, by_size = "factors",
  },
  sgd = {
    id = C.MS_OPT_SGD,
    options = function()
      return {
        momentum = { "number", default = 0 }, dampening = { "number", default = 0 },
        nesterov = { "boolean", default = false }, weight_decay = { "number", default = 0 },
      }
    end,
    check = function(who, o)
      check_momentum(who, o.momentum)
      check_rate(who, "weight_decay", o.weight_decay, 0, math.huge)
      if math.abs(o.dampening) == math.huge then
        errors.invalid("%s: dampening must be finite, not %g", who, o.dampening)
      end
      if o.nesterov and (o.momentum == 0 or o.dampening ~= 0) then
        errors.invalid("%s: nesterov needs momentum above 0 and dampening 0", who)
      end
    end,
    group = { momentum = true },
    check_group = function(who, o, group)
      if o.momentum ~= 0 or (group.momentum or 0) == 0 then return end
      errors.invalid("%s: momentum is %g, but ms.optim.sgd has momentum 0 and keeps none: give it one above 0, and "
        .. "{ momentum = 0 } to a group of the parameters that train without", who, group.momentum)
    end,
    configure = function(config, o)
      config.momentum, config.dampening, config.nesterov = o.momentum, o.dampening, o.nesterov and 1 or 0
    end,
    states = { { kind = "momentum", what = C.MS_TENSOR_MOMENTUM } },
    keeps = function(o) return o.momentum ~= 0 end,
    update_tolerance = 2, training_tolerance = 5,
  },
  muon = {
    id = C.MS_OPT_MUON,
    options = function()
      return {
        momentum = { "number", default = 0.95 }, nesterov = { "boolean", default = true },
        weight_decay = { "number", default = 0.1 }, adjust = { "string", default = "original" },
        steps = { "positive", default = 5 }, dtype = { "string", default = "f32" },
      }
    end,
    check = function(who, o)
      check_momentum(who, o.momentum)
      check_rate(who, "weight_decay", o.weight_decay, 0, math.huge)
      if not ADJUSTS[o.adjust] then
        errors.raise("MS_ENAME", "%s: adjust %s: %s", who, o.adjust, nearest.advice(o.adjust, ADJUSTS))
      end
      if o.steps > MOST_STEPS then errors.invalid("%s: steps must be 1 to %d, not %d", who, MOST_STEPS, o.steps) end
      local dtype = dtypes.of_use(o.dtype, "param") -- what products of f32 values can read
      if not dtype then
        errors.invalid("%s: dtype must be %s, not %s", who, dtypes.quoted("param"), options.describe(o.dtype))
      end
      o.dtype = dtype
    end,
    group = { momentum = true },
    configure = function(config, o)
      config.muon_momentum, config.muon_nesterov = o.momentum, o.nesterov and 1 or 0
      config.muon_adjust, config.muon_steps = ADJUSTS[o.adjust], o.steps
      config.muon_dtype = (dtypes.id(o.dtype))
    end,
    states = { { kind = "momentum", what = C.MS_TENSOR_MOMENTUM } },
    keeps = function() return true end,
    -- Each step moves a matrix by as much in every direction, also in those of small gradients; how far rounding takes
    -- training there is measured (check/muon_sensitivity.lua).
    update_tolerance = 10, training_tolerance = 2,
  },
}

---Reads the settings of one of an optimizer's groups.
---@param optimizer moonshard.Optimizer
---@param who string
---@param value table
---@return moonshard.GroupOptions
function optimizers.read_group(optimizer, who, value)
  local row = ROWS[optimizer.kind]
  local group = param_groups.read(who, value, row.group)
  if row.check_group then row.check_group(who, optimizer, group) end
  return group
end

---The names of all optimizers, latest first in moonshard.h.
---@type string[]
optimizers.kinds = {}
local shape_of = {} -- by kind: those of states that every rank has whole
for kind, row in pairs(ROWS) do
  row.kind = kind
  table.insert(optimizers.kinds, kind)
  for _, state in ipairs(row.states) do shape_of[state.kind] = state.shape end
end
table.sort(optimizers.kinds, function(a, b) return ROWS[a].id > ROWS[b].id end)

---The row of an optimizer.
---@param kind string
---@return moonshard.OptimizerRow
function optimizers.of(kind) return ROWS[kind] end

-- The state that a single optimizer keeps.
local function kept(optimizer)
  local row = ROWS[optimizer.kind]
  return row.keeps(optimizer) and { unpack(row.states) } or {}
end

---The state that an optimizer keeps for every trained parameter; with rules, for any of them.
---@param optimizer moonshard.Optimizer?
---@return moonshard.OptimizerState[] a new list
function optimizers.states(optimizer)
  local list, seen = {}, {}
  for _, one in ipairs(optimizer and (optimizer.rules and optimizer.parts or { optimizer }) or {}) do
    for _, state in ipairs(kept(one)) do
      if not seen[state.kind] then list[#list + 1] = state end
      seen[state.kind] = true
    end
  end
  return list
end

---The state that an optimizer keeps for a trained parameter.
---@param optimizer moonshard.Optimizer?
---@param param { fqn: string, shape: integer[] }
---@return moonshard.OptimizerState[] a new list
function optimizers.states_of(optimizer, param)
  local list = {}
  for _, state in ipairs(optimizer and kept(optimizer:part_of(param.fqn)) or {}) do
    if not state.shape or state.shape(param.shape) then list[#list + 1] = state end
  end
  return list
end

---The shape of a state of a parameter, on the mesh as a whole.
---@param kind string
---@param shape integer[] of the parameter
---@return integer[]
---@return boolean whole whether every rank has all of it
function optimizers.state_shape(kind, shape)
  if not shape_of[kind] then return shape, false end
  return shape_of[kind](shape) or { 0 }, true
end

---The elements of a state that every rank has whole.
---@param state moonshard.OptimizerState
---@param shape integer[] of the parameter
---@return integer? elements nil: it is sharded like the parameter, or a parameter of this shape does not have it
function optimizers.whole_numel(state, shape)
  local own, numel = state.shape and state.shape(shape), 1
  for _, size in ipairs(own or {}) do numel = numel * size end
  return own and numel or nil
end

---The settings that a checkpoint records; the rest belongs to the recipe.
---@param optimizer moonshard.Optimizer
---@return table<string, any> by option
function optimizers.settings(optimizer)
  local settings = {}
  if optimizer.rules then
    for _, part in ipairs(optimizer.parts) do settings[part.kind] = optimizers.settings(part) end
    return settings
  end
  for name in pairs(ROWS[optimizer.kind].options()) do settings[name] = optimizer[name] end
  -- Checkpoints name the dtype of moments only if it is another than that of all other state.
  if settings.moments == "f32" then settings.moments = nil end
  return settings
end

return optimizers
