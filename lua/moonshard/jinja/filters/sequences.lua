-- Filters of lists, dicts and whatever else can be looped over.

local attributes = require("moonshard.jinja.evaluate.attributes")
local characters = require("moonshard.jinja.characters")
local comparing = require("moonshard.jinja.comparing")
local faults = require("moonshard.jinja.faults")
local limits = require("moonshard.jinja.limits")
local operators = require("moonshard.jinja.evaluate.operators")
local printing = require("moonshard.jinja.printing")
local values = require("moonshard.jinja.values")

local function is_none(value) return value == nil or value == values.NONE end
local function is_true(value) return value ~= nil and values.truth(value) end

local function copy_of(value)
  local items, n = values.items(value)
  local copy = {}
  for i = 1, n do copy[i] = items[i] end
  return copy, n
end

local function length(_, value)
  local n = values.length(value)
  if not n then faults.raise("%s has no length", values.describe(value)) end
  return n
end

local function default(_, value, other, boolean)
  local is_undefined = type(value) == "table" and value.kind == "undefined"
  if not is_undefined and not (is_true(boolean) and not values.truth(value)) then return value end
  if other == nil then return "" end
  return other
end

local function join(_, value, separator, attribute)
  local items, n = values.items(value)
  local get, parts, bytes = attributes.getter(attribute), {}, 0
  separator = separator == nil and "" or printing.text(separator)
  for i = 1, n do
    parts[i] = printing.text(get(items[i]))
    bytes = bytes + #parts[i] + #separator
  end
  limits.text(bytes)
  return table.concat(parts, separator)
end

local function first(_, value)
  if values.kind(value) == "generator" and value.at < value.n then
    value.at = value.at + 1
    return value[value.at]
  end
  local items, n = values.items(value)
  if n == 0 then return values.undefined("there is no first item") end
  return items[1]
end

local REVERSIBLE = { str = true, list = true, tuple = true, range = true, dict = true, view = true, undefined = true }

local function last(_, value)
  if not REVERSIBLE[values.kind(value)] then faults.raise("%s has no last item", values.describe(value)) end
  local items, n = values.items(value)
  if n == 0 then return values.undefined("there is no last item") end
  return items[n]
end

local function reverse(_, value)
  local items, n = copy_of(value)
  for i = 1, math.floor(n / 2) do items[i], items[n + 1 - i] = items[n + 1 - i], items[i] end
  if type(value) == "string" then return table.concat(items) end
  return values.list(items, n, "generator")
end

