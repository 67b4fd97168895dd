-- Calls: of functions, methods and macros, and of a loop that calls itself.
--
-- What can be called is a value of one of these kinds:
--
--   function  callable                a filter's or test's equal, without a subject
--   method    callable, subject       of a value
--   macro     node, scope             of the template; scope: where it was written
--   loop      again                   of a recursive loop

local arguments = require("moonshard.jinja.arguments")
local faults = require("moonshard.jinja.faults")
local limits = require("moonshard.jinja.limits")
local scopes = require("moonshard.jinja.evaluate.scopes")
local values = require("moonshard.jinja.values")

local calls = {}

---A function for templates.
---@param name string
---@param signature string as of arguments.callable
---@param call fun(state: table, ...): moonshard.jinja.Value
---@return table
function calls.func(name, signature, call)
  local callable = arguments.callable("the function " .. name, signature, function(state, _, ...)
    return call(state, ...)
  end)
  return { kind = "function", callable = callable }
end

-- ---- macros -----------------------------------------------------------------------------------------------------

-- Arguments after the parameters: those that the body asks for by `varargs` and `kwargs`; others are a fault.
local function bind_more(macro, scope, given, count)
  local uses = macro.node.uses
  if given.n > count and not uses.varargs then
    faults.raise("the macro %s takes at most %d arguments, not %d", macro.name, count, given.n)
  end
  if uses.varargs then
    local rest, n = {}, 0
    for i = count + 1, given.n do
      n = n + 1
      rest[n] = given[i]
    end
    scope.names.varargs = values.list(rest, n, "tuple")
  end
  local more = values.dict()
  for _, name in ipairs(given.names) do
    if scope.names[name] ~= given.named[name] and not (name == "caller" and uses.caller) then
      if not uses.kwargs or name == "caller" then
        faults.raise("the macro %s has no argument named %s", macro.name, name)
      end
      values.set(more, name, given.named[name])
    end
  end
  if uses.kwargs then scope.names.kwargs = more end
end

-- The arguments of a macro's parameters. A default can name the parameters before it.
local function bind(state, macro, scope, given)
  local node = macro.node
  local count = #node.parameters
  for i = 1, math.min(given.n, count) do
    local name = node.parameters[i].name
    if given.named[name] ~= nil then faults.raise("the macro %s: the argument %s is given twice", macro.name, name) end
    scope.names[name] = given[i]
  end
  for i = given.n + 1, count do
    local name = node.parameters[i].name
    if given.named[name] ~= nil then scope.names[name] = given.named[name] end
  end
  if node.uses.caller and scope.names.caller == nil then
    scope.names.caller = given.named.caller or values.undefined("no caller is given")
  end
  bind_more(macro, scope, given, count)
  for i = 1, count do
    local name, default = node.parameters[i].name, node.parameters[i].default
    if scope.names[name] == nil and default then
      scope.names[name] = state.evaluate(state, default) -- which can be false
    elseif scope.names[name] == nil then
      scope.names[name] = values.undefined("the argument %s is not given", name)
    end
  end
end

local function call_macro(state, macro, given)
  local before = state.scope
  state.scope = scopes.new(macro.scope)
  bind(state, macro, state.scope, given)
  local text = state.text_of(state, macro.node.body)
  state.scope = before
  return text
end

-- ---- all calls --------------------------------------------------------------------------------------------------

local CALL = {
  ["function"] = function(state, callee, given) return arguments.call(state, callee.callable, nil, given) end,
  method = function(state, callee, given) return arguments.call(state, callee.callable, callee.subject, given) end,
  macro = call_macro,
  loop = function(state, callee, given)
    if not callee.again then faults.raise("the loop is called, but it is not recursive") end
    if given.n ~= 1 then faults.raise("a recursive loop is called with what it goes over") end
    return callee.again(state, given[1])
  end,
}

---Calls a value.
---@param state table
---@param callee moonshard.jinja.Value
---@param given moonshard.jinja.Arguments
---@return moonshard.jinja.Value
function calls.call(state, callee, given)
  values.check_defined(callee)
  local call = CALL[values.kind(callee)]
  if not call then faults.raise("%s is called, which is no function", values.describe(callee)) end
  limits.enter()
  local result = call(state, callee, given)
  limits.leave()
  return result
end

-- The values of "*rest", and of "**rest".
local function add_rest(given, rest)
  local items, n = values.items(rest)
  for i = 1, n do given[given.n + i] = items[i] end
  given.n = given.n + n
end

local function add_named(given, name, value)
  if given.named[name] ~= nil then faults.raise("the argument %s is given twice", name) end
  given.names[#given.names + 1], given.named[name] = name, value
end

local function add_named_rest(given, rest)
  if values.kind(rest) ~= "dict" then faults.raise("after ** comes a dict, not %s", values.describe(rest)) end
  for i = 1, rest.n do add_named(given, values.text(rest.keys[i], "the name of an argument"), rest.values[i]) end
end

---The arguments of a call, evaluated.
---@param state table
---@param nodes table as expressions.read_arguments returns them
---@return moonshard.jinja.Arguments
function calls.arguments(state, nodes)
  local given = arguments.of({}, 0)
  for i, node in ipairs(nodes.list) do given[i] = state.evaluate(state, node) end
  given.n = #nodes.list
  if nodes.rest then add_rest(given, state.evaluate(state, nodes.rest)) end
  for _, pair in ipairs(nodes.named) do add_named(given, pair[1], state.evaluate(state, pair[2])) end
  if nodes.named_rest then add_named_rest(given, state.evaluate(state, nodes.named_rest)) end
  return given
end

return calls
