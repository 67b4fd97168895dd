-- Finds the rate with the lowest loss among points that differ in one positive setting, such as the learning rate.

local grid = require("moonshard.sweep.grid")

local minimum = {}

---Rounds a rate to two digits, which are enough for a learning rate and easier to read.
---@param rate number
---@return number
function minimum.rounded(rate) return tonumber(("%.1e"):format(rate)) end

---The measured points, sorted by rate.
---@param report moonshard.SweepReport
---@param setting string the setting that contains the rate
---@return { rate: number, loss: number }[]
---@return number[] failed the rates of points that failed, as those whose loss was NaN
function minimum.measured(report, setting)
  local list, failed = {}, {}
  for _, record in ipairs(report.records) do
    local rate = record.point[setting]
    if record.status == "ok" then list[#list + 1] = { rate = rate, loss = record.loss } end
    if record.status == "failed" and type(rate) == "number" then failed[#failed + 1] = rate end
  end
  table.sort(list, function(a, b) return a.rate < b.rate end)
  table.sort(failed)
  return list, failed
end

-- The x at which the parabola through three points is lowest; the middle point is the lowest of the three.
local function lowest_of_parabola(x, y)
  local left, right = x[2] - x[1], x[2] - x[3]
  local to_left, to_right = y[2] - y[1], y[2] - y[3]
  local divisor = left * to_right - right * to_left
  if divisor == 0 then return x[2] end
  return x[2] - (left ^ 2 * to_right - right ^ 2 * to_left) / (2 * divisor)
end

---The rate with the lowest loss, refined by its neighbours, and a sentence that states it.
---@param list { rate: number, loss: number }[] sorted by rate
---@param failed number[]? rates that have no loss, sorted
---@return number?, string
function minimum.advise(list, failed)
  if #list == 0 then return nil, "no rate was measured" end
  local best = 1
  for i, point in ipairs(list) do
    if point.loss < list[best].loss then best = i end
  end
  local rate, text = list[best].rate, ("lowest loss %.4f at %s"):format(list[best].loss, grid.text(list[best].rate))
  local over = rate
  for _, other in ipairs(failed or {}) do
    if other > rate and over == rate then over = other end
  end
  if best == #list and over > rate then
    return rate, ("%s, the highest rate that did not fail: %s did; try rates between them"):format(text,
      grid.text(over))
  end
  if best == #list or best == 1 then
    return rate, ("%s, the %s rate of the sweep: try rates %s"):format(text,
      best == 1 and "lowest" or "highest", best == 1 and "below it, or between it and the next one" or "above it")
  end
  local x, y = {}, {}
  for i = 1, 3 do
    x[i], y[i] = math.log(list[best - 2 + i].rate), list[best - 2 + i].loss
  end
  local refined = minimum.rounded(math.exp(lowest_of_parabola(x, y)))
  return refined, ("%s; a parabola through it and its neighbours is lowest at %s"):format(text, grid.text(refined))
end

return minimum
