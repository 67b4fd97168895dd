-- Neighbours of a point: one policy changed by one step, towards a faster one. The step of what is counted in blocks is
-- a part of all of them, which the search makes smaller and smaller.

local point = require("moonshard.tune.point")

local moves = {}

---@class moonshard.TuneMoves what the moves of a search depend on
---@field blocks moonshard.Blocks
---@field free table<string, boolean> policies that may change
---@field bucket integer blocks of a unit that saturate the link
---@field modes (string|integer)[] values of `reshard`
---@field recomputes boolean whether the recipe's rules recompute something
---@field ahead integer units that the recipe gathers ahead

local MOST_AHEAD = 4

local function add_units(list, p, context)
  local n, group = #context.blocks.of, p.group == point.RECIPE and 1 or p.group
  local function add(size)
    if size ~= group and size >= point.DIVIDED and size <= n then
      list[#list + 1] = point.with(p, { group = size, keep = 0 })
    end
  end
  add(2 * group)
  add(group / 2)
  -- Half as large units, of which as many bytes are gathered ahead.
  local ahead = 2 * (p.prefetch == point.RECIPE and context.ahead or p.prefetch)
  if context.free.prefetch and group / 2 >= point.DIVIDED and ahead <= MOST_AHEAD then
    list[#list + 1] = point.with(p, { group = group / 2, keep = 0, prefetch = ahead })
  end
  if group < context.bucket / 2 then add(context.bucket) end
  if #context.blocks.apart > 0 then list[#list + 1] = point.with(p, { apart = not p.apart }) end
end

local function add_reshard(list, p, context, part)
  for _, mode in ipairs(context.modes) do
    if mode ~= p.reshard then list[#list + 1] = point.with(p, { reshard = mode, keep = 0, first = false }) end
  end
  if p.reshard == point.RECIPE or p.reshard == "never" then return end
  local n = #point.groups(p, context.blocks)
  local step = math.max(1, math.floor(n * part))
  if p.keep + step < n then list[#list + 1] = point.with(p, { keep = p.keep + step }) end
  if p.keep > 0 then
    list[#list + 1] = point.with(p, { keep = math.max(0, p.keep - step) })
    list[#list + 1] = point.with(p, { first = not p.first })
  end
end

local function add_prefetch(list, p, context)
  local depth = p.prefetch == point.RECIPE and context.ahead or p.prefetch
  for _, other in ipairs({ depth + 1, depth - 1 }) do
    if other >= 0 and other <= MOST_AHEAD then list[#list + 1] = point.with(p, { prefetch = other }) end
  end
end

local function add_recompute(list, p, context, part)
  local n, now = #context.blocks.of, p.recompute
  if now == point.RECIPE then
    if context.recomputes then list[#list + 1] = point.with(p, { recompute = 0 }) end
    now = 0
  end
  local step = math.max(1, math.floor(n * part))
  if now > 0 then list[#list + 1] = point.with(p, { recompute = math.max(0, now - step) }) end
  if now > 0 and now < n then list[#list + 1] = point.with(p, { spread = not p.spread }) end
end

local BY_POLICY = {
  { "units", add_units }, { "prefetch", add_prefetch }, { "reshard_after_forward", add_reshard },
  { "recompute", add_recompute },
}

---@param p moonshard.TunePoint
---@param context moonshard.TuneMoves
---@param part number of all blocks: 0 to 1
---@return moonshard.TunePoint[]
function moves.of(p, context, part)
  local list = {}
  for _, row in ipairs(BY_POLICY) do
    if context.free[row[1]] then row[2](list, p, context, part) end
  end
  return list
end

---Neighbours that can take less memory: second moves, which make a first one fit.
---@param p moonshard.TunePoint
---@param context moonshard.TuneMoves
---@return moonshard.TunePoint[]
function moves.saving(p, context)
  local free, n, list = context.free, #context.blocks.of, {}
  local function add(policy, changes)
    if free[policy] then list[#list + 1] = point.with(p, changes) end
  end
  local now = p.recompute == point.RECIPE and 0 or p.recompute
  for _, count in ipairs({ now + 1, math.ceil((now + n) / 2), n }) do
    if now < n then add("recompute", { recompute = count }) end
  end
  for _, mode in ipairs(context.modes) do
    if mode ~= "never" and mode ~= p.reshard then add("reshard_after_forward", { reshard = mode, keep = 0 }) end
  end
  if p.keep > 0 then add("reshard_after_forward", { keep = math.floor(p.keep / 2) }) end
  if not p.apart and #context.blocks.apart > 0 then add("units", { apart = true }) end
  local group = p.group == point.RECIPE and 1 or p.group
  if group / 2 >= point.DIVIDED then add("units", { group = group / 2, keep = 0 }) end
  local depth = p.prefetch == point.RECIPE and context.ahead or p.prefetch
  if depth > 0 then add("prefetch", { prefetch = depth - 1 }) end
  return list
end

---Points that take little memory, the one that takes least time first: where a search begins if nothing else fits.
---@param p moonshard.TunePoint
---@param context moonshard.TuneMoves
---@return moonshard.TunePoint[]
function moves.frugal(p, context)
  local free, n, list = context.free, #context.blocks.of, {}
  local function add(changes)
    local allowed = {}
    for policy, fields in pairs(changes) do
      for name, value in pairs(free[policy] and fields or {}) do allowed[name] = value end
    end
    p = point.with(p, allowed)
    list[#list + 1] = p
  end
  add({ reshard_after_forward = { reshard = "always", keep = 0 } })
  add({ recompute = { recompute = n, spread = false } })
  add({ units = { apart = #context.blocks.apart > 0 } })
  add({ prefetch = { prefetch = 0 } })
  add({ units = { group = point.DIVIDED } })
  return list
end

return moves
