-- A dataset of random numbers, for examples and measurements that need no real data.
--
-- Inputs are standard normal. Targets are linear, y = x A with A normal of variance 1/fan-in, so a model can learn
-- them. Sample i depends only on the seed and i, so every rank can compute any sample.

local ffi = require("ffi")
local arguments = require("moonshard.base.checks.arguments")
local clock = require("moonshard.base.clock")
local errors = require("moonshard.base.error")
local strict = require("moonshard.base.checks.strict")
local options = require("moonshard.base.checks.options")
local permutation = require("moonshard.base.permutation")
local loader = require("moonshard.data.loader")
local saved = require("moonshard.data.saved")
local sampler_positions = require("moonshard.data.sampler_positions")
local sealed = require("moonshard.base.checks.sealed")
local profile = require("moonshard.distributed.profile")
local taken = require("moonshard.data.taken")
local tensor = require("moonshard.tensor")
local world = require("moonshard.distributed.world")

local MAX_NUMBERS = 2 ^ 27 -- of the matrix of targets, 1 GiB
local TEACHER = 2 ^ 32 -- a sample's number that no sample has

---@class moonshard.RandomData
---@field length integer samples
---@field inputs integer numbers per input
---@field targets integer numbers per target
---@field positions moonshard.SamplerPositions
---@field sampler moonshard.Sampler? the one that gave samples last
local RandomData = { __name = "random data" }
RandomData.__index = RandomData
strict.refuse_loops(RandomData, "for step, batch in data:batches(sampler, batch) do")
loader.seal_class(RandomData)

-- Uniform in (0, 1) from 32 bits.
local function uniform(word)
  return (word % 2 ^ 32 + 0.5) / 2 ^ 32
end

-- `count` standard normal numbers (Box & Muller 1958), a function of (seed, sample).
local function fill_normal(out, count, seed, sample, scale)
  local key = permutation.key(seed, sample, math.floor(sample / 2 ^ 32))
  for i = 0, count - 1, 2 do
    local radius = scale * math.sqrt(-2 * math.log(uniform(permutation.mix(key + 2 * i + 1))))
    local angle = 2 * math.pi * uniform(permutation.mix(key + 2 * i + 2))
    out[i] = radius * math.cos(angle)
    if i + 1 < count then out[i + 1] = radius * math.sin(angle) end
  end
end

function RandomData:__tostring()
  return ("random data: %d samples, %d numbers in, %d out, seed %d"):format(self.length, self.inputs, self.targets,
    self.seed)
end

---@class moonshard.RandomOptions
---@field length? integer samples; default 2048
---@field inputs integer numbers per input
---@field targets integer numbers per target
---@field seed? integer default 0

---Batches { inputs, targets } of random numbers, with targets that a model can learn.
---@param o moonshard.RandomOptions
---@return moonshard.RandomData
local function random(o)
  o = options.parse("ms.data.random", o, {
    length = { "positive", default = 2048 },
    inputs = { "positive", required = true },
    targets = { "positive", required = true },
    seed = { "seed", default = 0 },
  })
  if o.inputs * o.targets > MAX_NUMBERS then
    errors.invalid("ms.data.random: inputs=%g and targets=%g need a matrix of %g numbers, more than %g: give fewer",
      o.inputs, o.targets, o.inputs * o.targets, MAX_NUMBERS)
  end
  o.teacher = ffi.new("double[?]", o.inputs * o.targets)
  fill_normal(o.teacher, o.inputs * o.targets, o.seed, TEACHER, 1 / math.sqrt(o.inputs))
  o.positions = sampler_positions.new()
  return sealed.seal(setmetatable(o, RandomData))
end

local function read(self, sample, row, inputs, targets)
  local n_inputs, n_targets, teacher = self.inputs, self.targets, self.teacher
  local x = inputs + row * n_inputs
  fill_normal(x, n_inputs, self.seed, sample, 1)
  for j = 0, n_targets - 1 do
    local sum = 0
    for i = 0, n_inputs - 1 do
      sum = sum + x[i] * teacher[i * n_targets + j]
    end
    targets[row * n_targets + j] = sum
  end
end

