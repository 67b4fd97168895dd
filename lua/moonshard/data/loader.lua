-- Batches of a dataset: selects the samples of each step and each rank.
--
-- Samples are numbered 0..n-1. Epoch e visits them in the order of a permutation keyed by seed and epoch; position p of
-- the run is sample p mod n of epoch floor(p / n). A step uses the next `global batch` positions, of which rank r gets
-- the r-th equal share. The samples of a step therefore depend only on the seed and the global batch, not on the number
-- of ranks or the shape of the mesh. Ranks of a mesh are data-parallel: shard and replicate dimensions both divide
-- the batch; those of a tensor dimension have the same samples. Without a mesh, all ranks of the world share it.

local clock = require("moonshard.base.clock")
local errors = require("moonshard.base.error")
local strict = require("moonshard.base.strict")
local meshes = require("moonshard.distributed.mesh")
local permutation = require("moonshard.base.permutation")
local progress = require("moonshard.base.progress")
local saved = require("moonshard.data.saved")
local profile = require("moonshard.distributed.profile")
local roles = require("moonshard.shard.roles")
local world = require("moonshard.distributed.world")
local ffi = require("moonshard.base.ffi").ffi

---@class moonshard.LoaderOptions
---@field stream moonshard.TokenStream? nil when only planning: nothing is read
---@field n integer samples
---@field first fun(sample: integer): number index in the stream of a sample's first token
---@field seq integer tokens per sample
---@field batch integer samples per rank and step
---@field share moonshard.Share
---@field seed integer
---@field given_seed integer|string what the user gave, for messages
---@field shuffle boolean
---@field restart boolean start every call of batches at position 0 (validation), instead of continuing
---@field locate? fun(position: number): number instead of `first` and `shuffle`: where the sample at a position begins
---@field rows? integer rows of a batch that a sample becomes, each of seq / rows tokens; default 1

---@class moonshard.Loader
---@field n integer samples
---@field batch integer samples per rank and step
---@field position number samples that the run has used, on all ranks
---@field counted integer? steps before the next call of batches (count_from)
local Loader = { __name = "a data loader" }
Loader.__index = Loader
strict.refuse_ipairs(Loader, "for step, batch in data:batches(steps) do")

local loader = {}

local MOST_TOKENS = 2 ^ 29 - 1 -- of a rank and step: LuaJIT's arrays are smaller than 2 GiB, and a token has 4 bytes

---@class moonshard.Share a rank's share of the samples of a step
---@field index integer from 0
---@field ranks integer number of ranks that share
---@field name string what identifies these ranks

---This rank's share among the ranks of a mesh, or of the world.
---@param who string for messages
---@param mesh moonshard.Mesh?
---@return moonshard.Share
function loader.share(who, mesh)
  if mesh == nil then return { index = world.rank, ranks = world.size, name = "all" } end
  if not meshes.is(mesh) then errors.invalid("%s: mesh must be a mesh, as ms.init_device_mesh makes one", who) end
  local among, all = roles.data_mesh(mesh), mesh:ranks()
  local index, ranks = among and among:get_index() or 0, among and among:size() or 1
  return { index = index, ranks = ranks, name = ("%d from rank %d"):format(#all, all[1]) }
end

---Samples per rank and step, from `batch` (per rank) or `global_batch` (all ranks).
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
    errors.invalid("%s: global_batch=%d must be a multiple of the %d ranks that share it", who, global_batch,
      share.ranks)
  end
  return global_batch / share.ranks
end

function Loader:__tostring()
  return ("data: %d samples of %d tokens, %d per rank and step over %d rank%s, seed %d, position %d"):format(self.n,
    self.seq, self.batch, self.share.ranks, self.share.ranks == 1 and "" or "s", self.seed, self.position)
end

---@param o moonshard.LoaderOptions
---@return moonshard.Loader
function loader.new(o)
  local self = setmetatable(o, Loader)
  if self.batch * self.seq > MOST_TOKENS then
    errors.invalid("ms.data: seq=%.0f and %.0f sequences per rank are more than %d tokens: give fewer", self.seq,
      self.batch, MOST_TOKENS)
  end
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

---Where the sample at a position of the run begins in its stream.
---@param position number
---@return number
function Loader:begin_of(position)
  if self.locate then return self.locate(position) end
  return self.first(sample_at(self, position))
end

---A method of loaders, for data that are loaders in another form.
---@param name string
---@return function?
function loader.method(name) return rawget(Loader, name) end

---Whether a value is a loader, as ms.data.text and the others make them.
---@param value any
---@return boolean
function loader.is(value) return getmetatable(value) == Loader end

-- What identifies the data and the order of its samples, on all ranks that share it.
local function source_of(self)
  local count, contents = self.stream.tokens, self.stream:contents()
  local seed = type(self.given_seed) == "number" and ("%d"):format(self.given_seed) or self.given_seed
  return ("%d tokens with contents %013x, %d samples of %d, %d per rank and step, seed %s%s"):format(count, contents,
    self.n, self.seq, self.batch, seed, self.shuffle and "" or ", in order")
end

-- This rank's batch of the step that begins at a position of the run. `last` is the position of the last batch.
local function read_batch(self, position, last)
  local began = clock.now()
  local numel, rows = self.batch * self.seq, self.rows or 1
  local shape = { self.batch * rows, self.seq / rows }
  local tokens, targets = ffi.new("int32_t[?]", numel), ffi.new("int32_t[?]", numel)
  if not world.plan_only then
    world.set_activity("data")
    self.reader = self.reader or self.stream:reader(self.batch, self.seq)
    self.source = self.source or source_of(self)
    self.reader:read(position, function(at, row)
      return self:begin_of(at + self.share.index * self.batch + row)
    end, self.batch * self.share.ranks, last, tokens, targets)
    world.set_activity(nil)
    profile.mark("data", began)
  end
  return {
    tokens = { data = tokens, dtype = "i32", shape = shape },
    targets = { data = targets, dtype = "i32", shape = { unpack(shape) } },
    first_row = self.share.index * self.batch * rows, row_step = 1,
    source = self.source, shared_by = self.share.name, predicts = "next",
    data_ms = 1e3 * (clock.now() - began),
  }
end

---Iterates over `steps` batches, continuing where the last call ended. A batch has tokens and targets, i32 [batch, seq]
---as { data, dtype, shape }; first_row and row_step, the places of its rows in the step's global batch; source and
---shared_by, texts that identify the data and the ranks that share it; predicts, "next" where targets are next tokens;
---and data_ms, the milliseconds that the step waited for it. While a step computes, a thread reads the next batches.
---@param steps integer? default: one epoch, without an incomplete last step
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

---The position of the run, from which it can continue on any number of ranks. Inside the loop over batches, it is the
---position after the current batch. Contains only numbers and booleans, so it can be saved as JSON.
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
---@field epoch integer epoch in which the next batch begins
---@field position number samples that the run has used, on all ranks
---@field samples integer samples of the dataset
---@field shuffle boolean

---Restores a state of the same data, seed and order: the next call of batches starts there.
---@param state moonshard.LoaderState
function Loader:load_state(state)
  saved.check("data:load_state", state, { seed = self.seed, samples = self.n, shuffle = self.shuffle })
  self.position = saved.count("data:load_state", state, "position")
end

return loader
