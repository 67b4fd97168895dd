-- Units of a chart: one for its axis, its ticks and its labels, chosen by the largest value, so that a bar's "9.2 GiB"
-- can be read off the axis below it.

local units = {}

---@class moonshard.Unit
---@field size number of it in values of the chart
---@field suffix string after numbers: " GiB", "k"
---@field name string for the title of an axis: "GiB", "tokens/s"

local BYTES = { "B", "KiB", "MiB", "GiB", "TiB" }
local RATES = { { 1e6, "M", 1e6 }, { 1e3, "k", 1e4 } } -- size, suffix, from which largest value on

---@param largest number of a chart, in bytes
---@return moonshard.Unit
function units.bytes(largest)
  local i = 1
  while largest >= 1024 and i < #BYTES do
    largest, i = largest / 1024, i + 1
  end
  return { size = 1024 ^ (i - 1), suffix = " " .. BYTES[i], name = BYTES[i] }
end

---@param largest number of a chart, in tokens per second
---@return moonshard.Unit
function units.rate(largest)
  for _, row in ipairs(RATES) do
    if largest >= row[3] then return { size = row[1], suffix = row[2], name = "tokens/s" } end
  end
  return { size = 1, suffix = "", name = "tokens/s" }
end

---Values that have this unit already.
---@param name string "ms", "%"
---@return moonshard.Unit
function units.plain(name) return { size = 1, suffix = name == "" and "" or " " .. name, name = name } end

---The title of an axis.
---@param what string
---@param unit moonshard.Unit
---@return string "peak memory of a rank, GiB"
function units.title(what, unit) return unit.name == "" and what or what .. ", " .. unit.name end

---The label of a tick.
---@param unit moonshard.Unit
---@param tick { value: number, text: string } its value is in the unit
---@return string "400k"; 0 needs no unit
function units.tick(unit, tick) return tick.value == 0 and "0" or tick.text .. unit.suffix end

---@param unit moonshard.Unit
---@param value number
---@return string "9.2 GiB": three digits, or more before the point
function units.text(unit, value)
  local number = value / unit.size
  local decimals = math.abs(number) >= 99.95 and 0 or math.abs(number) >= 9.995 and 1 or 2
  return ("%." .. decimals .. "f%s"):format(number, unit.suffix)
end

return units
