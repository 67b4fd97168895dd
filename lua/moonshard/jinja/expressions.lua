-- Reads expressions: their grammar, with Jinja's precedences, which differ from Python's in some places ("~" binds
-- tighter than "+", and filters tighter than a sign).
--
-- A node is a table with `kind` and `line`; evaluate/expressions.lua says what each kind means.

local filters = require("moonshard.jinja.filters")
local nearest = require("moonshard.base.names.nearest")
local tests = require("moonshard.jinja.tests")
local values = require("moonshard.jinja.values")

local expressions = {}

local read_expression, read_or, read_unary

local function node(kind, line, fields)
  fields.kind, fields.line = kind, line
  return fields
end

-- ---- literals and names -------------------------------------------------------------------------------------------

local CONSTANTS = {
  ["true"] = true, ["True"] = true, ["false"] = false, ["False"] = false, none = values.NONE, None = values.NONE,
}

local function read_items(stream, close)
  local items = {}
  while stream.token.type ~= close do
    if #items > 0 then
      stream:expect(",")
      if stream.token.type == close then break end
    end
    items[#items + 1] = read_expression(stream)
  end
  stream:expect(close)
  return items
end

local function read_dict(stream, line)
  local pairs_ = {}
  while stream.token.type ~= "}" do
    if #pairs_ > 0 then
      stream:expect(",")
      if stream.token.type == "}" then break end
    end
    local key = read_expression(stream)
    stream:expect(":")
    pairs_[#pairs_ + 1] = { key, read_expression(stream) }
  end
  stream:expect("}")
  return node("dict", line, { pairs = pairs_ })
end

local function read_texts(stream)
  local line, parts = stream.token.line, {}
  while stream.token.type == "string" do
    parts[#parts + 1] = stream.token.value
    stream:mention(stream:take().value)
  end
  return node("constant", line, { value = table.concat(parts) })
end

local PRIMARY = {
  string = read_texts,
  integer = function(stream)
    local token = stream:take()
    return node("constant", token.line, { value = token.value })
  end,
  float = function(stream)
    local token = stream:take()
    return node("constant", token.line, { value = values.float(token.value) })
  end,
  name = function(stream)
    local token = stream:take()
    local constant = CONSTANTS[token.value]
    if constant ~= nil then return node("constant", token.line, { value = constant }) end
    stream:mention(token.value)
    return node("name", token.line, { name = token.value })
  end,
  ["("] = function(stream)
    stream:take()
    local inner = expressions.read_tuple(stream, { may_be_empty = true })
    stream:expect(")")
    return inner
  end,
  ["["] = function(stream)
    local line = stream:take().line
    return node("list", line, { items = read_items(stream, "]") })
  end,
  ["{"] = function(stream) return read_dict(stream, stream:take().line) end,
}

---A name, a literal, or what is in brackets.
---@param stream moonshard.jinja.Stream
---@return table node
function expressions.read_primary(stream)
  local read = PRIMARY[stream.token.type]
  if not read then stream:fail("%s where an expression is expected", stream:shown()) end
  return read(stream)
end

-- ---- what follows a value: attributes, items, calls, filters, tests -----------------------------------------------

local function read_slice_part(stream)
  local type_ = stream.token.type
  if type_ == ":" or type_ == "]" then return nil end
  return read_expression(stream)
end

local function read_item(stream, of)
  local line = stream:take().line
  local first = read_slice_part(stream)
  local result
  if stream:take_if(":") then
    local last = read_slice_part(stream)
    local step = stream:take_if(":") and read_slice_part(stream) or nil
    result = node("slice", line, { of = of, first = first, last = last, step = step })
  elseif first and stream.token.type == "," then
    local items = { first }
    while stream:take_if(",") do items[#items + 1] = read_expression(stream) end
    result = node("item", line, { of = of, key = node("tuple", line, { items = items }) })
  else
    if not first then stream:fail("%s where an index is expected", stream:shown()) end
    result = node("item", line, { of = of, key = first })
  end
  stream:expect("]")
  return result
end

local function read_attribute(stream, of)
  local line = stream:take().line
  local token = stream:take()
  if token.type == "name" then
    stream:mention(token.value)
    return node("attribute", line, { of = of, name = token.value })
  elseif token.type == "integer" then
    return node("item", line, { of = of, key = node("constant", line, { value = token.value }) })
  end
  stream:fail("after a point comes the name of an attribute")
end

---The arguments of a call.
---@param stream moonshard.jinja.Stream
---@return table given { list, named, rest?, named_rest? }
function expressions.read_arguments(stream)
  local given = { list = {}, named = {} }
  stream:expect("(")
  local first = true
  while stream.token.type ~= ")" do
    if not first then
      stream:expect(",")
      if stream.token.type == ")" then break end
    end
    first = false
    if stream:take_if("*") then
      if given.rest or given.named_rest then stream:fail("a call has * once, before **") end
      given.rest = read_expression(stream)
    elseif stream:take_if("**") then
      if given.named_rest then stream:fail("a call has ** once") end
      given.named_rest = read_expression(stream)
    elseif stream.token.type == "name" and stream:following().type == "=" then
      if given.named_rest then stream:fail("a named argument comes before **") end
      local name = stream:take().value
      stream:take()
      given.named[#given.named + 1] = { name, read_expression(stream) }
    else
      if #given.named > 0 or given.rest or given.named_rest then
        stream:fail("an argument without a name comes before those with one")
      end
      given.list[#given.list + 1] = read_expression(stream)
    end
  end
  stream:expect(")")
  return given
end

local NO_ARGUMENTS = { list = {}, named = {} }

local function read_call(stream, of)
  local line = stream.token.line
  return node("call", line, { of = of, given = expressions.read_arguments(stream) })
end

local function read_dotted_name(stream)
  local name = stream:expect("name").value
  while stream:take_if(".") do name = name .. "." .. stream:expect("name").value end
  return name
end

-- A filter or test that is not there is a fault of the template, unless a condition can leave it out, as templates do
-- with what only some programs have: then it is one where it is evaluated.
local function check_known(stream, line, kind, name, known)
  if known[name] then return end
  stream:doubt(line, ("there is no %s %s: %s"):format(kind, name, nearest.advice(name, known)))
end

---A filter after "|" or after the tag filter; the current token is its name.
---@param stream moonshard.jinja.Stream
---@param of table? the node of what it is applied to; nil: the text of a block
---@return table node
function expressions.read_filter(stream, of)
  local line = stream.token.line
  local name = read_dotted_name(stream)
  check_known(stream, line, "filter", name, filters.ALL)
  local given = stream.token.type == "(" and expressions.read_arguments(stream) or NO_ARGUMENTS
  return node("filter", line, { name = name, of = of, given = given })
end

local STARTS_ARGUMENT = { name = true, string = true, integer = true, float = true, ["("] = true, ["["] = true,
  ["{"] = true }

local function read_postfix(stream, of)
  while true do
    local type_ = stream.token.type
    if type_ == "." then
      of = read_attribute(stream, of)
    elseif type_ == "[" then
      of = read_item(stream, of)
    elseif type_ == "(" then
      of = read_call(stream, of)
    else
      return of
    end
  end
end

local function read_test(stream, of)
  local line = stream:take().line
  local negated = stream:take_word("not")
  local name = read_dotted_name(stream)
  check_known(stream, line, "test", name, tests.ALL)
  local given = NO_ARGUMENTS
  if stream.token.type == "(" then
    given = expressions.read_arguments(stream)
  elseif STARTS_ARGUMENT[stream.token.type]
    and not (stream:is_word("else") or stream:is_word("or") or stream:is_word("and")) then
    if stream:is_word("is") then stream:fail("a test cannot follow a test: write and") end
    given = { list = { read_postfix(stream, expressions.read_primary(stream)) }, named = {} }
  end
  local result = node("test", line, { name = name, of = of, given = given })
  return negated and node("not", line, { of = result }) or result
end

local function read_filters_and_tests(stream, of)
  while true do
    if stream.token.type == "|" then
      stream:take()
      of = expressions.read_filter(stream, of)
    elseif stream:is_word("is") then
      of = read_test(stream, of)
    elseif stream.token.type == "(" then
      of = read_call(stream, of)
    else
      return of
    end
  end
end

-- ---- operators ----------------------------------------------------------------------------------------------------

function read_unary(stream, without_filters)
  local line, of = stream.token.line
  stream:enter()
  if stream:take_if("-") then
    of = node("sign", line, { of = read_unary(stream, true), sign = -1 })
  elseif stream:take_if("+") then
    of = node("sign", line, { of = read_unary(stream, true), sign = 1 })
  else
    of = expressions.read_primary(stream)
  end
  stream:leave()
  of = read_postfix(stream, of)
  return without_filters and of or read_filters_and_tests(stream, of)
end

-- Operators of one precedence, from the left.
local function left_to_right(signs, read)
  return function(stream)
    local left = read(stream)
    while signs[stream.token.type] do
      local token = stream:take()
      left = node("binary", token.line, { sign = token.type, left = left, right = read(stream) })
    end
    return left
  end
end

local read_power = left_to_right({ ["**"] = true }, read_unary)
local read_product = left_to_right({ ["*"] = true, ["/"] = true, ["//"] = true, ["%"] = true }, read_power)

local function read_concatenation(stream)
  local line = stream.token.line
  local parts = { read_product(stream) }
  while stream:take_if("~") do parts[#parts + 1] = read_product(stream) end
  return #parts == 1 and parts[1] or node("concatenation", line, { parts = parts })
end

local read_sum = left_to_right({ ["+"] = true, ["-"] = true }, read_concatenation)

local COMPARES = { ["=="] = true, ["!="] = true, ["<"] = true, [">"] = true, ["<="] = true, [">="] = true }

local function read_comparison(stream)
  local line = stream.token.line
  local first, rest = read_sum(stream), {}
  while true do
    local sign
    if COMPARES[stream.token.type] then
      sign = stream:take().type
    elseif stream:take_word("in") then
      sign = "in"
    else
      local following = stream:following()
      if not (stream:is_word("not") and following.type == "name" and following.value == "in") then break end
      stream:take()
      stream:take()
      sign = "not in"
    end
    rest[#rest + 1] = { sign, read_sum(stream) }
  end
  return #rest == 0 and first or node("comparison", line, { first = first, rest = rest })
end

local function read_not(stream)
  if not stream:is_word("not") then return read_comparison(stream) end
  local line = stream:take().line
  stream:enter()
  local of = read_not(stream)
  stream:leave()
  return node("not", line, { of = of })
end

local function joined(word, kind, read)
  return function(stream)
    local left = read(stream)
    while stream:is_word(word) do
      local line = stream:take().line
      left = node(kind, line, { left = left, right = read(stream) })
    end
    return left
  end
end

read_or = joined("or", "or", joined("and", "and", read_not))

---An expression.
---@param stream moonshard.jinja.Stream
---@return table node
function expressions.read(stream)
  local line, doubts = stream.token.line, #stream.doubts
  stream:enter()
  local result = read_or(stream)
  while stream:take_word("if") do
    local condition = read_or(stream)
    local otherwise = stream:take_word("else") and expressions.read(stream) or nil
    result = node("choice", line, { condition = condition, value = result, otherwise = otherwise })
    stream:drop_doubts(doubts)
  end
  stream:leave()
  return result
end
read_expression = expressions.read

local ENDS_TUPLE = { ["}}"] = true, ["%}"] = true, [")"] = true }

---An expression, or several with commas between them, a tuple.
---@param stream moonshard.jinja.Stream
---@param o { may_be_empty: boolean?, targets: boolean?, no_choice: boolean?, stop: string? }? targets: names only;
---  stop: the word that ends it
---@return table node
function expressions.read_tuple(stream, o)
  o = o or {}
  local line, items, is_tuple = stream.token.line, {}, false
  local read = o.targets and expressions.read_primary or o.no_choice and read_or or read_expression
  while true do
    if #items > 0 then
      if stream.token.type ~= "," then break end
      stream:take()
      is_tuple = true
    end
    if ENDS_TUPLE[stream.token.type] or o.stop and stream:is_word(o.stop) then break end
    items[#items + 1] = read(stream)
  end
  if not is_tuple then
    if items[1] then return items[1] end
    if not o.may_be_empty then stream:fail("%s where an expression is expected", stream:shown()) end
  end
  return node("tuple", line, { items = items })
end

return expressions
