-- Lines of CSV (RFC 4180, but lines end with a line feed). A cell is the value itself, in quotes where commas, quotes,
-- line ends or blanks at its ends need them: a program that reads it gets what was written, also of a text that begins
-- with "=". A spreadsheet takes that for a formula, unless its columns are imported as text.

local json = require("moonshard.base.text.json")

local csv = {}

local function number_text(number)
  if number ~= number then return "nan" end
  if number == math.huge or number == -math.huge then return number > 0 and "inf" or "-inf" end
  return json.encode(number)
end

---@param value any nil: an empty cell
---@return string
function csv.cell(value)
  if value == nil then return "" end
  local text = type(value) == "number" and number_text(value) or tostring(value)
  local quoted = text:find('[",\r\n]') or text:find("^%s") or text:find("%s$")
  return quoted and '"' .. text:gsub('"', '""') .. '"' or text
end

---@param values any[]
---@param count integer of cells; a nil among the values is an empty one
---@return string without the line's end
function csv.line(values, count)
  local cells = {}
  for i = 1, count do cells[i] = csv.cell(values[i]) end
  return table.concat(cells, ",")
end

return csv
