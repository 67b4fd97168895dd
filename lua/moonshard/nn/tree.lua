-- The contents of a model: its modules and parameters with their dotted names (FQNs), found by walking the fields of
-- modules, and the printed tree of a model. Lists count from 0, as in PyTorch: layers[1] is layers.0.
--
-- Fields are visited in the order of their assignment, so all ranks see the same order. Fields that begin with _ are
-- private and skipped. A module or parameter found again keeps its first name.

local errors = require("moonshard.base.error")
local options = require("moonshard.base.checks.options")
local parameter = require("moonshard.tensor.parameter")
local text_lines = require("moonshard.base.text.text_lines")

local tree = {}

---@class moonshard.NamedModule
---@field name string FQN, "" for the root
---@field module moonshard.Module
---@field parent integer? index of the module that contains it

---@class moonshard.NamedParameter
---@field name string FQN of its first occurrence
---@field parameter moonshard.Parameter
---@field places { name: string, owner: integer }[] every occurrence; owner is an index of modules

---@class moonshard.HeldField a field that contains a module, a parameter or a list of them
---@field holder table
---@field key string|integer
---@field value table
---@field name string

---@class moonshard.Inventory
---@field fields moonshard.HeldField[]
---@field modules moonshard.NamedModule[] parents before children, root first
---@field parameters moonshard.NamedParameter[]

---@param value any
---@return boolean
function tree.is_module(value)
  if type(value) ~= "table" then return false end
  local meta = getmetatable(value)
  return type(meta) == "table" and rawget(meta, "moonshard_module") == true
end

local is_module = tree.is_module

local UNDERSCORE = ("_"):byte()

-- Whether a field is a module, a parameter or a plain table. Most fields are settings, which the first test sorts out.
local function interesting(key, value)
  if type(value) ~= "table" then return false end
  if type(key) == "string" and key:byte() == UNDERSCORE then return false end
  return getmetatable(value) == nil or parameter.is(value) or is_module(value)
end

---Fields that modules and their classes were given after they were made: how many in all, and of each module and class
---how many, and the last one. What watches a model looks at its own modules, for other models change on their own.
---@type { count: integer, of: table<table, { count: integer, last: string }> }
tree.added = { count = 0, of = setmetatable({}, { __mode = "k" }) }

---@param holder table the module or class
---@param name string "Linear.scale"
function tree.note_added(holder, name)
  local all, of = tree.added, tree.added.of[holder] or { count = 0 }
  all.of[holder], of.count, of.last = of, of.count + 1, name
  all.count = all.count + 1
end

tree.methods = {} -- those of all modules, set by nn/module.lua
local KEPT = { forward = true, init = true, describe = true, sharding = true } -- fields that modules have, or can have

local NONE = {}
local taken, stamp = {}, 0 -- by key: the stamp of the last table in which it was taken; a table for each would be slow

-- Refuses a module outside of the list that begins with item 1 and ends with item `last`.
local function refuse_item(where, key, last)
  if key < 1 or key % 1 ~= 0 then
    errors.invalid("%s: there is a module or a parameter at [%s], but lists begin at [1] in Lua: layers[1] is layers.0",
      where, tostring(key))
  end
  errors.invalid("%s: item %d is a module or a parameter, but item %d is nil", where, key, last + 1)
end

-- Refuses a module or a parameter that has no name in the model, or another one's.
local function check_key(holder, key, where)
  if type(key) == "number" then return end
  if type(key) ~= "string" then
    errors.invalid("%s: there is a module or a parameter at the key [%s], a %s: keys are names or places in a list",
      where, tostring(key), type(key))
  end
  local item = key:find("^%d+$") and tonumber(key) + 1
  if item and interesting(item, rawget(holder, item)) then
    errors.raise("MS_ENAME", '%s: item %d and the field "%s" have one name, %s: lists count from 0 in names', where,
      item, key, key)
  end
  if is_module(holder) and (tree.methods[key] or KEPT[key]) then
    errors.raise("MS_ENAME", "%s: there is a module or a parameter in the field `%s`, which modules have for something "
      .. "else: call it otherwise", where, key)
  end
end

---Raises if something was put before the first item of a list of a model, where nothing looks for it.
---@param list table
---@param name string of one of its items: "layers.0"
function tree.check_list(list, name)
  if interesting(0, rawget(list, 0)) then refuse_item(name:match("^(.*)%.") or "the model", 0, 0) end
