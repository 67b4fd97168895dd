-- Eager tensors that a forward or a loss uses, such as weights of classes, are constants of the graph, and every rank
-- has values of its own for them. Ranks whose values differ would train towards different models, and what comes out is
-- the loss of none, so ranks compare a hash of each when they bind a plan. Tensors do not change after that, and a
-- forward that makes others is traced again (engine/retrace.lua).

local agreement = require("moonshard.distributed.agreement")
local errors = require("moonshard.base.error")
local hash = require("moonshard.base.hash")
local reads = require("moonshard.engine.reads")
local tensor = require("moonshard.tensor.class")
local values = require("moonshard.tensor.values")
local world = require("moonshard.distributed.world")

local same_constants = {}

local function hashes_of(graph)
  local list = {}
  for i, constant in ipairs(graph.constants) do
    list[i] = hash.of_bytes(constant.tensor.data, values.bytes(constant.tensor))
  end
  return list
end

-- "class_weight, an upvalue of the function at a.lua:3, f32 [5], which mul reads at a.lua:4"
local function describe(session, compiled, constant)
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
          describe(session, compiled, compiled.graph.constants[i]))
        errors.raise("MS_EMISMATCH", "%s: %s differs between %s and %s: what a forward or a loss uses besides its "
          .. "batch or arguments must be the same on all ranks: make it without the rank, its seed or its "
          .. "files; a tensor of each rank is a field of its batch, or an argument", compiled.settings.who
          or compiled.name, what, world.rank_name(ranks[1]), world.rank_name(ranks[place]))
      end
    end
  end
end

---Raises MS_EMISMATCH on all ranks if the constants of a plan, which all are about to bind, differ. Collective.
---@param session moonshard.Session
---@param compiled moonshard.Plan with the same constants on all ranks but for their values
function same_constants.require(session, compiled)
  if #session:ranks() == 1 or #compiled.graph.constants == 0 then return end
  local hashes, texts = hashes_of(compiled.graph), {}
  for i, number in ipairs(hashes) do texts[i] = ("%.0f"):format(number) end
  local numbers = session:gather_numbers(hash.of_text(table.concat(texts, " ")), "of eager tensors")
  for _, number in ipairs(numbers) do
    if number ~= numbers[1] then return report(session, compiled, hashes) end
  end
end

return same_constants
