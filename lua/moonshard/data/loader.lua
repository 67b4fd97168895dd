-- Batches of a dataset: selects the samples of each step and each rank.
--
-- Samples are numbered 0..n-1. Epoch e visits them in the order of a permutation keyed by seed and epoch; position p of
-- the run is sample p mod n of epoch floor(p / n). A step uses the next `global batch` positions, of which rank r gets
-- the r-th equal share. The samples of a step therefore depend only on the seed and the global batch, not on the number
-- of ranks or the shape of the mesh. With drop_last = false the last step of an epoch has the samples that are left,
-- and rows without targets in place of the others, so that an epoch has every sample once. Ranks of a mesh are
-- data-parallel: shard and replicate dimensions both divide the batch; those of a tensor dimension have the same
-- samples. Without a mesh, all ranks of the world share it.

local arguments = require("moonshard.base.checks.arguments")
local call = require("moonshard.data.call")
local clock = require("moonshard.base.clock")
local errors = require("moonshard.base.error")
local strict = require("moonshard.base.checks.strict")
local taken = require("moonshard.data.taken")
local meshes = require("moonshard.distributed.mesh")
local options = require("moonshard.base.checks.options")
local permutation = require("moonshard.base.permutation")
local progress = require("moonshard.base.text.progress")
local saved = require("moonshard.data.saved")
local run_summary = require("moonshard.metrics.run_summary")
local sealed = require("moonshard.base.checks.sealed")
local tensor = require("moonshard.tensor")
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
---@field drop_last boolean whether a step that begins in one epoch ends in the next; false: it is padded instead
---@field restart boolean make one pass at most in every call of batches (validation), instead of continuing
---@field locate? fun(position: number): number instead of `first` and `shuffle`: where the sample at a position begins
---@field settings? string of loader.settings
---@field held_out? number fraction of the windows that are for validation; nil: its data has none such
---@field rows? integer rows of a batch that a sample becomes, each of seq / rows tokens; default 1
---@field read_from? string what it is read from: "72 files of 2,401,123 bytes"
---@field lacks? string why there is no batch of its own, but its samples can be in those of a mix

---@class moonshard.Loader
---@field n integer samples
---@field batch integer samples per rank and step
---@field position number samples that the run has used, on all ranks
---@field call moonshard.Call? the call of batches that gave a batch last
---@field trained_call moonshard.Call? the one whose batch a training step took last
---@field loaded_call moonshard.Call? the one in which the loaded state was saved
---@field loads integer? states that were loaded
---@field resumed { call: moonshard.Call, step: integer }? what the next call of batches goes on with (count_from)
local Loader = { __name = "a data loader" }
Loader.__index = Loader
strict.refuse_loops(Loader, "for step, batch in data:batches(steps) do")

local loader = {}

local STATE = "data:load_state(state) restores the position of a state that data:state() gave"

---Seals data objects of a class: what they are asked for is read when they are made.
---@param class table their metatable
function loader.seal_class(class)
  sealed.class(class, {
    what = class.__name, answers = { position = STATE, epoch = STATE },
    otherwise = "it is decided by the function of ms.data that makes the data: make another one, with this option",
  })
end

loader.seal_class(Loader)

local IGNORED = -100

local MAX_TOKENS = 2 ^ 29 - 1 -- of a rank and step: LuaJIT's arrays are smaller than 2 GiB, and a token has 4 bytes

---@class moonshard.Share a rank's share of the samples of a step
---@field index integer from 0
---@field ranks integer number of ranks that share
---@field name string what identifies these ranks

