-- ?name: the documentation of a name, from the comments above it. The executable contains the Lua sources, so the
-- prompt shows the annotations that editors read; for ops it shows the engine's op table.

local annotations = require("moonshard.repl.annotations")
local engine = require("moonshard.base.ffi")
local method_help = require("moonshard.tensor.method_help")
local nearest = require("moonshard.base.names.nearest")
local ops = require("moonshard.tensor.ops")
local sealed = require("moonshard.base.checks.sealed")
local show = require("moonshard.display.values")
local strict = require("moonshard.base.checks.strict")
local tensor = require("moonshard.tensor")
local text_lines = require("moonshard.base.text.text_lines")
local C, ffi = engine.C, engine.ffi

local comment_above, comment_of_file = annotations.comment_above, annotations.comment_of_file
local fields_of_class, lines_of = annotations.fields_of_class, annotations.lines_of
local sentence_of, source_of = annotations.sentence_of, annotations.source_of

local documentation = {}

local function describe_function(name, value)
  local lines, first = source_of(value)
  if not lines then return nil end
  local head = lines[first] and lines[first]:match("function[^(]*(%b())") or "(...)"
  local text = annotations.text_of_comment(comment_above(lines, first), lines)
  table.insert(text, 1, name .. head)
  return table.concat(text, "\n")
end

local function summary(value)
  if type(value) ~= "function" then return nil end
  local lines, first = source_of(value)
  return lines and sentence_of(comment_above(lines, first)) or nil
end

-- ---- ops, modules, objects -----------------------------------------------------------------------------------------

local function op_named(name, value)
  local row = rawget(ops.rows, name)
  return row and not row.across and rawget(ops, name) == value and row or nil
end

