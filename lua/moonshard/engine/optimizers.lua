-- The table of optimizers: their state, and what is known of them. Their options are the rows of settings.def. A new
-- optimizer needs those, a row here, its annotated constructor in train/optim.lua, and the engine's row
-- (runtime/plan/optimizer.c).

local engine = require("moonshard.base.ffi")
local errors = require("moonshard.base.error")
local param_groups = require("moonshard.shard.param_groups")
local settings = require("moonshard.base.settings")
local C = engine.C

local optimizers = {}

---@class moonshard.OptimizerState the state that an optimizer keeps for every trained parameter
---@field kind string its name in checkpoints
---@field what integer enum ms_tensor_kind
---@field shape? fun(shape: integer[]): integer[]? its shape, from a parameter's, or nil: a parameter of that shape has
---  none; every rank has all of it. Without this function it has the shape of the parameter, and is sharded like it

---@class moonshard.OptimizerRow
---@field kind string
---@field id integer enum ms_optimizer_kind
---@field is_chosen boolean? only parameters that choose it take it, next to another optimizer for the others
---@field lr number? the default; nil: recipes must give it
---@field weight_decay number? the default; nil: 0
---@field check_group? fun(who: string, o: table, group: table) refuses a group that does not go with the options
---@field states moonshard.OptimizerState[]
---@field keeps? fun(o: table): boolean whether it keeps these states; nil: it does
---@field update_tolerance number how many times as large as a dtype's tolerance one step's update can differ
---@field training_tolerance number the same of the whole change made by training, where differences accumulate
---@field of_whole string? what it computes of a whole parameter, which rows of padding change
---@field by_size "root"|"factors"|"sign"|nil divides gradients by the root of their mean square, or of one of
---  their row and column, or takes signs, so that small ones amplify rounding; check/root_sensitivity.lua,
---  check/factors_sensitivity.lua and check/sign_sensitivity.lua measure this

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

local MOMENTS = {
  { kind = "exp_avg", what = C.MS_TENSOR_EXP_AVG }, { kind = "exp_avg_sq", what = C.MS_TENSOR_EXP_AVG_SQ },
}
local MOMENTUM = { { kind = "momentum", what = C.MS_TENSOR_MOMENTUM } }

---@type table<string, moonshard.OptimizerRow>
local ROWS = {
  -- The first steps are signs of gradients, which depend on rounding where gradients are small.
  adamw = { weight_decay = 0.01, states = MOMENTS, update_tolerance = 10, training_tolerance = 10, by_size = "root" },
  adam = { states = MOMENTS, update_tolerance = 10, training_tolerance = 10, by_size = "root" },
  -- Each step is a sign.
  lion = { states = { MOMENTS[1] }, update_tolerance = 10, training_tolerance = 10, by_size = "sign" },
  adafactor = {
    lr = 1e-2, states = FACTORS, update_tolerance = 10, training_tolerance = 10, by_size = "factors",
    of_whole = "its mean squares are of the whole parameter",
  },
  sgd = {
    check_group = function(who, o, group)
      if o.momentum ~= 0 or (group.momentum or 0) == 0 then return end
      errors.invalid("%s: momentum is %g, but ms.optim.sgd has momentum 0 and keeps none: give it one above 0, and "
        .. "{ momentum = 0 } to a group of the parameters that train without", who, group.momentum)
    end,
    states = MOMENTUM,
    keeps = function(o) return o.momentum ~= 0 end,
    update_tolerance = 2, training_tolerance = 5,
  },
  -- Each step moves a matrix by as much in every direction, also in those of small gradients; how far rounding takes
  -- training there is measured (check/muon_sensitivity.lua).
  muon = {
    is_chosen = true, weight_decay = 0.1, states = MOMENTUM, update_tolerance = 10, training_tolerance = 2,
    of_whole = "its factor is of the parameter's shape",
  },
}

-- ---- options -------------------------------------------------------------------------------------------------------

local function options_of(kind) return param_groups.options(settings.rows("ms_plan_config", kind)) end

---The options of an optimizer, besides lr and groups.
---@param kind string
---@return table<string, moonshard.OptionSpec> by name
function optimizers.options(kind)
  local specs = { weight_decay = { "number", default = ROWS[kind].weight_decay or 0 } }
  for _, option in ipairs(options_of(kind)) do
    local defaults = {}
    for i, row in ipairs(option.rows) do defaults[i] = settings.default(row) end
    specs[option.name] = option.pair and { "any", default = defaults, holes = option.pair.holes }
      or { settings.kind(option.rows[1]), default = defaults[1] }
  end
  return specs
end

-- By the engine's name: "adamw.beta1" is betas[1]; and what the recipe gave.
local function names_of(kind, given)
  local names, values = {}, {}
  for _, option in ipairs(options_of(kind)) do
    for i, row in ipairs(option.rows) do
      names[row.name] = option.pair and ("%s[%d]"):format(option.name, i) or option.name
      values[row.name] = given[option.name]
    end
  end
  return names, values
end

---Checks the options of an optimizer, and gives dtypes their short names.
---@param who string
---@param kind string
---@param o table every option has a value
function optimizers.check(who, kind, o)
  local given = {}
  for _, option in ipairs(options_of(kind)) do
    given[option.name] = o[option.name]
    if option.pair then
      o[option.name] = param_groups.check_pair(who, option, o[option.name])
    else
      o[option.name] = settings.check_name(who, option.rows[1], o[option.name])
    end
  end
  param_groups.check(who, { weight_decay = o.weight_decay })
  local config = engine.config("ms_plan_config")
  optimizers.configure(config, kind, o)
  settings.check(who, "ms_plan_config", config, names_of(kind, given))
end

---Fills an optimizer's part of an ms_plan_config.
---@param config ffi.cdata* ms_plan_config
---@param kind string
---@param o table
function optimizers.configure(config, kind, o)
  config.optimizer = ROWS[kind].id
  for _, option in ipairs(options_of(kind)) do
    for i, row in ipairs(option.rows) do
      local value = o[option.name]
      settings.fill(config, "ms_plan_config", { [settings.field(row)] = option.pair and value[i] or value }, kind)
    end
  end
end

---Reads the settings of one of an optimizer's groups.
---@param optimizer moonshard.Optimizer
---@param who string
---@param value table
---@return moonshard.GroupOptions
function optimizers.read_group(optimizer, who, value)
  local row = ROWS[optimizer.kind]
  local group = param_groups.read(who, value, settings.rows("ms_plan_config", optimizer.kind))
  if row.check_group then row.check_group(who, optimizer, group) end
  return group
end

---The names of all optimizers, latest first in moonshard.h.
---@type string[]
optimizers.kinds = {}
local shape_of = {} -- by kind: those of states that every rank has whole
for kind, row in pairs(ROWS) do
  row.kind, row.id = kind, C["MS_OPT_" .. kind:upper()]
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
  return (not row.keeps or row.keeps(optimizer)) and { unpack(row.states) } or {}
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
  local given = {}
  if optimizer.rules then
    for _, part in ipairs(optimizer.parts) do given[part.kind] = optimizers.settings(part) end
    return given
  end
  for name in pairs(optimizers.options(optimizer.kind)) do given[name] = optimizer[name] end
  -- Checkpoints name the dtype of moments only if it is another than that of all other state.
  if given.moments == "f32" then given.moments = nil end
  return given
end

return optimizers
