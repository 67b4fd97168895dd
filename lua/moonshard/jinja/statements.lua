-- Reads a template: its text and its tags. evaluate/statements.lua says what each kind of node means.

local expressions = require("moonshard.jinja.expressions")
local nearest = require("moonshard.base.names.nearest")
local new_stream = require("moonshard.jinja.stream")

local statements = {}

local read_body

local function node(kind, line, fields)
  fields.kind, fields.line = kind, line
  return fields
end

-- ---- what is assigned to ------------------------------------------------------------------------------------------

local function check_target(stream, target, refused)
  if target.kind == "tuple" then
    for _, item in ipairs(target.items) do check_target(stream, item, refused) end
  elseif target.kind == "name" and target.name == refused then
    stream:fail("%s is what a loop calls itself", refused)
  elseif target.kind ~= "name" then
    stream:fail("only names can be assigned to")
  end
end

-- A name, or several with commas between them.
local function read_target(stream, stop)
  local target = expressions.read_tuple(stream, { targets = true, stop = stop })
  check_target(stream, target, stop and "loop")
  return target
end

-- The target of set: a name, several, or an attribute of a namespace.
local function read_set_target(stream)
  local token, point = stream.token, stream:following()
  if token.type ~= "name" or point.type ~= "." then return read_target(stream) end
  stream:take()
  stream:take()
  local name = stream:expect("name").value
  return node("namespace_attribute", token.line, { of = token.value, name = name })
end

local function read_name(stream) return stream:expect("name").value end

-- ---- tags -----------------------------------------------------------------------------------------------------------

-- Reads up to one of the tags that can follow, and its name.
local function read_until(stream, ...)
  stream:take_if(":") -- as Python writes it
  stream:expect("%}")
  local ends = {}
  for i = 1, select("#", ...) do ends[select(i, ...)] = true end
  local body = read_body(stream, ends)
  if stream.token.type == "end" then stream:fail("{%% %s %%} is missing", (...)) end
  return body, stream:take().value
end

