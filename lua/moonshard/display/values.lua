-- Formats values as text that is equal on every rank for equal values: no addresses, sorted keys.

local arguments = require("moonshard.base.checks.arguments")
local plan = require("moonshard.engine.plan")
local eager_show = require("moonshard.tensor.show")
local errors = require("moonshard.base.error")
local tensor = require("moonshard.tensor")
local text_lines = require("moonshard.base.text.text_lines")

local show = {}

local COLUMNS = 96     -- a table that fits is written in one line
local DEEPEST = 4      -- tables within tables
local MAX_ENTRIES = 64
local DIGITS = "%.6g"  -- for numbers in a table; a number alone is shown in full
local MAX_ELEMENTS = 64 -- of a tensor; a larger one shows only the ends of its axes

local ESCAPES = { ["\n"] = "\\n", ["\r"] = "\\r", ["\t"] = "\\t", ["\0"] = "\\0", ['"'] = '\\"', ["\\"] = "\\\\" }

local function quote(text)
  return '"' .. text:gsub('[%z\n\r\t"\\]', ESCAPES) .. '"'
end

local function describe_function(value)
  local info = debug.getinfo(arguments.original(value), "S")
  if info.what == "C" then return "function (built in)" end
  return ("function (%s:%d)"):format(info.short_src, info.linedefined)
end

local function has_text(value)
  local meta = debug.getmetatable(value)
  return type(meta) == "table" and meta.__tostring ~= nil
end

-- Keys outside the list part: strings first, then the rest.
local function sorted_keys(value, length)
  local keys = {}
  for key in pairs(value) do
    if not (type(key) == "number" and key >= 1 and key <= length and key % 1 == 0) then keys[#keys + 1] = key end
  end
  table.sort(keys, function(a, b)
    if type(a) ~= type(b) then return type(a) == "string" or (type(b) ~= "string" and type(a) < type(b)) end
    if type(a) == "string" or type(a) == "number" then return a < b end
    return tostring(a) < tostring(b)
  end)
  return keys
end

local render

-- An array of a recipe's own batch, by its type and shape. Reading a field that is not there is an error of some
-- objects.
local function is_array(value)
  return type(rawget(value, "data")) == "cdata" and type(rawget(value, "shape")) == "table"
    and type(rawget(value, "dtype")) == "string"
end

-- Values that are shown differently from their tostring at the top level: a tensor with its values; a plan without its
-- rank and number of instructions, so that all ranks share a line.
local function text_of_object(value, depth)
  local text = tostring(value)
  if depth > 0 then return (text:gsub("\n.*", " ...")) end
  if plan.is(value) then text = text:gsub("^plan: rank %d+ of", "plan: a rank of"):gsub(" %d+ instructions,", "", 1) end
  return tensor.is_eager(value) and text .. "\n" .. eager_show.text(value, MAX_ELEMENTS) or text
end

local function key_text(key, above)
  if type(key) == "string" and key:match("^[%a_][%w_]*$") then return key end
  return "[" .. render(key, above, DEEPEST) .. "]"
end

local function entries_of(value, above, depth)
  local entries, length = {}, #value
  for i = 1, math.min(length, MAX_ENTRIES) do entries[i] = render(value[i], above, depth + 1) end
  local keys = sorted_keys(value, length)
  for _, key in ipairs(keys) do
    if #entries >= MAX_ENTRIES then break end
    entries[#entries + 1] = key_text(key, above) .. " = " .. render(value[key], above, depth + 1)
  end
  local left = length + #keys - #entries
  if left > 0 then entries[#entries + 1] = ("... %d more"):format(left) end
  return entries
end

-- Whether all that is in a table is short: then several share a line.
local function is_of_numbers(value)
  for key, item in pairs(value) do
    if type(key) ~= "number" or type(item) ~= "number" then return false end
  end
  return true
end

local function render_table(value, above, depth)
  if above[value] then return "{ itself }" end
  if next(value) == nil then return "{}" end
  if depth >= DEEPEST then return "{ ... }" end
  above[value] = true
  -- Shows only the fields of an object, not their contents.
  local entries = entries_of(value, above, getmetatable(value) and DEEPEST - 1 or depth)
  above[value] = nil
  local line = "{ " .. table.concat(entries, ", ") .. " }"
  if #line + 2 * depth <= COLUMNS and not line:find("\n", 1, true) then return line end
  local indent = ("  "):rep(depth + 1)
  if is_of_numbers(value) then
    entries = text_lines.wrapped(table.concat(entries, ", "), COLUMNS - #indent)
    return "{\n" .. indent .. table.concat(entries, "\n" .. indent) .. "\n" .. ("  "):rep(depth) .. "}"
  end
  return "{\n" .. indent .. table.concat(entries, ",\n" .. indent) .. "\n" .. ("  "):rep(depth) .. "}"
end

function render(value, above, depth)
  local kind = type(value)
  if kind == "string" then return quote(value) end
  if kind == "function" then return describe_function(value) end
  if kind == "number" and depth > 0 and value % 1 ~= 0 then return DIGITS:format(value) end
  if has_text(value) then return text_of_object(value, depth) end
  if kind == "table" and is_array(value) then return value.dtype .. " " .. tensor.shape_text(value.shape) end
  if kind == "table" then return render_table(value, above, depth) end
  return (tostring(value):gsub(": 0x%x+$", ""))
end

---A value as the prompt shows it: strings as is, tables by their contents, everything else by its tostring. What a
---recipe's __tostring or __pairs raises is an error of the caller's line.
---@param value any
---@return string
function show.value(value)
  if type(value) == "string" then return value end
  return render(value, {}, 0)
end

---The same for a list of many values, of which one that cannot be shown says why.
---@param value any
---@return string
function show.any(value)
  local ok, text = pcall(show.value, value)
  return ok and text or ("cannot be shown: %s"):format(errors.text(text))
end

---A value as print writes it: as text where it has one, but a tensor with its values and everything else with what is
---in it, because an address says nothing, and is another one on each rank.
---@param value any
---@return string
function show.printed(value)
  if type(value) == "string" or has_text(value) and not tensor.is_eager(value) then return tostring(value) end
  return show.value(value)
end

---Prints a value with what is in it: a tensor with its values, a batch or another table with its fields.
---@param value any
function show.print(value)
  if tensor.is_eager(value) then
    print(tostring(value) .. "\n" .. eager_show.text(value))
  else
    print(type(value) == "table" and getmetatable(value) == nil and show.value(value) or tostring(value))
  end
end

---All results of an expression.
---@param values table with field n
---@return string
function show.values(values)
  local texts, long = {}, false
  for i = 1, values.n do
    texts[i] = show.value(values[i])
    long = long or texts[i]:find("\n", 1, true) ~= nil
  end
  return table.concat(texts, long and "\n" or "\t")
end

return show
