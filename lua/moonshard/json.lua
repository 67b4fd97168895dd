-- Lua values as JSON on one line: metrics, and what `--json` prints.
--
-- Keys come in sorted order, so that equal values give equal text. JSON has no NaN and no infinity: they become null.
-- Numbers are written with the fewest digits that read back to the same double.

local json = {}

local escapes = { ['"'] = '\\"', ["\\"] = "\\\\", ["\n"] = "\\n", ["\r"] = "\\r", ["\t"] = "\\t" }

local function string_text(text)
  return '"' .. text:gsub('[%c"\\\127]', function(char)
    return escapes[char] or ("\\u%04x"):format(char:byte())
  end) .. '"'
end

local function number_text(number)
  if number ~= number or number == math.huge or number == -math.huge then
    return "null"
  elseif number % 1 == 0 and math.abs(number) < 2 ^ 53 then
    return ("%d"):format(number)
  end
  for digits = 6, 16 do
    local text = ("%." .. digits .. "g"):format(number)
    if tonumber(text) == number then
      return text
    end
  end
  return ("%.17g"):format(number)
end

local encode

local function array_text(array)
  local parts = {}
  for i = 1, #array do
    parts[i] = encode(array[i])
  end
  return "[" .. table.concat(parts, ",") .. "]"
end

local function object_text(object)
  local keys = {}
  for key in pairs(object) do
    keys[#keys + 1] = key
  end
  table.sort(keys)
  local parts = {}
  for i, key in ipairs(keys) do
    parts[i] = string_text(key) .. ":" .. encode(object[key])
  end
  return "{" .. table.concat(parts, ",") .. "}"
end

function encode(value)
  local kind = type(value)
  if kind == "number" then
    return number_text(value)
  elseif kind == "boolean" then
    return tostring(value)
  elseif kind == "string" then
    return string_text(value)
  elseif kind == "table" and #value > 0 then
    return array_text(value)
  elseif kind == "table" then
    return object_text(value)
  end
  return "null"
end

--- The value as JSON. A table with value[1] is an array, any other an object with string keys.
---@param value table|string|number|boolean|nil
---@return string
json.encode = encode

--- An object of the given keys in the given order: {"step", 1, "loss", 2.5} is {"step":1,"loss":2.5}. A nil value
--- leaves its key out.
---@param n integer how many entries the list has, keys and values together
---@param list any[]
---@return string
function json.ordered(n, list)
  local parts = {}
  for i = 1, n, 2 do
    if list[i + 1] ~= nil then
      parts[#parts + 1] = string_text(list[i]) .. ":" .. encode(list[i + 1])
    end
  end
  return "{" .. table.concat(parts, ",") .. "}"
end

return json
