-- The values of an eager tensor as text, in the style of NumPy and PyTorch: rows in brackets, aligned columns, one
-- format for all numbers, and only the ends of every axis of a large tensor.

local values = require("moonshard.tensor.values")

local show = {}

local MAX_SHOWN = 1000 -- elements; larger tensors show ENDS elements at both ends of each axis
local ENDS = 3
local LINE = 100 -- width in columns

-- The visible indices of an axis; 0 represents "...".
local function shown_places(size, summarised)
  local places = {}
  if not summarised or size <= 2 * ENDS then
    for i = 1, size do places[i] = i end
    return places
  end
  for i = 1, ENDS do places[i] = i end
  places[ENDS + 1] = 0
  for i = size - ENDS + 1, size do places[#places + 1] = i end
  return places
end

-- Calls visit(offset) for every visible element.
local function each_shown(shape, places, visit)
  local function walk(axis, offset)
    if axis > #shape then return visit(offset) end
    for _, place in ipairs(places[axis]) do
      if place > 0 then walk(axis + 1, offset * shape[axis] + place - 1) end
    end
  end
  walk(1, 0)
end

local function is_finite(x) return x - x == 0 end

-- One format for all numbers: integers without a point, else four decimals, or an exponent if those lose digits.
local function choose_format(numbers)
  local whole, largest, smallest = true, 0, math.huge
  for _, x in ipairs(numbers) do
    if is_finite(x) then
      local size = math.abs(x)
      whole = whole and x % 1 == 0
      largest = math.max(largest, size)
      if size > 0 then smallest = math.min(smallest, size) end
    end
  end
  if whole and largest < 1e9 then return "%.0f" end
  if largest >= 1e5 or largest < 1e-3 or smallest < 1e-4 and largest / smallest < 1e3 then return "%.4e" end
  return "%.4f"
end

local function number_text(format, x)
  if x ~= x then return "nan" end
  if not is_finite(x) then return x > 0 and "inf" or "-inf" end
  return format:format(x)
end

-- Formats the visible elements, padded to the widest.
local function format_shown(x, places)
  local data, offsets, numbers, texts, width = values.readable(x).data, {}, {}, {}, 0
  each_shown(x.shape, places, function(offset)
    offsets[#offsets + 1] = offset
    numbers[#numbers + 1] = data[offset]
  end)
  local format = choose_format(numbers)
  for i, number in ipairs(numbers) do
    local text = number_text(format, number)
    texts[offsets[i]], width = text, math.max(width, #text)
  end
  for offset, text in pairs(texts) do texts[offset] = (" "):rep(width - #text) .. text end
  return texts
end

-- "[a, b, c]", wrapped at the maximum line width.
local function row_text(items, indent)
  local lines, line = {}, ""
  for i, item in ipairs(items) do
    local piece = item .. (i < #items and ", " or "")
    if line ~= "" and indent + #line + #piece > LINE then
      lines[#lines + 1] = line:gsub(" $", "")
      line = ""
    end
    line = line .. piece
  end
  lines[#lines + 1] = line
  return "[" .. table.concat(lines, "\n" .. (" "):rep(indent)) .. "]"
end

local function render(shape, places, texts, axis, offset)
  local items = {}
  for i, place in ipairs(places[axis]) do
    local at = offset * shape[axis] + place - 1
    if place == 0 then items[i] = "..."
    else items[i] = axis == #shape and texts[at] or render(shape, places, texts, axis + 1, at) end
  end
  if axis == #shape then return row_text(items, axis) end
  -- One empty line between matrices, two between blocks of matrices.
  return "[" .. table.concat(items, "," .. ("\n"):rep(#shape - axis) .. (" "):rep(axis)) .. "]"
end

---@param x moonshard.Tensor eager
---@param most integer? largest number of elements shown in full; default MAX_SHOWN
---@return string
function show.text(x, most)
  local places, summarised = {}, x:numel() > (most or MAX_SHOWN)
  for axis, size in ipairs(x.shape) do places[axis] = shown_places(size, summarised) end
  local texts = format_shown(x, places)
  if #x.shape == 0 then return texts[0] end
  return render(x.shape, places, texts, 1, 0)
end

return show
