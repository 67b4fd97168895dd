-- A note below tables of ops: attention is counted in full, as MFU counts it, so under a causal mask its rate can be
-- above the peak of a device.

local NOTE = "  attention: operations of all pairs of positions, of which kernels compute about half under a causal "
  .. "mask\n"

---@param ops { name: string }[]
---@param shown integer only the first ones are in the table
---@return string empty if none of them is attention
return function(ops, shown)
  for i = 1, math.min(#ops, shown) do
    if ops[i].name:find("attention", 1, true) then return NOTE end
  end
  return ""
end
