-- When numbers of two runs count as the same: those of a model on many ranks, and of the same model on one.
--
-- A difference is measured against the largest value of a tensor, since sums of other order round by that. How large it
-- may be depends on the type that the kernels compute in.

local tolerance = {}

-- By dtype: what losses may differ by, and the norm of gradients, which bf16 rounds one by one.
local TOLERANCES = { f32 = 1e-5, bf16 = 2e-2 }
local NORM_TOLERANCES = { f32 = 1e-5, bf16 = 5e-2 }

---Steps of an optimizer turn rounding of gradients into more of it: of parameters this many times as much is allowed.
tolerance.PARAMETERS = 10

---Of one step's update, by the optimizer. AdamW's first steps are signs of gradients, which rounding decides where
---these are small.
tolerance.UPDATE = { adamw = 10, sgd = 2 }

---Of all that training changed, by the optimizer: differences of earlier steps make later ones.
tolerance.TRAINING = { adamw = 10, sgd = 5 }

---Of what the optimizer averages of gradients, before it divides anything.
tolerance.MOMENTS = 5

---The least that a tensor's largest value counts as.
tolerance.LEAST_SCALE = 1e-3

---@param dtype string "f32" or "bf16": what kernels compute in
---@return number relative
function tolerance.of_dtype(dtype) return TOLERANCES[dtype] end

---@param dtype string
---@return number relative, of the gradients' norm
function tolerance.of_norm(dtype) return NORM_TOLERANCES[dtype] end

---Whether an excess is larger than another; NaN is larger than any number.
---@param excess number
---@param other number
---@return boolean
function tolerance.is_worse(excess, other)
  return excess > other or (excess ~= excess and other == other)
end

---@class moonshard.Difference the element that is off by the most, beside what it may be off by
---@field at integer element, from 0
---@field expected number
---@field got number
---@field allowed number
---@field excess number difference over what is allowed; above 1, or not a number, when the values differ
---@field differs boolean
---@field first integer? the first element that differs, from 0

---Compares what training did to one tensor, as a whole: an update, or moments. The norm of the difference is measured
---against the norm of what is expected, so that a small update of large weights counts as a large one does.
---@param expected table|ffi.cdata*
---@param got table|ffi.cdata*
---@param o { count: integer, first: integer?, tolerance: number, rounding: number? } first: as of tolerance.arrays;
---  rounding: what storing rounds an element by, 0 unless told
---@return { difference: number, norm: number, allowed: number, excess: number, differs: boolean }
function tolerance.changes(expected, got, o)
  local first, squares, differences = o.first or 1, 0, 0
  for i = first, first + o.count - 1 do
    squares, differences = squares + expected[i] ^ 2, differences + (expected[i] - got[i]) ^ 2
  end
  local norm, difference = math.sqrt(squares), math.sqrt(differences)
  local allowed = o.tolerance * norm + (o.rounding or 0) * math.sqrt(o.count)
  local excess = difference == 0 and 0 or difference / allowed
  return { difference = difference, norm = norm, allowed = allowed, excess = excess,
    differs = excess > 1 or excess ~= excess }
end

---The largest magnitude among elements, or of how they differ from others.
---@param values table|ffi.cdata*
---@param first integer
---@param count integer
---@param from (table|ffi.cdata*)? the others
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
---  first: index of the first element, 1 (lists) unless told; scale: what tolerance is relative to, the largest value
---  unless told; slack: how much more an element may differ by
---@return moonshard.Difference? nil when there are no elements
function tolerance.arrays(expected, got, o)
  local first = o.first or 1
  local scale = o.scale or math.max(tolerance.LEAST_SCALE, tolerance.largest(expected, first, o.count))
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
