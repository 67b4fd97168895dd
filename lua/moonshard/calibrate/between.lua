-- A rank's part of measuring the links between hosts: it trains single layers of many sizes, whose kernels are few, and
-- takes from profiles of their steps how long collectives take from when all ranks have entered them. Fully sharded, a
-- step gathers the weight and scatters its gradient; replicated, it reduces the gradient.
--
-- The ranks of all hosts exchange what they measured, and rank 0 prints a line of JSON for each layer.

local calibration_rank = require("moonshard.calibrate.rank")
local clock = require("moonshard.base.clock")
local engine = require("moonshard.base.ffi")
local json = require("moonshard.base.text.json")
local loss = require("moonshard.nn.loss")
local mesh_of = require("moonshard.distributed.mesh")
local nn = require("moonshard.nn")
local optim = require("moonshard.train.optim")
local output_file = require("moonshard.base.files.output_file")
local sharding = require("moonshard.shard.sharding")
local trainer = require("moonshard.train.trainer")
local world = require("moonshard.distributed.world")
local C, ffi, check = engine.C, engine.ffi, engine.check

local calibration_between = {}

-- Sides of the layers' weights, of f32: from 256 bytes to 16 MiB.
local SIDES = { 8, 32, 128, 256, 512, 1024, 1448, 2048 }
local QUICK = { 8, 64, 256, 512 }
local MESHES = { "1x%d", "%dx1" }
-- Seconds that the steps of a layer take, and the most that those of the largest may.
local SECONDS, MAX_SECONDS = 1, 10
local QUICK_SECONDS = 0.2
local MIN_STEPS, MAX_STEPS = 3, 50

---How many layers a round measures at most.
---@param quick boolean?
---@return integer
function calibration_between.layers(quick) return #MESHES * #(quick and QUICK or SIDES) end

-- ---- what ranks tell each other -----------------------------------------------------------------------------------

-- The numbers of all ranks, one list after another.
local function exchange(values)
  local mine, all = ffi.new("double[?]", #values, values), ffi.new("double[?]", #values * world.size)
  check(C.ms_world_all_gather_bytes(world.handle, mine, ffi.sizeof(mine), all))
  return all
end

local function max_of_all(value)
  local all, most = exchange({ value }), value
  for rank = 0, world.size - 1 do most = math.max(most, all[rank]) end
  return most
end

-- Each rank has a number: the largest of its sums over the ranks of a node.
local function max_of_nodes(value)
  local all, sums, most = exchange({ value }), {}, 0
  for rank = 0, world.size - 1 do
    local node = world.node_of(rank)
    sums[node] = (sums[node] or 0) + all[rank]
    most = math.max(most, sums[node])
  end
  return most
end

-- ---- a layer ------------------------------------------------------------------------------------------------------

local function layer(side, mesh)
  local model = nn.linear(side, side)
  sharding.fully_shard(model, { mesh = mesh_of.init_device_mesh("cpu", mesh, { "replicate", "shard" }) })
  local train = trainer { model = model, optimizer = optim.sgd { lr = 1e-6 },
    forward = function(m, batch) return loss.mse(m(batch.given), batch.wanted) end }
  local function row() return { data = ffi.new("float[?]", side), dtype = "f32", shape = { 1, side } } end
  return train, { given = row(), wanted = row() }
end

local function seconds_of(train, batch)
  local began = clock.now()
  train:step(batch)
  return max_of_all(clock.now() - began)
end

-- ---- its collectives ----------------------------------------------------------------------------------------------

-- The collectives of a step between nodes, in the order of the plan, which is that of all ranks: the times at which
-- this rank entered and left them, step by step.
local function collectives_of(profile)
  local list, n = calibration_rank.items(profile)
  local by, order = {}, {}
  for i = 0, n - 1 do
    local item = list[i]
    local key = item.phase * 2 ^ 24 + item.instruction
    if item.collective ~= 0 and not by[key] then
      by[key] = { key = key, kind = ffi.string(item.name), inside = item.inside, wire = item.wire, times = {} }
      order[#order + 1] = by[key]
    end
    if item.collective ~= 0 then
      table.insert(by[key].times, item.begin)
      table.insert(by[key].times, item["end"])
    end
  end
  table.sort(order, function(a, b) return a.key < b.key end)
  return order
end

-- The time from when the last rank entered one until all were done: what the node saw that was the last to enter, since
-- clocks of nodes differ. all: [size][2 * steps] of exchange.
local function seconds_since_entered(all, steps, step)
  local entered, left, least = {}, {}, math.huge
  for rank = 0, world.size - 1 do
    local at, node = 2 * (rank * steps + step), world.node_of(rank)
    entered[node] = math.max(entered[node] or -math.huge, all[at])
    left[node] = math.max(left[node] or -math.huge, all[at + 1])
  end
  for node in pairs(entered) do least = math.min(least, left[node] - entered[node]) end
  return least
end

local function record_of(collective, steps)
  local all, seconds = exchange(collective.times), {}
  for step = 1, steps do seconds[step] = seconds_since_entered(all, steps, step - 1) end
  return { kind = collective.kind, inside = max_of_all(collective.inside), wire = max_of_nodes(collective.wire),
    seconds = calibration_rank.median(seconds) }
end

---@class moonshard.BetweenRecord the collectives of a layer
---@field nodes integer
---@field ranks integer
---@field number integer which layer it is, in the list of all
---@field collectives { kind: string, inside: number, wire: number, seconds: number }[] those between nodes, a step's;
---wire: bytes of a node; seconds: the median over the steps, from when all ranks had entered
---@field processor number seconds of a node's processors, without the threads that train, in a step

local function measure(side, mesh, seconds)
  local train, batch = layer(side, mesh)
  train:step(batch) -- compiles, and connects
  local once = seconds_of(train, batch)
  local steps = math.max(MIN_STEPS, math.min(MAX_STEPS, math.ceil(seconds / once)))
  local exec, profile = train.session.train_exec, calibration_rank.new_profile()
  C.ms_exec_set_profile(exec.handle, profile)
  local began = clock.other_threads()
  for _ = 1, steps do train:step(batch) end
  local processor = clock.other_threads() - began
  C.ms_exec_set_profile(exec.handle, nil)
  local record = { nodes = world.nodes(), ranks = world.size, collectives = {},
    processor = max_of_nodes(processor) / steps }
  for _, collective in ipairs(collectives_of(profile)) do
    local one = record_of(collective, steps)
    if one.wire > 0 then table.insert(record.collectives, one) end
  end
  return record, once
end

---Measures layers, `rounds` times, from small ones to the largest that the links move in time.
---@param quick boolean?
---@param rounds integer
function calibration_between.run(quick, rounds)
  local sides, seconds = quick and QUICK or SIDES, quick and QUICK_SECONDS or SECONDS
  for _ = 1, rounds do
    for m, mesh in ipairs(MESHES) do
      local expected = 0
      for i, side in ipairs(sides) do
        if MIN_STEPS * expected > MAX_SECONDS then break end
        local record, once = measure(side, mesh:format(world.size), seconds)
        record.number = m * #sides + i
        if world.rank == 0 then output_file.print(json.encode(record), "\n") end
        expected = once * ((sides[i + 1] or side) / side) ^ 2
        collectgarbage()
        collectgarbage()
      end
    end
  end
end

return calibration_between
