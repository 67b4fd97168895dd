-- The error of a search that found no plan within its memory: the smallest one, what its bytes are, and what makes each
-- kind of them fewer.

local errors = require("moonshard.base.error")
local plans = require("moonshard.engine.plan")
local size = require("moonshard.base.progress").size

-- What makes bytes of a category fewer, in the order of plans.CATEGORIES.
local ADVICE = {
  parameters = "more ranks that shard", optimizer = "more ranks that shard, or moments in bf16",
  gradients = "more ranks that shard", gathered = "fewer layers a unit, resharding, less prefetching",
  activations = "recompute, a smaller batch or shorter sequences, more ranks of tensor",
  workspace = "a smaller batch", communication = "fewer layers a unit",
}
-- Categories below this part of the peak are not worth advice.
local SMALL = 0.1

---@param smallest moonshard.Tried
---@param limit number bytes
---@param where string "mesh 1x64 (replicate, shard)"
return function(smallest, limit, where)
  local parts = {}
  for _, category in ipairs(plans.CATEGORIES) do
    local bytes = smallest.by_category[category]
    if bytes > SMALL * smallest.bytes then
      parts[#parts + 1] = ("%s %s (fewer with %s)"):format(category, size(bytes), ADVICE[category])
    end
  end
  errors.raise("MS_ENOMEM", "no plan fits in %s per rank: the smallest that was found takes %s, on %s: %s",
    size(limit), size(smallest.bytes), where, table.concat(parts, ", "))
end
