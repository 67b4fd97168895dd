-- Mixed precision: the element type that the kernels of a unit read, and the type in which its gradients are summed.
-- Master weights and optimizer state are always f32. Gradients can travel in fewer bits over a dimension whose links
-- are slow: `replicate` of a mesh whose replicas are on several hosts, or `shard`.

local dtypes = require("moonshard.base.dtypes")
local errors = require("moonshard.base.error")
local nearest = require("moonshard.base.names.nearest")
local options = require("moonshard.base.checks.options")

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

---@class moonshard.PrecisionOptions
---@field param_dtype? "f32"|"bf16"|"auto" type that kernels read; auto: bf16 where the CPU has it. Default f32
---@field reduce_dtype? "f32"|"bf16"|"auto"|table type in which gradients are summed, default f32; or { shard = "i8",
---  replicate = "i8", error_feedback = true }: i8 or i4 between shards, replicas or both, in blocks with a scale; with
---  error_feedback, ranks add what they rounded off to the next gradients
---@field output_dtype? "f32"|"bf16" type to which the unit's outputs are cast; default: no cast
---@field param_copy? boolean whether a rank keeps bf16 parameters next to their f32 masters, 2 bytes an element, which
---  updates write, too; default false

---@class moonshard.MixedPrecision
---@field param_dtype string "f32" or "bf16": type that kernels read; inputs of the unit are cast to it
---@field reduce_dtype string "f32" or "bf16": type in which gradients are summed over ranks
---@field replicate_dtype string? gradients travel in it between replicas, in blocks with a scale; nil: in
---reduce_dtype
---@field shard_dtype string? the same between shards, whose sums are in f32
---@field error_feedback boolean? ranks keep what they round off of gradients, and add it to the next ones
---@field param_copy boolean? ranks keep parameters in param_dtype next to their f32 masters; nil: no
---@field output_dtype string? type to which the unit's outputs are cast; nil: no cast

---The fields of a value that settings of a unit have the names of.
precision.SETTINGS = { "param_dtype", "reduce_dtype", "replicate_dtype", "shard_dtype", "error_feedback", "param_copy" }

---Gives a unit what was decided.
---@param unit moonshard.Unit
---@param value moonshard.MixedPrecision
function precision.store(unit, value)
  unit.output_dtype = value.output_dtype
  for _, name in ipairs(precision.SETTINGS) do unit[name] = value[name] end
end

---Takes back what changes no number, so that a run which should give the same ones computes them more simply.
---@param unit moonshard.Unit
function precision.simplify(unit) unit.param_copy = nil end

---A decision, for people, without what it says of sums.
---@param value moonshard.MixedPrecision
---@return string
function precision.text_of_params(value)
  return ("params %s%s"):format(value.param_dtype, value.param_copy and " and a copy" or "")
end

-- Which policy has a type that kernels do not read: ": rules of fp8 ...", or nothing.
local function other_policy(value)
  if value == "fp8" or dtypes.of_use(value, "product") then
    return "; to multiply weights in 8 bits, give ms.fully_shard rules of fp8"
  elseif dtypes.of_use(value, "storage") then
    return "; to keep frozen parameters in it, give ms.fully_shard storage"
  end
  return ""
end

-- The types of a sum in few bits, as text.
local QUANTISED = dtypes.quoted("quantised_sum")

-- What else a message about a type should say, by its use.
local function advice_of(value, use)
  local instead = dtypes.instead(value)
  if instead ~= "" then return instead end
  if use == "param" then return other_policy(value) end
  return ('; the sums over one dimension of the mesh can also be in %s, as in { shard = "f32", replicate = "i8" }')
    :format(QUANTISED)
end

---Checks an element type, or "auto".
---@param who string for messages
---@param value any
---@param use string a field of moonshard.DtypeUses
---@return string? name nil for nil
function precision.read_dtype(who, value, use)
  if value == nil then return nil end
  if value == "auto" then return precision.cpu_has_bf16() and "bf16" or "f32" end
  local name = dtypes.of_use(value, use)
  if name then return name end
  errors.raise("MS_EDTYPE", '%s must be "%s" or "auto", not %s%s', who, table.concat(dtypes.with(use), '", "'),
    options.describe(value), advice_of(value, use))
end
local read_dtype = precision.read_dtype

local function is_quantised(value)
  local name = dtypes.of_use(value, "quantised_sum")
  return name ~= nil, name
end

-- The dimensions of a mesh for messages and checks; nil: any.
---@class moonshard.SumDimensions
---@field mesh moonshard.Mesh
---@field shard boolean the mesh has a dimension that shards
---@field replicate boolean the mesh has one that replicates

