-- How well a few constants describe the measured collectives of a machine: nodes of 4 A100 whose GPUs have wires to
-- each other and a network card of 200 Gbit/s each.
--
--   luajit tests/bench/price/collectives.lua      with LUA_PATH and MOONSHARD_LIB as tests/run.sh sets them
--
-- Fits the links of a cluster (ms_link of price.h) to data/nccl_a100_4_per_node.csv through the engine's own
-- ms_cluster_collective_time, and prints the errors by collective: of the rows that were fitted, and of each number of
-- nodes that was held out, which is what a plan for another number of nodes can expect. Times are those of nccl-tests
-- out of place.
--
-- Rows with 1 or 2 of the 4 GPUs of a node have a tenth of the weight. They tell what steps inside a node and between
-- nodes take apart from each other, which rows with all GPUs alone do not.

local engine = require("moonshard.base.ffi")
local folder = debug.getinfo(1, "S").source:match("^@(.*/)") or "./"
package.path = folder .. "?.lua;" .. package.path
local errors = require("error_table")
local fit = require("fit")

local C, ffi = engine.C, engine.ffi

local GPUS = 4
local PART_WEIGHT = 0.1
local EVALUATIONS = 12000
local INTERIOR, LARGEST = { 2, 8, 32 }, 128
local US, GB = 1e-6, 1e9

-- ---- rows -------------------------------------------------------------------------------------------------------

local KINDS = { allgather = C.MS_LINK_ALL_GATHER, reducescatter = C.MS_LINK_REDUCE_SCATTER,
                allreduce = C.MS_LINK_ALL_REDUCE }
local GATHERS = C.MS_LINK_ALL_GATHER + C.MS_LINK_REDUCE_SCATTER

