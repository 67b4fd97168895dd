-- The clusters of published training runs: a description each, and constants that correct it for a stack.
--
-- A description (moonshard.price.cluster) holds data sheets, and rates that kernels and collectives reach alone.
-- Training in PyTorch reaches other ones, which belong to a stack of hardware and software. They are fitted on its rows
-- as factors of the description's values, or as values where it has none. Each starts from what is usual and has a
-- spread: the standard deviation of its logarithm between stacks, which holds it where rows say nothing about it.

local described = require("moonshard.price.cluster")
local engine = require("moonshard.base.ffi")
local C, ffi, check = engine.C, engine.ffi, engine.check

local training_clusters = {}

local folder = debug.getinfo(1, "S").source:match("^@(.*/)") or "./"

-- By what the stack's name contains, most special first.
local DESCRIPTIONS = {
  { "Leonardo", folder .. "clusters/leonardo.lua" }, { "MareNostrum", "marenostrum5" },
  { "KempnerForge", folder .. "clusters/kempner.lua" }, { "A100.*40GB", "a100-40x8" }, { "A100", "a100-80x8" },
  { "H200", "h200x8-3200g" }, { "H100", "h100x8-3200g" },
}

---@param stack string
---@return moonshard.Cluster
function training_clusters.described(stack)
  for _, known in ipairs(DESCRIPTIONS) do
    if stack:find(known[1]) then return described.load(known[2]) end
  end
  error(("no description of the cluster of %s: add one to training_clusters.lua"):format(stack), 0)
end

local function each_link(cluster, change)
  for i = 0, cluster.links - 1 do change(cluster.link[i]) end
end

-- PyTorch computes the loss in several kernels, and in f32: together they take a few times what the plan's fused
-- kernels take. A cluster says that as measured kernels, which belong to the cluster that is made.
training_clusters.UNFUSED = { "cross_entropy_step", "cross_entropy", "cross_entropy_backward" }
local n = #training_clusters.UNFUSED
local points, seconds = ffi.new("ms_kernel_work[?]", n), ffi.new("double[1]")
for i, op in ipairs(training_clusters.UNFUSED) do
  local work = points[i - 1]
  work.op, work.shape, work.dtype, work.threads = C.ms_op_find(op), C.MS_SHAPE_OTHER, C.MS_BF16, 1
  work.bytes = 1e9 -- large, so that its time is that of the memory rate
  for d = 0, 3 do work.size[d] = 1 end -- the only point of its op stands for all sizes
end

local function lengthen_loss(cluster, factor)
  cluster.points = 0
  for i = 0, n - 1 do
    check(C.ms_cluster_kernel_time(cluster, points[i], ffi.sizeof("ms_kernel_work"), seconds))
    points[i].seconds = factor * seconds[0]
  end
  cluster.point, cluster.points, cluster.point_size = points, n, ffi.sizeof("ms_kernel_work")
end

---A number that rows fit. `set` changes a copy of the description's ms_cluster.
---@class moonshard.bench.Constant
---@field name string
---@field start number
---@field spread number of its logarithm
---@field low number
---@field high number
---@field set fun(cluster: ffi.cdata*, x: number)

-- A rate that is a part of the peak.
local function part(group, field)
  return function(cluster, x) cluster[group][field] = math.min(1, cluster[group][field] * x) end
end

---In the order in which they are set: the loss last, since it depends on the memory's rate.
---@type moonshard.bench.Constant[]
training_clusters.CONSTANTS = {
  { name = "products", start = 0.8, spread = 0.2, low = 0.2, high = 1.3, set = part("product", "efficiency") },
  { name = "inner size", start = 0.5, spread = 0.7, low = 0.02, high = 10,
    set = function(cluster, x) cluster.product.k_half = cluster.product.k_half * x end },
  { name = "attention", start = 0.6, spread = 0.5, low = 0.05, high = 1.8, set = part("attention", "forward") },
  { name = "attention backward", start = 0.5, spread = 0.5, low = 0.05, high = 1.8,
    set = part("attention", "backward") },
  { name = "keys", start = 1, spread = 0.7, low = 0.05, high = 20,
    set = function(cluster, x) cluster.attention.keys_half = cluster.attention.keys_half * x end },
  { name = "memory", start = 0.8, spread = 0.3, low = 0.1, high = 1.4,
    set = function(cluster, x) cluster.memory_rate = cluster.memory_rate * x end },
  { name = "issue", start = 1.5, spread = 0.5, low = 0.2, high = 20,
    set = function(cluster, x) cluster.issue = cluster.issue * x end },
  { name = "step gap, s", start = 10e-3, spread = 1.2, low = 1e-5, high = 2,
    set = function(cluster, x) cluster.step_gap = x end },
  { name = "overlap, part", start = 0.1, spread = 0.5, low = 0.001, high = 0.6,
    set = function(cluster, x) cluster.overlap = x end },
  { name = "inside", start = 0.8, spread = 0.5, low = 0.05, high = 1.2, set = function(cluster, x)
    each_link(cluster, function(link) link.inside = link.inside * x end)
  end },
  { name = "between", start = 0.9, spread = 0.3, low = 0.05, high = 1.1, set = function(cluster, x)
    each_link(cluster, function(link) link.between = link.between * x end)
  end },
  { name = "steps between", start = 1, spread = 1.2, low = 0.1, high = 60, set = function(cluster, x)
    each_link(cluster, function(link) link.step_between = link.step_between * x end)
  end },
  { name = "growth, part", start = 0.04, spread = 0.7, low = 0.001, high = 2, set = function(cluster, x)
    each_link(cluster, function(link) link.log_between = x end)
  end },
  { name = "loss", start = 3, spread = 0.7, low = 1, high = 15, set = lengthen_loss },
}

-- The part of the network's rate that a link reaches according to the description; nil: that says a rate.
---@param description moonshard.Cluster
---@param link string
---@return number?
function training_clusters.part_between(description, link)
  for _, constant in ipairs(description.constants) do
    if constant.path == ("links.%s.between"):format(link) then
      return constant.kind == "part" and constant.value or nil
    end
  end
end

-- No link carries more than the network.
local function limit_between(cluster, description)
  for i, name in ipairs(description.link_names) do
    local share, link = training_clusters.part_between(description, name), cluster.link[i - 1]
    local hardware = description:struct().link[i - 1]
    if share then link.between = math.min(link.between, hardware.between / share) end
  end
end

---The cluster of a stack. Valid until the next call.
---@param description moonshard.Cluster
---@param given table<string, number> constants by name
---@return ffi.cdata* ms_cluster
function training_clusters.cluster(description, given)
  local cluster = ffi.new("ms_cluster", description:struct())
  for _, constant in ipairs(training_clusters.CONSTANTS) do constant.set(cluster, given[constant.name]) end
  limit_between(cluster, description)
  return cluster
end

return training_clusters
