-- Turns the part of moonshard.h that LuaJIT can parse into the Lua module moonshard.cdef, which returns it as a string.
--
--   luajit runtime/make/make_cdef.lua runtime/moonshard.h build/gen/moonshard/cdef.lua
--
-- The module is generated so that the Lua layer cannot differ from the header. The text is parsed once here, so that a
-- declaration that LuaJIT does not support stops the build, with its line, and not the user's first program.

local header_path, output_path = arg[1], arg[2]

local function read_all(path)
  local file = assert(io.open(path, "rb"))
  local text = file:read("*a")
  file:close()
  return text
end

local header = read_all(header_path)
local first, last = header:find("/* ffi:begin */", 1, true)
local stop = last and header:find("/* ffi:end */", last, true)
if not (first and stop) then
  error(header_path .. ": no text between /* ffi:begin */ and /* ffi:end */", 0)
end

-- Comments become as many newlines as they span, so that line numbers still match the header.
local function newlines(comment)
  return (comment:gsub("[^\n]", ""))
end

local declarations = header:sub(last + 1, stop - 1)
declarations = declarations:gsub("/%*.-%*/", newlines):gsub("//[^\n]*", ""):gsub("MS_API%s+", "")

local _, lines_before = header:sub(1, last):gsub("\n", "")
local ok, message = pcall(require("ffi").cdef, ("\n"):rep(lines_before) .. declarations)
if not ok then
  error(header_path .. ": LuaJIT cannot parse the declarations: " .. message, 0)
end

declarations = declarations:gsub("[ \t]+\n", "\n"):gsub("\n\n+", "\n"):gsub("^\n", "")
if declarations:find("]=]", 1, true) then
  error(header_path .. ": the text ]=] would end the Lua string", 0)
end

local output = assert(io.open(output_path, "wb"))
output:write("-- Made from ", header_path, " by the build.\nreturn [=[\n", declarations, "]=]\n")
output:close()
