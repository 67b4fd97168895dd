-- The price of a plan on a described cluster: the time of a step, what it waits for, and whether its memory fits.
--
-- The engine simulates the plan (ms_plan_price, ms_plan_timeline); this file turns its numbers into those that people
-- compare: tokens per second, MFU, exposed communication, the critical path, and what limits the step.
-- MFU is that of train/utilisation.lua; HFU counts what kernels compute, with recomputation.

local batch_of = require("moonshard.engine.batch")
local engine = require("moonshard.base.ffi")
local errors = require("moonshard.base.error")
local plans = require("moonshard.engine.plan")
local utilisation = require("moonshard.train.utilisation")
local world = require("moonshard.distributed.world")
local C, ffi, check = engine.C, engine.ffi, engine.check

local price = {}

---@class moonshard.PricedPhase
---@field name string "first", as in plan.PHASES
---@field runs number in a step; a part of 1 if not every step has the phase
---@field seconds number of one run, as the others
---@field computing number
---@field waiting table<string, number> by mesh dimension
---@field issuing number
---@field comm_bytes table<string, number> by mesh dimension

---@class moonshard.Price
---@field plan moonshard.Plan
---@field cluster moonshard.Cluster
---@field path ffi.cdata* ms_price_critical of an average step, a part of an ms_price that it keeps
---@field step number seconds of a step
---@field gaps number seconds between phases and steps
---@field phases moonshard.PricedPhase[] that run in a step
---@field computing number seconds of a step in which kernels run
---@field issuing number in which kernels wait for the thread that issues them
---@field waiting table<string, number> in which kernels wait for collectives, by mesh dimension
---@field exposed number sum of `waiting`
---@field comm_bytes table<string, number> of a step with all its micro-batches, by mesh dimension
---@field sync moonshard.ReplicateSync? the schedule of local SGD
---@field tokens integer of a step of all ranks
---@field tokens_per_s number of all ranks
---@field dtype string in which products compute
---@field mfu number?, 0 to 1; nil if the cluster has no peak for the dtype
---@field mfu_counts string which operations `mfu` counts
---@field hfu number?
---@field flops number that this rank's kernels compute in a step
---@field bytes number of this rank's arenas
---@field limit number? bytes that the trainer's memory_limit lets them have
---@field room number bytes that they may have, by the cluster and by that limit
---@field fits boolean

local function add_utilisation(self, trainer, batch)
  self.dtype = utilisation.dtype(self.plan)
  local peak = self.cluster:rank_peak(self.dtype)
  local flops, counts = utilisation.flops(trainer, self.plan, batch, self.tokens)
  self.mfu_counts = counts
  self.mfu = peak and flops / self.step / peak
  self.hfu = peak and self.flops / self.step / peak
end

-- ---- the step ---------------------------------------------------------------------------------------------------

---Of how many steps one has the phase `outer`. The plan of local SGD synchronises all units at once. The steps between
---two syncs do not, and with fragments each sync is of a part of the units, so on average a step has this part of it.
---@param trainer moonshard.Trainer
---@return number 1 without local SGD
function price.steps_of_outer(trainer)
  local sync = trainer.session.sharding.local_sync
  return sync and sync.every or 1
end

local function flops_of_outer(plan, cluster)
  local list, n = price.timeline(plan, cluster, "outer")
  local flops = 0
  for i = 0, n - 1 do
    if list[i].kind == 0 then flops = flops + list[i].flops end
  end
  return flops
end

---Prices a step with the phase `outer`, and takes out what steps without it save.
---@param plan moonshard.Plan
---@param cluster moonshard.Cluster
---@param trainer moonshard.Trainer
---@return ffi.cdata* row ms_price, whose step and gaps are those of an average step
---@return number outer how often an average step runs the phase `outer`
function price.row(plan, cluster, trainer)
  if plan.mesh.device ~= cluster.device then
    errors.invalid("the recipe's mesh is on %s, and cluster %s has devices of the kind %s: give "
      .. "ms.init_device_mesh the setting device (cfg.device), which follows the cluster", plan.mesh.device,
      cluster.name, cluster.device)
  end
  local row, part = ffi.new("ms_price"), 1 / price.steps_of_outer(trainer)
  check(C.ms_plan_price(plan.handle, cluster:struct(), trainer.micro_batches, part, row, ffi.sizeof(row)))
  local outer = row.phase[C.MS_PHASE_OUTER]
  local saved, gap = outer.runs * (1 - part), cluster:struct().phase_gap
  row.step, row.gaps = row.step - saved * (outer.seconds + gap), row.gaps - saved * gap
  if saved > 0 then row.flops = row.flops - saved * flops_of_outer(plan, cluster) end
  return row, outer.runs * part
