-- The settings that a group of parameters can have of its own: how a recipe gives them, and how the engine gets them.
-- They are the rows of ms_param_group in settings.def; an optimizer has those that are among its own rows.

local engine = require("moonshard.base.ffi")
local errors = require("moonshard.base.error")
local options = require("moonshard.base.checks.options")
local settings = require("moonshard.base.settings")
local ffi = engine.ffi

local param_groups = {}

---@class moonshard.GroupOptions settings that replace the optimizer's for the parameters of a group
---@field lr? number in place of the optimizer's number, or of its schedule's peak: schedules multiply it
---@field lr_scale? number instead of lr: factor of the learning rate
---@field weight_decay? number
---@field betas? number[] of optimizers that have betas
---@field eps? number of those with an eps
---@field momentum? number of those with a momentum
---@field heads? number of Muon: matrices that the rows of each parameter are cut into

---@class moonshard.ParamGroup settings of a parameter's updates
---@field lr_scale number factor of the learning rate
---@field weight_decay number
---@field betas number[]? nil: the optimizer's
---@field eps number? nil: the optimizer's
---@field momentum number? nil: the optimizer's
---@field heads number? nil: the optimizer's
---@field optimizer string? its kind, where rules choose it

---Refuses a number that is not in [low, high).
---@param who string
---@param name string
---@param value number
---@param low number
---@param high number
function param_groups.check_rate(who, name, value, low, high)
  if value >= low and value < high then return end
  errors.invalid("%s: %s must be at least %g and below %g, not %g", who, name, low, high, value)
end

-- Two settings of the engine that recipes give as a list, by the first. holes: an element can be nil, for the default.
local PAIRS = {
  beta1 = { name = "betas", second = "beta2" }, eps1 = { name = "eps", second = "eps2", holes = true },
}
local IS_SECOND = {}
for _, pair in pairs(PAIRS) do IS_SECOND[pair.second] = true end

---@class moonshard.SettingOption an option of an optimizer or a group
---@field name string
---@field rows moonshard.Setting[] one, or both of a pair
---@field pair table? of PAIRS

