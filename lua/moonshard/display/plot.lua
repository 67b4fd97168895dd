-- Curves and histograms of values in the terminal: ms.plot and ms.histogram, at the prompt and in recipes. Every rank
-- calls them, as it does what returns the values, such as train:gradient(name); rank 0 prints.

local chart = require("moonshard.metrics.chart")
local context = require("moonshard.base.context")
local errors = require("moonshard.base.error")
local log = require("moonshard.metrics.log")
local options = require("moonshard.base.checks.options")
local parameter = require("moonshard.tensor.parameter")
local tensor = require("moonshard.tensor")
local terminal = require("moonshard.base.text.terminal")
local tensor_values = require("moonshard.tensor.values")
local world = require("moonshard.distributed.world")

local plot = {}

local COLUMNS = 78 -- at most
local MIN_BINS, MAX_BINS = 10, 60

-- ---- what is drawn ----------------------------------------------------------------------------------------------

local function refuse(who, value, takes)
  if parameter.is(value) then
    errors.invalid("%s: a parameter has no values here: give train:parameter(name) or train:gradient(name)", who)
  end
  local is_empty = type(value) == "table" and next(value) == nil and getmetatable(value) == nil
  errors.invalid("%s takes %s, not %s", who, takes, is_empty and "an empty table" or options.describe(value))
end

-- The numbers of an eager tensor in row-major order, and how many.
local function numbers_of(x) return tensor_values.readable(x).data, x:numel() end

local function points_of_tensor(who, x)
  if #x.shape > 1 then
    errors.raise("MS_ESHAPE", "%s of a tensor %s: a curve has one axis: choose a part, x[0], or a mean, x:mean(0), or "
      .. "draw the distribution, ms.histogram(x)", who, tensor.shape_text(x.shape))
  end
  local points, data, count = {}, numbers_of(x)
  for i = 0, count - 1 do points[i + 1] = { i, data[i] } end
  return points
end

local function is_pair(item)
  return type(item) == "table" and getmetatable(item) == nil and #item == 2 and type(item[1]) == "number"
    and type(item[2]) == "number"
end

-- Numbers are at 1, 2, ...; pairs are { x, y }.
local function points_of_list(who, list)
  local points = {}
  for i, item in ipairs(list) do
    if is_pair(item) then points[i] = item
    elseif type(item) == "number" then points[i] = { i, item }
    elseif tensor.is_eager(item) and item:numel() == 1 then points[i] = { i, item:item() }
    else errors.invalid("%s: item %d must be a number or a pair { x, y }, not %s", who, i, options.describe(item)) end
  end
  return points
end

local TAKES = "a tensor, a list of numbers or of pairs { x, y }, or several of these by name, { train = a, valid = b }"

local function points_of(who, value)
  if tensor.is_eager(value) then return points_of_tensor(who, value) end
  if type(value) ~= "table" or getmetatable(value) ~= nil or #value == 0 then refuse(who, value, TAKES) end
  return points_of_list(who, value)
end

