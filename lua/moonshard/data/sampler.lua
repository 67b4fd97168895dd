-- Distributes the samples of a dataset over the data-parallel ranks, differently in every epoch.
--
-- Like PyTorch's DistributedSampler: the order of an epoch is a permutation keyed by seed and epoch. It is padded with
-- its own beginning, or truncated, to a multiple of the number of ranks W. Rank r visits elements r, r + W, r + 2W, ...

local arguments = require("moonshard.base.checks.arguments")
local context = require("moonshard.base.context")
local errors = require("moonshard.base.error")
local strict = require("moonshard.base.checks.strict")
local loader = require("moonshard.data.loader")
local options = require("moonshard.base.checks.options")
local permutation = require("moonshard.base.permutation")
local saved = require("moonshard.data.saved")
local sampler_positions = require("moonshard.data.sampler_positions")
local sealed = require("moonshard.base.checks.sealed")

---@class moonshard.Sampler
---@field length integer samples of the dataset
---@field epoch integer
---@field position integer samples of the epoch that all ranks together have visited
---@field shared_by string? the ranks that share it, if they are those of its mesh or of the world
---@field among string? the same ranks, as a loader names them
---@field number integer from 1, as recipes make them
---@field passes integer calls of samples
---@field loads integer calls of load_state
local Sampler = { __name = "a sampler" }
Sampler.__index = Sampler
strict.refuse_loops(Sampler, "for _, sample in sampler:samples() do")

sealed.class(Sampler, {
  what = Sampler.__name,
  answers = { epoch = "sampler:set_epoch(epoch) sets it",
    position = "sampler:load_state(state) restores the position of a state that sampler:state() gave" },
  otherwise = "it is decided by ms.data.sampler: make another sampler, with this option",
})

function Sampler:__tostring()
  return ("sampler: %d samples, %d per rank and epoch, seed %d%s, epoch %d, position %d"):format(self.length,
    self:count(), self.seed, self.shuffle and "" or ", in order", self.epoch, self.position)
end

---@class moonshard.SamplerOptions
---@field length integer samples of the dataset
---@field seed? integer default 0
---@field shuffle? boolean default true; false: 0, 1, 2, ...
---@field drop_last? boolean false (default): pad so that all ranks have equally many samples; true: truncate
---@field mesh? moonshard.Mesh its ranks share the samples; default: all ranks of the world
---@field rank? integer instead of mesh: the index of this rank
---@field world? integer instead of mesh: the number of ranks

---Divides the numbers of a dataset's samples over the ranks, in another order in each epoch.
---@param o moonshard.SamplerOptions
---@return moonshard.Sampler
local function sampler(o)
  o = options.parse("ms.data.sampler", o, {
    length = { "positive", required = true },
    seed = { "seed", default = 0 },
    shuffle = { "boolean", default = true },
    drop_last = { "boolean", default = false },
    mesh = { "table" },
    rank = { "integer" },
    world = { "positive" },
  })
  local share = loader.share("ms.data.sampler", o.mesh)
  o.number = sampler_positions.number(o)
  -- Ranks that are given their places by hand can be several groups.
  o.shared_by = not (o.rank or o.world) and ("sampler %d over %s"):format(o.number, share.name) or nil
  o.among = not (o.rank or o.world) and share.name or nil
  o.rank, o.world = o.rank or share.index, o.world or share.ranks
  if o.rank < 0 or o.rank >= o.world then
    errors.invalid("ms.data.sampler: rank %d is outside a world of %d ranks", o.rank, o.world)
  end
  if o.drop_last and o.length < o.world then
    errors.invalid("ms.data.sampler: %d samples are fewer than %d ranks, so drop_last leaves none", o.length,
      o.world)
  end
  o.epoch, o.position, o.resume_at, o.passes, o.loads = 0, 0, 0, 0, 0
  return sealed.seal(setmetatable(o, Sampler))
end

