-- Measured kernels of a cluster description, as a calibration writes them:
--
--   kernels = {
--     source = "moonshard calibrate on a Ryzen 9600X, 2 of 6 cores",
--     points = {
--       { op = "matmul", dtype = "bf16", variant = 2, threads = 1, size = { 1, 512, 512, 512 }, flops = 2.68e8,
--         bytes = 1.57e6, time = "640 us" },
--     },
--   }
--
-- The numbers are those of ms_kernel_work in moonshard.h.

local dtypes = require("moonshard.base.dtypes")
local engine = require("moonshard.base.ffi")
local nearest = require("moonshard.base.names.nearest")
local quantity = require("moonshard.price.quantity")
local C, ffi, check = engine.C, engine.ffi, engine.check

local kernel_points = {}

local SHAPES = { product = C.MS_SHAPE_PRODUCT, attention = C.MS_SHAPE_ATTENTION, other = C.MS_SHAPE_OTHER }

---@class moonshard.KernelPoint
---@field op string
---@field shape string product, attention or other: what `size` counts
---@field dtype string
---@field variant integer
---@field threads integer
---@field size number[] four
---@field flops number
---@field bytes number
---@field time string "640 us"

local SHAPE_NAMES = {}
for name, id in pairs(SHAPES) do SHAPE_NAMES[id] = name end

local KEYS = { op = true, shape = true, dtype = true, variant = true, threads = true, size = true, flops = true,
  bytes = true, time = true }

local MAX_INTEGER = 2 ^ 31 - 1 -- of C
local MAX = 1e30 -- of operations, bytes and elements, as the engine takes them

local function natural(value, least)
  return type(value) == "number" and value >= least and value <= MAX_INTEGER and value % 1 == 0
end

local function positive(value) return type(value) == "number" and value > 0 and value <= MAX end

-- Whether a table has nothing but what #table counts: ipairs would not see the rest.
local function is_list(given)
  local count = 0
  for _ in pairs(given) do count = count + 1 end
  return count == #given
end

local info = ffi.new("ms_op_info")

-- What is wrong with a point: a key and a text.
local function fault(point)
  if type(point) ~= "table" then return nil, "a point is a table, not a " .. type(point) end
  for key in pairs(point) do
    if not KEYS[key] then return tostring(key), "unknown field: " .. nearest.advice(key, KEYS) end
  end
  if type(point.op) ~= "string" then return "op", "is missing" end
  if C.ms_op_find(point.op) < 0 then return "op", "there is no op " .. point.op end
  if not SHAPES[point.shape] then return "shape", nearest.advice(point.shape, SHAPES) end
  check(C.ms_op_describe(C.ms_op_find(point.op), info, ffi.sizeof(info)))
  local shape = SHAPE_NAMES[info.kernel_shape]
  if point.shape ~= shape then
    return "shape", ('is "%s", and sizes of %s are counted as "%s"'):format(point.shape, point.op, shape)
  end
  if not dtypes.may(point.dtype, "product") then
    return "dtype", ("%s: must be %s"):format(tostring(point.dtype), dtypes.list("product"))
  end
  if not natural(point.variant, 0) then return "variant", "must be a whole number, flags of moonshard.h, below 2^31" end
  if not natural(point.threads, 1) then return "threads", "must be a whole number of at least 1, below 2^31" end
  if type(point.size) ~= "table" or #point.size ~= 4 then return "size", "must be four numbers" end
  for i = 1, 4 do
    if not positive(point.size[i]) then return "size", "must be four numbers above 0, at most 1e30" end
  end
  if point.flops ~= 0 and not positive(point.flops) then return "flops", "must be a number from 0 to 1e30" end
  if not positive(point.bytes) then return "bytes", "must be a number above 0, at most 1e30" end
  local seconds, why = quantity.read(point.time, "time")
  if not seconds then return "time", why end
  if seconds <= 0 then return "time", "must be above 0" end
end

---Checks the field `kernels` of a description.
---@param given any
---@param wrong fun(place: string?, format: string, ...: any) raises
---@return { source: string, points: moonshard.KernelPoint[] }
function kernel_points.read(given, wrong)
  if type(given) ~= "table" then wrong(nil, "must be { source = ..., points = { ... } }") end
  for key in pairs(given) do
    if key ~= "source" and key ~= "points" then
      wrong(tostring(key), "unknown field: %s", nearest.advice(key, { source = true, points = true }))
    end
  end
  if type(given.source) ~= "string" or given.source == "" then wrong("source", "is missing: say what measured them") end
  if type(given.points) ~= "table" or not is_list(given.points) then
    wrong("points", "must be a list of measured kernels")
  end
  for i, point in ipairs(given.points) do
    local key, why = fault(point)
    if why then wrong(("points[%d]%s"):format(i, key and "." .. key or ""), "%s", why) end
  end
  return given
end

---Measured kernels as the engine takes them.
---@param points moonshard.KernelPoint[]
---@return ffi.cdata* ms_kernel_work [#points]
function kernel_points.array(points)
  local array = ffi.new("ms_kernel_work[?]", math.max(1, #points))
  for i, point in ipairs(points) do
    local to = array[i - 1]
    to.op, to.shape = C.ms_op_find(point.op), SHAPES[point.shape]
    to.dtype, to.variant, to.threads = dtypes.id(point.dtype), point.variant, point.threads
    to.flops, to.bytes = point.flops, point.bytes
    for k = 1, 4 do to.size[k - 1] = point.size[k] end
    to.seconds = quantity.read(point.time, "time")
  end
  return array
end

return kernel_points
