-- The functions that every template has: Jinja's, and those that chat templates get besides.

local calls = require("moonshard.jinja.evaluate.calls")
local faults = require("moonshard.jinja.faults")
local limits = require("moonshard.jinja.limits")
local printing = require("moonshard.jinja.printing")
local values = require("moonshard.jinja.values")

local globals = {}

local MAX_IN_RANGE = 100000 -- as Jinja's sandbox

local function range(_, first, last, step)
  first, step = values.whole(first, "range"), step == nil and 1 or values.whole(step, "the step of range")
  if last == nil then
    first, last = 0, first
  else
    last = values.whole(last, "range")
  end
  if step == 0 then faults.raise("the step of range is 0") end
  local n = math.max(0, math.ceil((last - first) / step))
  if n > MAX_IN_RANGE then faults.raise("range has more than %d items", MAX_IN_RANGE) end
  limits.list(n)
  local items = {}
  for i = 1, n do items[i] = first + (i - 1) * step end
  local result = values.list(items, n, "range")
  result.start, result.stop, result.step = first, last, step
  return result
end

-- The pairs of a dict, or of a list of pairs.
local function each_pair(value, visit)
  if values.kind(value) == "dict" then
    for i = 1, value.n do visit(value.keys[i], value.values[i]) end
    return
  end
  local items, n = values.items(value)
  for i = 1, n do
    local pair, count = values.items(items[i])
    if count ~= 2 then faults.raise("item %d is no pair", i) end
    visit(pair[1], pair[2])
  end
end

local function dict(_, given)
  local result = values.dict()
  local function set(key, value) values.set(result, key, value) end
  if given.n > 1 then faults.raise("dict takes one value, and arguments with names") end
  if given.n == 1 then each_pair(given[1], set) end
  for _, name in ipairs(given.names) do set(name, given.named[name]) end
  return result
end

local function namespace(_, given)
  local result = { kind = "namespace", values = {}, names = {} }
  function result.set(name, value)
    if result.values[name] == nil then result.names[#result.names + 1] = name end
    result.values[name] = value
  end
  function result.in_order()
    local list = {}
    for i, name in ipairs(result.names) do list[i] = result.values[name] end
    return list
  end
  local pairs_of = dict(nil, given)
  for i = 1, pairs_of.n do result.set(values.text(pairs_of.keys[i], "a name"), pairs_of.values[i]) end
  return result
end

-- An object that gives its items in turn.
local function cycler(_, given)
  if given.n == 0 then faults.raise("cycler needs items") end
  local at = 0
  return { kind = "loop", attribute = function(name)
    if name == "current" then return given[at + 1] end
    if name == "reset" then
      return calls.func("reset", "", function()
        at = 0
        return values.NONE
      end)
    elseif name == "next" then
      return calls.func("next", "", function()
        local item = given[at + 1]
        at = (at + 1) % given.n
        return item
      end)
    end
  end }
end

-- A function that gives a separator, but nothing when it is called first.
local function joiner(_, separator)
  local used = false
  separator = separator == nil and ", " or separator
  return calls.func("joiner", "", function()
    local text = used and separator or ""
    used = true
    return text
  end)
end

---By their names.
---@type table<string, table>
globals.ALL = {
  range = calls.func("range", "start stop= step=", range),
  dict = calls.func("dict", "*", dict),
  namespace = calls.func("namespace", "*", namespace),
  cycler = calls.func("cycler", "*", cycler),
  joiner = calls.func("joiner", "sep=", joiner),
  raise_exception = calls.func("raise_exception", "message", function(_, message)
    faults.raise("it refuses this conversation: %s", printing.text(message))
  end),
}

---Those, and strftime_now for a moment.
---@param moment integer? seconds since 1970; nil: a template that asks for the time is at fault
---@return table<string, table>
function globals.at(moment)
  local all = {}
  for name, value in pairs(globals.ALL) do all[name] = value end
  all.strftime_now = calls.func("strftime_now", "format", function(_, format)
    format = values.text(format, "the format of strftime_now")
    if not moment then
      faults.raise("it writes today's date (strftime_now), which changes the text from day to day: give the option now")
    end
    return (os.date("_" .. format, moment):sub(2)) -- "*t" and "!" at its beginning would mean something else
  end)
  return all
end

return globals
