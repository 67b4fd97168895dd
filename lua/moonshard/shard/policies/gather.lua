-- The policy `gather_dtype`: parameters that shards gather as codes with a scale for each 256 elements; of i8, half the
-- bytes of bf16 (ZeRO++'s quantised weights). The master stays f32; kernels read param_dtype
-- (plan/lower/lower_blocks.c).
--
--   gather_dtype = "i8"                                              -- every weight of two axes or more
--   gather_dtype = { { "head", false }, { re[[\.weight$]], "i8" } }   -- what rules say

local dtypes = require("moonshard.base.dtypes")
local errors = require("moonshard.base.error")
local float8 = require("moonshard.shard.policies.float8")
local options = require("moonshard.base.checks.options")
local rules = require("moonshard.shard.rules")

local gather = {}

-- Elements of a block, which has their codes and an f32.
local BLOCK = 256

---Checks the value of a rule.
---@param value any a type with the use `gathered` (base/dtypes.lua), or false
---@param rule string for messages
---@return string|false
function gather.read(value, rule)
  if value == false then return false end
  local name = dtypes.of_use(value, "gathered")
  if name then return name end
  errors.raise("MS_EDTYPE", "gather_dtype: %s must be %s or false (param_dtype), not %s%s", rule,
    dtypes.quoted("gathered"), options.describe(value), dtypes.short_name(value) == "f8e4m3"
      and '; rules of fp8 with "tensorwise" gather weights in it' or "")
end

---Which parameters the policy decides for; without rules weights of two axes or more that no other policy gathers in
---few bits, as blocks of gains and biases are mostly padding.
---@param param moonshard.ShardedParameter
---@param by_rules boolean
---@return boolean
function gather.applies(param, by_rules)
  return by_rules or #param.shape > 1 and not param.storage and not float8.is_gathered(param)
end

local function check_alone(param, sharding)
  local decision = sharding.decisions.gather_dtype[param.fqn]
  local function refuse(why) rules.refuse("MS_EUNSUPPORTED", "gather_dtype", param.fqn, decision, why, "false") end
  if param.storage then refuse(("it is stored, and gathered, in %s"):format(param.storage)) end
  if float8.is_gathered(param) then refuse("fp8 tensorwise gathers it as f8e4m3") end
end

---Stores the decision for a parameter.
---@param param moonshard.ShardedParameter
---@param value string|false|nil
---@param sharding moonshard.Sharding
function gather.store(param, value, sharding)
  param.gather = value or nil
  if value then check_alone(param, sharding) end
end

---@param param moonshard.ShardedParameter
---@return integer id of the dtype, or -1
function gather.id(param) return param.gather and (dtypes.id(param.gather)) or -1 end

---Bytes that the shards gather of so many elements of a dtype, in whole blocks.
---@param dtype string
---@param elements number
---@return number
function gather.bytes(dtype, elements)
  return math.ceil(elements / BLOCK) * (BLOCK * dtypes.sizes[dtype] + dtypes.sizes.f32)
end

return gather
