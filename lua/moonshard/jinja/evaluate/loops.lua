-- What a template knows of its loop: loop.index, loop.last, loop.cycle(...) and the others. Items are taken one by one,
-- and looked ahead to only where a template asks for what comes.

local arguments = require("moonshard.jinja.arguments")
local comparing = require("moonshard.jinja.comparing")
local faults = require("moonshard.jinja.faults")
local values = require("moonshard.jinja.values")

local loops = {}

-- Takes all items that are left, so that they can be counted.
local function count(loop)
  while true do
    local item = loop.pull()
    if item == nil then break end
    loop.ahead[#loop.ahead + 1] = item
  end
  return loop.index0 + 1 + #loop.ahead
end

local function peek(loop)
  if loop.ahead[1] == nil then loop.ahead[1] = loop.pull() end
  return loop.ahead[1]
end

local function cycle(loop)
  return function(_, _, given)
    if given.n == 0 then faults.raise("loop.cycle needs the values to cycle through") end
    return given[loop.index0 % given.n + 1]
  end
end

local function changed(loop)
  return function(_, _, given)
    local now = values.list({ unpack(given, 1, given.n) }, given.n, "tuple")
    if loop.compared and comparing.equal(loop.compared, now) then return false end
    loop.compared = now
    return true
  end
end

local function method(name, call) return { kind = "function", callable = arguments.callable(name, "*", call) } end

local ATTRIBUTES = {
  index0 = function(loop) return loop.index0 end,
  index = function(loop) return loop.index0 + 1 end,
  depth0 = function(loop) return loop.depth0 end,
  depth = function(loop) return loop.depth0 + 1 end,
  first = function(loop) return loop.index0 == 0 end,
  last = function(loop) return peek(loop) == nil end,
  length = count,
  revindex = function(loop) return count(loop) - loop.index0 end,
  revindex0 = function(loop) return count(loop) - loop.index0 - 1 end,
  previtem = function(loop)
    if loop.before == nil then return values.undefined("there is no previous item") end
    return loop.before
  end,
  nextitem = function(loop)
    local item = peek(loop)
    if item == nil then return values.undefined("there is no next item") end
    return item
  end,
  cycle = function(loop) return method("loop.cycle", cycle(loop)) end,
  changed = function(loop) return method("loop.changed", changed(loop)) end,
}

---A loop.
---@param pull fun(): moonshard.jinja.Value? the next item; nil: there is none
---@param depth0 integer how many recursive loops are around it
---@return table
function loops.new(pull, depth0)
  local loop = { kind = "loop", pull = pull, ahead = {}, index0 = -1, depth0 = depth0 }
  function loop.attribute(name)
    local of = ATTRIBUTES[name]
    return of and of(loop)
  end
  return loop
end

---Moves to the next item.
---@param loop table
---@return moonshard.jinja.Value? nil: the loop has ended
function loops.advance(loop)
  local item = table.remove(loop.ahead, 1)
  if item == nil then item = loop.pull() end
  if item == nil then return nil end
  loop.index0, loop.before, loop.current = loop.index0 + 1, loop.current, item
  return item
end

return loops
