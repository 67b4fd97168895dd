-- What each kind of node of a template writes, sets or does.

local calls = require("moonshard.jinja.evaluate.calls")
local evaluate = require("moonshard.jinja.evaluate.expressions")
local faults = require("moonshard.jinja.faults")
local limits = require("moonshard.jinja.limits")
local loops = require("moonshard.jinja.evaluate.loops")
local printing = require("moonshard.jinja.printing")
local scopes = require("moonshard.jinja.evaluate.scopes")
local values = require("moonshard.jinja.values")

local statements = {}

local run_all

-- ---- output -------------------------------------------------------------------------------------------------------

local function write(state, text)
  local out = state.out
  out.bytes = out.bytes + #text
  limits.text(#text)
  limits.output(out.bytes)
  out[#out + 1] = text
end

-- The text that nodes write, which goes nowhere else, and where they jump.
local function text_of(state, body)
  local before = state.out
  state.out = { bytes = 0 }
  local jump = run_all(state, body)
  local text = table.concat(state.out)
  state.out = before
  return text, jump
end

-- Runs in a scope that keeps its names.
local function in_scope(state, run, ...)
  local before = state.scope
  state.scope = scopes.new(before)
  local result, jump = run(state, ...)
  state.scope = before
  return result, jump
end

-- ---- assignments --------------------------------------------------------------------------------------------------

local function assign(state, target, value)
  if target.kind == "name" then
    state.scope.names[target.name] = value
  elseif target.kind == "namespace_attribute" then
    local namespace = scopes.find(state.scope, target.of)
    if namespace == nil or values.kind(namespace) ~= "namespace" then
      faults.raise("%s.%s is set, but %s is no namespace", target.of, target.name, target.of)
    end
    namespace.set(target.name, value)
  else
    local items, n = values.items(value)
    if n ~= #target.items then faults.raise("%d values are assigned to %d names", n, #target.items) end
    for i, item in ipairs(target.items) do assign(state, item, items[i]) end
  end
end

-- ---- loops ----------------------------------------------------------------------------------------------------------

-- A function that gives the items of a loop which pass its condition, one by one.
local function puller(state, node, items, n)
  local at = 0
  local outer = state.scope
  return function()
    while at < n do
      at = at + 1
      local item = items[at]
      if not node.condition then return item end
      local before = state.scope
      state.scope = scopes.new(outer)
      assign(state, node.target, item)
      local passes = values.truth(evaluate(state, node.condition))
      state.scope = before
      if passes then return item end
    end
  end
end

local run_loop

-- A recursive loop's call gives what it writes for other items.
local function caller_of(node, depth0)
  return function(state, other)
    local before = state.out
    state.out = { bytes = 0 }
    run_loop(state, node, other, depth0 + 1)
    local text = table.concat(state.out)
    state.out = before
    return text
  end
end

function run_loop(state, node, over, depth0)
  local items, n = values.items(over)
  local loop = loops.new(puller(state, node, items, n), depth0)
  if node.recursive then loop.again = caller_of(node, depth0) end
  local outer, has_run = state.scope, false
  while true do
    state.scope = outer
    local item = loops.advance(loop)
    if item == nil then break end
    limits.step(1)
    state.scope = scopes.new(outer)
    state.scope.names.loop = loop
    assign(state, node.target, item)
    local jump = run_all(state, node.body)
    if jump == "break" then break end
    has_run = has_run or jump == nil -- as Jinja, for which a round that jumps has not run
  end
  state.scope = outer
  if not has_run and node.otherwise then in_scope(state, run_all, node.otherwise) end
end

-- ---- all statements -----------------------------------------------------------------------------------------------

local KINDS = {
  text = function(state, node) write(state, node.text) end,
  output = function(state, node) write(state, printing.text(evaluate(state, node.of))) end,
  group = function(state, node) return run_all(state, node.body) end,
  ["if"] = function(state, node)
    for _, branch in ipairs(node.branches) do
      if values.truth(evaluate(state, branch.condition)) then return run_all(state, branch.body) end
    end
    if node.otherwise then return run_all(state, node.otherwise) end
  end,
  ["for"] = function(state, node) run_loop(state, node, evaluate(state, node.of), 0) end,
  set = function(state, node) assign(state, node.target, evaluate(state, node.value)) end,
  set_block = function(state, node)
    local text, jump = in_scope(state, text_of, node.body)
    if jump then return jump end
    state.block_text = text
    if node.filter then text = evaluate(state, node.filter) end
    assign(state, node.target, text)
  end,
  filter_block = function(state, node)
    local text, jump = in_scope(state, text_of, node.body)
    if jump then return jump end
    state.block_text = text
    write(state, printing.text(evaluate(state, node.filter)))
  end,
  macro = function(state, node)
    state.scope.names[node.name] = { kind = "macro", name = node.name, node = node, scope = state.scope }
  end,
  call_block = function(state, node)
    local caller = { kind = "macro", name = "caller", node = node.caller, scope = state.scope }
    local callee = evaluate(state, node.call.of)
    local given = calls.arguments(state, node.call.given)
    if given.named.caller ~= nil then faults.raise("caller is given twice") end
    given.names[#given.names + 1], given.named.caller = "caller", caller
    write(state, printing.text(calls.call(state, callee, given)))
  end,
  with = function(state, node)
    local given = {}
    for i, pair in ipairs(node.assigned) do given[i] = evaluate(state, pair.value) end
    local _, jump = in_scope(state, function()
      for i, pair in ipairs(node.assigned) do assign(state, pair.target, given[i]) end
      return nil, run_all(state, node.body)
    end)
    return jump
  end,
  generation = function(state, node)
    local out = state.out
    if out ~= state.root then state.misplaced = state.misplaced or node.line end
    local first = out.bytes + 1
    local _, jump = in_scope(state, function() return nil, run_all(state, node.body) end)
    if out == state.root and out.bytes >= first then
      state.spans[#state.spans + 1] = { first = first, last = out.bytes }
    end
    return jump
  end,
  ["break"] = function() return "break" end,
  continue = function() return "continue" end,
}

-- Runs nodes in order, up to one that jumps: "break", "continue".
function run_all(state, body)
  limits.enter()
  for _, node in ipairs(body) do
    limits.step(1)
    state.place.line = node.line
    local jump = KINDS[node.kind](state, node)
    if jump then
      limits.leave()
      return jump
    end
  end
  limits.leave()
end

---Renders the nodes of a template.
---@param body table[]
---@param state { variables: table, globals: table, filters: table, tests: table, place: table }
---@return string text
---@return { first: integer, last: integer }[] spans bytes of the text that {% generation %} has written
---@return integer? misplaced the line of a {% generation %} whose text is kept, so that it has no place
function statements.render(body, state)
  state.scope, state.root, state.spans = scopes.new(nil), { bytes = 0 }, {}
  state.out, state.evaluate, state.text_of = state.root, evaluate, text_of
  run_all(state, body)
  return table.concat(state.root), state.spans, state.misplaced
end

return statements
