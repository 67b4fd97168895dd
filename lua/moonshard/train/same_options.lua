-- What every rank must be given alike of ms.trainer's options. Some are in the plan, whose fingerprint ranks compare,
-- as they do that of the optimizer, the averages and the rules; but a seed of dropout or the numbers of a pad would
-- differ without a trace of it. They are compared by name, along with what a step runs. checkpoint/policy.lua compares
-- the options of checkpoints, before a rank acts on them.
--
-- Limits of memory are left out: each host can have its own, and ranks agree on the plans that fit all.

local qk_clip = require("moonshard.engine.trace.qk_clip")
local same_run = require("moonshard.engine.agreement.same_run")

local same_options = {}

local function text_of_clip(o)
  if o.clip.rules then return ("%d rules"):format(#o.clip.rules.rules) end
  return ("%.17g"):format(o.clip.norm)
end

local function text_of_pad(o)
  local list = {}
  for i, field in ipairs(o.padded_fields or {}) do list[i] = ("%s = %.17g"):format(field.name, field.value) end
  return list[1] and table.concat(list, ", ") or "not given"
end

-- Of ms.fully_shard. Plans have most of it, but which step is a sync follows from it before ranks compare plans. The
-- learning rate of the outer SGD is compared with the others.
local SYNC = { { name = "every" }, { name = "fragments" }, { name = "delay" }, { name = "alpha" } }

local OPTIONS = {
  { name = "micro_batches" }, { name = "gradient_sync" }, { name = "reshard_after_backward" }, { name = "prefetch" },
  { name = "rematerialize" },
  { name = "seed", advice = "give all ranks the same: dropout differs from row to row anyway, by the row's place in "
    .. "the global batch" },
  { name = "clip_grad_norm", of = text_of_clip },
  { name = "clip_grad_value", of = function(o) return ("%.17g"):format(o.clip.value) end },
  { name = "qk_clip", of = function(o) return qk_clip.text(o.clip.qk) end },
  { name = "pad", of = text_of_pad },
  { name = "loss", of = same_run.presence("loss") }, { name = "teacher", of = same_run.presence("teacher") },
}

---The options as facts of a run (engine/agreement/same_run.lua).
---@param train moonshard.Trainer
---@return [string, string, string][]
function same_options.facts(train)
  local facts, sync = same_run.options(OPTIONS, train, "%s of ms.trainer"), train.session.sharding.local_sync
  for _, fact in ipairs(sync and same_run.options(SYNC, sync, "%s of replicate_sync") or {}) do
    table.insert(facts, 1, fact)
  end
  return facts
end

---Ranks compare the options of a trainer, and those of its checkpoints: before a trainer acts on checkpoints, and
---before a model's first step or evaluation, since options decide what ranks exchange there: an option that one rank
---alone has is named instead of exchanges that do not match. Collective.
---@param train moonshard.Trainer
---@param of_checkpoints [string, any][] policy.facts
function same_options.require(train, of_checkpoints)
  local facts = same_options.facts(train)
  for _, fact in ipairs(of_checkpoints) do facts[#facts + 1] = fact end
  train.session.options_compared = true
  same_run.new("ms.trainer", facts, {}):require(train.session, "of the options of the trainer")
end

return same_options