-- The curves, those with names sorted by them.
local function curves_of(given)
  if type(given) ~= "table" or getmetatable(given) ~= nil or #given > 0 or options.is_array(given) then
    return { { points = points_of("ms.plot", given) } }
  end
  local curves = {}
  for name, value in pairs(given) do
    curves[#curves + 1] = { name = tostring(name), points = points_of("ms.plot: " .. tostring(name), value) }
  end
  if #curves == 0 then refuse("ms.plot", given, TAKES) end
  table.sort(curves, function(a, b) return a.name < b.name end)
  return curves
end

-- ---- drawing ----------------------------------------------------------------------------------------------------

local function is_shown() return not world.plan_only and (world.rank == 0 or context.alone) end

local function print_chart(curves, o)
  o.columns, o.colour = math.min(terminal.columns(), COLUMNS), terminal.interactive()
  log.print(chart.text(curves, o))
end

-- Whether places along x are not all whole numbers.
local function has_fractions(curves)
  for _, curve in ipairs(curves) do
    for _, point in ipairs(curve.points) do
      if point[1] % 1 ~= 0 then return true end
    end
  end
  return false
end

local function title_of(given, title)
  return title or tensor.is_eager(given) and tostring(given) or ""
end

---@class moonshard.PlotOptions
---@field title? string default: a tensor's type and shape
---@field x? string what is along x
---@field rows? integer lines of the chart; default 14

---Draws curves in the terminal; all ranks call it, and rank 0 prints. Values that are not finite are left out.
---@param values moonshard.Tensor|table a tensor with one axis; a list of numbers, which are at 1, 2, ..., or of pairs
---  { x, y }; or several of these by name: { train = losses, valid = { { 100, 3.2 }, { 200, 2.9 } } }
---@param o moonshard.PlotOptions?
function plot.plot(values, o)
  o = options.parse("ms.plot", o, { title = { "string" }, x = { "string", default = "" }, rows = { "positive" } })
  local curves = curves_of(values)
  if not is_shown() then return end
  print_chart(curves, { title = title_of(values, o.title), x = o.x, rows = o.rows, fractions = has_fractions(curves) })
end

-- ---- distributions ----------------------------------------------------------------------------------------------

-- Count, mean, standard deviation and range of the finite numbers, and how many are not finite.
local function summarize(data, count)
  local s = { n = 0, mean = 0, squares = 0, low = math.huge, high = -math.huge, nan = 0, infinite = 0 }
  for i = 0, count - 1 do
    local x = tonumber(data[i])
    if x - x == 0 then
      s.n = s.n + 1
      local from = x - s.mean
      s.mean = s.mean + from / s.n
      s.squares = s.squares + from * (x - s.mean)
      s.low, s.high = math.min(s.low, x), math.max(s.high, x)
    elseif x ~= x then
      s.nan = s.nan + 1
    else
      s.infinite = s.infinite + 1
    end
  end
  return s
end

local function describe(s)
  local text = ("%d values, mean %.4g, std %.4g, from %.4g to %.4g"):format(s.n, s.mean,
    math.sqrt(s.squares / math.max(1, s.n - 1)), s.low, s.high)
  if s.nan > 0 then text = text .. ("; %d NaN"):format(s.nan) end
  if s.infinite > 0 then text = text .. ("; %d infinite"):format(s.infinite) end
  return text
end

-- Bars { begin, count, end }.
local function bars_of(data, count, s, bins)
  local counts, width = {}, (s.high - s.low) / bins
  for bin = 0, bins - 1 do counts[bin] = 0 end
  for i = 0, count - 1 do
    local x = tonumber(data[i])
    if x - x == 0 then
      local bin = math.min(bins - 1, math.floor((x - s.low) / width))
      counts[bin] = counts[bin] + 1
    end
  end
  local bars, highest = {}, 0
  for bin = 0, bins - 1 do
    bars[bin + 1] = { s.low + bin * width, counts[bin], s.low + (bin + 1) * width }
    highest = math.max(highest, counts[bin])
  end
  return bars, highest
end

-- The numbers of a list, as an array from 0 like a tensor's data.
local function array_of(list)
  local data = {}
  for i, item in ipairs(list) do
    if type(item) ~= "number" then
      errors.invalid("ms.histogram: item %d must be a number, not %s", i, options.describe(item))
    end
    data[i - 1] = item
  end
  return data, #list
end

---@class moonshard.HistogramOptions
---@field bins? integer bars; default: the square root of the number of values, 10 to 60
---@field title? string default: a tensor's type and shape
---@field rows? integer lines of the chart; default 14

---Draws in the terminal how values are distributed, with their mean, standard deviation and range; all ranks call it,
---and rank 0 prints: ms.histogram(train:gradient("head.weight")). Values that are not finite are counted apart.
---@param values moonshard.Tensor|number[] a tensor of any shape, or a list
---@param o moonshard.HistogramOptions?
function plot.histogram(values, o)
  o = options.parse("ms.histogram", o, {
    bins = { "positive" }, title = { "string" }, rows = { "positive" },
  })
  local data, count
  if tensor.is_eager(values) then data, count = numbers_of(values)
  elseif type(values) == "table" and getmetatable(values) == nil and #values > 0 then data, count = array_of(values)
  else refuse("ms.histogram", values, "a tensor or a list of numbers") end
  if not is_shown() then return end
  local s = summarize(data, count)
  local title = title_of(values, o.title)
  title = title .. (title ~= "" and ": " or "") .. describe(s)
  if s.n == 0 then return log.print(title) end
  if s.low == s.high then s.low, s.high = s.low - 0.5, s.high + 0.5 end
  local bins = o.bins or math.max(MIN_BINS, math.min(MAX_BINS, math.ceil(math.sqrt(s.n))))
  local bars, highest = bars_of(data, count, s, bins)
  print_chart({ { points = bars, bars = true } }, { title = title, x = "", rows = o.rows, fractions = true,
    range = { x_low = s.low, x_high = s.high, y_low = 0, y_high = highest } })
end

return plot
