-- LuaJIT's bytecode of a source, as the same bytes in every build. string.dump writes the constant tables of a function
-- in the order of their hashes, whose seed is random in each process; here their keys are sorted. The format is that of
-- LuaJIT 2.1 (lj_bcdump.h); bytecode of another version stays as it is, and only the build is not reproducible then.

local VERSION = 2

-- Kinds of a function's constants, and of the keys and values of a constant table. Strings are STRING and their length.
local TABLE, INT64, UINT64, COMPLEX, STRING = 1, 2, 3, 4, 5
local ITEM_INT, ITEM_NUMBER, ITEM_STRING = 3, 4, 5
local STRIPPED = 2 -- flag of the header

---A reader of bytes: every method moves on.
local Reader = {}
Reader.__index = Reader

function Reader:byte()
  self.at = self.at + 1
  return self.bytes:byte(self.at - 1)
end

function Reader:skip(n) self.at = self.at + n end

---An unsigned number, 7 bits in each byte.
function Reader:number()
  local value, shift = 0, 1
  while true do
    local byte = self:byte()
    value = value + byte % 128 * shift
    if byte < 128 then return value end
    shift = shift * 128
  end
end

---Moves past a key or a value of a constant table, and returns its bytes.
function Reader:item()
  local from = self.at
  local kind = self:number()
  if kind == ITEM_INT then
    self:number()
  elseif kind == ITEM_NUMBER then
    self:number()
    self:number()
  elseif kind >= ITEM_STRING then
    self:skip(kind - ITEM_STRING)
  end
  return self.bytes:sub(from, self.at - 1)
end

---Moves past a constant table, and returns its bytes with sorted keys.
function Reader:constant_table()
  local from = self.at
  local array, hashed = self:number(), self:number()
  for _ = 1, array do self:item() end
  local head, pairs_of = self.bytes:sub(from, self.at - 1), {}
  for i = 1, hashed do pairs_of[i] = self:item() .. self:item() end
  table.sort(pairs_of)
  return head .. table.concat(pairs_of)
end

---The bytes of one function, without their length, with sorted tables.
local function sorted_function(bytes, stripped)
  local r = setmetatable({ bytes = bytes, at = 1 }, Reader)
  r:skip(3) -- flags, parameters, frame
  local upvalues, constants = r:byte(), r:number()
  r:number() -- numbers
  local instructions = r:number()
  if not stripped and r:number() > 0 then -- debug bytes; lines only if there are some
    r:number()
    r:number()
  end
  r:skip(4 * instructions + 2 * upvalues)
  local parts, copied = {}, 1
  for _ = 1, constants do
    local kind = r:number()
    if kind == TABLE then
      parts[#parts + 1] = bytes:sub(copied, r.at - 1)
      parts[#parts + 1] = r:constant_table()
      copied = r.at
    elseif kind == INT64 or kind == UINT64 then
      r:number()
      r:number()
    elseif kind == COMPLEX then
      for _ = 1, 4 do r:number() end
    elseif kind >= STRING then
      r:skip(kind - STRING)
    end
  end
  parts[#parts + 1] = bytes:sub(copied)
  return table.concat(parts)
end

---@param source string
---@param chunk string the name in messages: "@lua/moonshard/init.lua"
---@return string
local function bytecode(source, chunk)
  local dumped = string.dump(assert(loadstring(source, chunk)))
  local r = setmetatable({ bytes = dumped, at = 4 }, Reader)
  if r:byte() ~= VERSION then return dumped end
  local stripped = r:number() % (2 * STRIPPED) >= STRIPPED
  if not stripped then r:skip(r:number()) end
  local parts = { dumped:sub(1, r.at - 1) }
  while true do
    local from = r.at
    local length = r:number()
    parts[#parts + 1] = dumped:sub(from, r.at - 1)
    if length == 0 then break end
    parts[#parts + 1] = sorted_function(dumped:sub(r.at, r.at + length - 1), stripped)
    r:skip(length)
  end
  local sorted = table.concat(parts)
  assert(#sorted == #dumped and loadstring(sorted, chunk))
  return sorted
end

return bytecode