local function describe_op(name, row)
  local info = ffi.new("ms_op_info")
  engine.check(C.ms_op_describe(C.ms_op_find(row.name), info, ffi.sizeof(info)))
  local attributes = ffi.string(info.attrs)
  local inputs = row.min_inputs == row.max_inputs and tostring(row.min_inputs)
    or ("%d to %d"):format(row.min_inputs, row.max_inputs)
  local text = {
    ("%s  op, %s input%s%s"):format(name, inputs, inputs == "1" and "" or "s",
      row.differentiable and "" or ", without a gradient"),
    row.doc,
  }
  if attributes ~= "" then text[#text + 1] = "  attributes: " .. attributes end
  return table.concat(text, "\n")
end

-- listed: names that need no line; those of the fields are added.
local function list_fields(fields, listed)
  local names, width, text = {}, 0, {}
  for name, value in pairs(fields) do
    local is_public = type(name) == "string" and name:match("^%a") and not strict.is_internal(fields, name)
    if is_public and type(value) == "function" and not listed[name] then
      listed[name] = true
      names[#names + 1] = name
      width = math.max(width, #name)
    end
  end
  table.sort(names)
  for _, name in ipairs(names) do
    local row = op_named(name, fields[name])
    text[#text + 1] = ("  %-" .. width .. "s  %s"):format(name, row and row.doc or summary(fields[name]) or "")
  end
  return text
end

-- The name by which a value was loaded as a module of the layer: the shortest, since others add to what is there.
local function module_of(value)
  local shortest
  for name, loaded in pairs(package.loaded) do
    local is_it = loaded == value and name:match("^moonshard")
    if is_it and (not shortest or #name < #shortest) then shortest = name end
  end
  return shortest
end

-- The lines of that module's file.
local function source_of_module(value)
  local module = module_of(value)
  local path = module and "lua/" .. module:gsub("%.", "/")
  return path and (lines_of(path .. ".lua") or lines_of(path .. "/init.lua"))
end

-- The annotation of a field in require("moonshard").
local function annotation(name)
  local field = name:match("^ms%.([%w_]+)$")
  local lines = field and lines_of("lua/moonshard/init.lua")
  for _, line in ipairs(lines or {}) do
    local kind = line:match("^%-%-%-@field " .. field .. "%s+(.*)$")
    if kind then return kind end
  end
end

-- ms itself: every part of it, whether it was used yet or not.
local function describe_parts(name, ms)
  local text, names, width = { name .. "  what a recipe is written with; ?ms.NAME says more" }, ms.names(), 0
  table.sort(names)
  for _, part in ipairs(names) do width = math.max(width, #part) end
  for _, part in ipairs(names) do
    local value, kind = ms[part], annotation("ms." .. part) or ""
    local lines = type(value) == "table" and not kind:find("^fun%(") and source_of_module(value)
    local about = type(value) == "string" and value or summary(value)
      or lines and sentence_of(comment_of_file(lines)) or kind:match("moonshard%.[%w_.]+%s+(.*)$") or ""
    text[#text + 1] = ("  %-" .. width .. "s  %s"):format(part, (about:gsub("^%l", string.upper)))
  end
  return table.concat(text, "\n")
end

local function describe_table(name, value)
  local text = { name }
  local kind, module = annotation(name), module_of(value)
  if kind then text[1] = name .. "  " .. kind end
  local lines = source_of_module(value)
  for _, line in ipairs(lines and comment_of_file(lines) or {}) do text[#text + 1] = line end
  if not module then text[#text + 1] = show.any(value) end
  local fields, listed = value, { init = not module } -- only a class calls init
  while fields do
    for _, line in ipairs(list_fields(fields, listed)) do text[#text + 1] = line end
    fields = sealed.methods(fields)
  end
  return table.concat(text, "\n")
end

local COLUMNS = 100 -- of a list of names

-- A tensor, its methods, and the ops that are methods, too.
local function describe_tensor(name, value)
  local text, names, width, functions = { name, show.any(value) }, {}, 0, {}
  for method, entry in pairs(method_help) do
    names[#names + 1], width = method, math.max(width, #entry.takes)
  end
  table.sort(names)
  for _, method in ipairs(names) do
    text[#text + 1] = ("  %-" .. width .. "s  %s"):format(method_help[method].takes, method_help[method].doc)
  end
  for op in pairs(ops.rows) do functions[#functions + 1] = op end
  table.sort(functions)
  text[#text + 1] = "  and the ops, x:exp() or ms.ops.exp(x); print(ms.ops.help()) says what each computes:"
  for _, line in ipairs(text_lines.wrapped(table.concat(functions, ", "), COLUMNS)) do
    text[#text + 1] = "    " .. line
  end
  return table.concat(text, "\n")
end

-- ---- options -------------------------------------------------------------------------------------------------------

-- The class that a function's annotations give its last parameter.
local function class_of_options(lines, defined)
  local class
  for _, line in ipairs(comment_above(lines, defined)) do
    class = line:match("^@param%s+%S+%s+(moonshard%.[%w_.]+)") or class
  end
  return class
end

-- The lines of an option in the annotations of a function; nil if it has none of this name.
local function option_of(func, name)
  local lines, first = source_of(func)
  local class = lines and class_of_options(lines, first)
  local is_options = class and (class:find("Options$") or class:find("Rules$") or class:find("%.optim%."))
  local found
  for _, line in ipairs(is_options and fields_of_class(lines, class) or {}) do
    local field = line:match("^    ([%w_]+)")
    if found and field then break end
    if found or field == name then found = (found and found .. "\n" or "") .. line end
  end
  return found
end

-- ms.trainer, ms.optim.adamw, ...: names with functions, sorted.
local function public_functions(ms)
  local list = {}
  local function add(name, value)
    if type(value) == "function" then list[#list + 1] = { name = name, value = value } end
  end
  for _, name in ipairs(ms.names()) do
    local value = ms[name]
    add("ms." .. name, value)
    for key, inner in pairs(type(value) == "table" and module_of(value) and value or {}) do
      if type(key) == "string" and not op_named(key, inner) then add(("ms.%s.%s"):format(name, key), inner) end
    end
  end
  table.sort(list, function(a, b) return a.name < b.name end)
  return list
end

-- What functions say about an option of this name, each text once; nil: none has it.
local function describe_option(ms, name)
  local texts, functions = {}, {}
  for _, public in ipairs(public_functions(ms)) do
    local text = option_of(public.value, name)
    if text and not functions[text] then texts[#texts + 1], functions[text] = text, {} end
    if text then table.insert(functions[text], public.name) end
  end
  for i, text in ipairs(texts) do
    texts[i] = ("%s, an option of %s\n%s"):format(name, table.concat(functions[text], ", "), text)
  end
  return texts[1] and table.concat(texts, "\n")
end

-- What has this name within ms, "adamw" in ms.optim: what ?ms.optim.adamw says; nil: nothing has it.
local function describe_public(ms, name)
  local texts = {}
  for _, part in ipairs(ms.names()) do
    local value, full = ms[part], "ms." .. part
    if part == name then
      texts[#texts + 1] = type(value) == "function" and describe_function(full, value)
        or type(value) == "table" and describe_table(full, value) or full .. "  " .. show.any(value)
    elseif type(value) == "table" and module_of(value) and not (annotation(full) or ""):find("^fun%(") then
      local ok, inner = pcall(function() return value[name] end) -- some parts have functions once they are asked
      local is_one = ok and type(inner) == "function" and not op_named(name, inner)
      texts[#texts + 1] = is_one and describe_function(full .. "." .. name, inner) or nil
    end
  end
  return texts[1] and table.concat(texts, "\n\n")
end

-- ---- lookup --------------------------------------------------------------------------------------------------------

local function find(environment, name)
  local value, last = environment, nil
  for part in name:gmatch("[^.:]+") do
    local ok, found = pcall(function() return value[tonumber(part) or part] end)
    if not ok or found == nil then return nil, part, value end
    value, last = found, part
  end
  return value, last
end

local function unknown(environment, name, part, holder)
  if not name:find("^[%a_][%w_.:]*$") then
    return ("%s is not a name: ? takes one, as in ?ms.trainer; ? alone lists what else can be typed"):format(name)
  elseif type(holder) ~= "table" then
    return ("%s is not a name of this session: %s is a %s, which has no fields"):format(name,
      name:match("^(.*)[.:]"), type(holder))
  end
  local valid = {}
  for key in pairs(type(holder) == "table" and holder or environment) do
    if type(key) == "string" then valid[key] = true end
  end
  if holder == environment then
    for op in pairs(ops.rows) do valid[op] = true end
  elseif holder == environment.ms then
    for _, key in ipairs(environment.ms.names()) do valid[key] = true end
  end
  local advice = nearest.advice(part, valid)
  if holder == environment and not advice:find("^did you mean") then
    advice = ":vars lists its variables, ?ms what ms offers, print(ms.ops.help()) the ops"
  end
  return ("%s is not a name of this session: %s"):format(name, advice)
end

---The documentation of a name of the session, of ms, of an op, or of an option.
---@param environment table
---@param name string "ms.trainer", "train:step", "softmax", "reshard_after_forward"
---@return string? text, string? message why there is none
function documentation.describe(environment, name)
  local value, part, holder = find(environment, name)
  local is_of_lua = value ~= nil and rawequal(rawget(_G, name), value) -- such as module, which ms has, too
  if is_of_lua and environment.ms then
    local public = describe_public(environment.ms, name)
    if public then return public end
  end
  if value == nil then
    local row = rawget(ops.rows, name)
    if row then return describe_op(name, row) end
    local ms = environment.ms
    local public, option = ms and describe_public(ms, name), ms and describe_option(ms, name)
    if public or option then return public and option and public .. "\n\n" .. option or public or option end
    return nil, unknown(environment, name, part, holder)
  end
  local row = op_named(part, value)
  if row then return describe_op(name, row) end
  if type(value) == "function" then
    return describe_function(name, value) or ("%s  %s"):format(name, show.any(value))
  end
  if tensor.is_eager(value) then return describe_tensor(name, value) end
  if value == environment.ms then return describe_parts(name, value) end
  if type(value) == "table" then return describe_table(name, value) end
  return ("%s  %s: %s"):format(name, type(value), show.any(value))
end

-- ---- the names of a function's options ----------------------------------------------------------------------------
--
-- For completion inside its table: ms.trainer { mod<Tab>. Read from the function's source, without calling it: the
-- argument of options.parse, inline or a table of the same file; otherwise the class of its last parameter.

-- The text of a table constructor that begins at `at`, an opening brace.
local function constructor_at(source, at)
  return source:match("^%b{}", at)
end

-- The keys of a constructor, without those of nested tables.
local function keys_of(constructor, names)
  local outer = constructor:sub(2, -2):gsub("%b{}", "{}"):gsub("%-%-[^\n]*", "")
  for name in outer:gmatch("([%a_][%w_]*)%s*=") do names[name] = true end
end

local function constant_named(source, name)
  local at = select(2, source:find("\nlocal " .. name .. " = {"))
  return at and constructor_at(source, at)
end

-- The fields of that class, if the function's file defines it.
local function names_of_class(lines, defined, names)
  local class = class_of_options(lines, defined)
  for _, field in ipairs(class and fields_of_class(lines, class) or {}) do
    local name = field:match("^    ([%w_]+)")
    if name then names[name] = true end
  end
  return next(names) and names or nil
end

---Names of options that a function takes.
---@param func function
---@return table<string, true>? names nil if it takes none
function documentation.option_names(func)
  local lines, first, last = source_of(func)
  if not lines then return nil end
  local body, names = table.concat(lines, "\n", first, last), {}
  local _, after = body:find("options%.parse%(%s*[^,]+,[^,{]+,%s*")
  if not after then return names_of_class(lines, first, names) end
  local constant = body:match("^[%u_]+", after + 1)
  local constructor = constant and constant_named(table.concat(lines, "\n"), constant)
    or constructor_at(body, after + 1)
  if not constructor then return names_of_class(lines, first, names) end
  keys_of(constructor, names)
  return next(names) and names or nil
end

return documentation
