-- Hashes that ranks compare in place of values: 52 bits, which a Lua number represents exactly.

local engine = require("moonshard.base.ffi")
local C, ffi = engine.C, engine.ffi

local hash = {}

---@param data ffi.cdata* pointer or array
---@param bytes number
---@return number
function hash.of_bytes(data, bytes)
  local halves = ffi.new("uint32_t[2]")
  C.ms_hash(data, bytes, halves)
  return halves[0] * 2 ^ 20 + math.floor(halves[1] / 2 ^ 12)
end

---@param text string
---@return number
function hash.of_text(text) return hash.of_bytes(text, #text) end

return hash
