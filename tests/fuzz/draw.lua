-- Random choices that depend on a seed alone.

local bit = require("bit")

local draw = {}
draw.__index = draw

---@param seed integer
function draw.new(seed)
  local self = setmetatable({ state = bit.tobit(seed * 2654435761 % 2 ^ 32 + 0x9e3779b9) }, draw)
  if self.state == 0 then self.state = 1 end
  for _ = 1, 8 do self:integer(0, 1) end
  return self
end

---A whole number from low to high (Marsaglia 2003, xorshift).
function draw:integer(low, high)
  local x = self.state
  x = bit.bxor(x, bit.lshift(x, 13))
  x = bit.bxor(x, bit.rshift(x, 17))
  x = bit.bxor(x, bit.lshift(x, 5))
  self.state = x
  return low + bit.rshift(x, 4) % (high - low + 1)
end

function draw:chance(probability) return self:integer(0, 9999) < 10000 * probability end

function draw:one_of(list) return list[self:integer(1, #list)] end

return draw