local SUMS = { replicate = "replicates", shard = "shards" }

-- Of reduce_dtype as a table.
local FIELDS = { replicate = true, shard = true, error_feedback = true }

-- The type of a sum in few bits over a dimension, or nil.
local function read_quantised(who, value, dimension, dims)
  local quantised, name = is_quantised(value[dimension])
  if not quantised then return nil end
  if dims and not dims[dimension] then
    errors.invalid("%s: %s = %q, but mesh %s has no dimension that %s: use a mesh (replicate, shard), as in "
      .. "mesh = { 2, 2 }", who, dimension, name, dims.mesh:label(), SUMS[dimension])
  end
  return name
end

local function check_fields(who, value)
  for name in pairs(value) do
    if not FIELDS[name] then
      errors.invalid('%s: unknown field %s: %s Write a table such as { shard = "f32", replicate = "i8" }', who,
        tostring(name), nearest.sentence(name, FIELDS))
    end
  end
  if value.error_feedback ~= nil and type(value.error_feedback) ~= "boolean" then
    errors.invalid("%s: error_feedback must be true or false, not %s", who, options.describe(value.error_feedback))
  end
end

-- A type for each dimension over which gradients are summed: fields of moonshard.MixedPrecision.
local function read_by_dimension(who, value, dims)
  check_fields(who, value)
  local read = { shard_dtype = read_quantised(who, value, "shard", dims),
    replicate_dtype = read_quantised(who, value, "replicate", dims), error_feedback = value.error_feedback or nil }
  read.reduce_dtype = not read.shard_dtype and read_dtype(who .. ".shard", value.shard, "reduce") or "f32"
  if read.error_feedback and not read.shard_dtype and not read.replicate_dtype then
    errors.invalid("%s: error_feedback is for sums in %s, of which there are none: choose one for shard or replicate, "
      .. "or leave error_feedback out", who, QUANTISED)
  end
  if value.replicate == nil or read.replicate_dtype then return read end
  local ok, other = pcall(read_dtype, who .. ".replicate", value.replicate, "reduce")
  if ok and other == read.reduce_dtype then return read end
  errors.raise("MS_EDTYPE", "%s.replicate must be %s, or %q like the sums over shard, not %s", who, QUANTISED,
    read.reduce_dtype, options.describe(value.replicate))
end

local function read_reduce(who, value, dims)
  if type(value) == "table" then return read_by_dimension(who, value, dims) end
  if is_quantised(value) then
    errors.raise("MS_EDTYPE", '%s must be "f32", "bf16" or "auto", not %s, which is chosen for one dimension of the '
      .. 'mesh: { shard = "f32", replicate = %s }', who, options.describe(value), options.describe(value))
  end
  return { reduce_dtype = read_dtype(who, value, "reduce") or "f32" }
end

-- "auto" can be f32: then there is nothing to copy.
local function read_copy(who, read)
  local dtype = read.param_dtype or "f32"
  if read.param_copy and dtype ~= "auto" and dtypes.of_use(dtype, "param") == "f32" then
    errors.invalid('%s: param_copy keeps parameters in param_dtype next to their f32 masters, but param_dtype is f32, '
      .. 'in which kernels read the masters: add param_dtype = "bf16", or leave param_copy out', who)
  end
  return read.param_copy or nil
end

---Checks one value of mp_policy and fills in the defaults: f32, gradients summed in f32.
---@param who string for messages
---@param value moonshard.PrecisionOptions|"auto"|nil
---@param dims moonshard.SumDimensions? refuses sums in few bits over a dimension that the mesh does not have
---@return moonshard.MixedPrecision
function precision.read(who, value, dims)
  if value == "auto" then value = { param_dtype = "auto" } end
  if type(value) == "string" then
    errors.invalid('%s must be "auto" or a table such as { param_dtype = "bf16" }, not "%s"', who, value)
  end
  local read = options.parse(who, value, {
    param_dtype = { "string" }, reduce_dtype = { "string|table" }, output_dtype = { "string" },
    param_copy = { "boolean" },
  })
  local all = read_reduce(who .. ".reduce_dtype", read.reduce_dtype, dims)
  all.param_dtype = read_dtype(who .. ".param_dtype", read.param_dtype, "param") or "f32"
  all.output_dtype = read_dtype(who .. ".output_dtype", read.output_dtype, "param")
  all.param_copy = read_copy(who, read)
  return all
end

return precision