---Batches of the given samples.
---@param samples integer[] numbers of samples, 0 to length - 1
---@return table batch tensors inputs f32 [#samples, inputs] and targets f32 [#samples, targets], and data_ms
function RandomData:read(samples)
  local began = clock.now()
  local n = #samples
  local inputs, targets = ffi.new("float[?]", n * self.inputs), ffi.new("float[?]", n * self.targets)
  if not world.plan_only then
    world.set_activity("data")
    for row, sample in ipairs(samples) do
      if sample < 0 or sample >= self.length then
        errors.invalid("data:read: sample %s is outside 0 to %d", tostring(sample), self.length - 1)
      end
      read(self, sample, row - 1, inputs, targets)
    end
    world.set_activity(nil)
    profile.mark("data", began)
  end
  return {
    inputs = tensor.eager("f32", { n, self.inputs }, inputs),
    targets = tensor.eager("f32", { n, self.targets }, targets),
    data_ms = 1e3 * (clock.now() - began),
  }
end

-- Gives a sampler the position that was loaded for it, and says if its samples were divided into other batches.
local function restore(self, sampler, divided)
  local before = self.positions:restore(sampler)
  self.sampler = sampler
  if not before or before == divided or world.rank ~= 0 then return end
  require("moonshard.metrics.log").print(("other settings than before: batches were of %s and are of %s"):format(before,
    divided))
end

-- Batches of this epoch before the position that a sampler goes on from, which is 0 but after a load: as the state
-- counts them, and by the samples of a batch here, as those before can have had others.
local function before(self, sampler, batch)
  local number = math.floor(sampler.resume_at / (batch * sampler.world))
  return sampler.resume_at > 0 and self.positions:done(sampler) or number, number
end

---Iterates over one epoch of a sampler. The first call after a resume, and a loop in which a state is loaded, give the
---rest of the epoch that the state is of, whose batches go on being counted.
---@param sampler moonshard.Sampler
---@param batch integer samples per batch
---@param o { drop_last: boolean? }? true (default): the samples of an incomplete last batch are left out; false: it has
---  fewer rows, rows_of_last in all batches; if some ranks repeat a sample there, counted_rows is how many of its rows
---  the epoch has not had
---@return fun(): integer?, table? number of the batch in its epoch from 1, and the batch
function RandomData:batches(sampler, batch, o)
  o = options.parse("data:batches", o, { drop_last = { "boolean", default = true } })
  if type(batch) ~= "number" or batch < 1 or batch % 1 ~= 0 then
    errors.invalid("data:batches: a batch must be a whole number of at least 1, not %s", options.describe(batch))
  end
  if o.drop_last and sampler:count() < batch then
    errors.invalid("data:batches: a batch of %d exceeds the %d samples per rank", batch, sampler:count())
  end
  local divided = ("%d samples of all ranks%s%s"):format(batch * sampler.world,
    o.drop_last and "" or ", drop_last = false", sampler.drop_last and ", drop_last of the sampler" or "")
  restore(self, sampler, divided)
  local rest = not o.drop_last and sampler:left() % batch or 0
  local loads, position, number = sampler.loads, before(self, sampler, batch)
  local next_sample = sampler:samples()
  local source = ("%s; %s; batches of %d%s"):format(tostring(self), sampler:describe(), batch,
    o.drop_last and "" or ", drop_last = false")
  local among = sampler.among or ("%d shares"):format(sampler.world)
  return function()
    restore(self, sampler, divided) -- a state that was loaded inside of the loop
    if sampler.loads ~= loads then
      loads, position, number = sampler.loads, before(self, sampler, batch)
    end
    local samples, repeated = {}, 0
    while #samples < batch do
      local _, sample, had = next_sample()
      if not sample then break end
      samples[#samples + 1], repeated = sample, repeated + (had and 1 or 0)
    end
    if #samples == 0 or o.drop_last and #samples < batch then return nil end
    position, number = position + 1, number + 1
    local read_now = self:read(samples)
    -- All ranks say so where one repeats a sample, which is at the end of the epoch.
    if sampler.position > sampler.length then read_now.counted_rows = #samples - repeated end
    read_now.rows_of_last = rest > 0 and rest or nil
    read_now.first_row, read_now.row_step = sampler.rank, sampler.world -- as the sampler divides them
    read_now.source, read_now.shared_by = source, ("a sampler over %s"):format(among)
    read_now.batch_number = sampler.epoch * math.ceil(sampler:count() / batch) + number -- as epochs follow another
    self.positions:give(sampler)
    local behind, done = sampler:state(), position
    taken.note(read_now, function() self.positions:train(sampler, behind, divided, done) end)
    return position, read_now
  end
end

---@class moonshard.RandomState: moonshard.SavedSampler
---@field seed number
---@field inputs integer
---@field targets integer
---@field sampler moonshard.SamplerState? nil before the first batch
---@field others moonshard.SavedSampler[]? of samplers that were trained on before

---The position of the run: the settings of this data, and the state of the sampler whose samples a training step took
---last; where no step trains, that of the one that was used last. Inside the loop over batches, it is the position
---after the current batch.
---@return moonshard.RandomState
function RandomData:state()
  local list = self.positions:state(self.sampler)
  local state = table.remove(list, 1) or {}
  state.seed, state.inputs, state.targets = self.seed, self.inputs, self.targets
  state.others = list[1] and list or nil
  return state
end

---Restores a state of the same data: the sampler that it is of, when it is used next, goes on there. Other samplers
---start from their beginning, as those of evaluations do.
---@param state moonshard.RandomState
function RandomData:load_state(state)
  saved.check("data:load_state", state, { seed = self.seed, inputs = self.inputs, targets = self.targets })
  self.positions:load { state.sampler and state, unpack(state.others or {}) }
  self.sampler = nil
end

arguments.exact_all("data", RandomData)

return random
