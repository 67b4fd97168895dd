-- The clusters of published training runs: data sheets, and the constants that no data sheet gives.
--
-- A data sheet names a GPU's peaks, memory and links, and a node's network. The constants say what part of them
-- training reaches. They belong to a stack, that is hardware and software, and are fitted on its rows; each starts from
-- what measurements elsewhere say (MAMF and attention tables, NCCL's tuning and tables) and has a spread: the standard
-- deviation of its logarithm between stacks, which holds a constant where rows say nothing about it.

local engine = require("moonshard.base.ffi")
local C, ffi = engine.C, engine.ffi

local training_clusters = {}

local A100 = { peak = 312e12, f32 = 19.5e12, memory_rate = 1.555e12, units = 108, inside = 300e9, product = 0.75 }
local H100 = { peak = 989.5e12, f32 = 67e12, memory_rate = 3.35e12, units = 132, inside = 450e9, product = 0.65 }

local function like(gpu, changes)
  local sheet = {}
  for key, value in pairs(gpu) do sheet[key] = value end
  for key, value in pairs(changes) do sheet[key] = value end
  return sheet
end

-- By what the GPU's name contains, most special first; network: Gbit/s of a node where a row does not say. Leonardo's
-- part has 64 GB of HBM2e, and MareNostrum's 64 GB of HBM2e and a lower power limit.
local SHEETS = {
  { "Leonardo", like(A100, { memory = 64e9, memory_rate = 1.64e12, network = 400 }) },
  { "MareNostrum", like(H100, { memory = 64e9, memory_rate = 2.0e12, network = 800, product = 0.45 }) },
  { "A100.*40GB", like(A100, { memory = 40e9, network = 1600 }) },
  { "A100", like(A100, { memory = 80e9, memory_rate = 2.039e12, network = 1600 }) },
  { "H200", like(H100, { memory = 141e9, memory_rate = 4.8e12, network = 3200 }) },
  { "H100", like(H100, { memory = 80e9, network = 3200 }) },
}

---@class moonshard.bench.Sheet
---@field peak number FLOP/s in bf16
---@field f32 number FLOP/s
---@field memory number bytes
---@field memory_rate number bytes/s
---@field units integer multiprocessors
---@field inside number bytes/s of a GPU to others of its node
---@field network number Gbit/s of a node
---@field product number the part of the peak that large products usually reach

---@param rows moonshard.bench.TrainingRow[] of one stack
---@return moonshard.bench.Sheet
function training_clusters.sheet_of(rows)
  local gpu = rows[1].gpu_type
  for _, known in ipairs(SHEETS) do
    if gpu:find(known[1]) then
      local sheet = like(known[2], {})
      for _, row in ipairs(rows) do sheet.network = row.inter_gbps or sheet.network end
      return sheet
    end
  end
  error(("no data sheet of a %s: add one to training_clusters.lua"):format(gpu), 0)
end

---A constant that rows can fit.
---@class moonshard.bench.Constant
---@field name string
---@field start number|fun(sheet: moonshard.bench.Sheet): number
---@field spread number of its logarithm
---@field low number
---@field high number
---@field between boolean? only rows on several nodes depend on it

---@type moonshard.bench.Constant[]
training_clusters.CONSTANTS = {
  { name = "product", start = function(sheet) return sheet.product end, spread = 0.2, low = 0.1, high = 1 },
  { name = "product k", start = 64, spread = 1, low = 1, high = 2000 },
  { name = "attention forward", start = 0.5, spread = 0.5, low = 0.05, high = 1 },
  { name = "attention backward", start = 0.35, spread = 0.5, low = 0.05, high = 1 },
  { name = "attention keys", start = 200, spread = 0.7, low = 1, high = 4000 },
  { name = "memory", start = 0.7, spread = 0.3, low = 0.1, high = 1.3 },
  { name = "issue", start = 6e-6, spread = 0.5, low = 5e-7, high = 1e-4 },
  { name = "step gap", start = 10e-3, spread = 1.2, low = 1e-5, high = 2 },
  { name = "loss", start = 2, spread = 0.7, low = 1, high = 10 },
  { name = "overlap", start = 0.1, spread = 0.5, low = 0.001, high = 0.6 },
  { name = "inside", start = 0.75, spread = 0.5, low = 0.05, high = 1 },
  { name = "between", start = 0.8, spread = 0.3, low = 0.05, high = 1.05, between = true },
  { name = "step between", start = 14e-6, spread = 1.2, low = 1e-6, high = 1e-3, between = true },
  { name = "network growth", start = 0.03, spread = 1.2, low = 0.001, high = 0.45, between = true },
}

-- PyTorch computes the loss in several kernels, and in f32: together they take a few times what the plan's fused
-- kernels take. A cluster says that as measured kernels.
local UNFUSED = { "cross_entropy", "cross_entropy_backward" }
local points = ffi.new("ms_kernel_point[?]", #UNFUSED)
for i, op in ipairs(UNFUSED) do
  local work = points[i - 1].work
  work.op, work.shape, work.dtype, work.threads = C.ms_op_find(op), C.MS_SHAPE_OTHER, C.MS_BF16, 1
  work.bytes = 1e9 -- large, so that its time is that of the memory rate
  for k = 0, 3 do work.size[k] = 1 end
end

local seconds = ffi.new("double[1]")

local function add_unfused(cluster, loss)
  cluster.points = 0
  for i = 0, #UNFUSED - 1 do
    engine.check(C.ms_cluster_kernel_time(cluster, points[i].work, seconds))
    points[i].seconds = seconds[0] * loss
  end
  cluster.point, cluster.points = points, #UNFUSED
end

local KINDS = 7 -- all three collectives

-- Rings in NCCL's two kinds of protocol: one for large messages, and one with short steps and a low rate.
local function add_links(cluster, sheet, given)
  local large, short = cluster.link[0], cluster.link[1]
  large.algorithm, large.kinds = C.MS_LINK_RING, KINDS
  large.start, large.step_inside, large.step_between = 20e-6, 4e-6, given["step between"]
  large.inside, large.between = sheet.inside * given.inside, sheet.network * 1e9 / 8 * given.between
  large.log_between = given["network growth"]
  ffi.copy(short, large, ffi.sizeof(large))
  short.start, short.step_inside, short.step_between = 8e-6, 1e-6, given["step between"] / 6
  short.inside, short.between = large.inside / 10, large.between / 10
  cluster.links = 2
end

---@param sheet moonshard.bench.Sheet
---@param given table<string, number> constants by name
---@param per_node integer ranks
---@return ffi.cdata* ms_cluster
function training_clusters.cluster(sheet, given, per_node)
  local cluster = ffi.new("ms_cluster")
  C.ms_cluster_default(cluster, ffi.sizeof(cluster))
  cluster.device, cluster.ranks_per_node, cluster.memory = C.MS_DEVICE_CUDA, per_node, sheet.memory
  cluster.peak[C.MS_F32], cluster.peak[C.MS_BF16] = sheet.f32, sheet.peak
  local product, attention = cluster.product, cluster.attention
  product.efficiency, product.k_half = given.product, given["product k"]
  product.tile_m, product.tile_n, product.units, product.half_tile = 128, 256, sheet.units, 0.85
  attention.forward, attention.backward = given["attention forward"], given["attention backward"]
  attention.keys_half, attention.causal = given["attention keys"], 0.6
  cluster.memory_rate, cluster.memory_half = sheet.memory_rate * given.memory, 1e6
  cluster.kernel_start, cluster.issue, cluster.overlap = 2e-6, given.issue, given.overlap
  cluster.phase_gap, cluster.step_gap = 0, given["step gap"]
  add_links(cluster, sheet, given)
  add_unfused(cluster, given.loss)
  return cluster
end

return training_clusters
