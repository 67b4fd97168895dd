-- What ranks agree on before they run a step or an evaluation: that they run the same, on the same batch of the data,
-- at the same learning rates, and whether the run ends. It is one exchange of a few numbers; nothing of the step has
-- run before it.

local errors = require("moonshard.base.error")
local hash = require("moonshard.base.hash")
local json = require("moonshard.base.text.json")
local options = require("moonshard.base.checks.options")
local replicate_sync = require("moonshard.shard.policies.replicate_sync")
local same_constants = require("moonshard.engine.agreement.same_constants")
local same_data = require("moonshard.train.same_data")
local same_run = require("moonshard.engine.agreement.same_run")
local same_weights = require("moonshard.engine.agreement.same_weights")
local termination = require("moonshard.checkpoint.termination")
local world = require("moonshard.distributed.world")

local meeting = {}

-- ---- learning rates ----------------------------------------------------------------------------------------------

local function check_rate(lr, number, which)
  if type(lr) == "number" and lr - lr == 0 and lr >= 0 then return end
  errors.invalid("the %slearning rate of step %d is %s; it must be a finite number of at least 0", which, number,
    options.describe(lr))
end

-- A recipe can have set it, as other libraries' optimizers are changed.
local function rate_of(optimizer, number)
  local kind = type(optimizer.lr)
  if kind ~= "function" then
    errors.invalid("lr of an optimizer is a function of the step, not a %s: give ms.optim one, lr = function(step) "
      .. "return ... end, or a schedule; train:set_rules { lr = ... } changes it between steps", kind)
  end
  return optimizer.lr(number)
end

---The rate of the outer SGD in a step that applies: what ranks agreed on where they sent, even if the recipe's function
---says something else by then.
---@param self moonshard.Trainer
---@param update integer the step of the model
---@return number
function meeting.outer_rate(self, update)
  local session = self.session
  session.outer_rates = session.outer_rates or {}
  if session.outer_rates[update] == nil then
    local rate = session.sharding.local_sync.outer.lr(update)
    check_rate(rate, update, "outer ")
    session.outer_rates[update] = rate
  end
  return session.outer_rates[update]
end

---The learning rates of a step: of all parameters, of those that take Muon, and of the outer SGD of local steps, in the
---step in which it applies what this one sends. Its steps are those of the model, whichever trainers take them.
---@param self moonshard.Trainer
---@param number integer the step
---@return { lr: number, muon: number, outer: number, applied: integer? } applied: the step of the outer one
function meeting.rates(self, number)
  local sync, muon = self.session.sharding.local_sync, self.optimizer:chosen_part()
  local lr, of_outer, of_muon, applied = rate_of(self.optimizer, number), 0, 0, nil
  check_rate(lr, number, "")
  if sync then
    local update = self.session.updates + 1
    applied = replicate_sync.applied(sync, update)
    of_outer = meeting.outer_rate(self, applied)
    self.session.outer_rates[update - 1] = nil
  end
  if muon then
    of_muon = rate_of(muon, number)
    check_rate(of_muon, number, "Muon's ")
  end
  return { lr = lr, muon = of_muon, outer = of_outer, applied = applied }
end

local function require_same_rate(self, numbers, format, number)
  for place, other in ipairs(numbers) do
    if other ~= numbers[1] then
      local ranks = self.session:ranks()
      errors.raise("MS_EMISMATCH", "the learning rate %s %d is %s on %s and %s on %s; it must be the same on all ranks",
        format, number, json.encode(numbers[1]), world.rank_name(ranks[1]), json.encode(other),
        world.rank_name(ranks[place]))
    end
  end
end

-- ---- batches -----------------------------------------------------------------------------------------------------

-- What ranks exchange of their data: whom this rank shares it with, and which batch of it this is. Loaders count
-- their batches, and so can those who make their own.
local UNCOUNTED = -1

local function counted(batch)
  if type(batch.batch_number) ~= "number" then return UNCOUNTED, UNCOUNTED end
  return hash.of_text(tostring(batch.shared_by)), batch.batch_number
end

-- A rank that left out a step has a later batch than the ranks that share its data.
local function require_same_batch(self, sharers, numbers, number)
  local first, ranks = {}, self.session:ranks()
  for place, sharer in ipairs(sharers) do
    local before = first[sharer]
    first[sharer] = before or place
    if before and sharer ~= UNCOUNTED and numbers[before] ~= numbers[place] then
      local late, early = before, place
      if numbers[late] < numbers[early] then late, early = early, late end
      local ahead, behind = world.rank_name(ranks[late]), world.rank_name(ranks[early])
      errors.raise("MS_EMISMATCH", "train:step: in step %d %s has batch %.0f of the data and %s has batch %.0f: %s "
        .. "left out a step, or %s took one twice; all ranks must take every step", number, behind, numbers[early],
        ahead, numbers[late], ahead, behind)
    end
  end
