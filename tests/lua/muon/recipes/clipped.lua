-- What the attention of qk_clip.lua reads, and what QK-clip makes of its weights, in double: scores of all rows, the
-- largest of each head, and the factors of Kimi K2's report (2025).

local clipped = { ROWS = 4, STEPS = 2 }

local LENGTH, DIM = 5, 6

---@param mla boolean
---@return table
function clipped.sizes(mla)
  local of = { heads = 4, groups = mla and 4 or 2, own = 3, rope = mla and 2 or 0 }
  of.names = mla and { "rope", "wk", "wq" } or { "wk", "wq" }
  -- In latent attention the rows of a head in wk are those of its key, and one of its value.
  of.shapes = {
    wq = { of.heads * (of.own + of.rope), DIM }, wk = { of.groups * (of.own + (mla and 1 or 0)), DIM },
    rope = { of.rope, DIM },
  }
  function of.weight(name)
    local list = {}
    for i = 0, of.shapes[name][1] * DIM - 1 do
      local row = math.floor(i / DIM)
      list[i + 1] = math.floor(32 * math.sin(#name + 1.3 * i * i)) / 32 * (1 + row % 5)
    end
    return list
  end
  function of.input(step, row)
    local list = {}
    for t = 1, LENGTH do
      list[t] = {}
      for d = 1, DIM do list[t][d] = math.floor(16 * math.cos(3 * step + 7 * row + 5 * t * d)) / 16 end
    end
    return list
  end
  return of
end

-- y[i] = sum over d of weight[row + i][d] x[d]
local function project(weight, row, n, x)
  local y = {}
  for i = 1, n do
    y[i] = 0
    for d = 1, DIM do y[i] = y[i] + weight[(row + i - 1) * DIM + d] * x[d] end
  end
  return y
end

-- The largest score of each head, over all rows.
local function largest_of(of, weights, step, mla)
  local most, width = {}, of.own + of.rope
  local key_rows = of.shapes.wk[1] / of.groups
  for h = 1, of.heads do
    local g = math.floor((h - 1) / (of.heads / of.groups))
    most[h] = -math.huge
    for row = 1, clipped.ROWS do
      local x = of.input(step, row)
      for t = 1, LENGTH do
        local q = project(weights.wq, (h - 1) * width, width, x[t])
        for s = 1, t do
          local k = project(weights.wk, g * key_rows, of.own, x[s])
          local shared = mla and project(weights.rope, 0, of.rope, x[s]) or {}
          local score = 0
          for i = 1, width do score = score + q[i] * (k[i] or shared[i - of.own]) end
          most[h] = math.max(most[h], score / math.sqrt(width))
        end
      end
    end
  end
  return most
end

---The weights and the largest score after each step.
---@param mla boolean
---@param threshold number
---@param alpha number of queries
---@return table[]
function clipped.expected(mla, threshold, alpha)
  local of, weights, steps = clipped.sizes(mla), {}, {}
  for _, name in ipairs(of.names) do weights[name] = of.weight(name) end
  for step = 1, clipped.STEPS do
    local most = largest_of(of, weights, step, mla)
    local share = of.heads / of.groups
    local function scale(name, rows, power_of)
      for i = 0, #weights[name] - 1 do
        local row = math.floor(i / DIM)
        local group, gamma = math.floor(row / rows), 1
        for h = group * share + 1, (group + 1) * share do gamma = math.min(gamma, threshold / most[h]) end
        if gamma > 0 then weights[name][i + 1] = weights[name][i + 1] * gamma ^ power_of(row % rows) end
      end
    end
    scale("wq", of.shapes.wq[1] / of.groups, function(row) return mla and row >= of.own and 1 or alpha end)
    scale("wk", of.shapes.wk[1] / of.groups, function(row) return row < of.own and 1 - alpha or 0 end)
    steps[step] = { max_logit = math.max(unpack(most)) }
    for _, name in ipairs(of.names) do steps[step][name] = { unpack(weights[name]) } end
  end
  return steps
end

return clipped