local function fields_of(line)
  local fields = {}
  for field in line:gmatch("[^,\r]+") do fields[#fields + 1] = field end
  return fields
end

local function read_rows(path)
  local rows, names = {}, nil
  for line in io.lines(path) do
    local fields = fields_of(line)
    if not names then
      names = fields
    else
      local row = {}
      for i, name in ipairs(names) do row[name] = tonumber(fields[i]) or fields[i] end
      row.measured = row.time_us_oop * US
      row.work = ffi.new("ms_collective_work", {
        kind = KINDS[row.op], ranks = row.nodes * row.gpus_per_node, nodes = row.nodes, groups = 1, bytes = row.bytes,
      })
      rows[#rows + 1] = row
    end
  end
  return rows
end

local function where(rows, holds)
  local list = {}
  for _, row in ipairs(rows) do
    if holds(row) then list[#list + 1] = row end
  end
  return list
end

local function is_whole(row) return row.gpus_per_node == GPUS end
-- Two GPUs of one node use the wires between them alone, which says nothing of the others.
local function is_fitted(row) return is_whole(row) or row.nodes > 1 end

-- ---- links ------------------------------------------------------------------------------------------------------

-- A free constant: its unit, where the search starts, and its bounds.
local FIELDS = {
  start = { US, 15, 0.1, 200 }, start_between = { US, 15, 0.1, 200 },
  step_inside = { US, 2, 0.01, 100 }, step_between = { US, 20, 0.1, 300 },
  inside = { GB, 150, 1, 300 }, between = { GB, 50, 0.1, 100 }, hidden = { 1, 0.2, 0.001, 0.9 },
  faster = { 1, 1.2, 1, 4 }, -- how much faster than the link `as` between nodes
}
local FASTER = 1.2 -- NCCL's table, which counts if no rows are of two nodes
local FREE = { "start", "start_between", "step_inside", "step_between", "inside", "between", "hidden" }
-- A tree's chain inside a node has the steps and the rate of the ring of the same protocol.
local FREE_OF_TREE = { "start", "start_between", "step_between", "between", "hidden" }

-- One protocol has short steps and a low rate, the other long steps and a high rate. The search starts near the values
-- of NCCL's tuning where they are far from the table's.
local SHORT = { start = 8, step_inside = 0.6, step_between = 5, inside = 70, between = 6 }
local LONG = { step_inside = 10 }

-- NCCL's own table has a higher rate of the short protocol between two nodes than between more.
local RINGS = {
  { name = "ring, short", algorithm = C.MS_LINK_RING, kinds = GATHERS + C.MS_LINK_ALL_REDUCE, first = SHORT,
    free = FREE },
  { name = "ring, short, two", algorithm = C.MS_LINK_RING, kinds = GATHERS + C.MS_LINK_ALL_REDUCE, first = {},
    free = { "faster" }, as = "ring, short", max_nodes = 2 },
  { name = "ring, long", algorithm = C.MS_LINK_RING, kinds = GATHERS, first = LONG, free = FREE, own_card = true },
}
local SUMS = {
  { name = "ring, long, all_reduce", algorithm = C.MS_LINK_RING, kinds = C.MS_LINK_ALL_REDUCE, first = LONG,
    free = FREE, own_card = true },
  { name = "tree, short", algorithm = C.MS_LINK_TREE, kinds = C.MS_LINK_ALL_REDUCE, first = SHORT,
    free = FREE_OF_TREE, ring = "ring, short" },
  { name = "tree, long", algorithm = C.MS_LINK_TREE, kinds = C.MS_LINK_ALL_REDUCE, first = LONG,
    free = FREE_OF_TREE, ring = "ring, long, all_reduce", own_card = true },
}

-- The constants of a link that rows can fit.
local function free_of(link, rows)
  if not link.max_nodes then return link.free end
  for _, row in ipairs(rows) do
    if row.nodes > 1 and row.nodes <= link.max_nodes then return link.free end
  end
  return {}
end

local function start_of(links, rows)
  local start, lower, upper = {}, {}, {}
  for _, link in ipairs(links) do
    for _, name in ipairs(free_of(link, rows)) do
      local field, i = FIELDS[name], #start + 1
      local unit = field[1]
      start[i], lower[i], upper[i] = (link.first[name] or field[2]) * unit, field[3] * unit, field[4] * unit
    end
  end
  return start, lower, upper
end

local ALL = {}
for _, links in ipairs { RINGS, SUMS } do
  for _, link in ipairs(links) do ALL[#ALL + 1] = link end
end

local function link_of(cluster, name)
  for i, link in ipairs(ALL) do
    if link.name == name then return cluster.link[i - 1] end
  end
end

-- Writes numbers to the links of a cluster from index `first` on.
local function set_links(cluster, first, links, numbers, rows)
  local i = 0
  for l, link in ipairs(links) do
    local to, given, free = cluster.link[first + l - 1], {}, free_of(link, rows)
    for k, name in ipairs(free) do given[name] = numbers[i + k] end
    i = i + #free
    if link.as then
      ffi.copy(to, link_of(cluster, link.as), ffi.sizeof(to))
      given = { between = to.between * (given.faster or FASTER) }
    end
    to.algorithm, to.kinds, to.max_nodes = link.algorithm, link.kinds, link.max_nodes or 0
    for name, number in pairs(given) do to[name] = number end
    local ring = link.ring and link_of(cluster, link.ring)
    if ring then to.step_inside, to.inside = ring.step_inside, ring.inside end
    to.between_rank = link.own_card and to.between / GPUS or 0
  end
  cluster.links = first + #links
end

local seconds = ffi.new("double[1]")
local function predict(cluster, row)
  engine.check(C.ms_cluster_collective_time(cluster, row.work, ffi.sizeof(row.work), seconds, nil))
  return seconds[0]
end

-- Sets links to what fits the rows best: the least mean of |ln(predicted / measured)|, which no outlier dominates.
local function fit_links(cluster, first, links, rows)
  local weights, total = {}, 0
  for i, row in ipairs(rows) do
    weights[i] = is_whole(row) and 1 or PART_WEIGHT
    total = total + weights[i]
  end
  local start, lower, upper = start_of(links, rows)
  local best = fit.minimize(function(numbers)
    set_links(cluster, first, links, numbers, rows)
    local sum = 0
    for i, row in ipairs(rows) do
      sum = sum + weights[i] * math.abs(math.log(predict(cluster, row) / row.measured))
    end
    return sum / total
  end, start, { lower = lower, upper = upper, evaluations = EVALUATIONS })
  set_links(cluster, first, links, best, rows)
end

-- The links that gather first: sums can take the short one, too.
local function fit_cluster(rows)
  local cluster = ffi.new("ms_cluster")
  engine.check(engine.C.ms_config_default("ms_cluster", cluster, ffi.sizeof(cluster)))
  fit_links(cluster, 0, RINGS, where(rows, function(row) return is_fitted(row) and row.op ~= "allreduce" end))
  fit_links(cluster, #RINGS, SUMS, where(rows, function(row) return is_fitted(row) and row.op == "allreduce" end))
  return cluster
end

-- ---- tables -----------------------------------------------------------------------------------------------------

local function compared(cluster, rows)
  local list = {}
  for i, row in ipairs(rows) do
    list[i] = { predicted = predict(cluster, row), measured = row.measured, row = row }
  end
  return list
end

local OPS = {
  { "all_gather", function(row) return row.op == "allgather" end },
  { "reduce_scatter", function(row) return row.op == "reducescatter" end },
  { "both", function(row) return row.op ~= "allreduce" end },
  { "all_reduce", function(row) return row.op == "allreduce" end },
}

local function print_by_op(title, list)
  local rows = {}
  for _, op in ipairs(OPS) do
    rows[#rows + 1] = {
      name = op[1], errors = errors.summarize(where(list, function(entry) return op[2](entry.row) end)),
    }
  end
  errors.print(title, rows)
end

local MIB = 2 ^ 20
local SIZES = {
  { "below 1 MiB", 0, MIB }, { "1 to 32 MiB", MIB, 64 * MIB }, { "64 MiB to 8 GiB", 64 * MIB, math.huge },
}

local function print_gathers_by_size(title, list)
  local rows = {}
  for _, size in ipairs(SIZES) do
    rows[#rows + 1] = {
      name = size[1], errors = errors.summarize(where(list, function(entry)
        local row = entry.row
        return row.op ~= "allreduce" and row.bytes >= size[2] and row.bytes < size[3]
      end)),
    }
  end
  errors.print(title, rows)
end

local function print_links(cluster)
  print("Links: times in us, rates in GB/s")
  local format = "  %-22s  " .. ("%14s"):rep(#FREE)
  print(format:format("", unpack(FREE)))
  for i, link in ipairs(ALL) do
    local numbers = {}
    for n, field in ipairs(FREE) do numbers[n] = ("%.3g"):format(cluster.link[i - 1][field] / FIELDS[field][1]) end
    print(format:format(link.name, unpack(numbers)))
  end
end

local rows = read_rows(folder .. "data/nccl_a100_4_per_node.csv")
local whole = where(rows, is_whole)
local cluster = fit_cluster(rows)
print_links(cluster)
print_by_op("All GPUs of each node, fitted rows", compared(cluster, whole))
print_by_op("1 or 2 GPUs of each of several nodes, fitted rows with a tenth of the weight",
  compared(cluster, where(rows, function(row) return not is_whole(row) and row.nodes > 1 end)))

local function held_out(nodes)
  local without = fit_cluster(where(rows, function(row) return row.nodes ~= nodes end))
  return compared(without, where(whole, function(row) return row.nodes == nodes end))
end

local interior = {}
for _, nodes in ipairs(INTERIOR) do
  local list = held_out(nodes)
  print_by_op(("All GPUs of each of %d nodes, held out"):format(nodes), list)
  for _, entry in ipairs(list) do interior[#interior + 1] = entry end
end
print_by_op("2, 8 and 32 nodes, each held out", interior)
print_gathers_by_size("The same, all_gather and reduce_scatter by bytes", interior)

-- The largest number of nodes, and with it all rows beyond: extrapolation by a factor of four.
local small = fit_cluster(where(rows, function(row) return row.nodes < LARGEST end))
local largest = compared(small, where(whole, function(row) return row.nodes == LARGEST end))
print_by_op(("%d nodes, from those with at most 32"):format(LARGEST), largest)
print_gathers_by_size("The same, all_gather and reduce_scatter by bytes", largest)
