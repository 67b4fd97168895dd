-- The methods of all kinds of values, and the names of attributes that Python's values have besides: a dict's key of
-- such a name is read as value["name"], not as value.name.

local arguments = require("moonshard.jinja.arguments")
local comparing = require("moonshard.jinja.comparing")
local faults = require("moonshard.jinja.faults")
local values = require("moonshard.jinja.values")

local methods = {}

local function view(of, n, name)
  local list = values.list(of, n, "view")
  list.name = name
  return list
end

local function copy_of(list, n)
  local copy = {}
  for i = 1, n do copy[i] = list[i] end
  return copy
end

local DICT = arguments.callables("the method", {
  items = { "", function(_, dict)
    local items = values.pairs_of(dict, "view")
    items.name = "dict_items"
    return items
  end },
  keys = { "", function(_, dict) return view(copy_of(dict.keys, dict.n), dict.n, "dict_keys") end },
  values = { "", function(_, dict) return view(copy_of(dict.values, dict.n), dict.n, "dict_values") end },
  get = { "key default=", function(_, dict, key, default)
    local value = values.get(dict, key)
    if value == nil then value = default end
    if value == nil then return values.NONE end
    return value
  end },
  copy = { "", function(_, dict) return dict end }, -- neither is changed
})

local function index_of(_, list, value, first, last)
  local from = first == nil and 0 or values.whole(first, "index: start")
  local to = last == nil and list.n or values.whole(last, "index: stop")
  if from < 0 then from = math.max(0, from + list.n) end
  if to < 0 then to = to + list.n end
  for i = from, math.min(to, list.n) - 1 do
    if comparing.equal(list[i + 1], value) then return i end
  end
  faults.raise("index: the list has no such item")
end

local function count_of(_, list, value)
  local count = 0
  for i = 1, list.n do
    if comparing.equal(list[i], value) then count = count + 1 end
  end
  return count
end

local LIST = arguments.callables("the method", {
  index = { "value start= stop=", index_of }, count = { "value", count_of },
  copy = { "", function(_, list) return list end },
})
local TUPLE = { index = LIST.index, count = LIST.count }

local FLOAT = arguments.callables("the method", {
  is_integer = { "", function(_, float) return float.value % 1 == 0 end },
})

local function set(names)
  local found = {}
  for name in names:gmatch("%S+") do found[name] = true end
  return found
end

-- By the kind of value: its methods; the names of those that would change it, which sandboxed templates must not; and
-- of what Python has and this interpreter has not.
local OF_KIND = {
  str = {
    methods = require("moonshard.jinja.methods.texts"), changing = {},
    missing = set "encode format_map isidentifier isprintable istitle maketrans translate",
  },
  dict = { methods = DICT, changing = set "clear pop popitem setdefault update", missing = set "fromkeys" },
  list = { methods = LIST, changing = set "append clear extend insert pop remove reverse sort", missing = {} },
  tuple = { methods = TUPLE, changing = {}, missing = {} },
  range = { methods = TUPLE, changing = {}, missing = {} },
  float = { methods = FLOAT, changing = {}, missing = set "as_integer_ratio conjugate fromhex hex imag real" },
  int = {
    methods = {}, changing = {},
    missing = set "as_integer_ratio bit_count bit_length conjugate denominator from_bytes imag numerator real to_bytes",
  },
}
OF_KIND.bool = OF_KIND.int

---What a value has by the name of an attribute: a method that is bound to it, or why it has none that can be used; nil
---if Python's values of this kind have no such attribute.
---@param value moonshard.jinja.Value
---@param name string
---@return moonshard.jinja.Value?
function methods.find(value, name)
  local row = OF_KIND[values.kind(value)]
  if name:find("^__.*__$") then
    return values.undefined("the attribute %s of %s is closed to templates", name, values.describe(value))
  end
  if not row then return nil end
  local callable = row.methods[name]
  if callable then return { kind = "method", callable = callable, subject = value } end
  if row.changing[name] then
    return values.undefined("the method %s would change %s, which templates must not", name, values.describe(value))
  end
  if row.missing[name] then faults.unsupported("the method %s of %s", name, values.describe(value)) end
end

return methods
