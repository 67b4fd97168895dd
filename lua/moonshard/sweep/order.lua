-- The order of a sweep's runs: in rounds of one run per point, each round shuffled.
--
-- A machine's speed drifts with temperature and other load. If the runs of one point were consecutive, or points sorted
-- by a setting, the drift would look like an effect of the point. The seed makes the order reproducible.

local order = {}

-- Park and Miller's generator: the same on every machine, and good enough to shuffle by.
local function draw(state)
  state.value = state.value * 16807 % 2147483647
  return state.value
end

local function shuffle(list, state)
  for i = #list, 2, -1 do
    local j = draw(state) % i + 1
    list[i], list[j] = list[j], list[i]
  end
  return list
end

---@param count integer points
---@param rounds integer runs of each
---@param seed integer? nil: every round in the given order
---@return integer[][] rounds of points' numbers
function order.rounds(count, rounds, seed)
  local list, state = {}, { value = ((seed or 0) % 2147483646) + 1 }
  for round = 1, rounds do
    list[round] = {}
    for i = 1, count do list[round][i] = i end
    if seed then shuffle(list[round], state) end
  end
  return list
end

return order
