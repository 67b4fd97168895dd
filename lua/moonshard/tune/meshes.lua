-- The meshes that `moonshard tune` tries: all ranks as replicate x shard, and as replicate x shard x tensor. Groups of
-- shards and of tensor fill nodes or divide them, since a group that is on parts of several nodes sends more than it
-- has to.

local meshes = {}

local function divisors(n)
  local list = {}
  for i = 1, n do
    if n % i == 0 then list[#list + 1] = i end
  end
  return list
end

local function suits_nodes(ranks, per_node) return per_node % ranks == 0 or ranks % per_node == 0 end

---Sizes of replicate, shard and tensor; a mesh of two dimensions has no tensor.
---@param ranks integer
---@param per_node integer
---@return { replicate: integer, shard: integer, tensor: integer? }[] without tensor first
function meshes.of(ranks, per_node)
  local list = {}
  local function add(tensor)
    local rest = ranks / (tensor or 1)
    for _, shard in ipairs(divisors(rest)) do
      if suits_nodes(shard * (tensor or 1), per_node) then
        list[#list + 1] = { replicate = rest / shard, shard = shard, tensor = tensor }
      end
    end
  end
  add(nil)
  for _, tensor in ipairs(divisors(per_node)) do
    if tensor > 1 and ranks % tensor == 0 then add(tensor) end
  end
  return list
end

---As a recipe's setting: "8x8".
---@param sizes { replicate: integer, shard: integer, tensor: integer? }
---@return string
function meshes.text(sizes)
  local text = ("%dx%d"):format(sizes.replicate, sizes.shard)
  return sizes.tensor and text .. "x" .. sizes.tensor or text
end

return meshes