---What ranks must have in common for each sample to be visited once.
---@return string
function Sampler:describe()
  return ("a sampler of %d samples, seed %s, epoch %d%s%s"):format(self.length, tostring(self.seed), self.epoch,
    self.shuffle and "" or ", in order", self.drop_last and ", drop_last" or "")
end

---Samples that each rank visits in an epoch.
---@return integer
function Sampler:count()
  return (self.drop_last and math.floor or math.ceil)(self.length / self.world)
end

---Samples that the next call of samples gives to each rank: of an epoch, or what a loaded state leaves of it.
---@return integer
function Sampler:left()
  return (self.drop_last and math.floor or math.ceil)((self.length - self.resume_at) / self.world)
end

---Sets the epoch, which determines the order of the samples. Without a call, every epoch has the order of epoch 0.
---@param epoch integer from 0
function Sampler:set_epoch(epoch)
  if type(epoch) ~= "number" or epoch % 1 ~= 0 or epoch < 0 then
    errors.invalid("sampler:set_epoch: the epoch must be a whole number of at least 0, not %s",
      options.describe(epoch))
  end
  if epoch ~= self.epoch then self.position, self.resume_at = 0, 0 end
  self.epoch, self.epoch_was_set = epoch, true
end

-- What the samples of a pass are from, for ranks to compare. Ranks that leave out samples of their own can be in
-- different passes.
local function sampled(self)
  if not self.shared_by then return nil end
  return { source = self:describe(), shared_by = ("%s, pass %d"):format(self.shared_by, self.passes) }
end

---This rank's samples of the epoch, in order. The first call after load_state continues at the loaded position, and so
---does a loop in which a state is loaded. Without drop_last the last sample of some ranks can be one that another rank
---has had, too: evaluations must not count it.
---@return fun(): integer?, integer?, boolean? position in the epoch from 1; sample, 0 to length - 1; whether the epoch
---  has had it
function Sampler:samples()
  local fields, position, pass = sealed.fields(self), 0, nil
  local function begin()
    pass = {
      order = self.shuffle and permutation.new(self.length, self.seed, self.epoch) or function(i) return i end,
      first = self.resume_at, count = self:left(), loads = self.loads,
      had = math.floor(self.resume_at / self.world), -- samples that this rank had of the epoch
    }
    fields.position, fields.resume_at, fields.passes = pass.first, 0, self.passes + 1
    pass.sampled, position = sampled(self), 0
  end
  begin()
  return function()
    if pass.loads ~= fields.loads then begin() end
    if position >= pass.count then return nil end
    local at = pass.first + position * fields.world
    position = position + 1
    fields.position, context.sampled = at + fields.world, pass.sampled
    return pass.had + position, pass.order((at + fields.rank) % fields.length), at + fields.rank >= fields.length
  end
end

---@class moonshard.SamplerState
---@field seed number
---@field epoch integer
---@field position integer samples of the epoch that all ranks together have visited
---@field length integer
---@field shuffle boolean

---The position in the epoch, from which a run can continue on any number of ranks. Only numbers and booleans.
---@return moonshard.SamplerState
function Sampler:state()
  return {
    seed = self.seed,
    epoch = self.epoch,
    position = self.position,
    length = self.length,
    shuffle = self.shuffle,
  }
end

---Restores a state of the same dataset, seed and order: the next call of samples continues there, in its epoch, and so
---does the rest of a loop in which it is called.
---@param state moonshard.SamplerState
function Sampler:load_state(state)
  local who = "sampler:load_state"
  saved.check(who, state, { seed = self.seed, length = self.length, shuffle = self.shuffle })
  local epoch = saved.count(who, state, "epoch")
  if self.epoch_was_set and epoch ~= self.epoch then
    errors.invalid("%s: the state was saved in epoch %d, but epoch %d was chosen: start with epoch %d", who, epoch,
      self.epoch, epoch)
  end
  self.epoch, self.position = epoch, saved.count(who, state, "position")
  self.resume_at, self.loads = self.position, self.loads + 1
end

arguments.exact_all("sampler", Sampler)

return sampler
