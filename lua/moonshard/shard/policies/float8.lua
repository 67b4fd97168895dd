-- Which weights are multiplied in 8 bits, and how: the policy `fp8`. A recipe says which operands of a linear layer's
-- three products are rounded, and what shares a scale; the names are torchao's, and blockwise TransformerEngine's and
-- Megatron's (kernels/products/matmul_f8.h has details). Weights are matrices, or stacks of them: experts.
--
-- A weight that cannot be multiplied so is an error that names the rule. What depends on the rows of a batch, and on
-- how ranks divide layers, the engine checks when it compiles a plan.

local dtypes = require("moonshard.base.dtypes")
local engine = require("moonshard.base.ffi")
local errors = require("moonshard.base.error")
local nearest = require("moonshard.base.names.nearest")
local options = require("moonshard.base.checks.options")
local rules = require("moonshard.shard.rules")
local C = engine.C

local float8 = {}

local RECIPES = {
  tensorwise = C.MS_FP8_TENSORWISE, rowwise = C.MS_FP8_ROWWISE, rowwise_with_gw_hp = C.MS_FP8_ROWWISE_WITH_GW_HP,
  mxfp8 = C.MS_FP8_MXFP8, blockwise = C.MS_FP8_BLOCKWISE,
  blockwise_power_2_scale = C.MS_FP8_BLOCKWISE_POWER_2_SCALE,
}

-- What the sizes of a weight are multiples of (ms_f8_multiple of kernels/products/matmul_f8.h).
local function multiple_of(recipe) return recipe == "mxfp8" and 32 or 16 end

---Checks the value of a rule.
---@param value any a recipe, or false
---@param rule string for messages
---@return string|false
function float8.read(value, rule)
  if value == false then return value end
  if rule == "the value" then -- one for all: norms and biases are parameters, too
    errors.invalid("fp8 must be a list of rules that choose the weights, as in "
      .. "{ { re[[\\.(fc1|fc2)\\.weight$]], \"rowwise\" } }, not %s, which would be for norms and biases, too",
      options.describe(value))
  end
  if type(value) == "string" and RECIPES[value] then return value end
  local is_dtype = dtypes.short_name(value) ~= nil
  errors.invalid("fp8: %s must have false or a recipe, not %s: %s", rule, options.describe(value),
    is_dtype and "recipes say what shares a scale: " .. nearest.advice("", RECIPES)
    or nearest.advice(tostring(value), RECIPES))
end

local function check_shape(param, value, sharding)
  local decision = sharding.decisions.fp8[param.fqn]
  local function refuse(why) rules.refuse("MS_ESHAPE", "fp8", param.fqn, decision, why, "false") end
  local axes = #param.shape
  if axes ~= 2 and axes ~= 3 then refuse("it is not a matrix, or a stack of them") end
  for axis = axes - 1, axes do
    local size = param.shape[axis]
    if size % multiple_of(value) ~= 0 then
      refuse(("%d of its shape [%s] is not a multiple of %d"):format(size, table.concat(param.shape, ","),
        multiple_of(value)))
    end
  end
end

---Stores the decision for a parameter.
---@param param moonshard.ShardedParameter
---@param value string|false|nil
---@param sharding moonshard.Sharding
function float8.store(param, value, sharding)
  param.fp8 = value or nil
  if value then check_shape(param, value, sharding) end
end

---@param param moonshard.ShardedParameter
---@return integer id enum ms_fp8
function float8.id(param) return param.fp8 and RECIPES[param.fp8] or C.MS_FP8_NONE end

---Whether a parameter is gathered as codes of f8e4m3, with one scale, and not as what kernels would read without
---rules. Each weight of a stack has a scale of its own.
---@param param moonshard.ShardedParameter
---@return boolean
function float8.is_gathered(param) return param.fp8 == "tensorwise" and #param.shape == 2 and not param.storage end

---A decision, for people.
---@param value string|false|nil
---@param param moonshard.ShardedParameter
---@return string
function float8.text(value, param)
  return (value or "no") .. (float8.is_gathered(param) and ", gathered as f8e4m3" or "")
end

---A decision in JSON.
---@param value string|false|nil
---@return string|false
function float8.json(value) return value or false end

return float8
