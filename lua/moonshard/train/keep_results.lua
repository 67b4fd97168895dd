-- The option `rematerialize` of ms.trainer: whether the kernels of gradients compute the results of gelu, silu, swiglu
-- and norms again, or backward reads those of forward. Keeping them moves fewer bytes and takes more memory: "auto"
-- keeps them where the plan then fits memory_limit.
--
-- It is decided once, for the shapes of the first batch. Every rank compiles for the first rank of its mesh, so all
-- decide the same.

local errors = require("moonshard.base.error")
local options = require("moonshard.base.checks.options")
local progress = require("moonshard.base.text.progress")
local world = require("moonshard.distributed.world")

local keep_results = {}

---Refuses values of the option that mean nothing.
---@param o moonshard.TrainerOptions
function keep_results.check(o)
  local value = o.rematerialize
  if type(value) ~= "boolean" and value ~= "auto" then
    errors.invalid("ms.trainer: rematerialize must be true, false or \"auto\", not %s", options.describe(value))
  end
  if value == "auto" and not o.memory_limit then
    errors.invalid("ms.trainer: rematerialize = \"auto\" keeps results where they fit memory_limit: give that too, as "
      .. "in memory_limit = \"70GiB\"")
  end
end

local function report(fits, bytes, limit)
  if world.rank ~= 0 or world.plan_only then return end
  io.stderr:write(("moonshard: rematerialize: results of activations and norms are %s: with them a rank needs %s, and "
    .. "memory_limit is %s\n"):format(fits and "kept" or "computed again", progress.size(bytes), progress.size(limit)))
end

---Decides what is "auto" for the shapes of a batch.
---@param trainer moonshard.Trainer
---@param compile fun(): moonshard.Plan the trainer's step for that batch
function keep_results.decide(trainer, compile)
  local session = trainer.session
  local sharding = session.sharding
  local first = sharding.mesh:ranks(sharding.rank)[1]
  trainer.rematerialize = false
  local plan = first == sharding.rank and compile() or session:under(sharding:with({}, first), compile)
  local bytes = plan:summary().peak_bytes
  plan:free()
  trainer.rematerialize = bytes > trainer.memory_limit
  report(not trainer.rematerialize, bytes, trainer.memory_limit)
end

return keep_results
