-- Least squares of relative errors with no negative unknowns, for the constants of a link: times, and times per byte.

-- One unknown after another takes its best value, until none moves.
local MAX_PASSES = 2000

---@class moonshard.LeastSquaresRow
---@field whole number what errors are relative to
---@field [integer] number what is to be explained, then the factor of each unknown

---@param rows moonshard.LeastSquaresRow[]
---@param unknowns integer how many
---@return number[] values of the unknowns; 0 for one whose factor is 0 in all rows
local function least_squares(rows, unknowns)
  local x = {}
  for i = 1, unknowns do x[i] = 0 end
  for _ = 1, MAX_PASSES do
    for i = 1, unknowns do
      local above, below = 0, 0
      for _, row in ipairs(rows) do
        local rest = row[1]
        for k = 1, unknowns do
          if k ~= i then rest = rest - row[1 + k] * x[k] end
        end
        local weight = 1 / row.whole ^ 2
        above, below = above + weight * rest * row[1 + i], below + weight * row[1 + i] ^ 2
      end
      x[i] = below > 0 and math.max(0, above / below) or 0
    end
  end
  return x
end

return least_squares
