-- Quantities of cluster descriptions: text with a unit ("989 TFLOP/s", "80 GB", "400 Gbit/s", "12 us", "0.8 ns/B",
-- "90 %"), or a bare number for what has no unit. Read to base units: bytes, bytes/s, FLOP/s, seconds, seconds per
-- byte, parts of 1.
--
-- Case counts: Gb would be bits to one reader and bytes to another, so bits are written "bit".

local nearest = require("moonshard.base.names.nearest")

local quantity = {}

local function prefixed(unit, scale, prefixes)
  local units = {}
  for prefix, factor in pairs(prefixes) do units[prefix .. unit] = factor * scale end
  return units
end

local DECIMAL = { [""] = 1, K = 1e3, M = 1e6, G = 1e9, T = 1e12, P = 1e15 }
local BINARY = { Ki = 2 ^ 10, Mi = 2 ^ 20, Gi = 2 ^ 30, Ti = 2 ^ 40 }

local function merged(...)
  local all = {}
  for _, units in ipairs({ ... }) do
    for name, factor in pairs(units) do all[name] = factor end
  end
  return all
end

---@class moonshard.QuantityKind
---@field what string for messages
---@field like string an example
---@field units table<string, number>

---@type table<string, moonshard.QuantityKind>
local KINDS = {
  flops = { what = "a rate of operations", like = "989 TFLOP/s", units = prefixed("FLOP/s", 1, DECIMAL) },
  bytes = { what = "a size", like = "80 GB", units = merged(prefixed("B", 1, DECIMAL), prefixed("B", 1, BINARY)) },
  rate = { what = "bytes or bits per second", like = '3.35 TB/s" or "400 Gbit/s',
    units = merged(prefixed("B/s", 1, DECIMAL), prefixed("B/s", 1, BINARY), prefixed("bit/s", 1 / 8, DECIMAL)) },
  time = { what = "a time", like = "12 us", units = { s = 1, ms = 1e-3, us = 1e-6, ns = 1e-9 } },
  per_byte = { what = "a time for each byte", like = "0.8 ns/B", units = { ["s/B"] = 1, ["us/B"] = 1e-6,
    ["ns/B"] = 1e-9, ["ps/B"] = 1e-12 } },
  part = { what = "a part of the whole", like = "90 %", units = { ["%"] = 0.01 } },
  number = { what = "a number without a unit", like = "128", units = { [""] = 1 } },
  count = { what = "a whole number without a unit", like = "8", units = { [""] = 1 } },
}

local function split(text)
  local number, unit = text:match("^%s*([%d.]+[eE][+-]?%d+)%s*(.-)%s*$")
  if not number then number, unit = text:match("^%s*(%-?[%d.]+)%s*(.-)%s*$") end
  return tonumber(number), unit
end

-- What a unit that is none of the kind probably means. A small b is bits to some and bytes to others.
local function advice(text, number, unit, kind)
  local prefix, rest = unit:match("^([KMGTP]?)b(.*)$")
  local bits, bytes = prefix and prefix .. "bit/s", prefix and prefix .. "B" .. rest
  if prefix and kind.units[bits] then
    return ('%q: unknown unit %s: write "%g %s" for bits, "%g %sB/s" for bytes'):format(text, unit, number, bits,
      number, prefix)
  elseif prefix and kind.units[bytes] then
    return ('%q: unknown unit %s: a size is in bytes: did you mean "%g %s"?'):format(text, unit, number, bytes)
  end
  for _, other in pairs(KINDS) do
    if other.units[unit] then
      return ('%q is %s: it must be %s, like "%s"'):format(text, other.what, kind.what, kind.like)
    end
  end
  local names = {}
  for name in pairs(kind.units) do names[#names + 1] = name end
  local close = nearest.name(unit, names)
  if close and close ~= "" then
    return ('%q: unknown unit %s: did you mean "%g %s"?'):format(text, unit, number, close)
  end
  return ('%q must be %s, like "%s"'):format(text, kind.what, kind.like)
end

---Reads a quantity of a kind.
---@param given any
---@param name "flops"|"bytes"|"rate"|"time"|"per_byte"|"part"|"number"|"count"
---@return number? value in the base unit; nil and why
---@return string? why
function quantity.read(given, name)
  local kind = KINDS[name]
  local unitless = kind.units[""] == 1 and (name == "number" or name == "count")
  if type(given) == "number" and not unitless then
    return nil, ('%s has no unit: it must be %s, like "%s"'):format(given, kind.what, kind.like)
  elseif type(given) ~= "number" and type(given) ~= "string" then
    return nil, ('must be %s, like "%s", not a %s'):format(kind.what, kind.like, type(given))
  end
  local number, unit = given, ""
  if type(given) == "string" then number, unit = split(given) end
  if not number or number ~= number or number == math.huge then
    return nil, ('%q must be %s, like "%s"'):format(tostring(given), kind.what, kind.like)
  end
  if not unitless and unit == "" then
    return nil, ('%q has no unit: it must be %s, like "%s"'):format(given, kind.what, kind.like)
  end
  local factor = kind.units[unit]
  if not factor then return nil, advice(tostring(given), number, unit, kind) end
  if name == "count" and number % 1 ~= 0 then
    return nil, ("%s must be a whole number"):format(tostring(given))
  end
  return number * factor
end

---Whether a text is a quantity of a kind, to choose between two kinds.
---@param given any
---@param name string
---@return boolean
function quantity.is(given, name)
  return type(given) == "string" and quantity.read(given, name) ~= nil
end

return quantity
