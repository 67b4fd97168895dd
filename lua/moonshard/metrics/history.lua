-- The points of a curve, of a run of any length: at most MAX of them. When there are more, every second one is
-- dropped, and from then on every second one is added, so that points stay equally far apart. The newest is always
-- there.

local history = {
  MAX = 4096,
}

---@class moonshard.Thinned
---@field stride integer one point of so many stays
---@field count integer points that were added
---@field is_extra boolean? whether the newest will go when the next one is added

-- By list, since lists contain points alone, and a recipe can replace them.
local thinned = setmetatable({}, { __mode = "k" })

local function halve(list)
  local n = #list
  for i = 1, n do list[i] = i <= math.ceil(n / 2) and list[2 * i - 1] or nil end
end

---Appends a point.
---@param list number[][] { x, y } each
---@param x number
---@param y number
function history.add(list, x, y)
  local state = thinned[list] or { stride = 1, count = #list }
  thinned[list] = state
  list[state.is_extra and #list or #list + 1] = { x, y }
  state.is_extra = state.count % state.stride ~= 0
  state.count = state.count + 1
  if #list <= history.MAX or state.is_extra then return end
  halve(list)
  state.stride = 2 * state.stride
  if list[#list][1] == x then return end
  list[#list + 1], state.is_extra = { x, y }, true
end

return history
