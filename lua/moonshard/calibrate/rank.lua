-- A rank's part of `moonshard calibrate`: trains small models, and reads from profiles of their steps how long kernels
-- and collectives take where they run: among others, on cores that are all busy, with caches as training leaves them.
--
-- Rank 0 prints a line of JSON for each training: a record of its kernels, one for each different work, its
-- collectives, and the times of whole steps.

local engine = require("moonshard.base.ffi")
local json = require("moonshard.base.text.json")
local loss = require("moonshard.nn.loss")
local mesh_of = require("moonshard.distributed.mesh")
local models = require("moonshard.models")
local optim = require("moonshard.train.optim")
local output_file = require("moonshard.base.files.output_file")
local permutation = require("moonshard.base.permutation")
local re = require("moonshard.base.re")
local rule_presets = require("moonshard.shard.rule_presets")
local sharding = require("moonshard.shard.sharding")
local trainer = require("moonshard.train.trainer")
local world = require("moonshard.distributed.world")
local C, ffi, check = engine.C, engine.ffi, engine.check

local calibration_rank = {}

local LEARNING_RATE = 1e-4 -- low: what is learned does not matter, and must stay finite

---@class moonshard.CalibrationTraining a small training
---@field model "gpt"|"llama"
---@field layers integer
---@field dim integer
---@field heads integer
---@field ffn integer? of llama
---@field seq integer
---@field batch integer rows of a rank
---@field vocab integer
---@field mesh string
---@field names string[] of the mesh's dimensions
---@field dtype string of the parameters in kernels
---@field sequence_parallel boolean?
---@field device string
---@field warmup integer steps before those that count
---@field steps integer

-- ---- the training -------------------------------------------------------------------------------------------------

---A trainer, not yet compiled.
---@param t moonshard.CalibrationTraining
---@return moonshard.Trainer
function calibration_rank.trainer(t)
  local mesh = mesh_of.init_device_mesh(t.device, t.mesh, t.names)
  local sizes = { vocab = t.vocab, layers = t.layers, dim = t.dim, heads = t.heads, seq = t.seq }
  if t.model == "llama" then sizes.kv_heads, sizes.ffn = math.max(1, t.heads / 2), t.ffn end
  local model = (t.model == "llama" and models.llama or models.gpt2)(sizes)
  sharding.fully_shard(model, {
    mesh = mesh, units = { re [[^layers\.\d+$]] },
    placements = mesh:has("tensor") and rule_presets.tensor_parallel(model) or nil,
    sequence_parallel = t.sequence_parallel, mp_policy = { param_dtype = t.dtype, reduce_dtype = "f32" },
  })
  return trainer { model = model, loss = loss.cross_entropy, optimizer = optim.adamw { lr = LEARNING_RATE } }
end

---Tokens that follow no pattern, the same on ranks that compute the same rows.
---@param t moonshard.CalibrationTraining
---@param reader integer which of the ranks with rows of their own this is
---@return table<string, moonshard.Array>
function calibration_rank.batch(t, reader)
  local n = t.batch * t.seq
  local function rows(field)
    local data, key = ffi.new("int32_t[?]", n), permutation.key(reader, field)
    for i = 0, n - 1 do data[i] = permutation.mix(key + i) % 2 ^ 32 % t.vocab end
    return { data = data, dtype = "i32", shape = { t.batch, t.seq } }
  end
  return { tokens = rows(1), targets = rows(2) }
end

-- ---- the profile --------------------------------------------------------------------------------------------------

---@return ffi.cdata* ms_profile
function calibration_rank.new_profile()
  local out = ffi.new("ms_profile *[1]")
  check(C.ms_profile_new(world.handle, out))
  return ffi.gc(out[0], C.ms_free)
end

---@param profile ffi.cdata*
---@return ffi.cdata* list ms_profile_item [n]
---@return integer n
function calibration_rank.items(profile)
  local n = ffi.new("int[1]")
  check(C.ms_profile_items(profile, nil, 0, 0, n))
  local list = ffi.new("ms_profile_item[?]", n[0])
  check(C.ms_profile_items(profile, list, ffi.sizeof("ms_profile_item"), n[0], n))
  return list, n[0]
end

