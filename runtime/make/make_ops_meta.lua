-- Writes declarations of the ops for editors: each op as a function of ms.ops and as a method of tensors, with its
-- formula, its inputs and a class of its attributes. Generated from the op table, so new ops are included.
--
--   LUA_PATH='lua/?.lua;lua/?/init.lua;build/gen/?.lua' MOONSHARD_LIB=... luajit runtime/make/make_ops_meta.lua OUTPUT
--
-- The result is a LuaCATS definition file (---@meta), which no program loads.

local ms = require("moonshard")
local dtypes = require("moonshard.base.dtypes")
local ops = ms.ops
local a_tensor = ms.zeros(1)

local lines = {}
local function add(format, ...) lines[#lines + 1] = format:format(...) end

local function sorted_keys(...)
  local names = {}
  for i = 1, select("#", ...) do
    for name in pairs((select(i, ...))) do names[#names + 1] = name end
  end
  table.sort(names)
  return names
end

local function type_of(row, name)
  if row.lists[name] then return "integer[]" end
  if row.attributes[name] == "number" then return "number" end
  if name == "out_dtype" then return '"' .. table.concat(dtypes.names, '"|"', 0) .. '"' end
  if name == "activation" then return '"none"|"relu"|"gelu"|"gelu_tanh"|"silu"' end
  return "integer|boolean"
end

-- "a, b, attributes", and the type of each.
local function parameters(first, count, class)
  local names, types = {}, {}
  for i = first, count do
    names[#names + 1] = string.char(("a"):byte() + i - 1)
    types[#types + 1] = "moonshard.Tensor|moonshard.Parameter"
  end
  if class then
    names[#names + 1] = "attributes"
    types[#types + 1] = class .. "?"
  end
  return names, types
end

local function overload(first, count, class, self)
  local names, types = parameters(first, count, class)
  local typed = { self }
  for i, name in ipairs(names) do typed[#typed + 1] = name .. ": " .. types[i] end
  add("---@overload fun(%s): moonshard.Tensor", table.concat(typed, ", "))
end

-- Declares a function or, with the first input as self, a method.
local function declare(row, class, method)
  local first = method and 2 or 1
  add("")
  for line in (row.doc .. "\n"):gmatch("(.-)\n") do add("---%s", line) end
  for count = row.min_inputs + 1, math.min(row.max_inputs, 4) do
    overload(first, count, class, method and "self: moonshard.Tensor" or nil)
  end
  if not method and row.max_inputs > 4 then
    add("---@overload fun(inputs: moonshard.Tensor[]%s): moonshard.Tensor",
      class and ", attributes: " .. class .. "?" or "")
  end
  local names, types = parameters(first, row.min_inputs, class)
  for i, name in ipairs(names) do
    add("---@param %s %s", name:gsub("^attributes$", "attributes?"), (types[i]:gsub("%?$", "")))
  end
  add("---@return moonshard.Tensor")
  add("function %s%s(%s) end", method and "Tensor:" or "ops.", row.name, table.concat(names, ", "))
end

add("---@meta")
add("-- Made from the op table by runtime/make/make_ops_meta.lua.")
add("\n---@class moonshard.ops\nlocal ops = {}")
add("\n---@class moonshard.Tensor\nlocal Tensor = {}")
for _, name in ipairs(sorted_keys(ops.rows)) do
  local row, class = ops.rows[name], nil
  if row.across then goto continue end -- declared in tensor/collectives.lua
  local attributes = sorted_keys(row.attributes, row.lists)
  if attributes[1] then
    class = "moonshard.ops." .. name
    add("\n---@class %s", class)
    for _, attribute in ipairs(attributes) do add("---@field %s? %s", attribute, type_of(row, attribute)) end
  end
  declare(row, class, false)
  -- Methods with different arguments have their declarations in their source.
  if row.min_inputs >= 1 and a_tensor[name] == ops[name] then declare(row, class, true) end
  ::continue::
end
add("\nreturn ops")

local output = assert(io.open(arg[1], "wb"))
output:write(table.concat(lines, "\n"), "\n")
output:close()