end

-- Keys of a module or a plain table that can contain entries: integers first, then fields in order of assignment, then
-- the rest (fields of a table constructor) by name. A nil in a list would hide all modules after it: an error.
local function ordered_keys(holder, path)
  local keys, items, rest = {}, 0, nil
  local where = path == "" and "the model" or path
  stamp = stamp + 1
  for i, value in ipairs(holder) do
    if interesting(i, value) then keys[#keys + 1] = i end
    taken[i], items = stamp, i
  end
  for _, key in ipairs(rawget(holder, "_order") or NONE) do
    if type(key) ~= "number" and interesting(key, rawget(holder, key)) and taken[key] ~= stamp then
      check_key(holder, key, where)
      keys[#keys + 1] = key
      taken[key] = stamp
    end
  end
  for key, value in pairs(holder) do
    if interesting(key, value) and taken[key] ~= stamp then
      if type(key) == "number" then refuse_item(where, key, items) end
      check_key(holder, key, where)
      rest = rest or {}
      rest[#rest + 1] = key
    end
  end
  if not rest then return keys end
  table.sort(rest)
  for _, key in ipairs(rest) do keys[#keys + 1] = key end
  return keys
end

local fit = {} -- names of fields that were found to be usable: layers repeat them

-- Names are used in patterns, files and reports.
local function join(path, key)
  local name = type(key) == "number" and tostring(key - 1) or key
  if fit[name] then return path == "" and name or path .. "." .. name end
  if name == "" or name:find("[%.%s%c%z]") or text_lines.not_utf8(name) then
    errors.raise("MS_ENAME", "field %q of %s: names of modules and parameters must be UTF-8 without dots, spaces or "
      .. "control characters, and not empty", name, path == "" and "the model" or path)
  end
  fit[name] = true
  return path == "" and name or path .. "." .. name
end

---Walks a model.
---@param root moonshard.Module
---@return moonshard.Inventory
function tree.inventory(root)
  if not tree.is_module(root) then
    errors.invalid("%s is no model: its methods are called with a colon, model:named_parameters()",
      options.describe(root))
  end
  local modules, parameters, fields, seen, by_parameter = {}, {}, {}, {}, {}

  local function add_parameter(value, name, owner)
    local known = by_parameter[value]
    if not known then
      known = { name = name, parameter = value, places = {} }
      by_parameter[value] = known
      parameters[#parameters + 1] = known
    end
    table.insert(known.places, { name = name, owner = owner })
  end

  -- Returns whether it holds a module or a parameter.
  local function visit(holder, path, parent)
    if seen[holder] ~= nil then return seen[holder] end
    seen[holder] = true
    local owner, holds = parent, is_module(holder)
    if is_module(holder) then
      modules[#modules + 1] = { name = path, module = holder, parent = parent }
      owner = #modules
    end
    for _, key in ipairs(ordered_keys(holder, path)) do
      local value, name = holder[key], join(path, key)
      fields[#fields + 1] = { holder = holder, key = key, value = value, name = name }
      if parameter.is(value) then
        add_parameter(value, name, owner)
        holds = true
      elseif visit(value, name, owner) then
        holds = true
      else
        fields[#fields] = nil
      end
    end
    seen[holder] = holds
    return holds
  end

  visit(root, "", nil)
  return { modules = modules, parameters = parameters, fields = fields }
end

---Number of elements of all parameters, each counted once.
---@param root moonshard.Module
---@param frozen table<moonshard.Parameter, boolean>? decisions of rules; default: the parameters' own flags
---@return integer
---@return integer frozen number of frozen elements
function tree.count(root, frozen)
  local total, still = 0, 0
  for _, entry in ipairs(tree.inventory(root).parameters) do
    local param = entry.parameter
    local is_frozen = frozen and frozen[param]
    if is_frozen == nil then is_frozen = param.frozen end
    total, still = total + param.numel, still + (is_frozen and param.numel or 0)
  end
  return total, still
end

---"10,745,088"
---@param number integer
---@return string
function tree.thousands(number)
  local text = ("%.0f"):format(number):reverse():gsub("(%d%d%d)", "%1,"):reverse()
  return (text:gsub("^,", ""))
end

-- ---- printing ---------------------------------------------------------------------------------------------------

-- "212 parameters", or if some are frozen "212 parameters (144 trainable, 68 frozen)".
local function count_text(count, frozen)
  if count == 0 then return "" end
  local text = ("  %s parameter%s"):format(tree.thousands(count), count == 1 and "" or "s")
  if frozen == 0 then return text end
  return ("%s (%s trainable, %s frozen)"):format(text, tree.thousands(count - frozen), tree.thousands(frozen))
end

-- "weight, bias bf16": what rules decided for parameters that have no line of their own.
local function own_decisions(module, marks)
  local keys_of, order = {}, {}
  for _, key in ipairs(marks.decided and ordered_keys(module, "") or NONE) do
    local decided = parameter.is(module[key]) and marks.decided[module[key]]
    if decided and not keys_of[decided] then
      keys_of[decided] = {}
      order[#order + 1] = decided
    end
    if decided then table.insert(keys_of[decided], key) end
  end
  local texts = {}
  for i, decided in ipairs(order) do texts[i] = table.concat(keys_of[decided], ", ") .. " " .. decided end
  return texts[1] and table.concat(texts, "; ")
end

local function head_of(module, marks)
  local description = module.describe and module:describe()
  local mark = marks[module]
  local decided = module.describe and own_decisions(module, marks)
  if decided then mark = (mark and mark .. "; " or "") .. decided end
  return table.concat({
    getmetatable(module).name,
    description and "(" .. description .. ")" or "",
    count_text(tree.count(module, marks.frozen)),
    mark and "  [" .. mark .. "]" or "",
  })
end

-- The lines below a module's own line. Adjacent list items with identical text are printed once. `above` is the set of
-- enclosing modules and tables: a field that refers back to one of them is skipped.
local render

local function render_item(name, value, marks, indent, above)
  if parameter.is(value) then
    return ("%s%s: %s [%s]"):format(indent, name, marks[value] or "f32", table.concat(value.shape, ", "))
  end
  if above[value] then return "" end
  local lines = { is_module(value) and indent .. name .. ": " .. head_of(value, marks) or nil }
  for _, line in ipairs(render(value, marks, is_module(value) and indent .. "  " or indent, name, above)) do
    lines[#lines + 1] = line
  end
  return table.concat(lines, "\n")
end

function render(holder, marks, indent, list_name, above)
  local lines, first, last, count, repeated = {}, nil, nil, 0, nil
  local in_module = is_module(holder)
  above[holder] = true

  local function flush()
    if not repeated then return end
    local name = first == last and first or first .. "-" .. last:match("[^.]*$")
    local text = repeated:gsub("^(%s*)@:", function(space)
      return space .. name .. ":" .. (count > 1 and (" %d x"):format(count) or "")
    end)
    if count > 1 then text = text:gsub("^([^\n]-  [%d,]+ parameters?)", "%1 each") end
    lines[#lines + 1] = text
    repeated = nil
  end

  for _, key in ipairs(ordered_keys(holder, list_name)) do
    local value = holder[key]
    local own = type(key) == "number" and tostring(key - 1) or key
    local name = in_module and own or list_name .. "." .. own
    local shown = not (parameter.is(value) and in_module and holder.describe)
    if type(key) == "number" and is_module(value) and not above[value] then
      local text = render_item("@", value, marks, indent, above)
      if text ~= repeated then
        flush()
        first, repeated, count = name, text, 0
      end
      last, count = name, count + 1
    elseif shown then
      flush()
      local text = render_item(name, value, marks, indent, above)
      if text ~= "" then lines[#lines + 1] = text end
    end
  end
  flush()
  above[holder] = nil
  return lines
end

---The model as a tree, one line per module, with parameter counts.
---@param root moonshard.Module
---@param marks table<moonshard.Module|moonshard.Parameter, string>? for a module: its unit, printed in brackets; for a
---  parameter: the type that kernels read, default f32; marks.frozen: by parameter, the rules' decision;
---  marks.decided: by parameter, how it is otherwise than the rest of its unit
---@return string
function tree.print(root, marks)
  marks = marks or {}
  local lines = render(root, marks, "  ", "", {})
  table.insert(lines, 1, head_of(root, marks))
  return table.concat(lines, "\n")
end

return tree
