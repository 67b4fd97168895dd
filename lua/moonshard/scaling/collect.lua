-- Prices a recipe on many numbers of nodes: compiles each mesh's plan for rank 0 of a described world.

local closed_forms = require("moonshard.price.closed_forms")
local errors = require("moonshard.base.error")
local planned = require("moonshard.recipe.planned")
local price = require("moonshard.price.price")
local world = require("moonshard.distributed.world")

local collect = {}

---@class moonshard.ScalingRecord
---@field shape string
---@field nodes integer
---@field ranks integer
---@field mesh string
---@field tensor integer ranks that divide a layer
---@field settings table<string, any> that vary, other than the mesh
---@field refused string? why there is no plan; then the fields below are nil
---@field step number seconds
---@field tokens_per_s number of all ranks
---@field per_rank number tokens/s
---@field mfu number?
---@field bytes number of a rank
---@field room number bytes that it may have
---@field fits boolean
---@field waiting table<string, number> seconds of a step, by mesh dimension
---@field computing number seconds
---@field guide number? seconds of communication by the closed form; nil with a tensor dimension

-- Bytes/s of a rank inside its node and of a node to others: those of the fastest link.
local function links_of(cluster)
  local struct = cluster:struct()
  local links = { inside = 0, between = 0, ranks_per_node = cluster.ranks_per_node }
  for i = 0, struct.links - 1 do
    links.inside = math.max(links.inside, struct.link[i].inside)
    links.between = math.max(links.between, struct.link[i].between)
  end
  return links
end

local function guide_of(bytes, cluster, mesh)
  if mesh.ndim ~= 2 then return nil end
  return closed_forms.seconds(bytes[mesh:dim_name(1)], bytes[mesh:dim_name(0)], mesh:size(1), mesh:size(0),
    links_of(cluster))
end

local function take(record, cluster)
  return function(compiled, trainer, batch)
    local priced = price.of(compiled, cluster, trainer, batch)
    record.step, record.tokens_per_s, record.per_rank = priced.step, priced.tokens_per_s,
      priced.tokens_per_s / record.ranks
    record.mfu, record.bytes, record.room, record.fits = priced.mfu, priced.bytes, priced.room, priced.fits
    record.waiting, record.computing = priced.waiting, priced.computing
    record.guide = guide_of(priced.comm_bytes, cluster, trainer.session.sharding.mesh)
    compiled:free()
  end
end

-- Ranks that divide layers share samples: a data rank of `tensor` ranks takes that many times the batch, so that every
-- shape has the same tokens per rank.
local function settings_of(fixed, varied, mesh, tensor)
  local values, list = { mesh = mesh }, {}
  for _, settings in ipairs({ fixed, varied }) do
    for key, value in pairs(settings) do values[key] = value end
  end
  if tensor > 1 and type(values.batch) == "number" then values.batch = values.batch * tensor end
  for key, value in pairs(values) do list[#list + 1] = { key = key, text = tostring(value) } end
  table.sort(list, function(a, b) return a.key < b.key end)
  return list
end

---Prices one point.
---@param job { path: string, chunk: function, cluster: moonshard.Cluster, settings: table }
---@param point { shape: moonshard.ScalingShape, nodes: integer, mesh: string, settings: table<string, any> } settings:
---  in addition to those of the job
---@return moonshard.ScalingRecord
function collect.point(job, point)
  local cluster, mesh = job.cluster, point.mesh
  local record = { shape = point.shape.name, nodes = point.nodes, ranks = point.nodes * cluster.ranks_per_node,
    mesh = mesh, tensor = point.shape.tensor, settings = point.settings }
  world.check_interrupt()
  cluster:describe_world(0, record.ranks)
  local ok, raised = pcall(planned.run, job.path, job.chunk, settings_of(job.settings, point.settings, mesh,
    point.shape.tensor), take(record, cluster))
  if not ok then
    if errors.is_fault(raised) then error(raised, 0) end
    record.refused = tostring(raised)
  end
  return record
end

return collect
