-- Sizes in bytes, as users write them: "2GiB", "500MB" or a number.

local byte_size = {}

-- Powers of ten, as in Hugging Face's library, or of two with an i.
local UNITS = {
  [""] = 1, B = 1, KB = 1e3, MB = 1e6, GB = 1e9, TB = 1e12, KIB = 2 ^ 10, MIB = 2 ^ 20, GIB = 2 ^ 30, TIB = 2 ^ 40,
}

-- A large letter before a small b, as in "20Gb": bits to some, and bytes to others.
local function maybe_bits(unit) return unit:find("^[KMGT]i?b$") ~= nil end

---@param given any
---@return number? bytes nil if it is not a size above 0
function byte_size.read(given)
  if type(given) == "number" then return given > 0 and given < math.huge and given or nil end
  if type(given) ~= "string" then return nil end
  local number, unit = given:match("^%s*(%d+%.?%d*)%s*(%a*)%s*$")
  if number and maybe_bits(unit) then return nil end
  local bytes = number and UNITS[unit:upper()] and tonumber(number) * UNITS[unit:upper()]
  return bytes and bytes > 0 and bytes or nil
end

---How to write a size that is none.
---@param given string that byte_size.read did not read
---@param like string an example: "72GiB"
---@return string
function byte_size.advice(given, like)
  local number, unit = given:match("^%s*(%d+%.?%d*)%s*(%a+)%s*$")
  if unit and maybe_bits(unit) then
    return ('%s can be bits: write "%s%siB" for powers of two, "%s%sB" for powers of ten'):format(unit, number,
      unit:sub(1, 1), number, unit:sub(1, 1))
  end
  return ('must be a size like "%s"'):format(like)
end

return byte_size
