-- Lua values as JSON on one line (metrics, and what `--json` prints), and JSON as Lua values.
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

-- ---- reading ----

local read_value

local UNESCAPED = { ['"'] = '"', ["\\"] = "\\", ["/"] = "/", b = "\b", f = "\f", n = "\n", r = "\r", t = "\t" }

local function utf8(code)
  if code < 0x80 then return string.char(code) end
  local bytes, first = {}, code < 0x800 and 0xc0 or code < 0x10000 and 0xe0 or 0xf0
  local least = first == 0xc0 and 0x20 or first == 0xe0 and 0x10 or 0x08
  while code >= least do
    table.insert(bytes, 1, string.char(0x80 + code % 64))
    code = math.floor(code / 64)
  end
  return string.char(first + code) .. table.concat(bytes)
end

local function fail(at, what)
  error({ at = at, what = what }, 0)
end

local function skip_space(text, at)
  if (text:byte(at) or 0) > 32 then return at end
  return text:find("[^ \t\n\r]", at) or #text + 1
end

-- "\u00e9", or two of them that make one character (UTF-16).
local function read_code(text, at)
  local code = tonumber(text:match("^\\u(%x%x%x%x)", at) or fail(at, "an escape that JSON does not have"), 16)
  if code < 0xd800 or code > 0xdfff then return utf8(code), at + 6 end
  local low = tonumber(text:match("^\\u(%x%x%x%x)", at + 6) or "0", 16)
  if code > 0xdbff or low < 0xdc00 or low > 0xdfff then fail(at, "half of a surrogate pair") end
  return utf8(0x10000 + (code - 0xd800) * 0x400 + low - 0xdc00), at + 12
end

local function read_string(text, at)
  local plain, after = text:match('^"([^%c"\\]*)"()', at)
  if plain then return plain, after end
  local parts, from = {}, at + 1
  while true do
    local stop = text:find('[%c"\\]', from)
    local char = stop and text:sub(stop, stop)
    if not stop or char:match("%c") and char ~= "\127" then fail(stop or #text + 1, "a string without an end") end
    if char == "\127" then stop = stop + 1 end
    parts[#parts + 1] = text:sub(from, stop - 1)
    if char == '"' then return table.concat(parts), stop + 1 end
    from = stop
    if char == "\\" then
      local short = UNESCAPED[text:sub(stop + 1, stop + 1)]
      if short then
        parts[#parts + 1], from = short, stop + 2
      else
        parts[#parts + 1], from = read_code(text, stop)
      end
    end
  end
end

local function read_number(text, at)
  local digits = text:match("^%-?%d+%.?%d*[eE]?[+-]?%d*", at)
  local number = digits and not digits:match("^%-?0%d") and not digits:match("%.$") and not digits:match("%.[eE]")
    and tonumber(digits)
  if not number then fail(at, "a value that JSON does not have") end
  return number, at + #digits
end

local function read_list(text, at, close, read_item)
  local item = skip_space(text, at + 1)
  if text:sub(item, item) == close then return item + 1 end
  while true do
    local after = skip_space(text, read_item(skip_space(text, item)))
    local char = text:sub(after, after)
    if char == close then return after + 1 end
    if char ~= "," then fail(after, ("neither a comma nor %s"):format(close)) end
    item = after + 1
  end
end

local function read_array(text, at)
  local array, n = {}, 0
  local after = read_list(text, at, "]", function(from)
    local next_at
    n = n + 1
    array[n], next_at = read_value(text, from)
    return next_at
  end)
  return array, after
end

local function read_object(text, at)
  local object = {}
  local after = read_list(text, at, "}", function(from)
    if text:sub(from, from) ~= '"' then fail(from, "a key without quotes") end
    local key, colon = read_string(text, from)
    colon = skip_space(text, colon)
    if text:sub(colon, colon) ~= ":" then fail(colon, "no colon after a key") end
    local next_at
    object[key], next_at = read_value(text, skip_space(text, colon + 1))
    return next_at
  end)
  return object, after
end

local WORDS = { t = { "true", true }, f = { "false", false }, n = { "null", nil } }

function read_value(text, at)
  local char = text:sub(at, at)
  if char == "{" then return read_object(text, at) end
  if char == "[" then return read_array(text, at) end
  if char == '"' then return read_string(text, at) end
  local word = WORDS[char]
  if word and text:sub(at, at + #word[1] - 1) == word[1] then return word[2], at + #word[1] end
  return read_number(text, at)
end

---The value of a JSON text. null is nil: it leaves its key out.
---@param text string
---@return any value nil when the text is not JSON
---@return string? why "byte 12: neither a comma nor }"
function json.decode(text)
  local ok, value, after = pcall(function() return read_value(text, skip_space(text, 1)) end)
  if not ok and type(value) ~= "table" then error(value, 0) end
  if ok and skip_space(text, after) <= #text then ok, value = false, { at = after, what = "text after the end" } end
  if not ok then return nil, ("byte %d: %s"):format(value.at, value.what) end
  return value
end

return json
