-- Batches out of a dataset: which samples, in which order, for which rank.
--
-- Samples are numbered 0..n-1. Epoch e visits them in the order of a permutation keyed by seed and epoch; position p of
-- the run is sample p mod n of epoch floor(p / n). A step takes the next `global batch` positions, rank r the r-th
-- equal share of them. So the samples of a step depend on seed and global batch alone, never on how many ranks share
-- them or on the shape of their mesh. All ranks of a mesh are data-parallel: shard and replicate dimensions both split
-- the batch. Without a mesh all ranks of the world are.

local clock = require("moonshard.base.clock")
local errors = require("moonshard.base.error")
local strict = require("moonshard.base.strict")
local meshes = require("moonshard.distributed.mesh")
local permutation = require("moonshard.base.permutation")
local progress = require("moonshard.base.progress")
local saved = require("moonshard.data.saved")
local profile = require("moonshard.distributed.profile")
local world = require("moonshard.distributed.world")
local ffi = require("moonshard.base.ffi").ffi

---@class moonshard.LoaderOptions
---@field stream moonshard.TokenStream? what is read; nil: a world is described
---@field n integer samples
---@field first fun(sample: integer): number the token of the stream that a sample begins with
---@field seq integer tokens a sample
---@field batch integer samples a rank and step
---@field share moonshard.Share
---@field seed integer
---@field shuffle boolean
---@field restart boolean every call of batches begins at position 0 (validation), instead of going on

---@class moonshard.Loader
---@field n integer samples
---@field batch integer samples a rank and step
---@field position number samples of all ranks that the run has used
---@field counted integer? steps that were made before the next call of batches
local Loader = { __name = "a data loader" }
Loader.__index = Loader
strict.refuse_ipairs(Loader, "for step, batch in data:batches(steps) do")

local loader = {}

---@class moonshard.Share which part of a step's samples a rank takes
---@field index integer from 0
---@field ranks integer

---This rank's share: among the ranks of a mesh, else of the world.
---@param who string for messages
---@param mesh moonshard.Mesh?
---@return moonshard.Share
function loader.share(who, mesh)
  if mesh == nil then return { index = world.rank, ranks = world.size } end
  if not meshes.is(mesh) then errors.invalid("%s: mesh must be a mesh, as ms.init_device_mesh makes one", who) end
  return { index = mesh:get_index(), ranks = mesh:size() }
end

---How many samples a rank takes a step, from `batch` (a rank's) or `global_batch` (all ranks').
---@param who string for messages
---@param share moonshard.Share
---@param batch integer?
---@param global_batch integer?
---@return integer
function loader.batch_of_rank(who, share, batch, global_batch)
  if batch and global_batch then
    errors.invalid("%s: give batch (samples per rank) or global_batch (samples of all ranks), not both", who)
  elseif not global_batch then
    return batch or 8
  elseif global_batch % share.ranks ~= 0 then
    errors.invalid("%s: %d ranks do not divide global_batch=%d", who, share.ranks, global_batch)
  end
  return global_batch / share.ranks
end

function Loader:__tostring()
  return ("data: %d samples of %d tokens, %d a rank and step over %d rank%s, seed %d, position %d"):format(self.n,
    self.seq, self.batch, self.share.ranks, self.share.ranks == 1 and "" or "s", self.seed, self.position)
end

---@param o moonshard.LoaderOptions
---@return moonshard.Loader
function loader.new(o)
  local self = setmetatable(o, Loader)
  self.position, self.epoch = 0, nil
  return self
end

-- The sample at a position of the run.
local function sample_at(self, position)
  if not self.shuffle then return position % self.n end
  local epoch = math.floor(position / self.n)
  if epoch ~= self.epoch then
    self.epoch, self.order = epoch, permutation.new(self.n, self.seed, epoch)
  end
  return self.order(position % self.n)
end

-- This rank's batch of the step that begins at a position of the run; no batch after `last` will be asked for.
local function read_batch(self, position, last)
  local began = clock.now()
  local numel, shape = self.batch * self.seq, { self.batch, self.seq }
  local tokens, targets = ffi.new("int32_t[?]", numel), ffi.new("int32_t[?]", numel)
  if not world.plan_only then
    world.set_activity("data")
    self.reader = self.reader or self.stream:reader(self.batch, self.seq)
    self.reader:read(position, function(at, row)
      return self.first(sample_at(self, at + self.share.index * self.batch + row))
    end, self.batch * self.share.ranks, last, tokens, targets)
    world.set_activity(nil)
    profile.mark("data", began)
  end
  return {
    tokens = { data = tokens, dtype = "i32", shape = shape },
    targets = { data = targets, dtype = "i32", shape = { unpack(shape) } },
    first_row = self.share.index * self.batch, row_step = 1,
    data_ms = 1e3 * (clock.now() - began),
  }
end

---Iterates over `steps` batches, going on where the last call ended. A batch has tokens and targets, i32 [batch, seq]
---as { data, dtype, shape }, first_row and row_step, which say where its rows lie in the step's global batch, and
---data_ms, the milliseconds that the step waited for it. While a step computes, a thread reads the next batches.
---@param steps integer? how many; the default is one epoch, without a tail that would not fill a step
---@return fun(): integer?, table? step from 1 (see count_from), and its batch
function Loader:batches(steps)
  local per_step = self.batch * self.share.ranks
  steps = steps or math.max(1, math.floor(self.n / per_step))
  if type(steps) ~= "number" or steps % 1 ~= 0 or steps < 0 then
    errors.invalid("data:batches: the number of steps must be a whole number of at least 0, not %s", tostring(steps))
  end
  if self.restart then
    self.position = 0
  else
    progress.expect(steps)
  end
  local step = not self.restart and self.counted or 0
  if not self.restart then self.counted = nil end
  local last = self.position + (steps - 1 - step) * per_step
  return function()
    if step >= steps then return nil end
    world.check_interrupt()
    step = step + 1
    local batch = read_batch(self, self.position, last)
    self.position = self.position + per_step
    return step, batch
  end
end

---The next call of batches(steps) numbers its steps from `step` + 1 to `steps`, for a run that resumes after `step`: a
---loop over all steps of a run then performs the remaining ones.
---@param step integer
function Loader:count_from(step)
  self.counted = step
end

---Where the run stands: enough to go on from here, on any number of ranks. Inside of the loop over batches that is
---after the batch at hand. Plain numbers and booleans, so it can be kept as JSON.
---@return moonshard.LoaderState
function Loader:state()
  return {
    seed = self.seed,
    epoch = math.floor(self.position / self.n),
    position = self.position,
    samples = self.n,
    shuffle = self.shuffle,
  }
end

---@class moonshard.LoaderState
---@field seed number
---@field epoch integer that the next batch begins in
---@field position number samples of all ranks that the run has used
---@field samples integer of the data
---@field shuffle boolean

---Restores a state of the same data, seed and order: the next call of batches starts there.
---@param state moonshard.LoaderState
function Loader:load_state(state)
  saved.check("data:load_state", state, { seed = self.seed, samples = self.n, shuffle = self.shuffle })
  self.position = saved.count("data:load_state", state, "position")
end

return loader
