-- Values as JSON, as Python's json.dumps writes them and the filter tojson of chat templates asks for: keys in their
-- order, ", " and ": " between items unless separators are given, characters as they are unless ensure_ascii.

local characters = require("moonshard.jinja.characters")
local comparing = require("moonshard.jinja.comparing")
local faults = require("moonshard.jinja.faults")
local limits = require("moonshard.jinja.limits")
local printing = require("moonshard.jinja.printing")
local values = require("moonshard.jinja.values")

local json_text = {}

local ESCAPES = { ['"'] = '\\"', ["\\"] = "\\\\", ["\n"] = "\\n", ["\r"] = "\\r", ["\t"] = "\\t", ["\b"] = "\\b",
  ["\f"] = "\\f" }

local function escape(character) return ESCAPES[character] or ("\\u%04x"):format(character:byte()) end

-- As UTF-16, which JSON's escapes are.
local function escape_beyond_ascii(character)
  local code = characters.code(character)
  if code < 0x10000 then return ("\\u%04x"):format(code) end
  code = code - 0x10000
  return ("\\u%04x\\u%04x"):format(0xd800 + math.floor(code / 0x400), 0xdc00 + code % 0x400)
end

local function string_text(text, o)
  limits.text(#text)
  text = text:gsub('[%z\1-\31"\\]', escape)
  if o.ensure_ascii then text = text:gsub("\127", "\\u007f"):gsub("[\194-\244][\128-\191]*", escape_beyond_ascii) end
  return '"' .. text .. '"'
end

local NOT_FINITE = { nan = "NaN", inf = "Infinity", ["-inf"] = "-Infinity" }

local function float_text(value)
  local text = printing.float(value.value)
  return NOT_FINITE[text] or text
end

local PLAIN = {
  str = string_text,
  int = printing.integer,
  bool = tostring,
  none = function() return "null" end,
  float = float_text,
  integer = function(value) return value.text end,
}

local write

-- Items between brackets, in lines of their own if there is an indent.
local function enclosed(open, close, parts, o, level)
  if #parts == 0 then return open .. close end
  if not o.indent then return open .. table.concat(parts, o.between) .. close end
  local line = "\n" .. o.indent:rep(level + 1)
  return open .. line .. table.concat(parts, o.between .. line) .. "\n" .. o.indent:rep(level) .. close
end

local function list_text(list, o, level)
  local parts = {}
  for i = 1, list.n do parts[i] = write(list[i], o, level + 1) end
  return enclosed("[", "]", parts, o, level)
end

local function key_text(key)
  if type(key) == "string" then return key end
  local plain = PLAIN[values.kind(key)]
  if not plain then faults.raise("%s cannot be a key in JSON", values.describe(key)) end
  return plain(key)
end

local function dict_text(dict, o, level)
  local order, parts = {}, {}
  for i = 1, dict.n do order[i] = i end
  if o.sort_keys then
    order = comparing.sorted(order, dict.n, function(i) return dict.keys[i] end, false)
  end
  for at, i in ipairs(order) do
    parts[at] = string_text(key_text(dict.keys[i]), o) .. o.colon .. write(dict.values[i], o, level + 1)
  end
  return enclosed("{", "}", parts, o, level)
end

function write(value, o, level)
  local kind = values.kind(value)
  local plain = PLAIN[kind]
  limits.step(1)
  if plain then return plain(value, o) end
  limits.enter()
  local text
  if kind == "list" or kind == "tuple" then
    text = list_text(value, o, level)
  elseif kind == "dict" then
    text = dict_text(value, o, level)
  else
    values.check_defined(value)
    faults.raise("tojson: %s is not a value of JSON", values.describe(value))
  end
  limits.leave()
  limits.text(#text)
  return text
end

local function is_given(value) return value ~= nil and value ~= values.NONE end

local function indent_of(given)
  if not is_given(given) then return nil end
  if type(given) == "string" then return given end
  local width = math.max(0, values.whole(given, "tojson: indent"))
  limits.text(width)
  return (" "):rep(width)
end

-- The texts between items, and after keys.
local function separators_of(given, indent)
  if not is_given(given) then return indent and "," or ", ", ": " end
  local items, n = values.items(given)
  if n ~= 2 then faults.raise("tojson: separators must be two, not %d", n) end
  return values.text(items[1], "tojson: a separator"), values.text(items[2], "tojson: a separator")
end

---A value as JSON.
---@param value moonshard.jinja.Value
---@param ensure_ascii moonshard.jinja.Value? true: other characters as \u escapes
---@param indent moonshard.jinja.Value? blanks, or a text, before items, which have lines of their own
---@param separators moonshard.jinja.Value? two texts: between items, and after keys
---@param sort_keys moonshard.jinja.Value?
---@return string
function json_text.dumps(value, ensure_ascii, indent, separators, sort_keys)
  local o = {
    ensure_ascii = ensure_ascii ~= nil and values.truth(ensure_ascii),
    sort_keys = sort_keys ~= nil and values.truth(sort_keys),
    indent = indent_of(indent),
  }
  o.between, o.colon = separators_of(separators, o.indent)
  return write(value, o, 0)
end

return json_text
