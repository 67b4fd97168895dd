-- Searches the policies of one mesh: from the best of the recipe's own rules, default, always and never (or if none
-- fits, from little memory), the move that gains most time per byte, until no move gains any. Steps get smaller; then a
-- move that does not fit is tried together with a second one. Each point is compiled: nothing is estimated.
--
-- The number of compiles is bounded, and ties are broken by order, so all ranks find the same.

local moves = require("moonshard.tune.moves")
local point = require("moonshard.tune.point")
local policies = require("moonshard.tune.policies")

---@class moonshard.Search
---@field trial moonshard.Trial
---@field context moonshard.TuneContext
---@field best moonshard.Tried? the fastest that fits
---@field smallest moonshard.Tried? with least memory, whether it fits or not
---@field baselines table<string, moonshard.Tried> "recipe", and plain values of policies: "default", "always", "never"
local Search = {}
Search.__index = Search

local search = {}

-- Steps as parts of all blocks.
local PARTS = { 0.5, 0.25, 0.125, 0 }
-- A smaller part of a step is not worth another rule.
local GAIN = 1e-3
-- Faster points that do not fit, each tried together with a second move.
local TRADES = 6
-- Compiles to find simpler rules of the same speed.
local OF_SIMPLIFYING = 20

---@param trial moonshard.Trial
---@param free table<string, boolean> policies that may change
---@return moonshard.Search
function search.new(trial, free)
  local context = { blocks = trial.blocks, free = {} }
  for _, row in ipairs(policies.all) do
    context.free[row.name] = free[row.name] and (not row.applies or row.applies(trial.sharding)) or false
    for name, value in pairs(row.context and row.context(trial) or {}) do context[name] = value end
  end
  return setmetatable({ trial = trial, context = context, baselines = {} }, Search)
end

local function try(self, p)
  local tried = self.trial:try(p)
  if not tried.refused and (not self.smallest or tried.bytes < self.smallest.bytes) then self.smallest = tried end
  return tried
end

-- A point at which a search can begin.
local function try_start(self, p)
  local tried = try(self, p)
  if tried.fits and (not self.best or tried.seconds < self.best.seconds) then self.best = tried end
  return tried
end

---Tries the recipe's own rules, and the plain values of policies that may change.
function Search:try_baselines()
  local recipe = point.recipe()
  self.baselines.recipe = try_start(self, recipe)
  for _, row in ipairs(policies.all) do
    for _, plain in ipairs(self.context.free[row.name] and row.plain or {}) do
      self.baselines[plain.name] = try_start(self, point.with(recipe, plain.fields))
    end
  end
end

---The time of the fastest plain policy, whether it fits or not.
---@return number seconds
function Search:fastest_plain()
  local least = math.huge
  for _, tried in pairs(self.baselines) do least = math.min(least, tried.seconds) end
  return least
end

---Tries points of less and less memory, until one fits. What the model or its other rules refuse is left out.
function Search:try_frugal()
  local p = point.recipe()
  for _, fields in ipairs(moves.frugal(self.context)) do
    if self.best then return end
    local other = point.with(p, fields)
    if not try_start(self, other).refused then p = other end
  end
end

local function spent(self) return self.trial.compiles >= self.most end

-- Time gained per byte; what takes no memory comes first.
local function worth(now, tried)
  local gain, bytes = now.seconds - tried.seconds, tried.bytes - now.bytes
  if bytes <= 0 then return 1e18 * gain end
  return gain / bytes
end

-- The best neighbour that fits, and all that are faster and do not.
local function step(self, now, part)
  local chosen, too_large = nil, {}
  for _, p in ipairs(moves.of(now.point, self.context, part)) do
    if spent(self) then break end
    local tried = try(self, p)
    local gains = tried.seconds < now.seconds * (1 - GAIN)
    if gains and not tried.fits then too_large[#too_large + 1] = tried end
    if gains and tried.fits and (not chosen or worth(now, tried) > worth(now, chosen)) then chosen = tried end
  end
  return chosen, too_large
end

local function by_seconds(list)
  for i, tried in ipairs(list) do tried.order = i end
  table.sort(list, function(a, b)
    if a.seconds ~= b.seconds then return a.seconds < b.seconds end
    return a.order < b.order
  end)
  return list
end

-- A second move that makes a first one fit, and leaves some of its gain.
local function trade(self, now, too_large)
  local chosen
  for i, first in ipairs(by_seconds(too_large)) do
    if i > TRADES then break end
    for _, p in ipairs(moves.saving(first.point, self.context)) do
      if spent(self) then return chosen end
      local tried = try(self, p)
      local gains = tried.fits and tried.seconds < now.seconds * (1 - GAIN)
      if gains and (not chosen or tried.seconds < chosen.seconds) then chosen = tried end
    end
    if chosen then return chosen end
  end
end

-- The fastest plain policy that fits, which must not be lost.
local function plain_seconds(self)
  local least = math.huge
  for _, tried in pairs(self.baselines) do
    if tried.fits then least = math.min(least, tried.seconds) end
  end
  return least
end

-- Takes the first of a list that fits and is not slower, as far as such small parts count.
local function take_equal(self, list)
  local most = math.min(self.best.seconds * (1 + GAIN), plain_seconds(self))
  for _, p in ipairs(list) do
    if spent(self) then return false end
    local tried = point.key(p) ~= point.key(self.best.point) and try(self, p)
    if tried and tried.fits and tried.seconds <= most then
      self.best = tried
      return true
    end
  end
  return false
end

-- Drops rules that gain nothing. Returns whether there was one.
local function drop_rules(self)
  local dropped = false
  repeat
    local list = {}
    for i, reverted in ipairs(point.reverted(self.best.point)) do list[i] = reverted.point end
    local again = take_equal(self, list)
    dropped = dropped or again
  until not again
  return dropped
end

-- Does less of what takes time to save memory, such as recomputing, if there is room.
local function do_less(self)
  for _, row in ipairs(policies.all) do
    repeat until not take_equal(self, moves.less(self.best.point, row, PARTS))
  end
end

-- Takes better neighbours until there are none.
local function climb(self)
  local now, i = self.best, 1
  while i <= #PARTS and not spent(self) do
    local better, too_large = step(self, now, PARTS[i])
    i = better and i or i + 1
    if i > #PARTS then
      better = trade(self, now, too_large)
      i = better and 1 or i
    end
    if better then self.best, now = better, better end
  end
end

---Improves the best point. Needs one that fits.
---@param compiles integer the most plans to compile, without those that find simpler rules of the same speed
---@return moonshard.Tried
function Search:improve(compiles)
  local most = self.trial.compiles + compiles
  repeat
    self.most = most
    climb(self)
    self.most = most + OF_SIMPLIFYING
    local dropped = drop_rules(self)
  until not dropped or self.trial.compiles >= most
  do_less(self)
  return self.best
end

---What more memory would buy: of the faster points that do not fit, the one that gains most per byte above the limit.
---@return moonshard.Tried? nil: none that was tried is faster
function Search:next_step()
  local best, found = self.best, nil
  local function value(tried) return (best.seconds - tried.seconds) / (tried.bytes - best.bytes) end
  for _, p in ipairs(moves.of(best.point, self.context, 0)) do try(self, p) end
  local keys, all = {}, self.trial:all()
  for key in pairs(all) do keys[#keys + 1] = key end
  table.sort(keys)
  for _, key in ipairs(keys) do
    local tried = all[key]
    local faster = not tried.refused and not tried.fits and tried.seconds < best.seconds * (1 - GAIN)
    if faster and (not found or value(tried) > value(found)) then found = tried end
  end
  return found
end

return search
