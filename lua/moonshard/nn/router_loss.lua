-- What the routers of mixtures of experts add to the loss in training: the auxiliary loss that pulls loads together,
-- and for balanced biases a term that is 0 and has their gradient.
--
-- The auxiliary loss is that of Switch Transformer (Fedus et al. 2021) as the reference library computes it for Mixtral
-- and Qwen's models, for all routers together: E sum over experts of f P, with f the mean number of a token's choices
-- that are this expert, and P the mean probability that its router gives it. Each rank has that of its own rows.

local context = require("moonshard.base.context")
local tensor = require("moonshard.tensor")

local router_loss = {}

---@class moonshard.RouterTerms what a router leaves in a trace
---@field coefficient number? of the auxiliary loss; nil: none
---@field probability moonshard.Tensor? f32 [E], the mean of its probabilities over tokens
---@field load moonshard.Tensor f32 [E], how many choices are each expert
---@field tokens integer
---@field top_k integer choices of a token
---@field bias moonshard.Tensor? f32 [E], which the load moves

-- The routers with the same coefficient and number of experts, in the order of their first.
local function groups_of(routers)
  local groups, by_key = {}, {}
  for _, router in ipairs(routers) do
    local key = router.coefficient and ("%.17g %d"):format(router.coefficient, router.load.shape[1])
    if key and not by_key[key] then
      by_key[key] = {}
      table.insert(groups, by_key[key])
    end
    if key then table.insert(by_key[key], router) end
  end
  return groups
end

local function auxiliary(routers)
  local first = routers[1]
  local load, probability, tokens = first.load, first.probability, first.tokens
  for i = 2, #routers do
    load, probability = load + routers[i].load, probability + routers[i].probability
    tokens = tokens + routers[i].tokens
  end
  return (load:detach() * probability):sum() * (first.coefficient * load.shape[1] / (tokens * #routers))
end

-- The gradient of the bias is how far each load is above the mean, times E, so that it is a whole number: sums over
-- ranks in f32 are exact up to 2^24, and a load that is the mean moves nothing. Another reduce_dtype rounds them, since
-- a unit's gradients are summed together. The value is 0.
local function balancing(router)
  local excess = (router.load * router.load.shape[1] - router.tokens * router.top_k):detach()
  return ((router.bias - router.bias:detach()) * excess):sum()
end

---Adds the terms of the current trace's routers to a loss, which keeps its weight.
---@param loss any
---@return any
function router_loss.add(loss)
  local trace = context.trace
  if #trace.routers == 0 or not tensor.is(loss) then return loss end
  local known = trace.weights[loss.id]
  local total = known and known.mean or loss
  for _, routers in ipairs(groups_of(trace.routers)) do total = total + auxiliary(routers) end
  for _, router in ipairs(trace.routers) do
    if router.bias then total = total + balancing(router) end
  end
  trace.weights[total.id] = known and { weight = known.weight, terms = known.terms, by_rank = known.by_rank,
    mean = total }
  return total
end

return router_loss
