-- Robust least squares for smooth functions of a few positive numbers: damped Gauss-Newton steps on their logarithms.
--
-- Minimizes the sum of soft(residual) and of ((log x - log start) / spread)^2. Residuals are in units of their usual
-- size; soft grows like a square for small ones and like the size itself for large ones, so that few disturbed
-- measurements do not decide. Derivatives are differences. Numbers stay between their bounds.
--
-- Two other fits are of other problems. fit.lua minimizes any function, such as one with the minimum of several links
-- in it: these steps, tried on collectives, predict all-reduces of 128 nodes by 13 % instead of 10 %. The calibration
-- (calibrate/least_squares.lua) solves a linear problem whose unknowns may be zero, so they have no logarithm.

local least_squares = {}

---@class moonshard.bench.Unknown
---@field start number
---@field spread number of the logarithm
---@field low number
---@field high number

local STEP = 2e-3       -- of a logarithm, for differences
local ROUNDS = 8        -- at most
local ENOUGH = 1e-3     -- a relative gain that ends the search

-- The loss of a residual r: 2 (sqrt(1 + r^2) - 1).
local function soft(r) return 2 * (math.sqrt(1 + r * r) - 1) end

local function values_of(unknowns, logs)
  local values = {}
  for i, unknown in ipairs(unknowns) do
    logs[i] = math.min(math.max(logs[i], math.log(unknown.low)), math.log(unknown.high))
    values[i] = math.exp(logs[i])
  end
  return values
end

local function cost_of(unknowns, logs, residuals)
  local sum = 0
  for _, r in ipairs(residuals) do sum = sum + soft(r) end
  for i, unknown in ipairs(unknowns) do sum = sum + ((logs[i] - math.log(unknown.start)) / unknown.spread) ^ 2 end
  return sum
end

-- Solves a x = b for a symmetric positive definite matrix, in place (Cholesky).
local function solve(a, b)
  local n = #b
  for i = 1, n do
    for j = 1, i do
      local sum = a[i][j]
      for k = 1, j - 1 do sum = sum - a[i][k] * a[j][k] end
      a[i][j] = i == j and math.sqrt(math.max(sum, 1e-300)) or sum / a[j][j]
    end
  end
  local x = {}
  for i = 1, n do
    local sum = b[i]
    for k = 1, i - 1 do sum = sum - a[i][k] * x[k] end
    x[i] = sum / a[i][i]
  end
  for i = n, 1, -1 do
    local sum = x[i]
    for k = i + 1, n do sum = sum - a[k][i] * x[k] end
    x[i] = sum / a[i][i]
  end
  return x
end

-- Rows of differences: by unknown, then by residual.
local function slopes(f, unknowns, logs, residuals)
  local rows = {}
  for i in ipairs(unknowns) do
    local moved = { unpack(logs) }
    local step = logs[i] + STEP > math.log(unknowns[i].high) and -STEP or STEP
    moved[i] = moved[i] + step
    local there, row = f(values_of(unknowns, moved)), {}
    for k, r in ipairs(residuals) do row[k] = (there[k] - r) / step end
    rows[i] = row
  end
  return rows
end

-- The normal equations, with weights that make soft squares of large residuals.
local function equations(unknowns, logs, residuals, rows)
  local a, b = {}, {}
  for i, unknown in ipairs(unknowns) do
    a[i] = {}
    for j in ipairs(unknowns) do a[i][j] = 0 end
    a[i][i] = 1 / unknown.spread ^ 2
    b[i] = -(logs[i] - math.log(unknown.start)) / unknown.spread ^ 2
  end
  for k, r in ipairs(residuals) do
    local weight = 1 / math.sqrt(1 + r * r)
    for i in ipairs(unknowns) do
      b[i] = b[i] - weight * rows[i][k] * r
      for j = 1, i do a[i][j] = a[i][j] + weight * rows[i][k] * rows[j][k] end
    end
  end
  return a, b
end

local function damped(a, damping)
  local copy = {}
  for i, row in ipairs(a) do
    copy[i] = { unpack(row) }
    copy[i][i] = row[i] * (1 + damping)
  end
  return copy
end

---@param f fun(values: number[]): number[] residuals
---@param unknowns moonshard.bench.Unknown[]
---@return number[] values
function least_squares.minimize(f, unknowns)
  local logs, damping = {}, 0.01
  for i, unknown in ipairs(unknowns) do logs[i] = math.log(unknown.start) end
  local residuals = f(values_of(unknowns, logs))
  local cost = cost_of(unknowns, logs, residuals)
  for _ = 1, ROUNDS do
    local a, b = equations(unknowns, logs, residuals, slopes(f, unknowns, logs, residuals))
    local gain
    repeat
      local change, there = solve(damped(a, damping), { unpack(b) }), {}
      for i, x in ipairs(change) do there[i] = logs[i] + math.min(math.max(x, -1), 1) end
      local found = f(values_of(unknowns, there))
      local next_cost = cost_of(unknowns, there, found)
      gain = cost - next_cost
      if gain > 0 then
        logs, residuals, cost, damping = there, found, next_cost, damping / 5
      else
        damping = damping * 5
      end
    until gain > 0 or damping > 1e4
    if gain <= ENOUGH * cost then break end
  end
  return values_of(unknowns, logs)
end

return least_squares
