-- Reads settings.def, and writes its structs as a part of the public header, with the comments of their rows, and the
-- rows as a Lua module, which returns { type = { row, ... } } in the order of the fields.
--
--   luajit runtime/make/make_settings.lua runtime/base/settings/settings.def build/gen/moonshard
--
-- An embedder reads structs, the engine's loops read rows, and the Lua layer reads options: all are made from one text,
-- so they cannot differ.

local def_path, folder = arg[1], arg[2]

local HEAD = [[
/* settings.h - the settings of models and plans. Fill a struct with ms_config_default before you set fields.
 *
 * A part of moonshard.h, which explains the conventions. The build writes it from settings.def. The Lua layer parses
 * the text between the two ffi marks: it contains no preprocessor directives.
 */
#ifndef MOONSHARD_SETTINGS_H
#define MOONSHARD_SETTINGS_H

#include <moonshard/base.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ffi:begin */
]]

local TAIL = [[

/* ffi:end */

#ifdef __cplusplus
}
#endif
#endif
]]

local function read_all(path)
  local file = assert(io.open(path, "rb"))
  local text = file:read("*a")
  file:close()
  return text
end

local lines, lua, struct, group, comment = {}, {}, nil, nil, nil
local rows_text, optimizers = read_all(def_path), {}
local function add(indent, text) lines[#lines + 1] = indent .. text end
local function add_lua(format, ...) lua[#lua + 1] = format:format(...) end

local function indentation() return group and "    " or struct and "  " or "" end

local function add_comment()
  for line in ((comment or "") .. "\n"):gmatch("(.-)\n") do
    if line ~= "" then add(indentation(), line) end
  end
  comment = nil
end

-- Optimizers are numbered in the order of their rows.
add("", "/* Those of matrices alone, as muon, are also said by their parameters (ms_param_config.optimizer). */")
add("", "enum ms_optimizer_kind {")
add("  ", "MS_OPT_NONE = 0,")
for name, constant in rows_text:gmatch("\nMS_OPTIMIZER%(([%w_]+), ([%w_]+)") do
  optimizers[#optimizers + 1] = name
  add("  ", ("MS_OPT_%s = %d,"):format(constant, #optimizers))
end
lines[#lines] = lines[#lines]:gsub(",$", "")
add("", "};")

-- What the Lua layer knows of a range: the names that it chooses from, or that it is a flag or a dtype.
local function known_of(range)
  local names = range == "OPTIMIZERS" and "none " .. table.concat(optimizers, " ") or range:match('^CHOICE%("(.-)"%)$')
  if names then return (", choices = { %s }"):format((names:gsub("%S+", '"%0"'):gsub(" ", ", "))) end
  local is_dtype = range:find("DTYPES%(") or range:find("F32_OR%(")
  return range == "FLAG" and ", flag = true" or is_dtype and ", dtype = true" or ""
end

-- What a comment says before its first empty line, in one line: the annotation of a recipe's option.
local function summary_of(text)
  local first = (text:gsub("^/%*", ""):gsub("%*/$", "") .. "\n *\n"):match("^(.-)\n %*%s*\n")
  return (first:gsub("\n %*", " "):gsub("%s+", " "):match("^%s*(.-)%s*$"))
end

-- text: the row's comment, which becomes the `doc` of an optimizer's setting.
local function add_row(type, name, initial, range, text)
  local doc = group and text and (", doc = %q"):format(summary_of(text)) or ""
  add_lua("    { name = %q, type = %q, default = %q%s%s },", name, type, initial, known_of(range), doc)
end

-- By the name of a row's macro; arguments are texts.
local rows = {
  MS_CONFIG = function(type)
    add("", "")
    add_comment()
    struct = type
    add("", ("typedef struct ms_%s {"):format(type))
    add_lua("  ms_%s = {", type)
  end,
  MS_END = function()
    add("", ("} ms_%s;"):format(struct))
    add_lua("  },")
    struct = nil
  end,
  MS_OPTIMIZER = function(name)
    add_comment()
    add("  ", "struct {")
    group = name
  end,
  MS_OPTIMIZER_END = function()
    add("  ", ("} %s;"):format(group))
    group = nil
  end,
  MS_SIZE = function() add("  ", "int struct_size; /* set by ms_config_default */") end,
  MS_SETTING = function(_, type, name, initial, range)
    local text = comment
    add_comment()
    add(indentation(), ("%s %s;"):format(type, name:match("[^.]+$")))
    add_row(type, name, initial, range, text)
  end,
  MS_POINTER = function(_, type, name)
    add_comment()
    add("  ", type .. name .. ";")
  end,
  MS_PART = function(_, type, name)
    add_comment()
    add("  ", ("ms_%s %s;"):format(type, name))
  end,
}

-- Commas within parentheses and texts separate nothing.
local function arguments_of(text)
  local list, at, depth, quoted = { "" }, 1, 0, false
  while at <= #text do
    local c = text:sub(at, at)
    if c == '"' then quoted = not quoted end
    if not quoted then depth = depth + (c == "(" and 1 or c == ")" and -1 or 0) end
    if c == "," and depth == 0 and not quoted then list[#list + 1] = "" else list[#list] = list[#list] .. c end
    at = at + 1
  end
  for i, argument in ipairs(list) do list[i] = argument:match("^%s*(.-)%s*$") end
  return list
end

-- A comment that begins with /* and stands before a row belongs to it; a heading ("/* ---- ... ---- */") to none.
local at = 1
while true do
  local first, last, found = rows_text:find("^%s*(/%*.-%*/)", at)
  if first then
    comment = not found:find("^/%* %-%-%-%-") and found or nil
  else
    local name, given
    first, last, name, given = rows_text:find("^%s*(MS_[%u_]+)(%b())", at)
    if not first then
      first, last, name = rows_text:find("^%s*(MS_[%u_]+)", at)
      given = "()"
    end
    if not first then break end
    if rows[name] then rows[name](unpack(arguments_of(given:sub(2, -2)))) end
    comment = nil
  end
  at = last + 1
end
if rows_text:find("%S", at) then error(def_path .. ": not a row: " .. rows_text:sub(at, at + 80), 0) end
if struct then error(def_path .. ": " .. struct .. " has no MS_END", 0) end

-- What depends on a file is built again only if its text changes.
local function write(path, made)
  local before = io.open(path, "rb")
  local same = before and before:read("*a") == made
  if before then before:close() end
  if same then return end
  local output = assert(io.open(path, "wb"))
  output:write(made)
  output:close()
end

write(folder .. "/settings.h", HEAD .. table.concat(lines, "\n") .. "\n" .. TAIL)
write(folder .. "/settings.lua", ("-- Made from %s by the build.\nreturn {\n%s\n}\n"):format(def_path,
  table.concat(lua, "\n")))
