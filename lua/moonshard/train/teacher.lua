-- A teacher that is the average of the student's weights (the trainer's option `teacher`), as in self-distillation:
-- DINO, BYOL, mean teachers.
--
-- Before each step, the teacher computes under the averages of `ema`, forward only, and its result becomes the field
-- `teacher` of the batch: a constant for the step. It has no gradient, and no weights of its own in memory. The result
-- waits outside the arenas, in the dtype that the teacher returns.

local batch_of = require("moonshard.engine.batch")
local capture = require("moonshard.engine.trace.capture")
local dtypes = require("moonshard.base.dtypes")
local ema = require("moonshard.engine.ema")
local engine = require("moonshard.base.ffi")
local errors = require("moonshard.base.error")
local tensor = require("moonshard.tensor")
local world = require("moonshard.distributed.world")
local ffi = engine.ffi

local WHO = "ms.trainer: teacher"

local UNREAD = ffi.new("double[1]") -- in place of values, where only a plan is made

local teacher = {}

---Checks the options of a trainer with a teacher.
---@param o moonshard.TrainerOptions with ema parsed
function teacher.check(o)
  if not o.teacher then return end
  if not o.ema then
    errors.invalid("%s: the teacher's weights are the averages of the student's: give ema = 0.999, too", WHO)
  elseif not o.forward then
    errors.invalid("%s: give forward, a function of model and batch that returns the loss: batch.teacher has what the "
      .. "teacher returned", WHO)
  end
end

local function traced(self)
  return function(inputs)
    local result, more = self.teacher(self.model, inputs)
    if not tensor.is(result) then errors.invalid("%s must return a tensor", WHO) end
    if more ~= nil then errors.invalid("%s must return one tensor: ms.ops.cat joins several", WHO) end
    local rows = batch_of.rows(inputs)
    if result.shape[1] ~= rows then
      errors.raise("MS_ESHAPE", "%s returned %s, but the first axis must be the %d rows of the batch", WHO,
        tensor.shape_text(result.shape), rows)
    end
    return { outputs = { teacher = result } }
  end
end

-- The batch with an array of what the teacher returned. Other users may keep the batch, so it is copied.
local function extended(batch, output, micro_batches, data)
  local copy, shape = {}, { unpack(output.shape) }
  for key, value in pairs(batch) do copy[key] = value end
  shape[1] = shape[1] * micro_batches
  copy.teacher = { data = data, dtype = output.dtype, shape = shape }
  return copy
end

local function compute(self, batch, specs, micro_batches)
  local exec = self.session:exec("teacher", specs, traced(self), {
    train = false, prefetch = self.prefetch, owner = self.owner, who = WHO, reads = self.teacher,
  })
  local output = exec.plan.graph.outputs.teacher
  local numel = batch_of.numel(output.shape)
  local data = self.buffers:get("teacher", output.dtype, numel * micro_batches)
  for micro = 0, micro_batches - 1 do
    batch_of.feed(exec, specs, batch, micro)
    exec:run("evaluate")
    ffi.copy(data + micro * numel, exec:output("teacher", output.dtype), numel * dtypes.sizes[output.dtype])
  end
  return extended(batch, output, micro_batches, data)
end

---The batch with the teacher's result, computed now; the batch itself for a trainer without a teacher. Collective.
---@param self moonshard.Trainer
---@param batch table<string, moonshard.Array>
---@param micro_batches integer
---@return table<string, moonshard.Array>
function teacher.with_result(self, batch, micro_batches)
  if not self.teacher then return batch end
  local specs = batch_of.specs(batch, micro_batches, not world.plan_only)
  if batch.teacher then
    errors.invalid("%s: the batch has a field teacher already, which is to have what the teacher returns", WHO)
  end
  if not world.plan_only then return ema.with_averages(WHO, self, compute, self, batch, specs, micro_batches) end
  local graph = capture.graph(self.model, {
    inputs = specs, fn = traced(self), sharding = self.session.sharding,
  })
  local output = graph.outputs.teacher -- its shape is all that a plan needs
  return extended(batch, output, micro_batches, ffi.cast(dtypes.ctypes[output.dtype] .. " *", UNREAD))
end

return teacher