---The options that rows of settings stand for, in their order.
---@param rows moonshard.Setting[]
---@return moonshard.SettingOption[]
function param_groups.options(rows)
  local by_field, list = {}, {}
  for _, row in ipairs(rows) do by_field[settings.field(row)] = row end
  for _, row in ipairs(rows) do
    local field = settings.field(row)
    local pair = PAIRS[field]
    if pair then
      list[#list + 1] = { name = pair.name, rows = { row, by_field[pair.second] }, pair = pair }
    elseif not IS_SECOND[field] then
      list[#list + 1] = { name = field, rows = { row } }
    end
  end
  return list
end

-- Whether a value is a list of two, or of fewer where there can be holes.
local function is_pair(value, pair)
  if type(value) ~= "table" then return false end
  for key in pairs(value) do
    if key ~= 1 and key ~= 2 then return false end
  end
  return pair.holes or value[1] ~= nil and value[2] ~= nil
end

---Checks that the value of an option is a pair.
---@param who string
---@param option moonshard.SettingOption
---@param value any
---@return number[] with defaults where there are holes
function param_groups.check_pair(who, option, value)
  local first, second = settings.default(option.rows[1]), settings.default(option.rows[2])
  if not is_pair(value, option.pair) then
    errors.invalid("%s: %s must be two numbers, { %g, %g }%s, not %s", who, option.name, first, second,
      option.pair.holes and ", each of which can be nil" or "", type(value) == "table" and value[1] ~= nil
        and ("a table of %d"):format(#value) or options.describe(value))
  end
  for i = 1, 2 do
    if value[i] ~= nil and type(value[i]) ~= "number" then
      errors.invalid("%s: %s[%d] must be a number, as in { %g, %g }, not %s", who, option.name, i, first, second,
        options.describe(value[i]))
    end
  end
  return { value[1] or first, value[2] or second }
end

local ROWS = settings.rows("ms_param_group")
-- In the order in which explain shows them. Every optimizer has lr_scale and weight_decay besides; momentum_from is
-- what follows from a parameter's earlier groups (momentum_starts.lua).
local APART = { lr_scale = true, weight_decay = true, momentum_from = true }
local SETTINGS, NAMES = {}, {}
for _, option in ipairs(param_groups.options(ROWS)) do
  if not APART[option.name] then SETTINGS[#SETTINGS + 1] = option end
  for i, row in ipairs(option.rows) do
    if option.pair then NAMES[row.name] = ("%s[%d]"):format(option.name, i) end
  end
end

---Checks the values of a group.
---@param who string
---@param group moonshard.GroupOptions
function param_groups.check(who, group)
  local filled = ffi.new("ms_param_group")
  param_groups.fill(filled, group)
  settings.check(who, "ms_param_group", filled, NAMES)
end

---Reads the settings of a group.
---@param who string
---@param value table
---@param own moonshard.Setting[] of its optimizer
---@return moonshard.GroupOptions
function param_groups.read(who, value, own)
  local specs = { lr = { "number" }, lr_scale = { "number" }, weight_decay = { "number" } }
  local has = {}
  for _, row in ipairs(own) do has[settings.field(row)] = true end
  for _, option in ipairs(SETTINGS) do
    if has[option.rows[1].name] then specs[option.name] = { option.pair and "any" or "number" } end
  end
  local group = options.parse(who, value, specs)
  if group.lr then param_groups.check_rate(who, "lr", group.lr, 0, math.huge) end
  if group.lr and group.lr_scale then
    errors.invalid("%s: lr and lr_scale are two ways to give the learning rate: leave one out", who)
  end
  for _, option in ipairs(SETTINGS) do
    if option.pair and group[option.name] ~= nil then
      group[option.name] = param_groups.check_pair(who, option, group[option.name])
    end
  end
  param_groups.check(who, group)
  return group
end

---The settings of a group, and the optimizer's where every parameter has one.
---@param group moonshard.GroupOptions with lr_scale instead of lr
---@param weight_decay number the optimizer's
---@return moonshard.ParamGroup
function param_groups.complete(group, weight_decay)
  local whole = { lr_scale = group.lr_scale or 1, weight_decay = group.weight_decay or weight_decay }
  for _, setting in ipairs(SETTINGS) do whole[setting.name] = group[setting.name] end
  return whole
end

-- The values of an option, by its rows; -1: the optimizer's.
local function values_of(group, option)
  local value = group[option.name]
  return type(value) == "table" and value or { value or -1, value or -1 }
end

---Fills an ms_param_group.
---@param to ffi.cdata* ms_param_group
---@param group moonshard.ParamGroup|{} {}: of a model without an optimizer
---@param momentum_from integer? the parameter's update in which momentum begins; 0 (default): its first
function param_groups.fill(to, group, momentum_from)
  to.lr_scale, to.weight_decay, to.momentum_from = group.lr_scale or 1, group.weight_decay or 0, momentum_from or 0
  for _, option in ipairs(SETTINGS) do
    local values = values_of(group, option)
    for i, row in ipairs(option.rows) do to[row.name] = values[i] end
  end
end

---A group as explain shows it: "lr x 2, weight decay 0, betas 0.8, 0.99".
---@param group moonshard.ParamGroup
---@return string
function param_groups.text(group)
  local parts = { ("lr x %g, weight decay %g"):format(group.lr_scale, group.weight_decay) }
  for _, option in ipairs(SETTINGS) do
    if group[option.name] then
      local values = values_of(group, option)
      parts[#parts + 1] = ("%s %g%s"):format(option.name, values[1],
        option.pair and (", %g"):format(values[2]) or "")
    end
  end
  return table.concat(parts, ", ")
end

return param_groups