-- The items of a profile by phase and instruction: times, and what they are of.
local function instructions_of(profile)
  local list, n = calibration_rank.items(profile)
  local by, order = {}, {}
  for i = 0, n - 1 do
    local item = list[i]
    local key = item.phase * 2 ^ 24 + item.instruction
    local found = by[key]
    if not found then
      found = { phase = item.phase, instruction = item.instruction, collective = item.collective ~= 0,
        name = ffi.string(item.name), inside = item.inside, wire = item.wire, seconds = {},
        waits = {} }
      by[key], order[#order + 1] = found, found
    end
    local began = found.collective and item.met or item.begin
    table.insert(found.seconds, item["end"] - began)
    if found.collective then table.insert(found.waits, item.met - item.begin) end
  end
  return order
end

-- ---- records ------------------------------------------------------------------------------------------------------

---@param values number[] at least one; they are sorted
---@return number
function calibration_rank.median(values)
  table.sort(values)
  local half = math.floor(#values / 2)
  return #values % 2 == 1 and values[half + 1] or (values[half] + values[half + 1]) / 2
end
local median = calibration_rank.median

---@class moonshard.MeasuredKernel kernels of a training that do the same work
---@field op string
---@field shape integer enum ms_kernel_shape
---@field dtype integer
---@field variant integer
---@field threads integer
---@field flops number
---@field bytes number
---@field size number[]
---@field seconds number mean over the kernels, of the median over the steps
---@field runs integer of these kernels in a step

local FIELDS = { "shape", "dtype", "variant", "threads", "flops", "bytes" }

local function work_of(plan, instruction, work)
  check(C.ms_plan_kernel_work(plan.handle, instruction.phase, instruction.instruction, work,
    ffi.sizeof("ms_kernel_work")))
  local kernel = { op = instruction.name, size = {}, seconds = 0, runs = 0 }
  for _, field in ipairs(FIELDS) do kernel[field] = tonumber(work[field]) end
  for i = 1, 4 do kernel.size[i] = work.size[i - 1] end
  return kernel
end

---Identifies a work: equal for kernels that should take equally long.
---@param kernel moonshard.MeasuredKernel
---@return string
function calibration_rank.key(kernel)
  return table.concat({ kernel.op, kernel.dtype, kernel.variant, kernel.threads, unpack(kernel.size) }, " ")
end

local function record_kernels(plan, instructions)
  local work, by, order = ffi.new("ms_kernel_work"), {}, {}
  for _, instruction in ipairs(instructions) do
    if not instruction.collective then
      local kernel = work_of(plan, instruction, work)
      local key = calibration_rank.key(kernel)
      if not by[key] then by[key], order[#order + 1] = kernel, kernel end
      kernel = by[key]
      kernel.seconds, kernel.runs = kernel.seconds + median(instruction.seconds), kernel.runs + 1
    end
  end
  for _, kernel in ipairs(order) do kernel.seconds = kernel.seconds / kernel.runs end
  return order
end

---@class moonshard.MeasuredCollective
---@field kind string
---@field inside number bytes that this rank moved inside its node
---@field wire number bytes that it moved between nodes
---@field seconds number median over the steps, from when all ranks had entered it
---@field waits number median over the steps, until then

local function record_collectives(instructions)
  local list = {}
  for _, instruction in ipairs(instructions) do
    if instruction.collective then
      list[#list + 1] = { kind = instruction.name, inside = instruction.inside, wire = instruction.wire,
        seconds = median(instruction.seconds),
        waits = median(instruction.waits) }
    end
  end
  return list
end

-- What the engine counts of a step.
local COUNTED = { "kernel_seconds", "wait_seconds", "collective_seconds", "total_seconds" }

-- Runs a step; adds what it took to the lists of `taken`.
local function step(train, exec, batch, taken)
  local before = exec:counters()
  local seconds = 1e-3 * train:step(batch).step_ms
  local after = exec:counters()
  table.insert(taken.step, seconds)
  for _, name in ipairs(COUNTED) do table.insert(taken[name], after[name] - before[name]) end
  table.insert(taken.gap, seconds - (after.total_seconds - before.total_seconds))
end

-- A GPU's kernels are profiled by events between them, which the host has to issue as well: what a step and its phases
-- take is measured without.
local function time_alone(train, exec, batch, taken)
  local steps = #taken.step
  local alone = { step = {}, gap = {} }
  for _, name in ipairs(COUNTED) do alone[name] = {} end
  local before = exec:report().launched
  for _ = 1, steps do step(train, exec, batch, alone) end
  for _, name in ipairs({ "step", "gap", "total_seconds" }) do taken[name] = alone[name] end
  local after = exec:report().launched
  taken.launch = { (after.seconds - before.seconds) / (after.launches - before.launches) }
end

---Trains and returns what was measured.
---@param t moonshard.CalibrationTraining
---@return moonshard.CalibrationRecord
function calibration_rank.measure(t)
  local train = calibration_rank.trainer(t)
  local _, reader = train.session:data_ranks()
  local batch, taken = calibration_rank.batch(t, reader), { step = {}, gap = {} }
  for _, name in ipairs(COUNTED) do taken[name] = {} end
  for _ = 1, t.warmup do train:step(batch) end
  local exec, profile = train.session.train_exec, calibration_rank.new_profile()
  C.ms_exec_set_profile(exec.handle, profile)
  for _ = 1, t.steps do step(train, exec, batch, taken) end
  C.ms_exec_set_profile(exec.handle, nil)
  if t.device == "cuda" then time_alone(train, exec, batch, taken) end
  local instructions = instructions_of(profile)
  local record = { training = t, ranks = world.size, nodes = world.nodes(), kernels = record_kernels(exec.plan,
    instructions), collectives = record_collectives(instructions) }
  for name, values in pairs(taken) do record[name] = median(values) end
  return record
end

---@class moonshard.CalibrationRecord
---@field training moonshard.CalibrationTraining
---@field ranks integer
---@field nodes integer
---@field kernels moonshard.MeasuredKernel[]
---@field collectives moonshard.MeasuredCollective[]
---@field step number seconds of a step
---@field gap number of it outside phases
---@field kernel_seconds number of its kernels, with what the runner does between them
---@field collective_seconds number in which the rank's thread copied and summed
---@field wait_seconds number in which kernels waited for other ranks
---@field total_seconds number of its phases
---@field launch number? seconds that the host takes for a launch on a GPU; nil: on the CPU

---Measures trainings one after another, `rounds` times. Rank 0 prints a record of each as a line of JSON.
---@param trainings moonshard.CalibrationTraining[]
---@param rounds integer
function calibration_rank.run(trainings, rounds)
  for _ = 1, rounds do
    for number, training in ipairs(trainings) do
      local record = calibration_rank.measure(training)
      record.number = number
      if world.rank == 0 then output_file.print(json.encode(record), "\n") end
      collectgarbage()
      collectgarbage()
    end
  end
end

return calibration_rank
