-- The error of a search that found no plan within its memory: the smallest one, what its bytes are, and what makes each
-- kind of them fewer.

local errors = require("moonshard.base.error")
local plans = require("moonshard.engine.plan")
local point = require("moonshard.tune.point")
local policies = require("moonshard.tune.policies")
local size = require("moonshard.base.text.progress").size

-- What makes bytes of a category fewer, apart from policies.
local ADVICE = {
  parameters = "more ranks that shard", optimizer = "more ranks that shard, or moments in bf16 or i8",
  gradients = "more ranks that shard", gathered = "smaller units, such as fewer layers in each",
  activations = "a smaller batch, shorter sequences, or more ranks of tensor", workspace = "a smaller batch",
  communication = "smaller units, such as fewer layers in each",
}
-- Categories below this part of the peak are not worth advice.
local SMALL = 0.1

local function advice_for(category, p, context)
  local list = {}
  for _, row in ipairs(policies.all) do list[#list + 1] = row.advice and row.advice(p, category, context) end
  list[#list + 1] = ADVICE[category]
  return table.concat(list, ", ")
end

---@param search moonshard.Search
---@param where string "mesh 1x64 (replicate, shard)"
return function(search, where)
  local smallest, parts = search.smallest, {}
  for _, category in ipairs(plans.CATEGORIES) do
    local bytes = smallest.by_category[category]
    if bytes > SMALL * smallest.bytes then
      parts[#parts + 1] = ("%s %s (fewer with %s)"):format(category, size(bytes),
        advice_for(category, smallest.point, search.context))
    end
  end
  errors.raise("MS_ENOMEM", "no plan fits in %s per rank: the smallest that was found takes %s, on %s with %s: %s",
    size(search.trial.limit), size(smallest.bytes), where, point.describe(smallest.point), table.concat(parts, ", "))
end