end

local function phase_of(plan, number, row, runs)
  return { name = plans.PHASES[number + 1], runs = runs, seconds = row.seconds, computing = row.computing,
    waiting = plan.mesh:by_dimension(row.waiting), issuing = row.issuing,
    comm_bytes = plan.mesh:by_dimension(row.comm_bytes) }
end

---The dimensions of a table by mesh dimension, always in the same order: sums of numbers depend on it.
---@param map table<string, any>
---@return string[]
function price.dims_of(map)
  local names = {}
  for name in pairs(map) do names[#names + 1] = name end
  table.sort(names)
  return names
end

local function add_up(self)
  self.computing, self.issuing, self.exposed, self.waiting, self.comm_bytes = 0, 0, 0, {}, {}
  for _, phase in ipairs(self.phases) do
    self.computing = self.computing + phase.runs * phase.computing
    self.issuing = self.issuing + phase.runs * phase.issuing
    for _, dim in ipairs(price.dims_of(phase.waiting)) do
      local seconds = phase.waiting[dim]
      self.waiting[dim] = (self.waiting[dim] or 0) + phase.runs * seconds
      self.comm_bytes[dim] = (self.comm_bytes[dim] or 0) + phase.runs * phase.comm_bytes[dim]
      self.exposed = self.exposed + phase.runs * seconds
    end
  end
end

---Prices the plan of a trainer's step.
---@param plan moonshard.Plan
---@param cluster moonshard.Cluster
---@param trainer moonshard.Trainer
---@param batch table that the plan was compiled for
---@return moonshard.Price
function price.of(plan, cluster, trainer, batch)
  local row, outer = price.row(plan, cluster, trainer)
  local self = { plan = plan, cluster = cluster, path = row.critical, row = row,
    step = row.step, gaps = row.gaps, flops = row.flops,
    bytes = row.bytes, phases = {}, sync = trainer.session.sharding.local_sync }
  for number = 0, C.MS_PHASES - 1 do
    local of = row.phase[number]
    local runs = number == C.MS_PHASE_OUTER and outer or of.runs
    if runs > 0 then table.insert(self.phases, phase_of(plan, number, of, runs)) end
  end
  add_up(self)
  self.tokens = batch_of.tokens(batch) * trainer.session:data_ranks()
  self.tokens_per_s = self.tokens / self.step
  self.limit = trainer.memory_limit
  self.room = math.min(cluster:room(), self.limit or math.huge)
  self.fits = self.bytes <= self.room
  add_utilisation(self, trainer, batch)
  return self
end

-- ---- the timeline -----------------------------------------------------------------------------------------------

-- As enum ms_phase numbers it.
local function number_of(phase)
  for i, name in ipairs(plans.PHASES) do
    if name == phase then return i - 1 end
  end
end

---The kernels and collectives of a phase in simulated time, in program order.
---@param plan moonshard.Plan
---@param cluster moonshard.Cluster
---@param phase string "first", ...
---@return ffi.cdata* list ms_price_event [n]
---@return integer n
function price.timeline(plan, cluster, phase)
  return plans.timeline(plan, cluster:struct(), number_of(phase))
end

---The phases of a step in the order in which they run, each as often as it runs; with local SGD of a step that
---synchronises.
---@param self moonshard.Price
---@return moonshard.PricedPhase[]
function price.in_order(self)
  local list = {}
  for _, phase in ipairs(self.phases) do
    for _ = 1, math.ceil(phase.runs) do list[#list + 1] = phase end
  end
  return list
end

---@class moonshard.ExposedCollective
---@field op string "all_gather"
---@field unit string
---@field dim string
---@field calls integer collectives of a step that kernels wait for
---@field seconds number of a step

---@class moonshard.PriceDetails
---@field exposed moonshard.ExposedCollective[] the longest first
---@field critical { kernels: number, collectives: table<string, number>, rest: number } seconds of a step's critical
---  path; collectives by mesh dimension; rest: issuing, events, gaps
---@field ops { name: string, calls: integer, seconds: number, flops: number, bytes: number }[] of a step

local function entry_of(map, key, new)
  if not map[key] then map[key] = new end
  return map[key]
end

local function sorted(map)
  local list = {}
  for _, entry in pairs(map) do list[#list + 1] = entry end
  table.sort(list, function(a, b)
    if a.seconds ~= b.seconds then return a.seconds > b.seconds end
    return a.key < b.key
  end)
  return list
end

local function dim_name(self, event)
  return event.mesh_dim >= 0 and self.plan.mesh:dim_name(event.mesh_dim) or "other"
end

local function add_wait(self, exposed, event, runs)
  local op, unit, dim = ffi.string(event.name), ffi.string(event.scope), dim_name(self, event)
  local key = op .. " " .. dim .. " " .. unit
  local entry = entry_of(exposed, key, { key = key, op = op, unit = unit, dim = dim, calls = 0, seconds = 0 })
  entry.calls, entry.seconds = entry.calls + runs, entry.seconds + runs * event.waited
end

local function add_kernel(ops, event, runs)
  local name = ffi.string(event.name)
  local entry = entry_of(ops, name, { key = name, name = name, calls = 0, seconds = 0, flops = 0, bytes = 0 })
  entry.calls, entry.seconds = entry.calls + runs, entry.seconds + runs * (event["end"] - event.begin)
  entry.flops, entry.bytes = entry.flops + runs * event.flops, entry.bytes + runs * event.bytes
end

-- Seconds by mesh dimension, as by_dimension gives them, without the dimensions that have none.
local function collectives_of(self, sums)
  local collectives = self.plan.mesh:by_dimension(sums.collectives)
  for dim, seconds in pairs(collectives) do
    if seconds == 0 then collectives[dim] = nil end
  end
  if sums.others > 0 then collectives.other = sums.others end
  return collectives
end

---The critical path of a step, a part of a price's details.
---@param self moonshard.Price
---@return { kernels: number, collectives: table<string, number>, rest: number }
function price.critical(self)
  local sums = self.path
  local critical = { kernels = sums.kernels, collectives = collectives_of(self, sums), rest = self.step - sums.kernels }
  for _, dim in ipairs(price.dims_of(critical.collectives)) do
    critical.rest = critical.rest - critical.collectives[dim]
  end
  return critical
end

---What a price consists of, from its timelines.
---@param self moonshard.Price
---@return moonshard.PriceDetails
function price.details(self)
  local exposed, ops = {}, {}
  for _, phase in ipairs(self.phases) do
    local list, n = price.timeline(self.plan, self.cluster, phase.name)
    for i = 0, n - 1 do
      if list[i].kind == 0 then add_kernel(ops, list[i], phase.runs)
      elseif list[i].waited > 0 then add_wait(self, exposed, list[i], phase.runs) end
    end
  end
  return { exposed = sorted(exposed), ops = sorted(ops), critical = price.critical(self) }
end

-- ---- what limits it ---------------------------------------------------------------------------------------------

---@class moonshard.PriceLimit
---@field kind string "memory", "compute", "host" or "communication"
---@field dim string? of communication: the mesh dimension
---@field between boolean? of communication: whether its groups cross nodes
---@field share number? part of the step, 0 to 1
---@field text string

-- Whether this rank's group along a dimension of the mesh is on several nodes.
local function crosses_nodes(mesh, dim)
  local group = mesh:get_group(dim)
  for i = 2, group.size do
    if world.node_of(group[i]) ~= world.node_of(group[1]) then return true end
  end
  return false
end

-- Seconds of a step by what they depend on. On a GPU that is the critical path: a kernel may wait for a collective over
-- one dimension that itself waits for one over another. On the CPU a rank's thread does one thing after another.
local function parts_of(self, critical)
  if self.cluster.device == "cpu" then return self.computing, self.issuing + self.gaps, self.waiting end
  return critical.kernels, critical.rest, critical.collectives
end

---What limits the step.
---@param self moonshard.Price
---@param critical table of moonshard.PriceDetails
---@return moonshard.PriceLimit
function price.limit(self, critical)
  if not self.fits then return { kind = "memory", text = "memory: the plan does not fit" } end
  local kernels, host, collectives = parts_of(self, critical)
  local limit, seconds = { kind = "compute", text = "compute: %s depends on kernels" }, kernels
  if host > seconds then
    limit, seconds = { kind = "host", text = "the host: %s depends on when it issues kernels and starts phases" }, host
  end
  for _, dim in ipairs(price.dims_of(collectives)) do
    local of_dim = collectives[dim]
    if of_dim > seconds then
      local between = self.plan.mesh:has(dim) and crosses_nodes(self.plan.mesh, dim)
      limit, seconds = { kind = "communication", dim = dim, between = between,
        text = ("communication over %s, %s nodes: %%s depends on it"):format(dim, between and "between" or "inside") },
        of_dim
    end
  end
  limit.share = seconds / self.step
  limit.text = limit.text:format(("%.0f %% of the step"):format(100 * limit.share))
  return limit
end

return price
