-- Completion by Tab: names of the session and their fields, methods after a colon, names of parameters and modules
-- inside a string, and the prompt's own commands. Completion calls no user code.

local documentation = require("moonshard.repl.documentation")
local lexer = require("moonshard.repl.lexer")
local sealed = require("moonshard.base.checks.sealed")
local strict = require("moonshard.base.checks.strict")
local text_lines = require("moonshard.base.text.text_lines")
local tree = require("moonshard.nn.tree")

local completion = {}

-- All string keys of a value and of the classes it inherits from, with a value of each.
local function fields_of(value)
  local fields, seen = {}, {}
  local ms = require("moonshard")
  if value == ms then
    for _, name in ipairs(ms.names()) do fields[name] = true end
  end
  while value ~= nil and not seen[value] do
    seen[value] = true
    if type(value) == "table" then
      for key, field in next, sealed.fields(value) do
        local is_name = type(key) == "string" and key:match("^[%a_][%w_]*$")
        if is_name and fields[key] == nil and not strict.is_internal(value, key) then fields[key] = field end
      end
    end
    value = sealed.methods(value)
  end
  return fields
end

-- The value of names joined by dots; nil if one of them is not a table's field.
local function follow(environment, names)
  local value = environment
  for _, name in ipairs(names) do
    local ok, next_value = pcall(function() return value[tonumber(name) or name] end)
    if not ok or next_value == nil then return nil end
    value = next_value
  end
  return value
end

local function is_callable(value)
  local meta = debug.getmetatable(value)
  return type(value) == "function" or (type(meta) == "table" and meta.__call ~= nil)
end

