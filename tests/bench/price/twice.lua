-- How far two calibrations of this machine are apart, kernel by kernel.
--
--   make bench-price PART=twice
--
-- Writes BUILD/price/first.lua and second.lua. The machine should do nothing else meanwhile; it takes about three
-- minutes. A kernel that only one of the two descriptions has is compared with what the other tells of it.

local cluster = require("moonshard.price.cluster")
local engine = require("moonshard.base.ffi")
local errors = dofile("tests/bench/price/error_table.lua")
local C, ffi = engine.C, engine.ffi

local build = arg[1] or "build"
local SHAPES = { [0] = "products", "attention", "others" } -- by enum ms_kernel_shape

local function calibrated(name)
  local path = ("%s/price/%s.lua"):format(build, name)
  local command = ("%s/release/moonshard calibrate --out %s >/dev/null"):format(build, path)
  assert(os.execute("mkdir -p " .. build .. "/price") == 0)
  if os.execute(command) ~= 0 then error(command .. " failed", 0) end
  return cluster.load(path)
end

local function seconds(described, work)
  local out = ffi.new("double[1]")
  engine.check(C.ms_cluster_kernel_time(described:struct(), work, ffi.sizeof("ms_kernel_work"), out))
  return out[0]
end

-- The kernels of both descriptions: predicted is the second one's time, measured the first one's.
local function compared(first, second)
  local groups, order, all = {}, {}, {}
  for _, described in ipairs({ first, second }) do
    for i = 0, described:struct().points - 1 do
      local work = described.points[i]
      local name = ("%s, %d thread%s"):format(SHAPES[work.shape], work.threads, work.threads == 1 and "" or "s")
      if not groups[name] then groups[name], order[#order + 1] = {}, name end
      local row = { predicted = seconds(second, work), measured = seconds(first, work) }
      table.insert(groups[name], row)
      all[#all + 1] = row
    end
  end
  table.sort(order)
  return groups, order, all
end

local groups, order, all = compared(calibrated("first"), calibrated("second"))
local rows = {}
for i, name in ipairs(order) do rows[i] = { name = name, errors = errors.summarize(groups[name]) } end
rows[#rows + 1] = { name = "all", errors = errors.summarize(all) }
errors.print("kernels of the second of two calibrations, over the first", rows)
