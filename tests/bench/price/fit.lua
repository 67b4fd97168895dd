-- A minimum of any function of a few positive numbers, for constants that no data sheet gives. least_squares.lua is
-- faster where residuals are smooth, and says why both exist.
--
-- Nelder and Mead's simplex, which needs no derivatives, so the function may contain a minimum of several models. It
-- starts again from its best point with a new simplex until that gains nothing, because a simplex can collapse. The
-- numbers are compared by their logarithms: constants of a machine differ by orders of magnitude, and none is
-- negative. Bounds are walls: points beyond them move onto them. There is no randomness, so a fit repeats exactly.

local fit = {}

local REFLECT, EXPAND, CONTRACT, SHRINK = 1, 2, 0.5, 0.5
local FIRST_STEP = 0.3 -- of a number's logarithm, or of its size
local SAME = 1e-7      -- a relative gain that is none

---@class moonshard.bench.FitOptions
---@field lower number[]? bounds, one a number
---@field upper number[]?
---@field evaluations integer? of the function, at most; default 4000
---@field log boolean? numbers are compared by their logarithms (the default); false: as they are

-- The functions between the given numbers and those of the simplex.
local function scale(options)
  if options.log == false then
    local function same(x) return x end
    return same, same
  end
  return math.log, math.exp
end

local function outside(start, options)
  for i, x in ipairs(start) do
    if options.log ~= false and x <= 0 then return i, "it must be positive" end
    if options.lower and x < options.lower[i] then return i, "it is below its lower bound" end
    if options.upper and x > options.upper[i] then return i, "it is above its upper bound" end
  end
end

-- The function of a point of the simplex, which is moved between the bounds; counts its calls.
local function counted(f, options)
  local into, out_of = scale(options)
  local counter = { calls = 0 }
  function counter.at(point)
    local given = {}
    for i, x in ipairs(point) do
      local number = out_of(x)
      if options.lower then number = math.max(number, options.lower[i]) end
      if options.upper then number = math.min(number, options.upper[i]) end
      given[i], point[i] = number, into(number)
    end
    counter.calls = counter.calls + 1
    local value = f(given)
    return { point = point, given = given, value = value == value and value or math.huge }
  end
  return counter
end

-- a + factor * (a - b)
local function beyond(a, b, factor)
  local point = {}
  for i = 1, #a do point[i] = a[i] + factor * (a[i] - b[i]) end
  return point
end

local function centre(corners, n)
  local point = {}
  for i = 1, n do
    point[i] = 0
    for c = 1, n do point[i] = point[i] + corners[c].point[i] / n end
  end
  return point
end

local function sort(corners) table.sort(corners, function(a, b) return a.value < b.value end) end

-- A point with one number moved.
local function moved(point, i, distance)
  local copy = { unpack(point) }
  copy[i] = copy[i] + distance
  return copy
end

local function simplex(counter, best, step)
  local corners = { best }
  for i, x in ipairs(best.point) do
    local corner = counter.at(moved(best.point, i, step(x)))
    -- A bound stopped it: this corner goes to the other side.
    if corner.point[i] == x then corner = counter.at(moved(best.point, i, -step(x))) end
    corners[#corners + 1] = corner
  end
  sort(corners)
  return corners
end

local function improve(counter, corners)
  local n = #corners - 1
  local worst, middle = corners[n + 1], centre(corners, n)
  local trial = counter.at(beyond(middle, worst.point, REFLECT))
  if trial.value < corners[1].value then
    local further = counter.at(beyond(middle, worst.point, EXPAND))
    corners[n + 1] = further.value < trial.value and further or trial
  elseif trial.value < corners[n].value then
    corners[n + 1] = trial
  else
    local closer = counter.at(beyond(middle, (trial.value < worst.value and trial or worst).point, -CONTRACT))
    if closer.value < math.min(trial.value, worst.value) then
      corners[n + 1] = closer
    else
      for c = 2, n + 1 do
        corners[c] = counter.at(beyond(corners[1].point, corners[c].point, -SHRINK))
      end
    end
  end
  sort(corners)
end

local function converged(corners)
  local low, high = corners[1].value, corners[#corners].value
  return high - low <= SAME * (math.abs(low) + SAME)
end

---The numbers at which f is smallest, near `start`.
---@param f fun(numbers: number[]): number NaN counts as infinite
---@param start number[]
---@param options moonshard.bench.FitOptions?
---@return number[] best
---@return number value f(best)
function fit.minimize(f, start, options)
  options = options or {}
  local wrong, why = outside(start, options)
  if wrong then error(("fit: number %d of the start is %g: %s"):format(wrong, start[wrong], why), 2) end
  local into = scale(options)
  local function step(x) return options.log == false and FIRST_STEP * math.max(math.abs(x), 1e-3) or FIRST_STEP end
  local counter, point, most = counted(f, options), {}, options.evaluations or 4000
  for i, x in ipairs(start) do point[i] = into(x) end
  local best = counter.at(point)
  while counter.calls < most do
    local corners = simplex(counter, best, step)
    while counter.calls < most and not converged(corners) do improve(counter, corners) end
    local gain = best.value - corners[1].value
    best = corners[1]
    if gain <= 1e-4 * math.abs(best.value) then break end
  end
  return best.given, best.value
end

return fit