local function sorted(candidates)
  local list = {}
  for name in pairs(candidates) do list[#list + 1] = name end
  table.sort(list)
  return list
end

local function matching(fields, prefix, accept)
  local found = {}
  for name, value in pairs(fields) do
    local private = name:sub(1, 1) == "_" and prefix:sub(1, 1) ~= "_"
    if name:sub(1, #prefix) == prefix and not private and (not accept or accept(value)) then found[name] = true end
  end
  return sorted(found)
end

-- FQNs of all models in the session.
local function model_names(environment)
  local names = {}
  for _, value in next, environment do
    local model = tree.is_module(value) and value or type(value) == "table" and rawget(sealed.fields(value), "model")
    if tree.is_module(model) then
      local inventory = tree.inventory(model)
      for _, list in ipairs({ inventory.parameters, inventory.modules }) do
        for _, entry in ipairs(list) do
          if entry.name ~= "" then names[entry.name] = true end
        end
      end
    end
  end
  return names
end

-- The chain of names that ends a text: "x = ms.optim.ad" -> { "ms", "optim" }, ".", "ad"; a call breaks it.
local function chain_before(text)
  local tokens = lexer.tokens(text)
  local last, names = #tokens, {}
  local prefix, separator = "", nil
  if last > 0 and tokens[last].last == #text and (tokens[last].kind == "name" or tokens[last].kind == "keyword") then
    prefix = tokens[last].text
    last = last - 1
  end
  local i = last
  if i > 0 and (tokens[i].text == "." or tokens[i].text == ":") then separator = tokens[i].text end
  while i > 1 and (tokens[i].text == "." or tokens[i].text == ":") do
    local before = tokens[i - 1]
    if before.kind == "name" then
      table.insert(names, 1, before.text)
      i = i - 2
    elseif before.text == "]" and i > 4 and tokens[i - 3].text == "[" and tokens[i - 2].kind == "number"
      and tokens[i - 4].kind == "name" then
      table.insert(names, 1, tokens[i - 2].text)
      table.insert(names, 1, tokens[i - 4].text)
      i = i - 5
    else
      return nil, separator, prefix
    end
  end
  return names, separator, prefix
end

-- If a name can be an option, after `{` or `,` in a table that is a function's argument: the text before that table,
-- and the prefix of the name.
local function call_around(text)
  local tokens = lexer.tokens(text)
  local last, prefix, depth = #tokens, "", 0
  if last > 0 and tokens[last].kind == "name" and tokens[last].last == #text then
    prefix, last = tokens[last].text, last - 1
  end
  local before = tokens[last] and tokens[last].text
  if before ~= "{" and before ~= "," then return nil end
  for i = last, 1, -1 do
    local symbol = tokens[i].text
    if symbol == "}" or symbol == ")" or symbol == "]" then depth = depth + 1 end
    if symbol == "{" and depth == 0 then
      local comma = i -- ms.fully_shard(model, { ... has the model before its table
      while tokens[comma - 1] and tokens[comma - 1].text ~= "(" and tokens[comma - 1].kind ~= "keyword"
        and (tokens[i - 1].text == ",") do comma = comma - 1 end
      local head = tokens[comma - 1] and tokens[comma - 1].text == "(" and comma - 2 or i - 1
      return tokens[head] and text:sub(1, tokens[head].last), prefix
    end
    if symbol == "{" or symbol == "(" or symbol == "[" then depth = depth - 1 end
    if depth < 0 then return nil end
  end
end

local function option_candidates(environment, text)
  local head, prefix = call_around(text)
  local names, _, last = chain_before(head or "")
  if not head or not names or last == "" then return nil end
  names[#names + 1] = last
  local value = follow(environment, names)
  if type(value) == "table" then value = (debug.getmetatable(value) or {}).__call end
  local options = type(value) == "function" and documentation.option_names(value)
  return options and matching(options, prefix), prefix
end

---The possible names at the end of a text, and the prefix already typed.
---@param environment table
---@param text string up to the cursor
---@param commands string[]? of the prompt, without the colon
---@return string[] candidates sorted
---@return string prefix
function completion.candidates(environment, text, commands)
  local command = text:match("^%s*:(%a*)$")
  if command then
    local fields = {}
    for _, name in ipairs(commands or {}) do fields[name] = true end
    return matching(fields, command), command
  end
  text = text:gsub("^%s*@%w+%s", ""):gsub("^%s*[?=]", "")
  local tokens = lexer.tokens(text)
  local last = tokens[#tokens]
  if last and last.open then
    local prefix = text:sub(last.content)
    return matching(model_names(environment), prefix), prefix
  end
  local options, typed = option_candidates(environment, text)
  if options and #options > 0 then return options, typed end
  local names, separator, prefix = chain_before(text)
  if not names then return {}, prefix end
  if separator then
    local value = follow(environment, names)
    if value == nil then return {}, prefix end
    return matching(fields_of(value), prefix, separator == ":" and is_callable or nil), prefix
  end
  local fields = {}
  for _, source in ipairs({ lexer.KEYWORDS, _G, environment }) do
    for name in next, source do
      if type(name) == "string" then fields[name] = true end
    end
  end
  return matching(fields, prefix), prefix
end

local function common_prefix(list)
  local common = list[1]
  for _, text in ipairs(list) do
    while text:sub(1, #common) ~= common do common = common:sub(1, -2) end
  end
  return common
end

local function in_columns(list, width)
  local longest = 0
  for _, text in ipairs(list) do longest = math.max(longest, #text) end
  local columns = math.max(1, math.floor(width / (longest + 2)))
  local rows = math.ceil(#list / columns)
  local lines = {}
  for row = 1, rows do
    local cells = {}
    for i = row, #list, rows do cells[#cells + 1] = list[i] .. (" "):rep(longest + 2 - #list[i]) end
    lines[row] = text_lines.trim_end(table.concat(cells))
  end
  return table.concat(lines, "\n")
end

---The effect of Tab: the text to insert, and a list to show when there are several completions.
---@param environment table
---@param text string up to the cursor
---@param commands string[]
---@param width integer columns of the terminal
---@return string insertion, string? listing
function completion.complete(environment, text, commands, width)
  local list, prefix = completion.candidates(environment, text, commands)
  if #list == 0 then return "", nil end
  local insertion = common_prefix(list):sub(#prefix + 1)
  if #list == 1 or insertion ~= "" then return insertion, nil end
  return "", in_columns(list, width)
end

return completion
