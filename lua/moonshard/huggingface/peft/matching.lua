-- Which modules the fields of an adapter_config.json choose, by PEFT's rules: a text is an expression for whole names,
-- a list has names or their ends, from a dot on, and of the keys of a pattern the first that matches counts.

local errors = require("moonshard.base.error")
local fields = require("moonshard.huggingface.peft.fields")
local options = require("moonshard.base.checks.options")
local re = require("moonshard.base.re")
local rules = require("moonshard.shard.rules")

local matching = {}

local is_off = fields.is_off

---Which of some names an expression of a field chooses.
---@param path string for messages
---@param field string
---@param expression string
---@param within string a pattern of string.format around it: "^(?:%s)$"
---@param names string[]
---@return table<string, boolean>
function matching.expression(path, field, expression, within, names)
  local ok, pattern = pcall(re, within:format(expression))
  if not ok then
    if not errors.is(pattern) then error(pattern, 0) end
    errors.invalid("%s: %s has %s, which is no regular expression of PCRE2 (%s): correct it, or list names of modules",
      path, field, options.describe(expression), pattern.message)
  end
  local chosen, rule = {}, { pattern, true, optional = true }
  for i, decision in ipairs((rules.policy(field, { rule }):resolve(names))) do
    chosen[names[i]] = decision.value
  end
  return chosen
end

-- What a text or a list chooses; of a list also which names it has exactly.
local function chosen_by(path, field, value, names)
  if type(value) == "string" then return matching.expression(path, field, value, "^(?:%s)$", names), {} end
  local chosen, exactly = {}, {}
  for _, name in ipairs(names) do
    for _, part in ipairs(value) do
      exactly[name] = exactly[name] or name == part
      chosen[name] = chosen[name] or name == part or name:sub(-#part - 1) == "." .. part
    end
  end
  return chosen, exactly
end

-- The number of the layer of which a module is a part: the first one behind a list of layers, which has one of these
-- names, or any but the first part of a name.
local function layer_of(name, lists)
  local parts = {}
  for part in name:gmatch("[^.]+") do parts[#parts + 1] = part end
  for i = lists and 2 or 3, #parts - 1 do
    local known = not lists
    for _, list in ipairs(lists or {}) do known = known or parts[i - 1] == list end
    if known and parts[i]:find("^%d+$") then return tonumber(parts[i]) end
  end
end

local function list_of(value) return type(value) == "table" and value or { value } end

local function in_layers(given, name)
  local layers, patterns = given.layers_to_transform, given.layers_pattern
  if is_off(layers) then return true end
  local number = layer_of(name, not is_off(patterns) and list_of(patterns) or nil)
  for _, layer in ipairs(list_of(layers)) do
    if layer == number then return true end
  end
  return false
end

-- PEFT gives no adapter to a module that trains as a whole, nor to a part of one.
local function saved(path, given, names)
  local chosen = {}
  for _, part in ipairs(given.modules_to_save or {}) do
    local found = matching.expression(path, "modules_to_save", part, "^(?:|.*\\.)%s(?:$|\\..*)", names)
    for name in pairs(found) do chosen[name] = true end
  end
  return chosen
end

---Why modules have no adapter: the field that leaves each out; nil for those that the fields choose.
---@param path string of the config, for messages
---@param given table<string, any> its fields; without target_modules the tensors of a folder choose
---@param names string[] of all modules that can have adapters
---@param heads table<string, boolean> those that "all-linear" leaves out
---@return table<string, string>
function matching.left_out(path, given, names, heads)
  local targets, fields_of = given.target_modules, {}
  local is_all = type(targets) == "string" and targets:lower() == "all-linear"
  local chosen, exactly = {}, {}
  if targets ~= nil and not is_all then chosen, exactly = chosen_by(path, "target_modules", targets, names) end
  local excluded = is_off(given.exclude_modules) and {}
    or chosen_by(path, "exclude_modules", given.exclude_modules, names)
  local whole = saved(path, given, names)
  for _, name in ipairs(names) do
    local wanted = targets == nil or is_all and not heads[name] or chosen[name]
    fields_of[name] = excluded[name] and "exclude_modules" or whole[name] and "modules_to_save"
      or not wanted and "target_modules"
      or not exactly[name] and not is_all and not in_layers(given, name) and "layers_to_transform" or nil
  end
  return fields_of
end

---The modules whose names end with one of modules_to_save, or are parts of such a module: PEFT looks at the end of a
---name alone, also within a part of it.
---@param list string[]
---@param names string[] of modules that have parameters
---@return table<string, string> the item that chose a module
---@return table<string, boolean> unused items
function matching.to_save(list, names)
  local chosen, unused = {}, {}
  for _, item in ipairs(list) do
    unused[item] = true
    for _, name in ipairs(names) do
      local container = name
      while container do
        if container:sub(-#item) == item and not chosen[name] then chosen[name] = item end
        if container:sub(-#item) == item then unused[item] = nil end
        container = container:match("^(.*)%.[^.]*$")
      end
    end
  end
  return chosen, unused
end

---The values of rank_pattern or alpha_pattern by name: keys are expressions for the end of a name, from a dot on, and
---the first in the order of the file counts.
---@param path string
---@param field string
---@param members { name: string, value: any }[] in their order
---@param names string[]
---@return table<string, number>
function matching.pattern_values(path, field, members, names)
  local found = {}
  for _, member in ipairs(members) do
    local key, value = member.name, member.value
    local is_zero = field == "alpha_pattern" and value == 0 -- as lora_alpha can be
    if type(value) ~= "number" or value <= 0 and not is_zero then
      errors.invalid("%s: %s of %s must be a number %s 0, not %s", path, field, key,
        field == "alpha_pattern" and "of at least" or "above", options.describe(value))
    end
    for name in pairs(matching.expression(path, field, key, "^(.*\\.)?(%s)$", names)) do
      found[name] = found[name] or value
    end
  end
  return found
end

return matching
