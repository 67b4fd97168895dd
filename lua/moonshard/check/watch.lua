-- Follows the first steps of a recipe for a check, in one of two roles.
--
-- A rank of the run under test records each batch that it trains on. The single reference rank reads those batches and
-- trains on them instead of its own: micro-batch m of rank r becomes one micro-batch. Both therefore train on the same
-- global batches, whatever the recipe's source of data. After the last step both leave the recipe and write losses,
-- norms and parameters.

local batch_of = require("moonshard.engine.batch")
local factors_sensitivity = require("moonshard.check.factors_sensitivity")
local root_sensitivity = require("moonshard.check.root_sensitivity")
local sign_sensitivity = require("moonshard.check.sign_sensitivity")
local context = require("moonshard.base.context")
local dtypes = require("moonshard.base.dtypes")
local engine = require("moonshard.base.ffi")
local errors = require("moonshard.base.error")
local other_hosts = require("moonshard.check.other_hosts")
local optimizers = require("moonshard.engine.optimizers")
local plan_counters = require("moonshard.check.plan_counters")
local files = require("moonshard.check.files")
local muon_sensitivity = require("moonshard.check.muon_sensitivity")
local early_exit = require("moonshard.recipe.early_exit")
local reference = require("moonshard.shard.reference")
local world = require("moonshard.distributed.world")
local ffi = engine.ffi

---@class moonshard.Watch
---@field folder string
---@field steps_wanted integer
---@field steps table[] as in moonshard.CheckedRun
---@field trainers moonshard.Trainer[] trainers that made a step, one per session
---@field before table<moonshard.Session, string[]> reference rank only: every parameter before the first step
---@field sensitivity table<moonshard.Session, moonshard.RootSensitivity|moonshard.SignSensitivity> reference rank
---  only, of trainers whose optimizer has `by_size`
---@field muon table<moonshard.Session, moonshard.MuonSensitivity> reference rank only, trainers with Muon
---@field rtol number? replaces the tolerance of dtypes
---@field runs table<moonshard.Exec, table<string, integer>>
---@field plan { fingerprint: string, bytes: table<string, number> }? of the first step
local Watch = {}
Watch.__index = Watch

local watch = {}

-- ---- the batches of all ranks as one ----------------------------------------------------------------------------

