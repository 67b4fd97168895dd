-- Writes Lua sources into a C file, so that the executable needs no Lua files.
--
--   luajit runtime/make/embed_lua.lua OUTPUT.c ROOT FILE... [-- ROOT FILE...]
--
-- The name of a module is the path of its file below its root: lua/moonshard/init.lua is "moonshard",
-- lua/moonshard/nn/loss.lua is "moonshard.nn.loss". runtime/host/embedded.h declares the result. Sources and not
-- bytecode, because error messages then have lines, and parsing all of them takes only a few milliseconds.

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
    modules[#modules + 1] = { name = module_name(root, arg[i]), path = arg[i], source = file:read("*a") }
    file:close()
    -- A file that does not parse stops the build here, with its line.
    assert(loadfile(arg[i]))
  end
end

table.sort(modules, function(a, b) return a.name < b.name end)

local output = assert(io.open(output_path, "wb"))
output:write("/* Made from the Lua sources by runtime/make/embed_lua.lua. */\n", '#include "host/embedded.h"\n')

local function write_bytes(source)
  for at = 1, #source, 24 do
    output:write("\n  ")
    for _, byte in ipairs({ source:byte(at, at + 23) }) do
      output:write(byte, ",")
    end
  end
end

for i, module in ipairs(modules) do
  output:write("\n/* ", module.path, " */\nstatic const unsigned char source_", i, "[] = {")
  write_bytes(module.source)
  output:write("\n  0};\n")
end

output:write("\nconst struct ms_embedded_module ms_embedded_modules[] = {\n")
for i, module in ipairs(modules) do
  output:write(("  {%q, source_%d, %d, %q},\n"):format(module.name, i, #module.source, module.path))
end
output:write("};\n\nconst int ms_embedded_module_count = ", #modules, ";\n")
output:close()
