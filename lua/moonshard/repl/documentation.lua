-- ?name: the documentation of a name, from the comments above it. The executable contains the Lua sources, so the
-- prompt shows the annotations that editors read; for ops it shows the engine's op table.

local arguments = require("moonshard.base.checks.arguments")
local engine = require("moonshard.base.ffi")
local input_file = require("moonshard.base.files.input_file")
local method_help = require("moonshard.tensor.method_help")
local nearest = require("moonshard.base.names.nearest")
local ops = require("moonshard.tensor.ops")
local optimizer_classes = require("moonshard.repl.optimizer_classes")
local sealed = require("moonshard.base.checks.sealed")
local show = require("moonshard.display.values")
local strict = require("moonshard.base.checks.strict")
local tensor = require("moonshard.tensor")
local text_lines = require("moonshard.base.text.text_lines")
local C, ffi = engine.C, engine.ffi

local documentation = {}

-- ---- sources -------------------------------------------------------------------------------------------------------

local sources = {}

-- The lines of a file in the executable or on disk; nil if it does not exist.
local function lines_of(path)
  if sources[path] == nil then
    local in_executable, host = pcall(require, "moonshard.host")
    local text = in_executable and host.source(path) or input_file.text(path)
    sources[path] = text and text_lines.all(text) or false
  end
  return sources[path] or nil
end

-- The comment lines that end above line `number`, without their dashes.
local function comment_above(lines, number)
  local first = number
  while first > 1 and lines[first - 1]:match("^%s*%-%-%-") do first = first - 1 end
  local comment = {}
  for i = first, number - 1 do comment[#comment + 1] = lines[i]:match("^%s*%-%-%-(.*)$") end
  return comment
end

-- The comment at the beginning of a file.
local function comment_of_file(lines)
  local comment = {}
  for _, line in ipairs(lines) do
    local text = line:match("^%-%- ?(.*)$")
    if not text then break end
    comment[#comment + 1] = text
  end
  return comment
end

-- ---- annotations as text -------------------------------------------------------------------------------------------

-- The fields of a parameter's class: the options of a function. The class is in the function's file, or made of rows.
local function fields_of_class(lines, class)
  local fields = {}
  lines = optimizer_classes.lines(class) or lines
  for i, line in ipairs(lines) do
    if line:match("^%-%-%-@class%s+([%w_.]+)") == class then
      for at = i + 1, #lines do
        local name, kind = lines[at]:match("^%-%-%-@field%s+(%S+)%s+(.*)$")
        local more = lines[at]:match("^%-%-%-%s+(.*)$")
        if not (name or more) then break end
        fields[#fields + 1] = name and ("    %s  %s"):format(name, kind) or "      " .. more
      end
    end
  end
  return fields
end

local function text_of_comment(comment, lines)
  local text = {}
  for _, line in ipairs(comment) do
    local tag, rest = line:match("^@(%a+)%s*(.*)$")
    if tag == "param" then
      text[#text + 1] = "  " .. rest
      local class = rest:match("^%S+%s+(moonshard%.[%w_.]+)")
      for _, field in ipairs(class and fields_of_class(lines, class) or {}) do text[#text + 1] = field end
    elseif tag == "return" then
      text[#text + 1] = "  returns " .. rest
    elseif not tag then
      text[#text + 1] = line
    end
  end
  return text
end

-- The lines of the file that defines a function, nil for a built-in one; and the numbers of its first and last line.
local function source_of(func)
  local info = debug.getinfo(arguments.original(func), "S")
  return info.source:sub(1, 1) == "@" and lines_of(info.source:sub(2)) or nil, info.linedefined, info.lastlinedefined
end

local function describe_function(name, value)
  local lines, first = source_of(value)
  if not lines then return nil end
  local head = lines[first] and lines[first]:match("function[^(]*(%b())") or "(...)"
  local text = text_of_comment(comment_above(lines, first), lines)
  table.insert(text, 1, name .. head)
  return table.concat(text, "\n")
end

-- The beginning of a function's comment up to the end of a sentence, or of the part before a colon or a semicolon, for
-- lists.
local function summary(value)
  if type(value) ~= "function" then return nil end
  local lines, first = source_of(value)
  local text = {}
  for _, line in ipairs(lines and comment_above(lines, first) or {}) do
    if line:sub(1, 1) == "@" then break end
    text[#text + 1] = text_lines.trim(line)
  end
  local sentence = table.concat(text, " ")
  for _, stop in ipairs({ "%.%s+%u", "[:;]%s", "%.$" }) do sentence = sentence:match("^(.-)" .. stop) or sentence end
  return sentence ~= "" and sentence or nil
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

-- The name by which a value was loaded as a module of the layer.
local function module_of(value)
  for name, loaded in pairs(package.loaded) do
    if loaded == value and name:match("^moonshard") then return name end
  end
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

local function describe_table(name, value)
  local text = { name }
  local kind, module = annotation(name), module_of(value)
  if kind then text[1] = name .. "  " .. kind end
  local path = module and "lua/" .. module:gsub("%.", "/")
  local lines = path and (lines_of(path .. ".lua") or lines_of(path .. "/init.lua"))
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
  if value == nil then
    local row = rawget(ops.rows, name)
    if row then return describe_op(name, row) end
    local option = environment.ms and describe_option(environment.ms, name)
    if option then return option end
    return nil, unknown(environment, name, part, holder)
  end
  local row = op_named(part, value)
  if row then return describe_op(name, row) end
  if type(value) == "function" then
    return describe_function(name, value) or ("%s  %s"):format(name, show.any(value))
  end
  if tensor.is_eager(value) then return describe_tensor(name, value) end
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
