-- Writes what a calibration measured as a cluster description, which price/cluster.lua reads.

local dtypes = require("moonshard.base.dtypes")
local C = require("moonshard.base.ffi").C

local calibration_file = {}

local SHAPES = {
  [tonumber(C.MS_SHAPE_PRODUCT)] = "product", [tonumber(C.MS_SHAPE_ATTENTION)] = "attention",
  [tonumber(C.MS_SHAPE_OTHER)] = "other",
}

local function time(seconds)
  if seconds >= 1e-3 then return ("%.4g ms"):format(1e3 * seconds) end
  return ("%.4g us"):format(1e6 * seconds)
end

local function rate(bytes) return ("%.4g GB/s"):format(1e-9 * bytes) end

local function per_byte(seconds) return ("%.4g ns/B"):format(1e9 * seconds) end

local function flops(rate_of) return ("%.4g TFLOP/s"):format(1e-12 * rate_of) end

local function percent(part) return ("%.4g %%"):format(100 * part) end

-- A number with its digits, not in exponents that lose some.
local function number(value)
  if value % 1 == 0 and value < 2 ^ 53 then return ("%.0f"):format(value) end
  return ("%.6g"):format(value)
end

local function writer()
  local lines, depth = {}, 0
  local w = {}
  function w.line(format, ...)
    lines[#lines + 1] = ("  "):rep(depth) .. (select("#", ...) > 0 and format:format(...) or format)
  end
  function w.open(name)
    w.line(name and "%s = {" or "%s{", name or "return ")
    depth = depth + 1
  end
  function w.close()
    depth = depth - 1
    w.line(depth > 0 and "}," or "}")
  end
  function w.constant(name, value, source)
    w.line(type(value) == "number" and "%s = { %s, %q }," or "%s = { %q, %q },", name,
      type(value) == "number" and number(value) or value, source)
  end
  function w.text() return table.concat(lines, "\n") .. "\n" end
  return w
end

local function write_device(w, d)
  local measured, fitted, c = d.measured, d.fitted, d.rates
  w.open("device")
  w.line("kind = %q,", d.device)
  if d.device == "cpu" then w.constant("cores", d.cores, d.machine) end
  w.constant("memory", ("%.4g GB"):format(1e-9 * d.memory), d.machine)
  w.open("peak")
  for _, name in ipairs(dtypes.with()) do
    local peak = c.peak[dtypes.id(name)]
    if peak > 0 then w.constant(name, flops(peak), "the fastest product, per thread, " .. measured) end
  end
  w.close()
  w.constant("clock", "100 %", "the rates are those of a machine at work")
  w.open("product")
  w.constant("efficiency", percent(c.product.efficiency), fitted)
  w.constant("k_half", c.product.k_half, fitted)
  w.close()
  w.open("attention")
  w.constant("forward", percent(c.attention.forward), fitted)
  w.constant("backward", percent(c.attention.backward), fitted)
  w.constant("keys_half", c.attention.keys_half, fitted)
  w.constant("causal", percent(c.attention.causal), "part of the rates above: all that was measured is causal")
  w.close()
  w.constant("memory_rate", rate(c.memory_rate), fitted)
  w.constant("memory_half", ("%.4g KB"):format(1e-3 * c.memory_half), fitted)
  w.constant("kernel_start", time(c.kernel_start), fitted)
  if d.device == "cuda" then w.constant("issue", time(d.issue), measured) end
  w.constant("phase_gap", time(d.phase_gap), measured)
  w.constant("step_gap", time(d.step_gap), measured)
  w.constant("overlap", "0 %", "collectives take their share in the times of kernels")
  w.close()
end

-- The rate of a node to others, of which the links' are parts: who changes it changes them all.
local function write_network(w, d)
  if not d.network then return end
  w.open("network")
  w.constant("rails", 1, "as one: what a node's ranks move together")
  w.constant("rail", rate(d.network.rail), d.network.rate_source)
  w.close()
end

local function write_links(w, d)
  w.open("links")
  for _, link in ipairs(d.links) do
    w.open(link.kind)
    w.line('algorithm = %q, kinds = { %q },', d.device == "cpu" and "hosts" or "ring", link.kind)
    w.constant("start", time(link.start), d.links_source)
    w.constant("step_inside", "0 us", "part of the start")
    w.constant("inside", rate(link.inside), d.links_source)
    if d.network then
      w.constant("start_between", time(link.start_between), d.network.start_source)
      w.constant("step_between", "0 us", "part of the start")
      w.constant("between", percent(link.between / d.network.rail), d.network.rate_source)
      w.constant("processor", per_byte(link.processor), d.network.processor_source)
    end
    w.close()
  end
  w.close()
end

local function write_points(w, d)
  w.open("kernels")
  w.line("source = %q,", d.measured)
  w.open("points")
  for _, point in ipairs(d.points) do
    local size = {}
    for i = 1, 4 do size[i] = number(point.size[i]) end
    w.line('{ op = %q, shape = %q, dtype = %q, variant = %d, threads = %d, size = { %s }, flops = %s, bytes = %s, '
      .. 'time = %q },', point.op, SHAPES[point.shape], dtypes.names[point.dtype], point.variant, point.threads,
      table.concat(size, ", "), number(point.flops), number(point.bytes), time(point.seconds))
  end
  w.close()
  w.close()
end

---@class moonshard.CalibrationResult
---@field about string
---@field measured string source of what was measured
---@field fitted string source of what was fitted
---@field links_source string
---@field machine string source of what the machine says
---@field device string
---@field ranks_per_node integer
---@field cores integer
---@field memory number bytes
---@field rates ffi.cdata* ms_cluster
---@field issue number? seconds; cuda
---@field phase_gap number
---@field step_gap number
---@field network { rail: number, rate_source: string, start_source: string, processor_source: string }? of several
---hosts; rail: bytes/s of a node
---@field links moonshard.CalibrationLink[]
---@field points moonshard.CalibrationPoint[] that are written
---@field all_points moonshard.CalibrationPoint[]

---The description as Lua.
---@param d moonshard.CalibrationResult
---@return string
function calibration_file.text(d)
  local w = writer()
  w.line("-- Written by `moonshard calibrate`. Give its path to `--cluster`.")
  w.line("")
  w.open()
  w.line("about = %q,", d.about)
  w.constant("ranks_per_node", d.ranks_per_node, "as `moonshard calibrate` was told")
  write_device(w, d)
  write_network(w, d)
  write_links(w, d)
  write_points(w, d)
  w.close()
  return w.text()
end

return calibration_file
