-- The policy `storage`: how frozen parameters are kept. A parameter that trains has an f32 master; one that does not
-- can be kept, gathered and saved in fewer bits, and becomes what kernels read where they read it
-- (kernels/formats/storage.h):
--
--   freeze = { re"." }, storage = { { re[[\.(wq|wk|wv|wo|w1|w2|w3)\.weight$]], "i8" }, { "embed", "bf16" } }
--
-- Rules name frozen parameters alone, so patterns can also match adapters, which train.

local dtypes = require("moonshard.base.dtypes")
local errors = require("moonshard.base.error")
local float8 = require("moonshard.shard.policies.float8")
local gather = require("moonshard.shard.policies.gather")
local options = require("moonshard.base.checks.options")
local placements = require("moonshard.shard.policies.placements")
local records = require("moonshard.shard.records")

local storage = {}

-- What a frozen parameter is kept in by default: no records, but values like those of a master.
local DEFAULT = "f32"

---Why rules do not decide for other parameters.
storage.LEFT_OUT = "which trains, so that it is kept in f32: freeze it (freeze, or ms.lora), or remove the rule"

local function read(value, rule)
  local name = dtypes.of_use(value, "storage")
  if name then return name end
  errors.raise("MS_EDTYPE", "storage: %s must be %s, not %s", rule, dtypes.quoted("storage"), options.describe(value))
end

---The reader of the policy's values.
---@param self moonshard.Sharding
---@return fun(value: any, rule: string): string
function storage.reader(self)
  return function(value, rule)
    for _, param in ipairs(self.params) do
      if param.frozen then return read(value, rule) end
    end
    errors.invalid("storage: %s is %s, but only frozen parameters are kept in another type than f32, and all "
      .. "parameters train: freeze some (freeze, or ms.lora), or leave storage out", rule, options.describe(value))
  end
end

-- Whether the records of a parameter, which no tensor dimension divides, are larger than its values in f32.
local function too_large(param, dtype) return records.count(records.of_runs(dtype), param.numel) > param.numel end

---Which parameters the policy decides for: frozen ones; without rules those of two axes or more, as gains and biases
---save nothing, and not those whose records would be larger than f32. A rule decides for all that it matches.
---@param param moonshard.ShardedParameter
---@param by_rules boolean
---@param given any the policy as in ms.fully_shard
---@return boolean
function storage.applies(param, by_rules, given)
  if not param.frozen or by_rules then return param.frozen end
  local dtype = dtypes.of_use(given, "storage")
  return #param.shape > 1 and not (dtype and dtype ~= DEFAULT and too_large(param, dtype))
end

---A warning if rules keep parameters in records that are larger than f32 is, because these are small.
---@param self moonshard.Sharding
---@return string?
function storage.larger(self)
  local first, count
  for _, param in ipairs(self.params) do
    if param.storage and too_large(param, param.storage) then first, count = first or param, (count or 0) + 1 end
  end
  if not first then return nil end
  local decision = self.decisions.storage[first.fqn]
  local text = "%sstorage: rule %s keeps %s%s in %s, in %d bytes, more than the %d of f32: give it \"f32\" in an "
    .. "earlier rule, or narrow the pattern"
  return text:format(decision.where and decision.where .. ": " or "", decision.pattern or "for all",
    first.fqn, count > 1 and (" and %d more"):format(count - 1) or "", first.storage,
    4 * records.count(records.of_runs(first.storage), first.numel), 4 * first.numel)
end

---Stores the decision for a parameter.
---@param param moonshard.ShardedParameter
---@param value string?
function storage.store(param, value)
  param.storage = value ~= DEFAULT and value or nil
end

---Whether a parameter is kept as codes with scales, which its values do not determine.
---@param param moonshard.ShardedParameter
---@return boolean
function storage.is_quantised(param) return dtypes.may(param.storage, "coded") end

-- The elements of a divided parameter that a rank has one after another; nil: it has the whole.
local function run_of(self, param)
  if not placements.divides(self, param) then return nil end
  local run, shape = 1, placements.part(self, param)
  for d = param.placement.axis + 1, #shape do run = run * shape[d] end
  return run
end

---Bytes that elements of a parameter are kept in: whole records.
---@param self moonshard.Sharding
---@param param moonshard.ShardedParameter
---@param elements number
---@return number
function storage.bytes(self, param, elements)
  if not param.storage then return dtypes.sizes.f32 * elements end
  return 4 * records.count(records.of_runs(param.storage, run_of(self, param)), elements)
end

---Bytes that the shards gather of elements of a parameter: whole records, or blocks.
---@param self moonshard.Sharding
---@param param moonshard.ShardedParameter
---@param elements number
---@return number
function storage.gathered_bytes(self, param, elements)
  if param.storage then return storage.bytes(self, param, elements) end
  if param.gather then return gather.bytes(param.gather, elements) end
  return elements * dtypes.sizes[storage.gathered_dtype(param)]
end

---The element type in which the shards gather a parameter that no policy gathers in blocks.
---@param param moonshard.ShardedParameter
---@return string
function storage.gathered_dtype(param)
  return param.storage or (float8.is_gathered(param) and "f8e4m3") or param.dtype or param.unit.param_dtype
end

---The same for people, with the policy that decides it.
---@param param moonshard.ShardedParameter
---@return string
function storage.gathered_text(param)
  local by = param.storage and "as stored: " or float8.is_gathered(param) and "by fp8: " or "default: "
  return by .. storage.gathered_dtype(param)
end

return storage
