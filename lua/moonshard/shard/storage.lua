-- The policy `storage`: how frozen parameters are kept. A parameter that trains has an f32 master; one that does not
-- can be kept, gathered and saved in fewer bits, and becomes what kernels read where they read it (kernels/storage.h):
--
--   freeze = { re"." }, storage = { { re[[\.(wq|wk|wv|wo|w1|w2|w3)\.weight$]], "nf4" }, { "embed", "bf16" } }
--
-- Rules name frozen parameters alone, so patterns can also match adapters, which train.

local dtypes = require("moonshard.base.dtypes")
local errors = require("moonshard.base.error")
local float8 = require("moonshard.shard.float8")
local gather = require("moonshard.shard.gather")
local options = require("moonshard.base.options")
local placements = require("moonshard.shard.placements")
local records = require("moonshard.shard.records")

local storage = {}

---Why rules do not decide for other parameters.
storage.LEFT_OUT = "which trains and has an f32 master: freeze it (freeze, or ms.lora), or leave it out of storage"

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
    errors.invalid("storage: %s chooses how frozen parameters are kept, but all parameters train: freeze some "
      .. "(freeze, or ms.lora), or leave storage out", rule)
  end
end

---Which parameters the policy decides for: frozen ones; without rules those of two axes or more, as gains and biases
---save nothing.
---@param param moonshard.ShardedParameter
---@param by_rules boolean
---@return boolean
function storage.applies(param, by_rules) return param.frozen and (by_rules or #param.shape > 1) end

---@param param moonshard.ShardedParameter
---@param value string?
function storage.store(param, value) param.storage = value ~= "f32" and value or nil end

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

---Bytes per element that a parameter is kept in.
---@param self moonshard.Sharding
---@param param moonshard.ShardedParameter
---@return number
function storage.bytes_per_element(self, param)
  if not param.storage then return dtypes.sizes.f32 end
  local of = records.of_runs(param.storage, run_of(self, param))
  return 4 * of.words / of.elements
end

---Bytes per element that the shards gather.
---@param self moonshard.Sharding
---@param param moonshard.ShardedParameter
---@return number
function storage.gathered_bytes_per_element(self, param)
  if param.storage then return storage.bytes_per_element(self, param) end
  if param.gather then return gather.bytes_per_element() end
  return dtypes.sizes[float8.is_gathered(param) and "f8e4m3" or param.dtype or param.unit.param_dtype]
end

return storage
