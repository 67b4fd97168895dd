-- Turns what the ranks of a calibration measured into the constants of a cluster description: points of kernels, the
-- few rates of the model that covers kernels which never ran, links, and gaps.

local calibration_rank = require("moonshard.calibrate.rank")
local engine = require("moonshard.base.ffi")
local least_squares = require("moonshard.calibrate.least_squares")
local C, ffi, check = engine.C, engine.ffi, engine.check
local median = calibration_rank.median

local calibration_fit = {}

-- ---- records ------------------------------------------------------------------------------------------------------

local MIN = { "step", "gap", "kernel_seconds", "collective_seconds", "wait_seconds", "total_seconds", "launch" }

-- Takes over what was faster in another round of the same training.
local function take_faster(to, from)
  for _, name in ipairs(MIN) do to[name] = to[name] and math.min(to[name], from[name]) end
  for i, kernel in ipairs(to.kernels) do kernel.seconds = math.min(kernel.seconds, from.kernels[i].seconds) end
  for i, collective in ipairs(to.collectives) do
    collective.seconds = math.min(collective.seconds, from.collectives[i].seconds)
  end
end

---One record of each training, with the fastest of its rounds: other programs can only slow one down.
---@param records moonshard.CalibrationRecord[]
---@return moonshard.CalibrationRecord[]
function calibration_fit.fastest(records)
  local by, order = {}, {}
  for _, record in ipairs(records) do
    local key = ("%d %d %d"):format(record.nodes, record.ranks, record.number)
    if by[key] then
      take_faster(by[key], record)
    else
      by[key], order[#order + 1] = record, record
    end
  end
  return order
end

-- ---- kernels ------------------------------------------------------------------------------------------------------

-- Between two kernels the runner looks after collectives, and counts: a part of every kernel's time. The median over
-- the trainings, since in some of them another program ran there.
local function between_kernels(records)
  local list = {}
  for i, record in ipairs(records) do
    local sum, runs = 0, 0
    for _, kernel in ipairs(record.kernels) do
      sum, runs = sum + kernel.seconds * kernel.runs, runs + kernel.runs
    end
    list[i] = math.max(0, record.kernel_seconds - sum) / runs
  end
  return median(list)
end

-- What the events of a profile add to the time of a GPU's kernel, as a negative number: steps take less without them.
-- The trainings of small kernels show it; in those of large ones it is less than what two steps differ by.
local function without_events(records)
  local list, apart = {}, {}
  for _, record in ipairs(records) do
    local sum, runs = 0, 0
    for _, kernel in ipairs(record.kernels) do
      sum, runs = sum + kernel.seconds * kernel.runs, runs + kernel.runs
    end
    if record.ranks == 1 then
      list[#list + 1] = { size = record.total_seconds / runs, apart = (record.total_seconds - sum) / runs }
    end
  end
  table.sort(list, function(a, b) return a.size < b.size end)
  for i = 1, math.ceil(#list / 2) do apart[i] = list[i].apart end
  return #apart > 0 and math.min(0, median(apart)) or 0
end

-- The least part of a kernel's measured time that is its own, and the resolution of a GPU's events, in seconds.
local OWN, RESOLUTION = 0.2, 5e-7

---@class moonshard.CalibrationPoint: moonshard.MeasuredKernel
---@field trainings integer that ran it
---@field spread number of these, the slowest over the fastest

---Points of all different works, the median over the trainings that ran them. Trainings on more ranks than cores do not
---count: their ranks wait for cores.
---@param records moonshard.CalibrationRecord[]
---@param cores integer of a node
---@param device string
---@return moonshard.CalibrationPoint[]
function calibration_fit.points(records, cores, device)
  local by, order = {}, {}
  local more = device == "cuda" and without_events(records) or between_kernels(records)
  local least = device == "cuda" and RESOLUTION or 0
  for _, record in ipairs(records) do
    local has_cores = record.ranks / record.nodes <= cores
    for _, kernel in ipairs(has_cores and record.kernels or {}) do
      local key = calibration_rank.key(kernel)
      if not by[key] then
        by[key] = { kernel = kernel, times = {} }
        order[#order + 1] = by[key]
      end
      table.insert(by[key].times, math.max(least, OWN * kernel.seconds, kernel.seconds + more))
    end
  end
  for i, found in ipairs(order) do
    local point = {}
    for key, value in pairs(found.kernel) do point[key] = value end
    point.seconds = median(found.times)
    point.spread, point.trainings = found.times[#found.times] / found.times[1], #found.times
    order[i] = point
  end
  return order
end

-- ---- rates --------------------------------------------------------------------------------------------------------

local WORK_BYTES = ffi.sizeof("ms_kernel_work")

local function array_of(points)
  local array = ffi.new("ms_kernel_work[?]", #points)
  for i, point in ipairs(points) do
    local work = array[i - 1]
    work.op, work.shape, work.dtype = C.ms_op_find(point.op), point.shape, point.dtype
    work.variant, work.threads, work.flops, work.bytes = point.variant, point.threads, point.flops, point.bytes
    for k = 1, 4 do work.size[k - 1] = point.size[k] end
    work.seconds = point.seconds
  end
  return array
end

-- The mean of how far the model is from the points, as a logarithm.
local function distance(cluster, array, n)
  local seconds, sum = ffi.new("double[1]"), 0
  for i = 0, n - 1 do
    check(C.ms_cluster_kernel_time(cluster, array[i], WORK_BYTES, seconds))
    sum = sum + math.abs(math.log(seconds[0] / array[i].seconds))
  end
  return sum / n
end

-- Changes one constant after another by factors, as long as the model gets nearer to the points.
local STEPS = { 2, 1.25, 1.05 }
local MAX_ROUNDS = 40

local function descend(cluster, array, n, constants)
  local best = distance(cluster, array, n)
  for _, factor in ipairs(STEPS) do
    local moved, rounds = true, 0
    while moved and rounds < MAX_ROUNDS do
      moved, rounds = false, rounds + 1
      for _, constant in ipairs(constants) do
        local before = constant.of[constant.name]
        for _, by in ipairs({ factor, 1 / factor }) do
          constant.of[constant.name] = math.min(before * by, constant.most or math.huge)
          local now = distance(cluster, array, n)
          if now < best - 1e-6 then
            best, moved = now, true
            break
          end
          constant.of[constant.name] = before
        end
      end
    end
  end
  return best
end

-- The best rate of a thread in products of a dtype.
local function peak(points, dtype)
  local best = 0
  for _, point in ipairs(points) do
    if point.shape == tonumber(C.MS_SHAPE_PRODUCT) and point.dtype == dtype then
      best = math.max(best, point.flops / point.seconds / point.threads)
    end
  end
  return best
end

---Rates of the model without points. The model divides by peaks, so the peaks are the best products, and everything
---else is relative to them.
---@param points moonshard.CalibrationPoint[]
---@param device string
---@return ffi.cdata* ms_cluster with its rates, and no links
---@return number error mean relative distance of the model from the points
function calibration_fit.rates(points, device)
  local cluster = engine.config("ms_cluster")
  cluster.device = device == "cuda" and C.MS_DEVICE_CUDA or C.MS_DEVICE_CPU
  for id = 0, tonumber(C.MS_DTYPES) - 1 do cluster.peak[id] = peak(points, id) end
  cluster.clock, cluster.product.efficiency = 1, 1
  cluster.product.k_half, cluster.product.half_tile = 32, 1
  cluster.attention.forward, cluster.attention.backward = 0.5, 0.5
  cluster.attention.keys_half, cluster.attention.causal = 64, 1
  cluster.memory_rate, cluster.memory_half, cluster.kernel_start = 1e10, 4096, 1e-6
  local array = array_of(points)
  local off = descend(cluster, array, #points, {
    { of = cluster, name = "memory_rate" }, { of = cluster, name = "memory_half" },
    { of = cluster, name = "kernel_start" }, { of = cluster.product, name = "k_half" },
    { of = cluster.product, name = "efficiency", most = 1 },
    { of = cluster.attention, name = "forward", most = 1 }, { of = cluster.attention, name = "backward", most = 1 },
    { of = cluster.attention, name = "keys_half" },
  })
  return cluster, math.exp(off) - 1
end

-- The part by which a kernel's time may differ from what others tell of it, if it is left out of a description.
local TOLD_BY_OTHERS = 0.04

---The points without those whose times follow from the others.
---@param points moonshard.CalibrationPoint[]
---@param rates ffi.cdata* ms_cluster of calibration_fit.rates
---@return moonshard.CalibrationPoint[]
function calibration_fit.thin(points, rates)
  local array, seconds, kept = array_of(points), ffi.new("double[1]"), {}
  local own, last = ffi.new("ms_kernel_work"), WORK_BYTES
  local n = #points
  rates.point, rates.point_size = array, WORK_BYTES
  for i = #points - 1, 0, -1 do
    ffi.copy(own, array + i, last)
    ffi.copy(array + i, array + n - 1, last) -- the first n - 1 are the others
    rates.points = n - 1
    check(C.ms_cluster_kernel_time(rates, own, WORK_BYTES, seconds))
    if math.abs(math.log(seconds[0] / own.seconds)) < TOLD_BY_OTHERS then
      n = n - 1
    else
      ffi.copy(array + i, own, last)
      table.insert(kept, 1, points[i + 1])
    end
  end
  rates.point, rates.points = nil, 0
  return kept
end

-- ---- links --------------------------------------------------------------------------------------------------------

local KINDS = { "all_gather", "reduce_scatter", "all_reduce" }
local FASTEST = 1e12 -- bytes/s of a kind whose bytes took no time that could be told from its start
calibration_fit.KINDS, calibration_fit.FASTEST = KINDS, FASTEST

---@class moonshard.CalibrationLink
---@field kind string
---@field start number seconds
---@field inside number bytes/s
---@field start_between number? seconds
---@field between number? bytes/s of a node
---@field processor number? seconds of its processors per byte

-- A training on one node as a row: the seconds of its ranks in collectives, and the number and bytes of each kind.
local function row_of(record)
  local row = { record.collective_seconds, whole = record.collective_seconds }
  for i, kind in ipairs(KINDS) do
    row[2 * i], row[2 * i + 1] = 0, 0
    for _, collective in ipairs(record.collectives) do
      if collective.kind == kind then
        row[2 * i], row[2 * i + 1] = row[2 * i] + 1, row[2 * i + 1] + collective.inside
      end
    end
  end
  return row
end

---The links inside a node, one for each kind of collective.
---@param records moonshard.CalibrationRecord[]
---@param cores integer of a node
---@return moonshard.CalibrationLink[]
function calibration_fit.links(records, cores)
  local rows = {}
  for _, record in ipairs(records) do
    local row = record.nodes == 1 and record.ranks > 1 and record.ranks <= cores and row_of(record)
    if row and row[1] > 0 then rows[#rows + 1] = row end
  end
  local x, links = least_squares(rows, 2 * #KINDS), {}
  for i, kind in ipairs(KINDS) do
    links[i] = { kind = kind, start = x[2 * i - 1], inside = math.min(FASTEST, 1 / x[2 * i]) }
  end
  return links
end

-- ---- gaps ---------------------------------------------------------------------------------------------------------

local PHASES = 3 -- of a step: first, norm, update

---What the host takes to issue an instruction to a GPU: the least of all trainings, since it waits where the GPU has
---more to do than a queue holds.
---@param records moonshard.CalibrationRecord[]
---@return number seconds
function calibration_fit.issue(records)
  local least = math.huge
  for _, record in ipairs(records) do least = math.min(least, record.launch) end
  return least
end

---What a step takes outside its phases, and a phase outside its kernels, collectives and waits.
---@param records moonshard.CalibrationRecord[]
---@return number step_gap seconds
---@return number phase_gap seconds
function calibration_fit.gaps(records)
  local steps, phases = {}, {}
  for _, record in ipairs(records) do
    steps[#steps + 1] = record.gap
    local rest = record.total_seconds - record.kernel_seconds - record.collective_seconds - record.wait_seconds
    phases[#phases + 1] = math.max(0, rest) / PHASES
  end
  return median(steps), median(phases)
end

return calibration_fit
