-- Eager tensors that a forward or a loss uses, such as weights of classes, are constants of the graph, and every rank
-- has values of its own for them. Ranks whose values differ would train towards different models, and what comes out is
-- the loss of none, so ranks compare a hash of each when they bind a plan. A recipe can write into their memory later,
-- which takes effect, so before a step or an evaluation ranks compare one hash of all of them again. A forward that
-- makes others is traced again (engine/trace/retrace.lua).

local agreement = require("moonshard.distributed.agreement")
local errors = require("moonshard.base.error")
local hash = require("moonshard.base.hash")
local reads = require("moonshard.engine.trace.reads")
local retrace = require("moonshard.engine.trace.retrace")
local tensor = require("moonshard.tensor.class")
local values = require("moonshard.tensor.values")
local world = require("moonshard.distributed.world")

local same_constants = {}

-- Bytes that are compared before every run of a plan. More of them take longer than a small step, and are compared
-- before its runs 2, 4, 8, ...
local MAX_BYTES = 2 ^ 20

local UNCOMPARED = 0 -- in place of a hash

local function hashes_of(graph)
  local list = {}
  for i, constant in ipairs(graph.constants) do
    list[i] = hash.of_bytes(constant.tensor.data, values.bytes(constant.tensor))
  end
  return list
end

---A constant of a plan, for messages.
---@param session moonshard.Session
---@param compiled moonshard.Plan
---@param constant moonshard.Constant
---@return string "class_weight, an upvalue of the function at a.lua:3, f32 [5], which mul reads at a.lua:4,"
function same_constants.describe(session, compiled, constant)
  local eager = constant.tensor
  local name = reads.new(session.model, compiled.settings.reads):name_of(eager) or "an eager tensor"
  return ("%s %s %s, which %s%s reads%s,"):format(name, eager.dtype, tensor.shape_text(eager.shape), constant.op,
    constant.path ~= "" and " in " .. constant.path or "", constant.where and " at " .. constant.where or "")
end

local function report(session, compiled, hashes)
  local ranks = session:ranks()
  for i, of_ranks in ipairs(session:gather_lists(hashes, "of eager tensors")) do
    for place, other in ipairs(of_ranks) do
      if other ~= of_ranks[1] then
        -- A rank can find the tensor in another place than the others do.
        local what = agreement.text_of_first(session, "of an eager tensor",
          same_constants.describe(session, compiled, compiled.graph.constants[i]))
        errors.raise("MS_EMISMATCH", "%s: %s differs between %s and %s: what a forward or a loss uses besides its "
          .. "batch or arguments must be the same on all ranks: make it without the rank, its seed or its "
          .. "files; a tensor of each rank is a field of its batch, or an argument", compiled.settings.who
          or compiled.name, what, world.rank_name(ranks[1]), world.rank_name(ranks[place]))
      end
    end
  end
end

local function number_of(hashes)
  local texts = {}
  for i, number in ipairs(hashes) do texts[i] = ("%.0f"):format(number) end
  return hash.of_text(table.concat(texts, " "))
end

---A hash of the constants of a plan that is about to run again, for ranks to compare.
---@param exec moonshard.Exec? nil: it is not bound yet
---@return number
function same_constants.number(exec)
  local constants, bytes = exec and exec.plan.graph.constants or {}, 0
  for _, constant in ipairs(constants) do bytes = bytes + values.bytes(constant.tensor) end
  if bytes == 0 or bytes > MAX_BYTES and not retrace.is_due(exec.plan.graph.uses + 1) then return UNCOMPARED end
  return number_of(hashes_of(exec.plan.graph))
end

---Raises MS_EMISMATCH on all ranks if these hashes differ. Collective, but only if they do.
---@param session moonshard.Session
---@param exec moonshard.Exec?
---@param numbers number[] of all ranks, in the order of session:ranks()
function same_constants.check(session, exec, numbers)
  for _, number in ipairs(numbers) do
    if number ~= numbers[1] then return report(session, exec.plan, hashes_of(exec.plan.graph)) end
  end
end

---Raises MS_EMISMATCH on all ranks if the constants of a plan, which all are about to bind or run, differ. Collective.
---@param session moonshard.Session
---@param compiled moonshard.Plan with the same constants on all ranks but for their values
function same_constants.require(session, compiled)
  if #session:ranks() == 1 or #compiled.graph.constants == 0 then return end
  local hashes = hashes_of(compiled.graph)
  local numbers = session:gather_numbers(number_of(hashes), "of eager tensors")
  for _, number in ipairs(numbers) do
    if number ~= numbers[1] then return report(session, compiled, hashes) end
  end
end

return same_constants
