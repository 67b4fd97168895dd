-- Sizes in bytes, as users write them: "2GiB", "500MB" or a number.

local byte_size = {}

-- Powers of ten, as in Hugging Face's library, or of two with an i.
local UNITS = {
  [""] = 1, B = 1, KB = 1e3, MB = 1e6, GB = 1e9, TB = 1e12, KIB = 2 ^ 10, MIB = 2 ^ 20, GIB = 2 ^ 30, TIB = 2 ^ 40,
}

---@param given any
---@return number? bytes nil if it is not a size above 0
function byte_size.read(given)
  if type(given) == "number" then return given > 0 and given < math.huge and given or nil end
  if type(given) ~= "string" then return nil end
  local number, unit = given:match("^%s*(%d+%.?%d*)%s*(%a*)%s*$")
  local bytes = number and UNITS[unit:upper()] and tonumber(number) * UNITS[unit:upper()]
  return bytes and bytes > 0 and bytes or nil
end

return byte_size
