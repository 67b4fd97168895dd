-- The options of layers. Each constructor declares its own once, and with each what another value means for weights
-- that were trained with one: checkpoints keep the values that matter, by module, and a run that resumes compares them
-- (checkpoint/model_options.lua). Shapes and names of parameters tell the rest.

local options = require("moonshard.base.checks.options")

local layer_options = {}

---@class moonshard.LayerOptionSpec: moonshard.OptionSpec
---@field resume "refused"|"told"|"free" another value makes other weights of those that are there, they go on to train
---  under it, or it has no part in them: parameters and their shapes say so, or nothing computed depends on it
---@field name? string in checkpoints and messages; default: the option's, or what an argument without a name means

---@class moonshard.LayerDeclaration
---@field who string "ms.nn.linear"
---@field specs table<string|integer, moonshard.LayerOptionSpec>
local Declaration = {}
Declaration.__index = Declaration

---@type table<string, moonshard.LayerDeclaration> all, by constructor
layer_options.declared = {}

---@param who string the constructor, as users write it
---@param specs table<string|integer, moonshard.LayerOptionSpec>
---@return moonshard.LayerDeclaration
function layer_options.declare(who, specs)
  local declaration = setmetatable({ who = who, specs = specs }, Declaration)
  layer_options.declared[who] = declaration
  return declaration
end

---Checks a layer's options, fills in the defaults, and notes what the layer is made with.
---@param layer moonshard.Module
---@param given table?
---@return table parsed
function Declaration:parse(layer, given)
  local parsed = options.parse(self.who, given, self.specs)
  self:note(layer, parsed)
  return parsed
end

-- What an option is called.
local function name_of(key, spec) return spec.name or (type(key) == "string" and key or spec.required) end

---Notes what a layer is made with; replaces what this declaration has noted of it.
---@param layer moonshard.Module
---@param values table<string|integer, any> parsed
function Declaration:note(layer, values)
  local noted = rawget(layer, "_options") or {}
  for key, spec in pairs(self.specs) do
    if spec.resume ~= "free" then noted[name_of(key, spec)] = { value = values[key], resume = spec.resume } end
  end
  rawset(layer, "_options", noted)
end

---Forgets what this declaration has noted of a layer.
---@param layer moonshard.Module
function Declaration:forget(layer) self:note(layer, {}) end

local FUNCTION = "a function"

---Notes a function that is an item of a layer, by the name that ms.ops has for it. Two without such a name are not
---compared, and of one without and one with a name the log says so.
---@param layer moonshard.Module
---@param name string of the item: "1"
---@param op string? "ms.ops.relu"
function layer_options.note_function(layer, name, op)
  local noted = rawget(layer, "_options") or {}
  noted[name] = { value = op or FUNCTION, resume = op and "refused" or "told" }
  rawset(layer, "_options", noted)
end

---What a layer is made with, by name, as far as it matters to a checkpoint.
---@param module moonshard.Module
---@return table<string, any>? nil for a module without such options
function layer_options.of(module)
  local values = {}
  for name, noted in pairs(rawget(module, "_options") or {}) do values[name] = noted.value end
  return next(values) ~= nil and values or nil
end

---What another value of an option means for a layer's weights.
---@param module moonshard.Module
---@param name string
---@param saved any the value in the checkpoint
---@return "refused"|"told"|"free"
function layer_options.resume(module, name, saved)
  local noted = rawget(module, "_options")
  if not (noted and noted[name]) then return "free" end
  return saved == FUNCTION and "told" or noted[name].resume
end

return layer_options
