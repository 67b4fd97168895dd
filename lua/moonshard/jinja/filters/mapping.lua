-- Filters that apply another filter or a test to each item: map, select, reject, and those by an attribute.

local arguments = require("moonshard.jinja.arguments")
local attributes = require("moonshard.jinja.evaluate.attributes")
local faults = require("moonshard.jinja.faults")
local nearest = require("moonshard.base.names.nearest")
local values = require("moonshard.jinja.values")

-- What is to be done with each item, by its name.
local function named(state, kind, name, given)
  local known = state[kind .. "s"]
  local callable = known[values.text(name, ("the name of a %s"):format(kind))]
  if not callable then faults.raise("there is no %s %s: %s", kind, name, nearest.advice(name, known)) end
  return function(item) return arguments.call(state, callable, item, given) end
end

local function map(state, value, given)
  local apply
  if given.n == 0 and given.named.attribute ~= nil then
    for _, name in ipairs(given.names) do
      if name ~= "attribute" and name ~= "default" then faults.raise("map has no argument named %s", name) end
    end
    local default = given.named.default
    if default == values.NONE then default = nil end
    apply = attributes.getter(given.named.attribute, default)
  elseif given.n == 0 then
    faults.raise("map needs the name of a filter, or attribute=")
  end
  local items, n = values.items(value)
  local result = {}
  if n > 0 and not apply then apply = named(state, "filter", given[1], arguments.after(given, 1)) end
  for i = 1, n do result[i] = apply(items[i]) end
  return values.list(result, n, "generator")
end

-- Items for which a test, or their truth, is as wanted; of an attribute, which is then the first argument.
local function selector(wanted, of_attribute)
  return { "*", function(state, value, given)
    local get = attributes.getter(nil)
    if of_attribute then
      if given.n == 0 then faults.raise("selectattr and rejectattr need the name of an attribute") end
      get = attributes.getter(given[1])
      given = arguments.after(given, 1)
    end
    local items, n = values.items(value)
    local passes = values.truth
    if given.n > 0 and n > 0 then
      local test = named(state, "test", given[1], arguments.after(given, 1))
      passes = function(item) return values.truth(test(item)) end
    end
    local result, count = {}, 0
    for i = 1, n do
      if passes(get(items[i])) == wanted then
        count = count + 1
        result[count] = items[i]
      end
    end
    return values.list(result, count, "generator")
  end }
end

return {
  map = { "*", map }, select = selector(true, false), reject = selector(false, false),
  selectattr = selector(true, true), rejectattr = selector(false, true),
  attr = { "name", function(_, value, name)
    return attributes.no_item(value, values.text(name, "attr: name"))
  end },
}
