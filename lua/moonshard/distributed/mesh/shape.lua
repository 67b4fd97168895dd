-- Parses the sizes and names of meshes that recipes write.

local errors = require("moonshard.base.error")
local lists = require("moonshard.base.checks.lists")

local shape = {}

local MAX_RANKS = 4096 -- per mesh; the engine's limit

---@param sizes integer[]
---@return string text "2x4"
function shape.text(sizes)
  return table.concat(sizes, "x")
end

---@param given integer|integer[]|string 4, { 2, -1 } or "2x-1"
---@return integer[] sizes
function shape.read(given)
  if type(given) == "number" then given = { given } end
  local sizes = {}
  if type(given) == "string" then
    for part in (given .. "x"):gmatch("(.-)x") do
      sizes[#sizes + 1] = part:match("^%s*%-?%d+%s*$") and tonumber(part) or nil
      if not part:find("^%s*%-?%d+%s*$") then
        errors.invalid("mesh shape %q: write sizes joined by x, like 2x4", given)
      end
    end
    given = sizes
  end
  if type(given) ~= "table" or #given == 0 then
    if given == nil then
      errors.invalid("the sizes of the mesh are missing: ms.init_device_mesh(\"cpu\", { 2, 2 }, { \"replicate\", "
        .. "\"shard\" })")
    end
    errors.invalid("mesh shape %s: write a size, a list of sizes or text like \"2x4\"", tostring(given))
  end
  for i, size in ipairs(lists.items("mesh shape", given)) do
    if type(size) ~= "number" or size % 1 ~= 0 or math.abs(size) > MAX_RANKS then
      errors.invalid("mesh shape: size %s of dimension %d must be an integer of at most %d", tostring(size),
        i - 1, MAX_RANKS)
    end
    sizes[i] = size
  end
  return sizes
end

---Refuses names unless there is one string per dimension; the engine checks that they differ.
---@param sizes integer[]
---@param names string[]?
function shape.check_names(sizes, names)
  if names == nil then return end
  if type(names) ~= "table" then errors.invalid("mesh %s: names must be a list of strings", shape.text(sizes)) end
  for i, name in ipairs(lists.items("names of a mesh", names)) do
    if type(name) ~= "string" then
      errors.raise("MS_ENAME", "mesh %s: the name of dimension %d must be a string", shape.text(sizes), i - 1)
    end
  end
  if #names ~= #sizes then
    errors.raise("MS_ENAME", "mesh %s has %d dimension%s but %d name%s (%s): give one name for each dimension",
      shape.text(sizes), #sizes, #sizes == 1 and "" or "s", #names, #names == 1 and "" or "s",
      table.concat(names, ", "))
  end
end

return shape