local function read_all_ranks(self, ranks)
  local batches = {}
  for i, rank in ipairs(ranks) do
    local path = ("%s/batches-%d"):format(self.folder, rank)
    self.readers[rank] = self.readers[rank] or files.open(path, "rb")
    batches[i] = files.read_batch(self.readers[rank], path)
    if not batches[i] then
      errors.raise("MS_EMISMATCH", "check: one rank makes step %d but rank %d did not: the recipe depends on "
        .. "more than the numbers of its steps", #self.steps + 1, rank)
    end
  end
  return batches
end

local function kind_of(array)
  return array and ("%s [%s]"):format(array.dtype, table.concat(array.shape, ",")) or "not there"
end

-- Appends one rank's array to another's.
local function join(name, batches, ranks)
  local array, pieces = batches[1][name], {}
  for i, batch in ipairs(batches) do
    local other = batch[name]
    if kind_of(other) ~= kind_of(array) then
      errors.raise("MS_ESHAPE", "check: batch.%s is %s on rank %d and %s on rank %d; this run cannot be compared "
        .. "with one rank, whose micro-batches have the same shape", name, kind_of(array), ranks[1], kind_of(other),
        ranks[i])
    end
    if array.is_whole and other.bytes ~= array.bytes then
      errors.raise("MS_EUNSUPPORTED", "check: batch.%s has one value for all rows, which differs between rank %d and "
        .. "rank %d; this run cannot be compared with one rank: give every row its own", name, ranks[1], ranks[i])
    end
    pieces[i] = not (array.is_whole and i > 1) and other.bytes or ""
  end
  local text, shape = table.concat(pieces), { unpack(array.shape) }
  local data = ffi.new(dtypes.ctypes[array.dtype] .. "[?]", #text / dtypes.sizes[array.dtype])
  ffi.copy(data, text, #text)
  if not array.is_whole then shape[1] = shape[1] * #batches end
  return { data = data, dtype = array.dtype, shape = shape }
end

-- The batches of all ranks concatenated, and the position of each micro-batch's rows in the global batch.
local function global_batch(self, trainer)
  local ranks, batch, places = trainer.session.sharding.reference_ranks, {}, {}
  local batches = read_all_ranks(self, ranks)
  for name, array in pairs(batches[1]) do
    if type(array) == "table" then batch[name] = join(name, batches, ranks) end
  end
  for i, of_rank in ipairs(batches) do
    for _, place in ipairs(batch_of.places(of_rank, trainer.micro_batches / #ranks, i - 1)) do
      places[#places + 1] = place
    end
  end
  return batch, places
end

-- ---- steps ------------------------------------------------------------------------------------------------------

local function number_of(self, trainer)
  for i, known in ipairs(self.trainers) do
    if known.session == trainer.session then return i end
  end
  table.insert(self.trainers, trainer)
  return #self.trainers
end

local function note_before(self, trainer)
  local session = trainer.session
  if not reference.active or self.before[session] then return end
  local before = {}
  for i, param in ipairs(session.sharding.params) do
    before[i] = ffi.string(trainer:parameter(param.fqn).data, 4 * param.numel)
  end
  self.before[session] = before
end

-- The dtype whose rounding makes the largest difference between ranks and one rank.
local function coarsest(trainer)
  local muon = trainer.optimizer:chosen_part()
  local coarsest_of_all = dtypes.coarser(trainer.optimizer.moments or "f32", muon and muon.dtype or "f32")
  for _, param in ipairs(trainer.session.sharding.params) do
    local unit = param.unit
    for _, dtype in ipairs({ param.dtype or unit.param_dtype, unit.reduce_dtype, unit.replicate_dtype or "f32",
      unit.shard_dtype or "f32", param.gather or "f32", param.fp8 and "f8e4m3" or "f32" }) do
      -- A weight that differs a little can have another code.
      coarsest_of_all = dtypes.coarser(coarsest_of_all, dtype)
    end
  end
  return coarsest_of_all
end

local SENSITIVITIES = { root = root_sensitivity, sign = sign_sensitivity, factors = factors_sensitivity }

local function note_sensitivity(self, trainer, metrics)
  if not reference.active then return end
  local session, optimizer = trainer.session, trainer.optimizer
  local by_size = optimizers.of(optimizer.kind).by_size
  if by_size then
    self.sensitivity[session] = self.sensitivity[session] or SENSITIVITIES[by_size].new()
    self.sensitivity[session]:note(trainer)
  end
  if optimizer:chosen_part() then
    self.muon[session] = self.muon[session]
      or muon_sensitivity.new(self.rtol or dtypes.uses[coarsest(trainer)].tolerance)
    local value = trainer.clip.value
    local clipped = value > 0 and { value = value, norm = metrics.grad_norm } or nil
    self.muon[session]:note(trainer, metrics.muon_lr or metrics.lr, clipped)
  end
end

-- Rounding is a part of the largest gradient, and clipping by value can leave nothing but it.
local function require_bound(trainer)
  if trainer.clip.value <= 0 then return end
  for _, param in ipairs(trainer.session.sharding.params) do
    if param.unit.shard_dtype or param.unit.replicate_dtype then
      errors.raise("MS_EUNSUPPORTED", "moonshard check: what rounding to few bits may change of gradients that are "
        .. "clipped by value is not known: check without clip_grad_value, or with sums in f32 (mp_policy's "
        .. "reduce_dtype)")
    end
  end
end

local function count_phases(self, trainer)
  local exec = trainer.session.train_exec
  local runs = self.runs[exec] or { first = 0, next = 0, last = 0, norm = 0, update = 0 }
  for phase, times in pairs(plan_counters.phases(trainer, exec.plan)) do runs[phase] = runs[phase] + times end
  self.runs[exec] = runs
end

---Makes a trainer's step, and leaves the recipe after the last one.
---@param trainer moonshard.Trainer
---@param batch table<string, moonshard.Array>
---@param step fun(trainer: moonshard.Trainer, batch: table, places: table?): moonshard.StepMetrics
---@return moonshard.StepMetrics
function Watch:step(trainer, batch, step)
  local places
  require_bound(trainer)
  if #self.steps == self.steps_wanted then early_exit.now() end
  if reference.active then
    batch, places = global_batch(self, trainer)
  else
    files.write_batch(self.writer, self.writer_path, batch, batch_of.specs(batch, 1))
  end
  note_before(self, trainer)
  local metrics = step(trainer, batch, places)
  reference.name_dimensions(trainer, metrics)
  self.steps[#self.steps + 1] = {
    trainer = number_of(self, trainer), loss = metrics.loss, grad_norm = metrics.grad_norm, lr = metrics.lr,
  }
  note_sensitivity(self, trainer, metrics)
  count_phases(self, trainer)
  if not self.plan then
    local summary = trainer.session.train_exec.plan:summary()
    self.plan = { fingerprint = summary.fingerprint, bytes = summary.bytes }
  end
  if #self.steps == self.steps_wanted then early_exit.now() end
  return metrics
end

-- ---- the end ----------------------------------------------------------------------------------------------------

local function describe(self, trainer)
  local sharding, fqns = trainer.session.sharding, {}
  for i, param in ipairs(sharding.params) do fqns[i] = param.fqn end
  local groups = trainer.optimizer:param_groups(fqns)
  local result = {
    mesh = (sharding.reference_mesh or sharding.mesh):label(), ranks = trainer.session:ranks(),
    optimizer = trainer.optimizer.kind, params = {}, dtype = coarsest(trainer),
    clip_grad_value = trainer.clip.value,
  }
  local muon, sensitivity = self.muon[trainer.session], self.sensitivity[trainer.session]
  for i, param in ipairs(sharding.params) do
    result.params[i] = {
      name = param.fqn, shape = param.shape, numel = param.numel, dtype = param.dtype or param.unit.param_dtype,
      frozen = param.frozen, lr_scale = groups[param.fqn].lr_scale,
      step_scale = sensitivity and sensitivity.scale_of and sensitivity:scale_of(param.fqn) or nil,
      optimizer = trainer.optimizer:part_of(param.fqn).kind, apart = muon and muon:of(param),
    }
  end
  return result
end

-- Every parameter in full; on the reference rank also its initial values and the sensitivity.
local function collect(self, trainer, values)
  local before, sensitivity = self.before[trainer.session], self.sensitivity[trainer.session]
  for i, param in ipairs(trainer.session.sharding.params) do
    local value = trainer:parameter(param.fqn)
    values[#values + 1] = ffi.string(value.data, 4 * param.numel)
    if before then values[#values + 1] = before[i] end
    if sensitivity then values[#values + 1] = sensitivity:of(param) end
  end
end

local function wrong_plans(self)
  local wrong = {}
  for _, trainer in ipairs(self.trainers) do
    local count = 0
    for _ in trainer.session.plans:execs() do count = count + 1 end
    for exec in trainer.session.plans:execs() do
      local runs = self.runs[exec]
      for _, text in ipairs(runs and plan_counters.compare(exec, runs, count == 1) or {}) do
        wrong[#wrong + 1] = text
      end
    end
  end
  return wrong
end

-- Collective.
local function finish(self)
  local values = {}
  local result = {
    steps = self.steps, plan = self.plan, trainers = {}, wrong = wrong_plans(self), ranks = world.size,
  }
  for i, trainer in ipairs(self.trainers) do
    result.trainers[i] = describe(self, trainer)
    collect(self, trainer, values)
  end
  local name = reference.active and "one" or tostring(world.rank)
  files.write_result(self.folder .. "/" .. name, result, world.rank == 0 and values or nil)
  if not reference.active then other_hosts.bring(self.folder) end
end

---Runs a recipe under a check on every rank, and writes its results.
---@param recipe function
---@param o { folder: string, steps: integer, rtol: number? } folder: the check's; steps: maximum number of steps
---@param handler fun(raised: any): any as xpcall's
function watch.run(recipe, o, handler)
  local self = setmetatable({
    folder = o.folder, steps_wanted = o.steps, steps = {}, trainers = {}, runs = {}, readers = {},
    before = {}, sensitivity = {}, muon = {}, rtol = o.rtol,
  }, Watch)
  if not reference.active then
    self.writer_path = ("%s/batches-%d"):format(o.folder, world.rank)
    self.writer = files.open(self.writer_path, "wb")
  end
  context.stepper = self
  local ok, raised = early_exit.run(recipe, handler)
  context.stepper = nil
  if self.writer then files.close(self.writer, self.writer_path) end
  for _, reader in pairs(self.readers) do reader:close() end
  if not ok then error(raised, 0) end
  finish(self)
end

return watch