-- What a list is sorted by: several paths of attributes can stand in a text, with commas between them.
local function sort_key(attribute, case_sensitive)
  local paths = type(attribute) == "string" and characters.split(attribute, ",", -1) or { attribute }
  local getters = {}
  for i, path in ipairs(paths) do getters[i] = attributes.getter(path) end
  if #getters == 0 then getters[1] = attributes.getter(nil) end
  return function(value)
    local parts = {}
    for i, get in ipairs(getters) do
      parts[i] = get(value)
      if not case_sensitive then parts[i] = comparing.without_case(parts[i]) end
    end
    return values.list(parts, #getters, "list")
  end
end

local function sort(_, value, reversed, case_sensitive, attribute)
  local items, n = values.items(value)
  return values.list(comparing.sorted(items, n, sort_key(attribute, is_true(case_sensitive)), is_true(reversed)), n)
end

local function dictsort(_, value, case_sensitive, by, reversed)
  by = by == nil and "key" or by
  if by ~= "key" and by ~= "value" then faults.raise("dictsort: by is key or value") end
  if values.kind(value) ~= "dict" then faults.raise("dictsort needs a dict, not %s", values.describe(value)) end
  local items = values.pairs_of(value, "list")
  local function key(item)
    local part = item[by == "key" and 1 or 2]
    return is_true(case_sensitive) and part or comparing.without_case(part)
  end
  return values.list(comparing.sorted(items, items.n, key, is_true(reversed)), items.n)
end

-- The key of an item by an attribute, without its case unless that counts.
local function item_key(attribute, case_sensitive, fallback)
  local get = attributes.getter(attribute, fallback)
  return function(item)
    local key = get(item)
    return case_sensitive and key or comparing.without_case(key)
  end
end

local function unique(_, value, case_sensitive, attribute)
  local items, n = values.items(value)
  local key, seen, result, count = item_key(attribute, is_true(case_sensitive)), {}, {}, 0
  for i = 1, n do
    local hash = values.hash(key(items[i]))
    if hash == nil then faults.raise("unique: %s cannot be compared so", values.describe(items[i])) end
    if not seen[hash] then
      count = count + 1
      seen[hash], result[count] = true, items[i]
    end
  end
  return values.list(result, count, "generator")
end

local function extreme(is_better)
  return { "case_sensitive= attribute=", function(_, value, case_sensitive, attribute)
    local items, n = values.items(value)
    local key = item_key(attribute, is_true(case_sensitive))
    if n == 0 then return values.undefined("there is no item") end
    local best, best_key = items[1], key(items[1])
    for i = 2, n do
      local other = key(items[i])
      if is_better(other, best_key) then best, best_key = items[i], other end
    end
    return best
  end }
end

local function sum(_, value, attribute, start)
  local items, n = values.items(value)
  local get, result = attributes.getter(attribute), start == nil and 0 or start
  for i = 1, n do result = operators.binary("+", result, get(items[i])) end
  return result
end

local function list(_, value)
  local items, n = copy_of(value)
  return values.list(items, n)
end

local function items(_, value)
  local kind = values.kind(value)
  if kind == "undefined" then return values.list({}, 0, "generator") end
  if kind ~= "dict" then faults.raise("the filter items needs a dict, not %s", values.describe(value)) end
  return values.pairs_of(value, "generator")
end

local function batch(_, value, size, fill)
  size = values.whole(size, "batch: linecount")
  local all, n = values.items(value)
  local result, row = {}, values.list({}, 0)
  for i = 1, n do
    if row.n == size then
      result[#result + 1] = row
      row = values.list({}, 0)
    end
    row.n = row.n + 1
    row[row.n] = all[i]
  end
  if row.n > 0 then
    result[#result + 1] = row
    limits.list(math.max(0, size - row.n))
    for i = row.n + 1, is_none(fill) and 0 or size do row[i], row.n = fill, i end
  end
  return values.list(result, #result, "generator")
end

local function slice(_, value, count, fill)
  count = values.whole(count, "slice: slices")
  if count == 0 then faults.raise("slice: slices is 0") end
  local all, n = values.items(value)
  limits.list(math.max(0, count))
  local size, longer, result, at = math.floor(n / count), n % count, {}, 0
  for i = 1, count do
    local row = values.list({}, size + (i <= longer and 1 or 0))
    for j = 1, row.n do row[j] = all[at + j] end
    at = at + row.n
    if not is_none(fill) and i > longer then row.n, row[row.n + 1] = row.n + 1, fill end
    result[i] = row
  end
  return values.list(result, math.max(0, count), "generator")
end

local function groupby(_, value, attribute, fallback, case_sensitive)
  local key = item_key(attribute, is_true(case_sensitive), fallback)
  local shown = attributes.getter(attribute, fallback)
  local all, n = values.items(value)
  local sorted, groups, before = comparing.sorted(all, n, key, false), {}, nil
  for i = 1, n do
    local item_of = sorted[i]
    local of = key(item_of)
    local group = groups[#groups]
    if not group or not comparing.equal(of, before) then
      group = values.list({ shown(item_of), values.list({}, 0) }, 2, "tuple")
      group.names = { grouper = 1, list = 2 }
      groups[#groups + 1] = group
    end
    before = of
    group[2].n = group[2].n + 1
    group[2][group[2].n] = item_of
  end
  return values.list(groups, #groups)
end

return {
  length = { "", length }, count = { "", length },
  default = { "default_value= boolean=", default }, d = { "default_value= boolean=", default },
  join = { "d= attribute=", join }, first = { "", first }, last = { "", last }, reverse = { "", reverse },
  sort = { "reverse= case_sensitive= attribute=", sort }, dictsort = { "case_sensitive= by= reverse=", dictsort },
  unique = { "case_sensitive= attribute=", unique },
  min = extreme(comparing.less), max = extreme(function(a, b) return comparing.less(b, a) end),
  sum = { "attribute= start=", sum }, list = { "", list }, items = { "", items },
  batch = { "linecount fill_with=", batch }, slice = { "slices fill_with=", slice },
  groupby = { "attribute default= case_sensitive=", groupby },
}
