-- Decides whether numbers of two runs are equal: a model on many ranks, and the same model on one.
--
-- A difference is relative to the largest value of a tensor, because sums in a different order round on that scale. The
-- tolerance depends on the type that the kernels compute in (base/dtypes.lua) and on the optimizer
-- (engine/optimizers.lua). This file needs no engine: it also compares runs on another machine.

local tolerance = {}

---Optimizer steps amplify the rounding of gradients: the tolerance of parameters is this many times as large.
tolerance.PARAMETERS = 10

---Tolerance of the optimizer's averages of gradients, before any division.
tolerance.MOMENTS = 5

---Lower bound for the scale of a tensor.
tolerance.MIN_SCALE = 1e-3

---Whether an excess is larger than another; NaN is larger than any number.
---@param excess number
---@param other number
---@return boolean
function tolerance.is_worse(excess, other)
  return excess > other or (excess ~= excess and other == other)
end

---@class moonshard.Difference the element with the largest difference relative to its tolerance
---@field at integer element, from 0
---@field expected number
---@field got number
---@field allowed number
---@field excess number difference divided by `allowed`; above 1, or NaN, when the values differ
---@field differs boolean
---@field first integer? the first element that differs, from 0

---Compares the effect of training on one tensor as a whole: an update, or moments. Measures the norm of the difference
---relative to the norm of the expected values, so that a small update of large weights counts like a large one.
---@param expected table|ffi.cdata*
---@param got table|ffi.cdata*
---@param o { count: integer, first: integer?, tolerance: number, rounding: number?, slack: number? } first: as for
---  tolerance.arrays; rounding: rounding error of storing an element, default 0; slack: additional norm allowed
---@return { difference: number, norm: number, allowed: number, excess: number, differs: boolean }
function tolerance.changes(expected, got, o)
  local first, squares, differences = o.first or 1, 0, 0
  for i = first, first + o.count - 1 do
    squares, differences = squares + expected[i] ^ 2, differences + (expected[i] - got[i]) ^ 2
  end
  local norm, difference = math.sqrt(squares), math.sqrt(differences)
  local allowed = o.tolerance * norm + (o.rounding or 0) * math.sqrt(o.count) + (o.slack or 0)
  local excess = difference == 0 and 0 or difference / allowed
  return { difference = difference, norm = norm, allowed = allowed, excess = excess,
    differs = excess > 1 or excess ~= excess }
end

---The largest magnitude of elements, or of their differences from `from`.
---@param values table|ffi.cdata*
---@param first integer
---@param count integer
---@param from (table|ffi.cdata*)? values to subtract
---@return number
function tolerance.largest(values, first, count, from)
  local largest = 0
  for i = first, first + count - 1 do largest = math.max(largest, math.abs(values[i] - (from and from[i] or 0))) end
  return largest
end

---Compares two arrays, or lists.
---@param expected table|ffi.cdata*
---@param got table|ffi.cdata*
---@param o { count: integer, first: integer?, tolerance: number, scale: number?, slack: (fun(at: integer): number)? }
---  first: index of the first element, default 1 (lists); scale: what tolerance is relative to, default the largest
---  value; slack: additional difference allowed for an element
---@return moonshard.Difference? nil when there are no elements
function tolerance.arrays(expected, got, o)
  local first = o.first or 1
  local scale = o.scale or math.max(tolerance.MIN_SCALE, tolerance.largest(expected, first, o.count))
  local worst, first_that_differs
  for i = first, first + o.count - 1 do
    local allowed = o.tolerance * scale + (o.slack and o.slack(i - first) or 0)
    local difference = math.abs(expected[i] - got[i])
    local excess = difference == 0 and 0 or difference / allowed
    local differs = excess > 1 or excess ~= excess
    if differs then first_that_differs = first_that_differs or i - first end
    if not worst or tolerance.is_worse(excess, worst.excess) then
      worst = { at = i - first, expected = expected[i], got = got[i], allowed = allowed, excess = excess,
        differs = differs }
    end
  end
  if worst then worst.first = first_that_differs end
  return worst
end

return tolerance
