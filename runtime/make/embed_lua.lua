-- Writes Lua sources and their bytecode into a C file, so that the executable needs no Lua files and starts without
-- parsing any.
--
--   luajit runtime/make/embed_lua.lua OUTPUT.c ROOT FILE... [-- ROOT FILE...]
--
-- The name of a module is the path of its file below its root: lua/moonshard/init.lua is "moonshard",
-- lua/moonshard/nn/loss.lua is "moonshard.nn.loss". runtime/host/embedded.h declares the result. Bytecode keeps the
-- names and lines that error messages have. Another LuaJIT than this one may not read it, and the sources are there for
-- that, and for documentation at the prompt.

local bytecode = dofile((arg[0]:match("^.*/") or "") .. "bytecode.lua")
local output_path = arg[1]

local function module_name(root, path)
  local relative = path:sub(#root + 2)
  assert(path:sub(1, #root + 1) == root .. "/", path .. " is not below " .. root)
  return (relative:gsub("%.lua$", ""):gsub("/init$", ""):gsub("/", "."))
end

local modules = {}
local root
for i = 2, #arg do
  if arg[i] == "--" then
    root = nil
  elseif not root then
    root = arg[i]
  else
    local file = assert(io.open(arg[i], "rb"))
    local source = file:read("*a")
    file:close()
    -- A file that does not parse stops the build here, with its line.
    modules[#modules + 1] = {
      name = module_name(root, arg[i]),
      path = arg[i],
      source = source,
      bytecode = bytecode(source, "@" .. arg[i]),
    }
  end
end

table.sort(modules, function(a, b) return a.name < b.name end)

local output = assert(io.open(output_path, "wb"))
output:write("/* Made from the Lua sources by runtime/make/embed_lua.lua. */\n", '#include "host/embedded.h"\n')

-- As a string, which compilers read much faster than a list of numbers.
local escaped = {}
for byte = 0, 255 do escaped[string.char(byte)] = ("\\%03o"):format(byte) end

local function write_bytes(name, i, bytes)
  output:write("static const char ", name, "_", i, "[] =")
  for at = 1, #bytes, 80 do
    output:write('\n  "', (bytes:sub(at, at + 79):gsub('[^%w %(%)%[%]{}%.,:;=+*/<>_%-\']', escaped)), '"')
  end
  output:write(#bytes == 0 and ' "";\n' or ";\n")
end

for i, module in ipairs(modules) do
  output:write("\n/* ", module.path, " */\n")
  write_bytes("source", i, module.source)
  write_bytes("bytecode", i, module.bytecode)
end

output:write(("\nconst char ms_embedded_version[] = %q;\n"):format(jit.version))
output:write("const struct ms_embedded_module ms_embedded_modules[] = {\n")
for i, module in ipairs(modules) do
  output:write(("  {%q, source_%d, %d, bytecode_%d, %d, %q},\n"):format(module.name, i, #module.source, i,
    #module.bytecode, module.path))
end
output:write("};\n\nconst int ms_embedded_module_count = ", #modules, ";\n")
output:close()
