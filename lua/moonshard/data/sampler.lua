-- Distributes the samples of a dataset over the data-parallel ranks, differently in every epoch.
--
-- Like PyTorch's DistributedSampler: the order of an epoch is a permutation keyed by seed and epoch. It is padded with
-- its own beginning, or truncated, to a multiple of the number of ranks W. Rank r visits elements r, r + W, r + 2W, ...

local errors = require("moonshard.base.error")
local strict = require("moonshard.base.strict")
local loader = require("moonshard.data.loader")
local options = require("moonshard.base.options")
local permutation = require("moonshard.base.permutation")
local saved = require("moonshard.data.saved")

---@class moonshard.Sampler
---@field length integer samples of the dataset
---@field epoch integer
---@field position integer samples of the epoch that all ranks together have visited
local Sampler = { __name = "a sampler" }
Sampler.__index = Sampler
strict.refuse_ipairs(Sampler, "for _, sample in sampler:samples() do")

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
  o.rank, o.world = o.rank or share.index, o.world or share.ranks
  if o.rank < 0 or o.rank >= o.world then
    errors.invalid("ms.data.sampler: rank %d is outside a world of %d ranks", o.rank, o.world)
  end
  if o.drop_last and o.length < o.world then
    errors.invalid("ms.data.sampler: %d samples are fewer than %d ranks, so drop_last leaves none", o.length,
      o.world)
  end
  o.epoch, o.position, o.resume_at = 0, 0, 0
  return setmetatable(o, Sampler)
end

---Samples that each rank visits in an epoch.
---@return integer
function Sampler:count()
  return (self.drop_last and math.floor or math.ceil)(self.length / self.world)
end

---Sets the epoch, which determines the order of the samples. Without a call, every epoch has the order of epoch 0.
---@param epoch integer from 0
function Sampler:set_epoch(epoch)
  if type(epoch) ~= "number" or epoch % 1 ~= 0 or epoch < 0 then
    errors.invalid("sampler:set_epoch: the epoch must be a whole number of at least 0, not %s", tostring(epoch))
  end
  if epoch ~= self.epoch then self.position, self.resume_at = 0, 0 end
  self.epoch, self.epoch_was_set = epoch, true
end

---This rank's samples of the epoch, in order. The first call after load_state continues at the loaded position.
---@return fun(): integer?, integer? position from 1, and the sample, 0 to length - 1
function Sampler:samples()
  local order = self.shuffle and permutation.new(self.length, self.seed, self.epoch) or function(i) return i end
  local first, position = self.resume_at, 0
  local count = (self.drop_last and math.floor or math.ceil)((self.length - first) / self.world)
  self.position, self.resume_at = first, 0
  return function()
    if position >= count then return nil end
    local at = first + position * self.world
    position = position + 1
    self.position = at + self.world
    return position, order((at + self.rank) % self.length)
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

---Restores a state of the same dataset, seed and order: the next call of samples continues there, in its epoch.
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
  self.resume_at = self.position
end

return sampler
