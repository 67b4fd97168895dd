-- Decides what is "auto" in a recipe, when a trainer compiles its first plan: the search of `moonshard tune` on the
-- recipe's mesh, over these policies alone. Every rank searches as the first rank of its mesh, so all decide the same.

local automatic = require("moonshard.shard.policies.automatic")
local clusters = require("moonshard.price.cluster")
local errors = require("moonshard.base.error")
local nothing_fits = require("moonshard.tune.nothing_fits")
local policies = require("moonshard.tune.policies")
local progress = require("moonshard.base.text.progress")
local memory_limit_of = require("moonshard.tune.memory_limit")
local rules_text = require("moonshard.tune.rules_text")
local search = require("moonshard.tune.search")
local trial = require("moonshard.tune.trial")
local world = require("moonshard.distributed.world")

local MAX_COMPILES = 160

local function names_of(waiting)
  local names = {}
  for _, row in ipairs(policies.all) do
    if waiting.policies[row.name] then names[#names + 1] = row.name end
  end
  return table.concat(names, ", ")
end

local function cluster_of(waiting, sharding)
  local name, names = waiting.cluster or automatic.cluster, names_of(waiting)
  if not name then
    errors.raise_at(waiting.where, "MS_EINVAL", "\"auto\" (%s) needs a description of the machine: give ms.fully_shard "
      .. "cluster = a name, like \"%s\", or the path of a file that `moonshard calibrate` writes; or give the command "
      .. "--cluster", names, clusters.names()[1])
  end
  local cluster = clusters.load(name)
  if cluster.device ~= sharding.mesh.device then
    errors.raise_at(waiting.where, "MS_EINVAL", "\"auto\" (%s): cluster %s describes %s, but the mesh is on %s: "
      .. "give the cluster of this machine, or --device %s", names, name, cluster.device, sharding.mesh.device,
      cluster.device)
  end
  return cluster
end

local function limit_of(waiting, trainer, cluster)
  local memory = memory_limit_of(cluster, waiting.memory, "ms.fully_shard: memory")
  return math.min(memory.bytes, waiting.budget or math.huge, trainer.memory_limit or math.huge)
end

local function found_by(trainer, batch, waiting, cluster)
  local of = trial.new(trainer, batch, cluster, limit_of(waiting, trainer, cluster))
  local searching = search.new(of, waiting.policies)
  searching:try_baselines()
  local recipe = searching.baselines.recipe
  if recipe.refused then errors.raise_at(waiting.where, "MS_EINVAL", "\"auto\": %s", recipe.refused) end
  searching:try_frugal()
  if not searching.best then nothing_fits(searching, "mesh " .. of.sharding.mesh:label()) end
  return of, searching:improve(MAX_COMPILES)
end

-- What `moonshard explain` shows as the place of the rules.
local function mark(sharding, waiting, cluster)
  for name in pairs(waiting.policies) do
    for _, decision in pairs(sharding.decisions[name]) do
      if decision.rule or decision.where then decision.where = ("\"auto\" for %s"):format(cluster.name) end
    end
  end
end

local function report(of, best, waiting, cluster)
  if world.rank ~= 0 or world.plan_only then return end
  io.stderr:write(("moonshard: auto (%s): a step of %.4g ms and %s per rank on %s, by %d plans; `moonshard explain` "
    .. "lists the rules\n"):format(names_of(waiting), 1e3 * best.seconds, progress.size(best.bytes),
    cluster.name, of.compiles))
end

---Decides the "auto" policies of a trainer's model for the shapes of a batch. Collective if the model has values.
---@param trainer moonshard.Trainer
---@param batch table
return function(trainer, batch)
  local session = trainer.session
  local sharding = session.sharding
  local waiting = sharding.auto
  local cluster = cluster_of(waiting, sharding)
  local of, best = found_by(trainer, batch, waiting, cluster)
  session:decide_again(rules_text.options(of, best.point))
  sharding.auto = nil
  mark(sharding, waiting, cluster)
  report(of, best, waiting, cluster)
end
