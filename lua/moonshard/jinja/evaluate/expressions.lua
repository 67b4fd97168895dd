-- What each kind of node of an expression gives.

local arguments = require("moonshard.jinja.arguments")
local attributes = require("moonshard.jinja.evaluate.attributes")
local calls = require("moonshard.jinja.evaluate.calls")
local comparing = require("moonshard.jinja.comparing")
local faults = require("moonshard.jinja.faults")
local limits = require("moonshard.jinja.limits")
local nearest = require("moonshard.base.names.nearest")
local operators = require("moonshard.jinja.evaluate.operators")
local printing = require("moonshard.jinja.printing")
local scopes = require("moonshard.jinja.evaluate.scopes")
local values = require("moonshard.jinja.values")

local evaluate

---A variable: of a scope, of those that the rendering was given, or of what all templates have.
---@param state table
---@param name string
---@return moonshard.jinja.Value
local function variable(state, name)
  local value = scopes.find(state.scope, name)
  if value == nil then value = state.variables[name] end
  if value == nil then value = state.globals[name] end
  if value == nil then return values.undefined("%s is not defined", name) end
  return value
end

local function list_of(kind)
  return function(state, node)
    local items = {}
    for i, item in ipairs(node.items) do items[i] = evaluate(state, item) end
    return values.list(items, #node.items, kind)
  end
end

local function named(known, kind, name)
  local callable = known[name]
  if not callable then faults.raise("there is no %s %s: %s", kind, name, nearest.advice(name, known)) end
  return callable
end

-- What a filter is applied to; without a node of its own it is the text of a block.
local function subject_of(state, node)
  if node.of then return evaluate(state, node.of) end
  return state.block_text
end

local function call_of(state, node, kind)
  local subject = subject_of(state, node)
  local callable = named(state[kind .. "s"], kind, node.name)
  local given = node.given
  local has_none = not given.list[1] and not given.named[1] and not given.rest and not given.named_rest
  return arguments.call(state, callable, subject, has_none and arguments.NONE or calls.arguments(state, given))
end

local KINDS = {
  constant = function(_, node) return node.value end,
  name = function(state, node) return variable(state, node.name) end,
  list = list_of("list"),
  tuple = list_of("tuple"),
  dict = function(state, node)
    local dict = values.dict()
    for _, pair in ipairs(node.pairs) do values.set(dict, evaluate(state, pair[1]), evaluate(state, pair[2])) end
    return dict
  end,
  attribute = function(state, node) return attributes.attribute(evaluate(state, node.of), node.name) end,
  item = function(state, node) return attributes.item(evaluate(state, node.of), evaluate(state, node.key)) end,
  slice = function(state, node)
    local of = evaluate(state, node.of)
    return attributes.slice(of, node.first and evaluate(state, node.first), node.last and evaluate(state, node.last),
      node.step and evaluate(state, node.step))
  end,
  call = function(state, node)
    local callee = evaluate(state, node.of)
    return calls.call(state, callee, calls.arguments(state, node.given))
  end,
  filter = function(state, node) return call_of(state, node, "filter") end,
  test = function(state, node) return values.truth(call_of(state, node, "test")) end,
  sign = function(state, node) return operators.signed(node.sign, evaluate(state, node.of)) end,
  binary = function(state, node)
    local left = evaluate(state, node.left)
    return operators.binary(node.sign, left, evaluate(state, node.right))
  end,
  concatenation = function(state, node)
    local parts, bytes = {}, 0
    for i, part in ipairs(node.parts) do
      parts[i] = printing.text(evaluate(state, part))
      bytes = bytes + #parts[i]
    end
    limits.text(bytes)
    return table.concat(parts)
  end,
  comparison = function(state, node)
    local left = evaluate(state, node.first)
    for _, pair in ipairs(node.rest) do
      local right = evaluate(state, pair[2])
      if not comparing.OPERATORS[pair[1]](left, right) then return false end
      left = right
    end
    return true
  end,
  ["not"] = function(state, node) return not values.truth(evaluate(state, node.of)) end,
  ["and"] = function(state, node)
    local left = evaluate(state, node.left)
    if not values.truth(left) then return left end
    return evaluate(state, node.right)
  end,
  ["or"] = function(state, node)
    local left = evaluate(state, node.left)
    if values.truth(left) then return left end
    return evaluate(state, node.right)
  end,
  choice = function(state, node)
    if values.truth(evaluate(state, node.condition)) then return evaluate(state, node.value) end
    if node.otherwise then return evaluate(state, node.otherwise) end
    return values.undefined("a condition without else is false, so its value is not defined")
  end,
}

---The value of an expression.
---@param state table of the rendering
---@param node table
---@return moonshard.jinja.Value
function evaluate(state, node)
  limits.step(1)
  limits.enter()
  state.place.line = node.line
  local value = KINDS[node.kind](state, node)
  limits.leave()
  return value
end

return evaluate