end

-- ---- meeting -----------------------------------------------------------------------------------------------------

---Ends the run if the ranks want that.
---@param self moonshard.Trainer
---@param statuses integer[] their votes (termination.status)
function meeting.end_if_wanted(self, statuses)
  if self.policy and termination.any_wants(statuses) then self.policy:terminate() end
  if termination.wanted_without_save(statuses) then termination.exit_rank() end
end

-- Fields of a batch that are each rank's own numbers, but that all ranks give or none.
local OWN_NUMBERS = {
  { "counted_rows", "the number of rows that count on each" },
  { "first_row", "the place of its first row in the global batch" },
  { "row_step", "from one of its rows to the next in the global batch" },
}

---What this rank is about to run in a step or an evaluation, with the shapes of the whole batch.
---@param self moonshard.Trainer
---@param who string "train:step"
---@param facts [string, any][] as for same_run.new
---@param batch table this rank's
---@param specs table[] of engine/batch.lua
---@param micro_batches integer
---@return moonshard.SameRun
function meeting.described(self, who, facts, batch, specs, micro_batches)
  local inputs = {}
  for i, spec in ipairs(specs) do
    local shape = { unpack(spec.shape) }
    if not spec.is_whole then shape[1] = shape[1] * micro_batches end
    inputs[i] = { name = spec.name, dtype = spec.dtype, shape = shape }
  end
  facts[#facts + 1] = { "the number of the trainer", self.owner }
  for _, own in ipairs(OWN_NUMBERS) do
    facts[#facts + 1] = { "batch." .. own[1], batch[own[1]] ~= nil and "given" or "not given",
      ("give all ranks batch.%s, %s, or none"):format(own[1], own[2]) }
  end
  facts[#facts + 1] = { "batch.is_padded", batch.is_padded == true, "give all ranks the same" }
  facts[#facts + 1] = { "batch.sample_rows", batch.sample_rows or 1, "give all ranks the same rows of a sample" }
  return same_run.new(who, facts, inputs, "batch.")
end

---Ranks compare, in one exchange, what they are about to run: fields and shapes, the step, the batch of the data, the
---learning rates, the inputs of ranks that compute the same rows, and weights of replicas. With it they agree on ending
---the run. Collective.
---@param self moonshard.Trainer
---@param number integer the step
---@param batch table this rank's
---@param run moonshard.SameRun
---@param rates { lr: number, muon: number, outer: number }
---@param given moonshard.SameRows?
---@param exec moonshard.Exec? what runs, if it is bound already
function meeting.before_step(self, number, batch, run, rates, given, exec)
  local sharer, counts = counted(batch)
  local weights, data = same_weights.of(self.session, number), same_data.of(batch)
  local runs, lrs, muon_lrs, outer_lrs, statuses, rows, sharers, numbers, sums, sharing, sources, constants =
    self.session:gather_numbers(run.number, "of the learning rate", rates.lr, rates.muon, rates.outer,
      termination.status(), given and given:number() or 0, sharer, counts, weights and weights:number(number) or 0,
      data.sharers, data.number, same_constants.number(exec))
  run:check(self.session, runs)
  require_same_rate(self, lrs, "of step", number)
  require_same_rate(self, muon_lrs, "of Muon in step", number)
  require_same_rate(self, outer_lrs, "of the outer SGD of replicate_sync for step", rates.applied or number)
  meeting.end_if_wanted(self, statuses)
  same_data.check_mesh(self.session, batch)
  data:check(self.session, "of the training data", sharing, sources)
  same_constants.check(self.session, exec, constants)
  require_same_batch(self, sharers, numbers, number)
  if weights then weights:check(sums, number) end
  if not given then return end
  local from = self.rows_compared and self.rows_compared + 1 or number
  given:check(rows, "train:step", from < number and ("steps %d to %d"):format(from, number) or "step " .. number)
end

---Ranks compare what they are about to evaluate: a batch, or after the last one none. Collective.
---@param self moonshard.Trainer
---@param number integer|string its number, or that there is none
---@param specs table[]
---@param batch table this rank's; empty if there is none
---@param exec moonshard.Exec? what runs, if it is bound already
---@return integer[] statuses the ranks' votes on ending the run
function meeting.before_evaluation(self, number, specs, batch, exec)
  local run = meeting.described(self, "train:evaluate", { { "the batch", number } }, batch, specs, 1)
  local data = same_data.of(batch)
  local runs, statuses, sharing, sources, constants = self.session:gather_numbers(run.number,
    "of whether to evaluate on", termination.status(), data.sharers, data.number, same_constants.number(exec))
  run:check(self.session, runs)
  same_data.check_mesh(self.session, batch)
  data:check(self.session, "of the validation data", sharing, sources)
  same_constants.check(self.session, exec, constants)
  return statuses
end

return meeting
