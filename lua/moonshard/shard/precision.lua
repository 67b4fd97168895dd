-- Mixed precision: the element type that the kernels of a unit read, and the type in which its gradients are summed.
-- Master weights and optimizer state are always f32.

local dtypes = require("moonshard.base.dtypes")
local errors = require("moonshard.base.error")
local options = require("moonshard.base.options")

local precision = {}

-- Native bf16 products: AVX512_BF16 or AMX on x86, the BF16 extension of Armv8.6. Elsewhere bf16 is emulated and slower
-- than f32.
local NATIVE = { avx512_bf16 = true, amx_bf16 = true, bf16 = true }

local native

---Whether this CPU multiplies bf16 natively, according to /proc/cpuinfo.
---@return boolean
function precision.cpu_has_bf16()
  if native ~= nil then return native end
  native = false
  local file = io.open("/proc/cpuinfo", "r")
  if not file then return native end
  for line in file:lines() do
    local flags = line:match("^flags%s*:(.*)") or line:match("^Features%s*:(.*)")
    if flags then
      for flag in flags:gmatch("%S+") do native = native or NATIVE[flag] or false end
      break
    end
  end
  file:close()
  return native
end

---@class moonshard.MixedPrecision
---@field param_dtype string "f32" or "bf16": type that kernels read; inputs of the unit are cast to it
---@field reduce_dtype string "f32" or "bf16": type in which gradients are summed over ranks
---@field output_dtype string? type to which the unit's outputs are cast; nil: no cast

-- use: a field of moonshard.DtypeUses.
local function read_dtype(who, value, use)
  if value == nil then return nil end
  if value == "auto" then return precision.cpu_has_bf16() and "bf16" or "f32" end
  local ok, _, name = pcall(dtypes.id, value)
  if not ok or not dtypes.may(name, use) then
    errors.raise("MS_EDTYPE", '%s must be "%s" or "auto", not %s', who, table.concat(dtypes.with(use), '", "'),
      options.describe(value))
  end
  return name
end

---Checks one value of mp_policy and fills in the defaults: f32, gradients summed in f32.
---@param who string for messages
---@param value table|string|nil { param_dtype =, reduce_dtype =, output_dtype = } or "auto" (bf16 where the CPU has it)
---@return moonshard.MixedPrecision
function precision.read(who, value)
  if value == "auto" then value = { param_dtype = "auto" } end
  if type(value) == "string" then
    errors.invalid('%s must be "auto" or a table such as { param_dtype = "bf16" }, not "%s"', who, value)
  end
  local read = options.parse(who, value, {
    param_dtype = { "string" }, reduce_dtype = { "string" }, output_dtype = { "string" },
  })
  return {
    param_dtype = read_dtype(who .. ".param_dtype", read.param_dtype, "param") or "f32",
    reduce_dtype = read_dtype(who .. ".reduce_dtype", read.reduce_dtype, "reduce") or "f32",
    output_dtype = read_dtype(who .. ".output_dtype", read.output_dtype, "param"),
  }
end

return precision
