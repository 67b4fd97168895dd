-- The arguments of calls: which parameters a filter, a test, a method or a function of templates has, and which value
-- each of them gets.
--
-- A signature is the parameters' names, "old new count="; one with "=" can be left out, which gives nil. "*" takes what
-- comes: the function then gets the arguments as they are.

local faults = require("moonshard.jinja.faults")

local arguments = {}

---@class moonshard.jinja.Arguments
---@field [integer] moonshard.jinja.Value by place
---@field n integer
---@field names string[] of those that were given by name, in order
---@field named table<string, moonshard.jinja.Value>

---@class moonshard.jinja.Callable
---@field name string for messages
---@field parameters { name: string, optional: boolean }[]?
---@field place table<string, integer>? of a parameter by name
---@field open boolean takes what comes
---@field call fun(state: table, subject: any, ...): moonshard.jinja.Value

---No arguments.
---@type moonshard.jinja.Arguments
arguments.NONE = { n = 0, names = {}, named = {} }

---@param list moonshard.jinja.Value[]
---@param n integer
---@return moonshard.jinja.Arguments
function arguments.of(list, n)
  list.n, list.names, list.named = n, {}, {}
  return list
end

---The arguments after the first ones.
---@param given moonshard.jinja.Arguments
---@param skipped integer
---@return moonshard.jinja.Arguments
function arguments.after(given, skipped)
  local rest = { n = math.max(0, given.n - skipped), names = given.names, named = given.named }
  for i = 1, rest.n do rest[i] = given[skipped + i] end
  return rest
end

---What a template can call.
---@param name string for messages: "the filter trim"
---@param signature string
---@param call fun(state: table, subject: any, ...): moonshard.jinja.Value
---@return moonshard.jinja.Callable
function arguments.callable(name, signature, call)
  if signature == "*" then return { name = name, open = true, call = call } end
  local parameters, place = {}, {}
  for parameter, optional in signature:gmatch("([%w_]+)(=?)") do
    parameters[#parameters + 1] = { name = parameter, optional = optional == "=" }
    place[parameter] = #parameters
  end
  return { name = name, open = false, call = call, parameters = parameters, place = place }
end

---A table of callables by name.
---@param kind string "the filter"
---@param rows table<string, { [1]: string, [2]: function }> signatures and functions
---@return table<string, moonshard.jinja.Callable>
function arguments.callables(kind, rows)
  local all = {}
  for name, row in pairs(rows) do
    all[name] = arguments.callable(("%s %s"):format(kind, name), row[1], row[2])
  end
  return all
end

---Calls a callable.
---@param state table of the rendering
---@param callable moonshard.jinja.Callable
---@param subject any what a filter or test is applied to, or what has the method
---@param given moonshard.jinja.Arguments
---@return moonshard.jinja.Value
function arguments.call(state, callable, subject, given)
  if callable.open then return callable.call(state, subject, given) end
  local parameters, bound = callable.parameters, {}
  if given.n > #parameters then
    faults.raise("%s takes at most %d arguments, not %d", callable.name, #parameters, given.n)
  end
  for i = 1, given.n do bound[i] = given[i] end
  for _, name in ipairs(given.names) do
    local place = callable.place[name]
    if not place then faults.raise("%s has no argument named %s", callable.name, name) end
    if bound[place] ~= nil then faults.raise("%s: the argument %s is given twice", callable.name, name) end
    bound[place] = given.named[name]
  end
  for i, parameter in ipairs(parameters) do
    if bound[i] == nil and not parameter.optional then
      faults.raise("%s needs the argument %s", callable.name, parameter.name)
    end
  end
  return callable.call(state, subject, unpack(bound, 1, #parameters))
end

return arguments
