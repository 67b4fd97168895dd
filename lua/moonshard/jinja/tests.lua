-- What can be asked after "is".

local arguments = require("moonshard.jinja.arguments")
local characters = require("moonshard.jinja.characters")
local comparing = require("moonshard.jinja.comparing")
local operators = require("moonshard.jinja.evaluate.operators")
local printing = require("moonshard.jinja.printing")
local values = require("moonshard.jinja.values")

local tests = {}

local function is_kind(...)
  local kinds = {}
  for i = 1, select("#", ...) do kinds[select(i, ...)] = true end
  return { "", function(_, value) return kinds[values.kind(value)] or false end }
end

local function compares(sign)
  local compare = comparing.OPERATORS[sign]
  return { "other", function(_, value, other) return compare(value, other) end }
end

local function leaves(remainder)
  return { "", function(_, value) return comparing.equal(operators.binary("%", value, 2), remainder) end }
end

local rows = {
  defined = { "", function(_, value) return values.kind(value) ~= "undefined" end },
  undefined = is_kind("undefined"), none = is_kind("none"), boolean = is_kind("bool"),
  ["true"] = { "", function(_, value) return value == true end },
  ["false"] = { "", function(_, value) return value == false end },
  integer = is_kind("int", "integer"), float = is_kind("float"), number = is_kind("int", "bool", "float", "integer"),
  string = is_kind("str"), mapping = is_kind("dict"),
  sequence = is_kind("str", "list", "tuple", "range", "dict", "undefined"),
  iterable = { "", function(_, value) return values.is_iterable(value) end },
  callable = is_kind("function", "method", "macro", "loop", "undefined"),
  odd = leaves(1), even = leaves(0),
  divisibleby = { "num", function(_, value, by)
    return comparing.equal(operators.binary("%", value, by), 0)
  end },
  lower = { "", function(_, value) return characters.is_in_case(printing.text(value), characters.lower) end },
  upper = { "", function(_, value) return characters.is_in_case(printing.text(value), characters.upper) end },
  sameas = { "other", function(_, value, other) return rawequal(value, other) end },
  escaped = { "", function() return false end },
  ["in"] = { "seq", function(_, value, container) return comparing.is_in(value, container) end },
  filter = { "", function(state, value) return state.filters[value] ~= nil end },
  test = { "", function(state, value) return state.tests[value] ~= nil end },
}
for sign, names in pairs({
  ["=="] = "== eq equalto", ["!="] = "!= ne", [">"] = "> gt greaterthan", [">="] = ">= ge",
  ["<"] = "< lt lessthan", ["<="] = "<= le",
}) do
  for name in names:gmatch("%S+") do rows[name] = compares(sign) end
end

---@type table<string, moonshard.jinja.Callable>
tests.ALL = arguments.callables("the test", rows)

return tests
