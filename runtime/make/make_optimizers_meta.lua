-- Writes the classes of the optimizers' options for editors, from the rows of settings.def.
--
--   LUA_PATH='lua/?.lua;lua/?/init.lua;build/gen/?.lua' MOONSHARD_LIB=... luajit runtime/make/make_optimizers_meta.lua
--     OUTPUT
--
-- The result is a LuaCATS definition file (---@meta), which no program loads.

local optimizer_classes = require("moonshard.repl.optimizer_classes")

local lines = { "---@meta", "-- Made from settings.def by runtime/make/make_optimizers_meta.lua." }
for _, class in ipairs(optimizer_classes.names()) do
  lines[#lines + 1] = ""
  for _, line in ipairs(optimizer_classes.lines(class)) do lines[#lines + 1] = line end
end

local output = assert(io.open(arg[1], "wb"))
output:write(table.concat(lines, "\n"), "\n")
output:close()
