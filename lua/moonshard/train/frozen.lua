-- The option `freeze` of a trainer: parameters that its loss may depend on but does not train, while another trainer of
-- the same model does. Gradients pass through them, as through the discriminator in the generator's step of a GAN.
--
-- In the traces of such a trainer they are constants. So they have no gradient in its steps, and the optimizer skips
-- them, with weight decay and the number of their updates, as it does with parameters on which a loss does not depend.

local errors = require("moonshard.base.error")
local policy_readers = require("moonshard.shard.policies.policy_readers")
local rules = require("moonshard.shard.rules")

local POLICY = "ms.trainer: freeze"

local frozen = {}

---Reads the option.
---@param list table?
---@return moonshard.Policy?
function frozen.read(list)
  if list == nil then return nil end
  return rules.policy(POLICY, list, { bare_value = true, read = policy_readers.freeze })
end

-- Its constants are made in the trace, where products in 8 bits need the weight itself.
local function check_bits(param)
  if not param.fp8 then return end
  errors.raise("MS_EUNSUPPORTED", "%s: %s is multiplied in 8 bits (fp8 = %q), and a weight that only some trainers "
    .. "leave out cannot be: freeze it for all of them, by freeze of ms.fully_shard, or leave it out of the rules of "
    .. "fp8",
    POLICY, param.fqn, param.fp8)
end

---Decides which parameters it is. Those that are frozen for all trainers are constants in any case.
---@param policy moonshard.Policy?
---@param sharding moonshard.Sharding
---@return table<moonshard.Parameter, true>?
---@return string[] warnings rules that match parameters but never decide
function frozen.decide(policy, sharding)
  if not policy then return nil, {} end
  local fqns, of, trains = {}, {}, false
  for i, param in ipairs(sharding.params) do fqns[i] = param.fqn end
  local decided, warnings = policy:resolve(fqns, nil, sharding.tied)
  for i, param in ipairs(sharding.params) do
    if decided[i].value and not param.frozen then
      check_bits(param)
      of[param.parameter] = true
    end
    trains = trains or not (decided[i].value or param.frozen)
  end
  if not trains then
    errors.invalid("%s: it matches every parameter that the model trains, so there is nothing to train", POLICY)
  end
  return of, warnings
end

return frozen
