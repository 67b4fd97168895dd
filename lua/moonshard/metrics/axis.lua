-- Axes of a chart: round values that divide a range into a few parts.

local axis = {}

-- 1, 2 or 5 times a power of ten, chosen to divide the range into about `parts` parts.
local function round_step(range, parts)
  local raw = range / parts
  local magnitude = 10 ^ math.floor(math.log10(raw))
  for _, factor in ipairs({ 1, 2, 5 }) do
    if raw <= factor * magnitude * 1.0000001 then return factor * magnitude end
  end
  return 10 * magnitude
end

---The ranges of the finite points of all curves; empty ranges are widened.
---@param curves { points: number[][] }[]
---@return { x_low: number, x_high: number, y_low: number, y_high: number }? range nil if no point is finite
function axis.range(curves)
  local range
  for _, curve in ipairs(curves) do
    for _, point in ipairs(curve.points) do
      local x, y = point[1], point[2]
      if y - y == 0 then
        range = range or { x_low = x, x_high = x, y_low = y, y_high = y }
        range.x_low, range.x_high = math.min(range.x_low, x), math.max(range.x_high, x)
        range.y_low, range.y_high = math.min(range.y_low, y), math.max(range.y_high, y)
      end
    end
  end
  if not range then return nil end
  if range.x_low == range.x_high then range.x_high = range.x_low + 1 end
  if range.y_low == range.y_high then
    local half = math.max(math.abs(range.y_low) * 0.05, 1e-6)
    range.y_low, range.y_high = range.y_low - half, range.y_high + half
  end
  return range
end

---Round values from low to high, with enough decimals to distinguish them.
---@param low number
---@param high number more than low
---@param parts integer approximate number of values
---@param whole boolean? whole numbers only
---@return { value: number, text: string }[]
function axis.ticks(low, high, parts, whole)
  local step = math.max(round_step(high - low, parts), whole and 1 or 0)
  local exponent = math.floor(math.log10(step) + 1e-9)
  local decimals = exponent < 0 and -exponent or 0
  local ticks = {}
  for i = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) do
    local value = i * step + 0 -- avoids -0
    ticks[#ticks + 1] = { value = value, text = ("%." .. decimals .. "f"):format(value) }
  end
  return ticks
end

-- With fewer powers than this, an axis has values between them, too.
local MAX_DIVIDED = 3

---Values of a logarithmic axis: powers of the base, and of ten also two and five times them where there are few.
---@param low number above 0
---@param high number
---@param base integer
---@return number[]
function axis.log_ticks(low, high, base)
  local first, last = math.floor(math.log(low) / math.log(base)), math.ceil(math.log(high) / math.log(base))
  local factors, values = base == 10 and last - first <= MAX_DIVIDED and { 1, 2, 5 } or { 1 }, {}
  for exponent = first, last do
    for _, factor in ipairs(factors) do
      local value = factor * base ^ exponent
      if value >= low * (1 - 1e-9) and value <= high * (1 + 1e-9) then values[#values + 1] = value end
    end
  end
  return values
end

-- Sums of a list's values and weights from one end, each value counting less the further back it is.
local function decayed(values, keep, first, last, step)
  local sum, weight, list = 0, 0, {}
  for i = first, last, step do
    sum, weight = keep * sum + values[i][2], keep * weight + 1
    list[i] = { sum, weight }
  end
  return list
end

---The mean around each finite point of a curve; the weight of others halves every `half_life` points to either side, so
---that the mean does not lag behind the curve.
---@param points number[][]
---@param half_life number measured in points
---@return number[][]
function axis.smooth(points, half_life)
  local keep, finite, smoothed = 0.5 ^ (1 / half_life), {}, {}
  for _, point in ipairs(points) do
    if point[2] - point[2] == 0 then finite[#finite + 1] = point end
  end
  local before, after = decayed(finite, keep, 1, #finite, 1), decayed(finite, keep, #finite, 1, -1)
  for i, point in ipairs(finite) do
    local a, b = before[i], after[i]
    smoothed[i] = { point[1], (a[1] + b[1] - point[2]) / (a[2] + b[2] - 1) }
  end
  return smoothed
end

return axis
