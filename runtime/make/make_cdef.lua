-- Turns the parts of moonshard.h, in the order in which it includes them, into the Lua module moonshard.cdef, which
-- returns the text between their ffi marks as a string.
--
--   luajit runtime/make/make_cdef.lua runtime/moonshard.h build/gen build/gen/moonshard/cdef.lua
--
-- The second argument is the folder of the parts that the build writes.
--
-- The module is generated so that the Lua layer cannot differ from the header. The text is parsed once here, so that a
-- declaration that LuaJIT does not support stops the build, with its file and line, and not the user's first program.

local header_path, generated, output_path = arg[1], arg[2], arg[3]

local function read_all(path)
  local file = assert(io.open(path, "rb"))
  local text = file:read("*a")
  file:close()
  return text
end

-- Comments become as many newlines as they span, so that line numbers still match the file.
local function newlines(comment)
  return (comment:gsub("[^\n]", ""))
end

-- The declarations of one part, which LuaJIT has parsed.
local function declarations_of(path)
  local text = read_all(path)
  local first, last = text:find("/* ffi:begin */", 1, true)
  local stop = last and text:find("/* ffi:end */", last, true)
  if not (first and stop) then error(path .. ": no text between /* ffi:begin */ and /* ffi:end */", 0) end
  local own = text:sub(last + 1, stop - 1):gsub("/%*.-%*/", newlines):gsub("//[^\n]*", ""):gsub("MS_API%s+", "")
  local _, lines_before = text:sub(1, last):gsub("\n", "")
  local ok, message = pcall(require("ffi").cdef, ("\n"):rep(lines_before) .. own)
  if not ok then error(path .. ": LuaJIT cannot parse the declarations: " .. message, 0) end
  return own
end

local folder, parts = header_path:match("^(.*/)") or "", {}
for path in read_all(header_path):gmatch("\n#include <(moonshard/[%w_]+%.h)>") do
  local own = io.open(folder .. path, "rb")
  if own then own:close() end
  parts[#parts + 1] = declarations_of(own and folder .. path or generated .. "/" .. path)
end
if #parts == 0 then error(header_path .. ": it includes no part", 0) end
local declarations = table.concat(parts)

declarations = declarations:gsub("[ \t]+\n", "\n"):gsub("\n\n+", "\n"):gsub("^\n", "")
if declarations:find("]=]", 1, true) then
  error(header_path .. ": the text ]=] would end the Lua string", 0)
end

local output = assert(io.open(output_path, "wb"))
output:write("-- Made from ", header_path, " by the build.\nreturn [=[\n", declarations, "]=]\n")
output:close()
