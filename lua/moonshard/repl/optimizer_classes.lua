-- The annotations of the optimizers' options, from the rows of settings.def: what editors read (the build writes them
-- to moonshard/meta/optimizers.lua) and what the prompt shows for ?ms.optim.adamw. A setting of the engine is an option
-- of the recipe with the same words, so neither can lack it.

local optimizers = require("moonshard.engine.optimizers")
local param_groups = require("moonshard.shard.param_groups")
local settings = require("moonshard.base.settings")

local optimizer_classes = {}

local PREFIX, TYPE = "moonshard.optim.", "ms_plan_config"

local function type_of(row)
  local words = settings.words(TYPE, row)
  return words and '"' .. table.concat(words, '"|"') .. '"' or settings.kind(row)
end

-- 1e-8, 0.9, "f32", true.
local function literal(value)
  if value == 2 ^ -23 then return "2^-23" end
  return type(value) == "string" and ("%q"):format(value)
    or (tostring(value):gsub("e([+-])0*(%d)", "e%1%2"):gsub("e%+", "e"))
end

-- What an annotation says after the name: type, meaning, default.
local function field_of(option)
  local first, second = option.rows[1], option.rows[2]
  local typed, default = type_of(first), literal(settings.default(first))
  if second then
    typed = option.pair.holes and "{ [1]: number?, [2]: number? }" or "number[]"
    default = ("{ %s, %s }"):format(default, literal(settings.default(second)))
  end
  return ("%s %s; default %s"):format(typed, first.doc or "", default)
end

---The lines of an optimizer's class.
---@param class string "moonshard.optim.adamw"
---@return string[]? lines nil: there is no such optimizer
function optimizer_classes.lines(class)
  local kind = class:sub(1, #PREFIX) == PREFIX and class:sub(#PREFIX + 1)
  local row = kind and optimizers.of(kind)
  if not row then return nil end
  local lines = { "---@class " .. class }
  local function add(...) lines[#lines + 1] = "---@field " .. string.format(...) end
  if row.lr then
    add("lr? number|moonshard.Schedule learning rate; default %s", literal(row.lr))
  else
    add("lr number|moonshard.Schedule learning rate")
  end
  for _, option in ipairs(param_groups.options(settings.rows(TYPE, kind))) do
    add("%s? %s", option.name, field_of(option))
  end
  add("weight_decay? number default %s", literal(row.weight_decay or 0))
  add("groups? table rules over parameters: { { pattern, moonshard.GroupOptions }, ... }")
  return lines
end

---The names of all classes, in the order of the alphabet.
---@return string[]
function optimizer_classes.names()
  local names = {}
  for _, kind in ipairs(optimizers.kinds) do names[#names + 1] = PREFIX .. kind end
  table.sort(names)
  return names
end

return optimizer_classes
