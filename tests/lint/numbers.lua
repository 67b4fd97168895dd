-- Numbers as text, in every locale alike: C's own readers and printers follow setlocale, with which an embedder, or
-- os.setlocale, can make the decimal point a comma. Only runtime/base/numbers/number.c calls them for floating point.
--
--   luajit tests/lint/numbers.lua FILE...

local HOME = "runtime/base/numbers/number.c"

-- Readers of floating point, and functions whose format another function was given.
local NEVER = { "strtod", "strtof", "strtold", "atof", "vprintf", "vfprintf", "vsprintf", "vsnprintf", "vasprintf",
  "vdprintf" }
-- What takes a format, of which conversions of floating point are refused.
local FORMATS = { "printf", "fprintf", "sprintf", "snprintf", "asprintf", "dprintf", "scanf", "fscanf", "sscanf" }

-- The text without comments, with as many lines, and what is in quotes as it is.
local function without_comments(text)
  local blank = function(comment) return (comment:gsub("[^\n]", " ")) end
  return (text:gsub("/%*.-%*/", blank):gsub("([^:])//([^\n]*)", function(before, rest)
    return before .. "  " .. rest:gsub("[^\n]", " ")
  end))
end

-- A conversion of floating point in the strings of a call's arguments.
local function conversion_in(arguments)
  for literal in arguments:gmatch('"([^"]*)"') do
    for flags, letter in literal:gsub("%%%%", ""):gmatch("%%([-+ #0-9.*lLh]*)(%a)") do
      if letter:find("[aefgAEFG]") then return "%" .. flags .. letter end
    end
  end
end

local found = {}

local function check(path)
  local file = assert(io.open(path, "rb"))
  local text = without_comments(file:read("*a"))
  file:close()
  local function report(at, what)
    local _, before = text:sub(1, at):gsub("\n", "")
    found[#found + 1] = ("%s:%d: %s: base/numbers/number.h has the same in every locale"):format(path, before + 1, what)
  end
  for _, name in ipairs(NEVER) do
    for at in text:gmatch("()%f[%w_]" .. name .. "%s*%(") do report(at, name) end
  end
  for _, name in ipairs(FORMATS) do
    for at, arguments in text:gmatch("()%f[%w_]" .. name .. "%s*(%b())") do
      local conversion = conversion_in(arguments)
      if conversion then report(at, name .. " with " .. conversion) end
    end
  end
end

for _, path in ipairs(arg) do
  if path ~= HOME then check(path) end
end
table.sort(found)
if found[1] then
  print(table.concat(found, "\n"))
  os.exit(1)
end
