-- Parameters that are stacks of matrices, or projections of heads, the gradients of each of their steps, and what Muon
-- makes of them, in double: momentum, Nesterov's look ahead, and the iteration of each matrix by itself, from the
-- formulas of Jordan et al. 2024.

---@class Stack
---@field shape integer[]
---@field heads integer? of its rows
---@field matrices integer
---@field rows integer of each
---@field columns integer
---@field gradient fun(step: integer): number[]
local stacks = {
  wide = { shape = { 5, 4, 8 } }, tall = { shape = { 4, 8, 6 } }, projection = { shape = { 12, 8 }, heads = 3 },
  both = { shape = { 2, 8, 6 }, heads = 2 }, matrix = { shape = { 6, 8 } },
}

for name, of in pairs(stacks) do
  local numel = 1
  for _, size in ipairs(of.shape) do numel = numel * size end
  of.columns, of.rows = of.shape[#of.shape], of.shape[#of.shape - 1] / (of.heads or 1)
  of.matrices = numel / (of.rows * of.columns)
  function of.gradient(step)
    local list = {}
    -- Matrices of unlike sizes, so that a norm of all of them would show. Eighths are exact in f32.
    for i = 0, numel - 1 do
      local matrix = math.floor(i / (of.rows * of.columns))
      list[i + 1] = (math.floor(64 * math.sin(step + #name + 0.7 * i * i)) / 64) * 2 ^ (matrix % 3)
    end
    return list
  end
end

return stacks
