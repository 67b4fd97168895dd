-- In which order a sweep's runs come: round after round, every point once in each, and each round shuffled.
--
-- A machine drifts: it gets warm, other work comes and goes. Runs of one point in a row, or points in the order of a
-- setting, would show that as an effect of the point. The seed makes the order the same in every sweep.

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
