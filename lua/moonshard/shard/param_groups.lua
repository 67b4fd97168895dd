-- The settings that a group of parameters can have of its own: how a recipe gives them, and how the engine gets them. A
-- new one needs a row here, its name in the rows of the optimizers that have it (engine/optimizers.lua), and a row of
-- the engine's table (runtime/shard/param_group.c).

local ffi = require("ffi")
local errors = require("moonshard.base.error")
local options = require("moonshard.base.checks.options")

local param_groups = {}

---@class moonshard.GroupOptions settings that replace the optimizer's for the parameters of a group
---@field lr? number in place of the optimizer's number, or of its schedule's peak: schedules multiply it
---@field lr_scale? number instead of lr: factor of the learning rate
---@field weight_decay? number
---@field betas? number[] of AdamW, Adam and Lion
---@field eps? number of AdamW and Adam
---@field momentum? number of SGD and Muon

---@class moonshard.ParamGroup settings of a parameter's updates
---@field lr_scale number factor of the learning rate
---@field weight_decay number
---@field betas number[]? nil: the optimizer's
---@field eps number? nil: the optimizer's
---@field momentum number? nil: the optimizer's
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
local check_rate = param_groups.check_rate

---Refuses what are not two numbers of at least 0 and below 1.
---@param who string
---@param betas any
function param_groups.check_betas(who, betas)
  if type(betas) ~= "table" or #betas ~= 2 or type(betas[1]) ~= "number" or type(betas[2]) ~= "number" then
    errors.invalid("%s: betas must be two numbers, { 0.9, 0.999 }, not %s", who, options.describe(betas))
  end
  check_rate(who, "betas[1]", betas[1], 0, 1)
  check_rate(who, "betas[2]", betas[2], 0, 1)
end

---Refuses an eps that is not above 0 and finite, or is 0 in f32.
---@param who string
---@param eps number
function param_groups.check_eps(who, eps)
  if eps > 0 and eps < math.huge and tonumber(ffi.new("float", eps)) > 0 then return end
  errors.invalid("%s: eps must be above 0 and finite, also in f32, not %g", who, eps)
end

---Refuses a momentum that is not at least 0 and below 1.
---@param who string
---@param momentum number
function param_groups.check_momentum(who, momentum) check_rate(who, "momentum", momentum, 0, 1) end

-- In the order in which explain shows them: the kinds of options, how they are checked, the fields of the engine's
-- ms_param_group, and their text. Every optimizer has lr_scale and weight_decay besides.
local SETTINGS = {
  { name = "betas", spec = { "any" }, check = param_groups.check_betas, fields = { "beta1", "beta2" },
    text = "betas %g, %g" },
  { name = "eps", spec = { "number" }, check = param_groups.check_eps, fields = { "eps" }, text = "eps %g" },
  { name = "momentum", spec = { "number" }, check = param_groups.check_momentum, fields = { "momentum" },
    text = "momentum %g" },
}

---Reads the settings of a group.
---@param who string
---@param value table
---@param own table<string, boolean> what its optimizer lets groups have besides lr and weight_decay
---@return moonshard.GroupOptions
function param_groups.read(who, value, own)
  local specs = { lr = { "number" }, lr_scale = { "number" }, weight_decay = { "number" } }
  for _, setting in ipairs(SETTINGS) do
    if own[setting.name] then specs[setting.name] = setting.spec end
  end
  local group = options.parse(who, value, specs)
  for _, name in ipairs({ "lr", "lr_scale", "weight_decay" }) do
    if group[name] then check_rate(who, name, group[name], 0, math.huge) end
  end
  if group.lr and group.lr_scale then
    errors.invalid("%s: lr and lr_scale are two ways to give the learning rate: leave one out", who)
  end
  for _, setting in ipairs(SETTINGS) do
    if group[setting.name] ~= nil then setting.check(who, group[setting.name]) end
  end
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

-- The values of a setting, by its fields; -1: the optimizer's.
local function values_of(group, setting)
  local value = group[setting.name]
  return type(value) == "table" and value or { value or -1, value or -1 }
end

---Fills an ms_param_group.
---@param to ffi.cdata* ms_param_group
---@param group moonshard.ParamGroup|{} {}: of a model without an optimizer
function param_groups.fill(to, group)
  to.lr_scale, to.weight_decay = group.lr_scale or 1, group.weight_decay or 0
  for _, setting in ipairs(SETTINGS) do
    local values = values_of(group, setting)
    for i, field in ipairs(setting.fields) do to[field] = values[i] end
  end
end

---A group as explain shows it: "lr x 2, weight decay 0, betas 0.8, 0.99".
---@param group moonshard.ParamGroup
---@return string
function param_groups.text(group)
  local parts = { ("lr x %g, weight decay %g"):format(group.lr_scale, group.weight_decay) }
  for _, setting in ipairs(SETTINGS) do
    if group[setting.name] then parts[#parts + 1] = setting.text:format(unpack(values_of(group, setting))) end
  end
  return table.concat(parts, ", ")
end

return param_groups