-- "ranks 0-3,8"
local function text_of(ranks)
  local sorted, parts = { unpack(ranks) }, {}
  table.sort(sorted)
  local first
  for i, rank in ipairs(sorted) do
    first = first or rank
    if sorted[i + 1] ~= rank + 1 then
      parts[#parts + 1] = first == rank and ("%d"):format(rank) or ("%d-%d"):format(first, rank)
      first = nil
    end
  end
  return "ranks " .. table.concat(parts, ",")
end

---This rank's share among the ranks of a mesh, or of the world.
---@param who string for messages
---@param mesh moonshard.Mesh?
---@return moonshard.Share
function loader.share(who, mesh)
  if mesh == nil then return { index = world.rank, ranks = world.size, name = "all" } end
  if not meshes.is(mesh) then errors.invalid("%s: mesh must be a mesh, as ms.init_device_mesh makes one", who) end
  local among = roles.data_mesh(mesh)
  local index, ranks = among and among:get_index() or 0, among and among:size() or 1
  return { index = index, ranks = ranks, name = text_of(mesh:ranks()) }
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

---What a run says of its data.
---@return string
function Loader:summary()
  local valid = rawget(sealed.fields(self), "valid") -- data without any can refuse to be asked
  local text = ("%d samples of %d tokens, %d per rank and step%s"):format(self.n, self.seq, self.batch,
    valid and (", %d for validation"):format(valid.n) or "")
  return self.read_from and ("%s: %s"):format(self.read_from, text) or text
end

---Refuses batches that no array can hold.
---@param who string for messages
---@param seq integer
---@param batch integer samples per rank and step
function loader.check_tokens(who, seq, batch)
  if batch * seq <= MAX_TOKENS then return end
  errors.invalid("%s: seq=%.0f and %.0f sequences per rank are more than %d tokens: give fewer", who, seq, batch,
    MAX_TOKENS)
end

---@param o moonshard.LoaderOptions
---@return moonshard.Loader
function loader.new(o)
  local self = setmetatable(o, Loader)
  loader.check_tokens("ms.data", self.seq, self.batch)
  self.position, self.epoch = 0, nil
  return sealed.seal(self)
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

---A hash of the data's contents, as text; nil where only a plan is made.
---@return string?
function Loader:contents()
  if not self.stream or world.plan_only then return nil end
  self.contents_text = self.contents_text or ("%013x"):format(self.stream:contents())
  return self.contents_text
end

-- What ranks that share data compare otherwise than as a setting: files, and what makes tokens of them, by the tokens;
-- the batch and the order as they are written below; and a mesh by the ranks that it has (train/same_data.lua).
local COMPARED_OTHERWISE = {}
local otherwise = "files valid_files raw ignore tokenizer template mesh batch global_batch seq seed shuffle"
for name in otherwise:gmatch("%S+") do
  COMPARED_OTHERWISE[name] = true
end

---The settings of data that are not the default ones, as text: all options but those that are compared otherwise.
---@param o table parsed options
---@param specs table<string, moonshard.OptionSpec>
---@return string ", drop_last = false", or ""
function loader.settings(o, specs)
  local list = {}
  for name, spec in pairs(specs) do
    if type(name) == "string" and not COMPARED_OTHERWISE[name] and o[name] ~= spec.default then
      list[#list + 1] = (", %s = %s"):format(name, options.describe(o[name]))
    end
  end
  table.sort(list)
  return table.concat(list)
end

-- What identifies the data and the order of its samples, on all ranks that share it.
local function source_of(self)
  local count, contents = self.stream.tokens, self:contents()
  local seed = type(self.given_seed) == "number" and ("%d"):format(self.given_seed) or self.given_seed
  return ("%d tokens with contents %s, %d samples of %d, %d per rank and step, seed %s%s%s"):format(count,
    contents, self.n, self.seq, self.batch, seed, self.shuffle and "" or ", in order", self.settings or "")
end

-- The position of the run that so many steps after another one begin at.
local function advance(self, position, steps)
  local per_step = self.batch * self.share.ranks
  if self.drop_last then return position + steps * per_step end
  local epoch, begun = math.floor(position / self.n), position % self.n
  local left, in_epoch = math.ceil((self.n - begun) / per_step), math.ceil(self.n / per_step)
  if steps < left then return position + steps * per_step end
  steps = steps - left
  return (epoch + 1 + math.floor(steps / in_epoch)) * self.n + steps % in_epoch * per_step
end

-- Which batch of the run begins at a position, from 1.
local function number_at(self, position)
  local per_step = self.batch * self.share.ranks
  if self.drop_last then return math.floor(position / per_step) + 1 end
  return math.floor(position / self.n) * math.ceil(self.n / per_step) + math.floor(position % self.n / per_step) + 1
end

-- How many samples of this rank's batch count: the others are padding.
local function counted_samples(self, position)
  local samples = advance(self, position, 1) - position
  return math.max(0, math.min(self.batch, samples - self.share.index * self.batch)), samples
end

-- Reads the batch at a position; padding is a copy of the last sample of the step, without targets.
local function fill(self, position, last, tokens, targets)
  self.reader = self.reader or self.stream:reader(self.batch, self.seq)
  self.source = self.source or source_of(self)
  self.reader:read(position, function(at, row)
    local final = advance(self, at, 1) - 1
    return self:begin_of(math.min(at + self.share.index * self.batch + row, final))
  end, function(at) return advance(self, at, 1) end, last, tokens, targets)
  for i = counted_samples(self, position) * self.seq, self.batch * self.seq - 1 do targets[i] = IGNORED end
end

-- This rank's batch of the step that begins at a position of the run. `last` is the position of the last batch.
local function read_batch(self, position, last)
  local began = clock.now()
  local numel, rows = self.batch * self.seq, self.rows or 1
  local tokens, targets = ffi.new("int32_t[?]", numel), ffi.new("int32_t[?]", numel)
  if not world.plan_only then
    world.set_activity("data")
    fill(self, position, last, tokens, targets)
    world.set_activity(nil)
    profile.mark("data", began)
  end
  local counted, samples = counted_samples(self, position)
  local is_padded = samples < self.batch * self.share.ranks
  return {
    tokens = tensor.eager("i32", { self.batch * rows, self.seq / rows }, tokens),
    targets = tensor.eager("i32", { self.batch * rows, self.seq / rows }, targets),
    first_row = self.share.index * self.batch * rows, row_step = 1,
    counted_rows = is_padded and counted * rows or nil, is_padded = is_padded or nil,
    sample_rows = rows > 1 and rows or nil,
    source = self.source, shared_by = self.share.name, predicts = "next",
    batch_number = number_at(self, position),
    data_ms = 1e3 * (clock.now() - began),
  }
end

-- Whether a step among those that begin at positions from `first` to `last` is padded: the last one of an epoch.
local function is_padded_until(self, first, last)
  if self.drop_last then return false end
  local per_step = self.batch * self.share.ranks
  local epochs = math.floor(advance(self, last, 1) / self.n) - math.floor(first / self.n)
  return epochs > 0 and (self.n - first % self.n) % per_step ~= 0 or epochs > 1 and self.n % per_step ~= 0
end

-- Steps to the end of the epoch. With drop_last, fewer samples than a step are not the rest of an epoch: they begin the
-- next one, which can have a step more for them.
local function steps_of_epoch(self)
  local per_step, left = self.batch * self.share.ranks, self.n - self.position % self.n
  if not self.drop_last then return math.ceil(left / per_step) end
  if left < per_step then left = left + self.n end
  return math.max(1, math.floor(left / per_step))
end

-- Epochs that are done: there is no step left of them.
local function epochs_done(self)
  local short = self.drop_last and math.min(self.batch * self.share.ranks, self.n) - 1 or 0
  return math.floor((self.position + short) / self.n)
end

-- Whether the position is inside of an epoch, not where one ends.
local function in_epoch(self)
  return self.position % self.n ~= 0 and epochs_done(self) == math.floor(self.position / self.n)
end

-- Steps of this epoch before the position.
local function steps_before(self)
  return in_epoch(self) and math.floor(self.position % self.n / (self.batch * self.share.ranks)) or 0
end

-- The first step of a call less 1, and its last one. A call of further steps (more) is not the one that was saved: if
-- no step trains on it, that one is still to come.
local function begin_call(self, steps, meant)
  local resumed, step, said = self.resumed, 0, nil
  if meant ~= "more" then self.resumed = nil end
  if resumed and steps then step, said = call.begin(resumed.call, steps, resumed.step, meant)
  elseif resumed then
    step = call.done_of_epoch(resumed.call, steps_before(self))
    steps = step + steps_of_epoch(self)
  end
  steps = steps or steps_of_epoch(self)
  if said and world.rank == 0 then require("moonshard.metrics.log").print(said) end
  self.call = { steps = steps, done = step }
  progress.expect(steps)
  if not self.restart then run_summary.data(self) end
  return step, steps
end

-- The step after which a loop goes on when a state was loaded inside of it, as where a recipe goes back to a
-- checkpoint: that of the state, if it was saved in a call like this one. Otherwise the loop makes all steps that it
-- has left. A loop over an epoch makes the rest of the one that the state is in the middle of.
local function go_on_from_loaded(self, step, steps, is_epoch)
  local loaded = self.loaded_call
  if is_epoch and loaded and in_epoch(self) then
    step = call.done_of_epoch(loaded, steps_before(self))
    steps = step + steps_of_epoch(self)
  elseif loaded and loaded.steps == steps then
    step = loaded.done
  end
  self.call, self.resumed = { steps = steps, done = step }, nil
  return step, steps
end

---Iterates over `steps` batches, continuing where the last call ended. A batch has tokens and targets, tensors i32
---[batch, seq]; first_row and row_step, the places of its rows in the step's global batch; source and shared_by, texts
---that identify the data and the ranks that share it; batch_number, from 1: which of the run it is; predicts, "next"
---where targets are next tokens; and data_ms, the milliseconds that the step waited for it. The last batch of an epoch
---can be padded (drop_last): then it has is_padded, and counted_rows: so many of its rows, the first ones, are samples;
---all batches of the call have will_be_padded. While a step computes, a thread reads the next batches.
---@param steps integer|{ total: integer }|{ more: integer }|nil default: the rest of the epoch, whose last samples are
---  left to the next one where they do not fill a step and drop_last says so; at the end of an epoch, the next one.
---  Validation data makes one pass at most. In the first call after a resume, total counts the steps of the call that
---  were done, and more does not; a number is the total, unless it is what was left
---@return fun(): integer?, table?, number? step from 1 (see count_from), its batch, and the position at which it began
function Loader:batches(steps)
  if self.lacks then errors.invalid("%s", self.lacks) end
  local pass = self.restart and 0 or nil -- the position of this pass over validation data: others can be under way
  local step, meant
  steps, meant = call.given(steps)
  local is_epoch = steps == nil
  if self.restart then step, steps = 0, math.min(steps or math.huge, steps_of_epoch(self))
  else step, steps = begin_call(self, steps, meant) end
  local last = advance(self, pass or self.position, math.max(0, steps - 1 - step))
  local will_be_padded = is_padded_until(self, pass or self.position, last) or nil
  local mine, loads = self.call, self.loads
  local function train() self.trained_call, self.resumed = mine, nil end
  return function()
    if not self.restart and self.loads ~= loads then
      step, steps = go_on_from_loaded(self, step, steps, is_epoch)
      last = advance(self, self.position, math.max(0, steps - 1 - step))
      will_be_padded = is_padded_until(self, self.position, last) or nil
      mine, loads = self.call, self.loads
    end
    self.call = mine
    if step >= steps then return nil end
    world.check_interrupt()
    step = step + 1
    local began = pass or self.position
    local batch, behind = read_batch(self, began, last), advance(self, began, 1)
    batch.will_be_padded = will_be_padded
    if pass then
      pass = behind
    else
      self.position, mine.done = behind, step
      taken.note(batch, train)
    end
    return step, batch, began
  end
end

---The next call of batches goes on with the call that the loaded state was saved in (call.lua), for a run that resumes
---after `step`: it gives the steps that were left, with their numbers.
---@param step integer
function Loader:count_from(step)
  self.resumed = { call = self.loaded_call or { done = step }, step = step }
end

---The position of the run, from which it can continue on any number of ranks. Inside the loop over batches, it is the
---position after the batch that was given last, so a loop that fetches batches ahead of its steps loses those when it
---resumes. Contains only numbers and booleans, so it can be saved as JSON.
---@return moonshard.LoaderState
function Loader:state()
  local of = call.under_way(self) or {}
  return {
    call_steps = of.steps, call_done = of.done,
    seed = self.seed,
    epoch = epochs_done(self),
    position = self.position,
    samples = self.n,
    shuffle = self.shuffle,
    contents = self:contents(),
    seq = self.seq,
    valid_fraction = self.held_out,
  }
end

---@class moonshard.LoaderState
---@field seed number
---@field epoch integer epochs that are done, as calls of batches without a number make them
---@field position number samples that the run has used, on all ranks
---@field samples integer samples of the dataset
---@field shuffle boolean
---@field contents string? a hash of the data
---@field seq integer? tokens of a sample
---@field valid_fraction number? of the windows that are not samples, in fact: 1/10 for 0.1 and 0.104
---@field call_steps integer? steps of the latest call of batches
---@field call_done integer? of them

---Restores a state of the same data, seed and order: the next call of batches starts there, and so does the rest of a
---loop in which it is called.
---@param state moonshard.LoaderState
function Loader:load_state(state)
  saved.check("data:load_state", state, { seed = self.seed, samples = self.n, shuffle = self.shuffle },
    { contents = function() return self:contents() end, seq = self.seq, valid_fraction = self.held_out })
  self.position = saved.count("data:load_state", state, "position")
  call.load(self, state)
end

arguments.exact_all("data", Loader)

return loader