local function read_if(stream, line)
  local branches, otherwise, word, doubts = {}, nil, "elif", #stream.doubts
  while word == "elif" do
    local condition = expressions.read_tuple(stream, { no_choice = true })
    local body
    body, word = read_until(stream, "endif", "elif", "else")
    branches[#branches + 1] = { condition = condition, body = body }
  end
  if word == "else" then otherwise = read_until(stream, "endif") end
  stream:drop_doubts(doubts)
  return node("if", line, { branches = branches, otherwise = otherwise })
end

local function read_for(stream, line)
  local target = read_target(stream, "in")
  stream:expect_word("in")
  local of = expressions.read_tuple(stream, { no_choice = true, stop = "recursive" })
  local condition = stream:take_word("if") and expressions.read(stream) or nil
  local recursive = stream:take_word("recursive")
  stream.loops = stream.loops + 1
  local body, word = read_until(stream, "endfor", "else")
  stream.loops = stream.loops - 1
  local otherwise = word == "else" and read_until(stream, "endfor") or nil
  return node("for", line, {
    target = target, of = of, condition = condition, recursive = recursive, body = body, otherwise = otherwise,
  })
end

local function read_set(stream, line)
  local target = read_set_target(stream)
  if stream:take_if("=") then
    return node("set", line, { target = target, value = expressions.read_tuple(stream) })
  end
  local filter
  while stream:take_if("|") do filter = expressions.read_filter(stream, filter) end
  return node("set_block", line, { target = target, filter = filter, body = (read_until(stream, "endset")) })
end

-- The parameters of a macro or of a caller, and the nodes of their defaults.
local function read_parameters(stream)
  local parameters = {}
  stream:expect("(")
  while stream.token.type ~= ")" do
    if #parameters > 0 then stream:expect(",") end
    local name = read_name(stream)
    local default = stream:take_if("=") and expressions.read(stream) or nil
    if not default and parameters[1] and parameters[#parameters].default then
      stream:fail("the parameter %s without a default follows one with a default", name)
    end
    parameters[#parameters + 1] = { name = name, default = default }
  end
  stream:expect(")")
  return parameters
end

-- The body of a function: it is in no loop, and what it mentions says which arguments it takes besides its parameters.
local function read_function(stream, stop)
  local loops, mentioned = stream.loops, stream.mentioned
  stream.loops, stream.mentioned = 0, {}
  local body = read_until(stream, stop)
  local own = stream.mentioned
  stream.loops, stream.mentioned = loops, mentioned
  for name in pairs(own) do mentioned[name] = true end
  return body, { caller = own.caller, varargs = own.varargs, kwargs = own.kwargs }
end

local function read_macro(stream, line)
  local name = read_name(stream)
  local parameters = read_parameters(stream)
  local body, uses = read_function(stream, "endmacro")
  return node("macro", line, { name = name, parameters = parameters, body = body, uses = uses })
end

local function read_call_block(stream, line)
  local parameters = stream.token.type == "(" and read_parameters(stream) or {}
  local call = expressions.read(stream)
  if call.kind ~= "call" then stream:fail("{%% call %%} calls a macro") end
  local body, uses = read_function(stream, "endcall")
  local caller = node("macro", line, { name = "caller", parameters = parameters, body = body, uses = uses })
  return node("call_block", line, { call = call, caller = caller })
end

local function read_filter_block(stream, line)
  local filter = expressions.read_filter(stream, nil)
  while stream:take_if("|") do filter = expressions.read_filter(stream, filter) end
  return node("filter_block", line, { filter = filter, body = (read_until(stream, "endfilter")) })
end

local function read_with(stream, line)
  local assigned = {}
  while stream.token.type ~= "%}" do
    if #assigned > 0 then stream:expect(",") end
    local target = expressions.read_primary(stream)
    check_target(stream, target)
    stream:expect("=")
    assigned[#assigned + 1] = { target = target, value = expressions.read(stream) }
  end
  return node("with", line, { assigned = assigned, body = (read_until(stream, "endwith")) })
end

local function read_print(stream, line)
  local values_of = {}
  while stream.token.type ~= "%}" do
    if #values_of > 0 then stream:expect(",") end
    values_of[#values_of + 1] = node("output", line, { of = expressions.read(stream) })
  end
  return node("group", line, { body = values_of })
end

local function jump(kind)
  return function(stream, line)
    if stream.loops == 0 then stream:fail("{%% %s %%} is in no loop", kind) end
    return node(kind, line, {})
  end
end

-- By the word of a tag.
local TAGS = {
  ["if"] = read_if, ["for"] = read_for, set = read_set, macro = read_macro, call = read_call_block,
  filter = read_filter_block, with = read_with, print = read_print, ["break"] = jump("break"),
  continue = jump("continue"),
  generation = function(stream, line)
    return node("generation", line, { body = (read_until(stream, "endgeneration")) })
  end,
}

-- Tags of Jinja that concern other templates or web pages.
local OTHERS = { block = true, extends = true, include = true, import = true, from = true, autoescape = true,
  ["do"] = true, trans = true }

local ADVICE = { endif = true, endfor = true, elif = true, ["else"] = true }
for word in pairs(TAGS) do ADVICE[word] = true end

local function read_tag(stream)
  local token = stream:expect("name")
  local read = TAGS[token.value]
  if read then
    stream:enter()
    local result = read(stream, token.line)
    stream:leave()
    return result
  elseif OTHERS[token.value] then
    stream:fail("the tag %s is not supported in chat templates", token.value)
  end
  stream:fail("there is no tag %s here: %s", token.value, nearest.advice(token.value, ADVICE))
end

-- Reads up to a tag of the set, whose name is then the current token, or up to the end.
function read_body(stream, ends)
  local body = {}
  while stream.token.type ~= "end" do
    local token = stream:take()
    if token.type == "text" then
      body[#body + 1] = node("text", token.line, { text = token.value })
    elseif token.type == "{{" then
      body[#body + 1] = node("output", token.line, { of = expressions.read_tuple(stream) })
      stream:expect("}}")
    else
      if stream.token.type == "name" and ends[stream.token.value] then return body end
      body[#body + 1] = read_tag(stream)
      stream:expect("%}")
    end
  end
  return body
end

---Reads a template.
---@param source string
---@param place { line: integer } told the line of a fault
---@return table[] body nodes
---@return table<string, boolean> mentioned names of variables and attributes, and texts
function statements.read(source, place)
  local stream = new_stream(source)
  local ok, body = pcall(read_body, stream, {})
  place.line = stream.token.line
  if not ok then error(body, 0) end
  stream:settle()
  return body, stream.mentioned
end

return statements
