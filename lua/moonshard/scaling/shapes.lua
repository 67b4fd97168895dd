-- Ways to lay the ranks of a number of nodes out as a mesh: FSDP over all of them, HSDP with shard groups of whole
-- nodes, and both with a tensor dimension inside a node.

local errors = require("moonshard.base.error")

local shapes = {}

---@class moonshard.ScalingShape
---@field name string as given: "fsdp", "hsdp", "hsdp:2", "fsdp tensor:8"
---@field hybrid integer? nodes of a shard group; nil: all
---@field tensor integer ranks that divide a layer; 1: none

local EXPECTED = 'a shape is "fsdp", "hsdp" (shard groups of one node), "hsdp:2" (of two), and any of them with '
  .. '"tensor:8"'

---@param text string
---@return moonshard.ScalingShape
function shapes.read(text)
  local shape = { name = text, tensor = 1 }
  for word in text:gmatch("%S+") do
    local name, number = word:match("^(%l+):?(%d*)$")
    local count = tonumber(number)
    if name == "fsdp" and number == "" then shape.sharded = true
    elseif name == "hsdp" then shape.sharded, shape.hybrid = true, count or 1
    elseif name == "tensor" and count and count > 1 then shape.tensor = count
    else errors.invalid("ms.scaling: shape %q: %s", text, EXPECTED) end
    if count == 0 then errors.invalid("ms.scaling: shape %q: the number must be at least 1", text) end
  end
  if not shape.sharded then errors.invalid("ms.scaling: shape %q: %s", text, EXPECTED) end
  return shape
end

---The shapes of a list, each once, also where two names are of one: "hsdp" and "hsdp:1".
---@param texts string[]
---@return moonshard.ScalingShape[]
function shapes.distinct(texts)
  local list, seen = {}, {}
  for _, text in ipairs(texts) do
    local shape = shapes.read(text)
    local key = ("%d %d"):format(shape.hybrid or 0, shape.tensor)
    if not seen[key] then list[#list + 1] = shape end
    seen[key] = true
  end
  return list
end

---The mesh of a shape on a number of nodes, as recipes take it; nil where it is another shape's or does not exist.
---@param shape moonshard.ScalingShape
---@param nodes integer
---@param ranks_per_node integer
---@return string?
function shapes.mesh(shape, nodes, ranks_per_node)
  local ranks = nodes * ranks_per_node
  if ranks_per_node % shape.tensor ~= 0 then return nil end
  local replicas = 1
  if shape.hybrid then
    if nodes % shape.hybrid ~= 0 or nodes == shape.hybrid then return nil end -- one replica is FSDP
    replicas = nodes / shape.hybrid
  end
  local sizes = { replicas, ranks / replicas / shape.tensor }
  if shape.tensor > 1 then sizes[3] = shape.tensor end
  return table.concat(sizes, "x")
end

return shapes
