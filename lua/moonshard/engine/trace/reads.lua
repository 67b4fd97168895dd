-- What a traced function can read besides its inputs: numbers, strings, booleans, eager tensors, functions and tables
-- in upvalues and globals of the user's functions, in fields of the model's modules and of tables that these functions
-- reach, and in classes of modules; and fields and globals that these functions name and that are not there yet.
--
-- A function is traced once per set of shapes, so whatever it reads there is a constant of its graph. This module
-- notices cheaply that such a place has another value, and the session then traces again and compares the graphs
-- (engine/trace/retrace.lua). A place whose change made no difference, such as a counter, is not looked at again.

local errors = require("moonshard.base.error")
local parameter = require("moonshard.tensor.parameter")
local sealed = require("moonshard.base.checks.sealed")
local tensor = require("moonshard.tensor.class")
local tree = require("moonshard.nn.tree")

local has_util, util = pcall(require, "jit.util")

local MOST_PLACES = 2048
local DEEPEST = 6
local LONGEST_LIST = 64 -- longer tables are data

-- Fields of modules that the library sets.
local INTERNAL = { _options = true, _order = true, _single_rank = true, session = true, sharding = true }

local PLAIN = { number = true, string = true, boolean = true }

---@class moonshard.Reads
---@field holders table[] of each place: the table that has it, or the function whose upvalue it is
---@field keys any[] of each place: the key, or the number of the upvalue
---@field values any[] of each place, when it was last looked at
---@field names string[] of each place, for messages
---@field roots table[] { value, name, model }: what is searched for places; of a function, the model that it is given
---@field settled table<table|function, table<any, boolean>> places whose change made no difference
---@field version integer counts changes
---@field changed table<integer, { before: any, now: any }> places that changed since the last comparison
local Reads = {}
Reads.__index = Reads

local reads = {}

local function is_plain(value) return PLAIN[type(value)] or tensor.is_eager(value) end

-- What a place can have another of. Modules and parameters that are replaced are the sharding's concern.
local function is_reference(value)
  local kind = type(value)
  return kind == "function" or kind == "table" and not tensor.is(value) and not parameter.is(value)
    and not tree.is_module(value)
end

local function add(self, holder, key, value, name)
  local known = self.known[holder] or {}
  local settled = self.settled[holder]
  if known[key] or settled and settled[key] or #self.keys == MOST_PLACES then return end
  self.known[holder], known[key] = known, true
  local at = #self.keys + 1
  self.holders[at], self.keys[at], self.values[at], self.names[at] = holder, key, value, name
end

local visit

-- A place, and what can be read behind it.
local function add_and_visit(self, holder, key, value, path, name, depth)
  if value == nil or is_plain(value) or is_reference(value) then add(self, holder, key, value, path) end
  visit(self, value, name, depth)
end

-- Calls `visitor` with each text among the constants of a function's code: names of its globals and of fields, and
-- texts.
local function each_constant(f, visitor)
  for i = -1, -math.huge, -1 do
    local ok, name = pcall(util.funck, f, i)
    if not ok or name == nil then return end
    if type(name) == "string" then visitor(name) end
  end
end

-- Fields that a function names, and that a table lacks: it can be given them later.
local function add_absent(self, f, t, path)
  if not has_util then return end
  each_constant(f, function(name)
    if rawget(t, name) ~= nil then return end
    local later = self.later
    later[#later + 1] = { holder = t, key = name, name = ("%s.%s"):format(path, name) }
  end)
end

local function visit_upvalues(self, f, depth)
  local place = errors.place_of(f)
  for i = 1, math.huge do
    local name, value = debug.getupvalue(f, i)
    if not name then return end
    add_and_visit(self, f, i, value, ("%s, an upvalue of the function at %s,"):format(name, place), name, depth + 1)
    if type(value) == "table" and getmetatable(value) == nil then add_absent(self, f, value, name) end
  end
end

-- The table that has a global of an environment, which can inherit from another one.
local function holder_of(environment, name)
  while type(environment) == "table" and rawget(environment, name) == nil do
    local meta = getmetatable(environment)
    environment = type(meta) == "table" and meta.__index or nil
  end
  return type(environment) == "table" and environment or nil
end

local function visit_globals(self, f, depth)
  local globals = getfenv(f)
  each_constant(f, function(name)
    local holder = holder_of(globals, name)
    if holder and name ~= "_G" then
      add_and_visit(self, holder, name, rawget(holder, name), ("the global %s"):format(name), name, depth + 1)
    elseif not holder then
      self.later[#self.later + 1] = { holder = globals, key = name, name = ("the global %s"):format(name) }
    end
  end)
end

local function visit_function(self, f, depth)
  if not errors.place_of(f) then return end
  visit_upvalues(self, f, depth)
  if has_util then visit_globals(self, f, depth) end
end

-- The functions of a module's class, and of those that it inherits from.
local function visit_class(self, module, path, depth)
  local class = getmetatable(module).__index
  while type(class) == "table" do
    for name, method in next, class do
      if type(method) == "function" then
        add_and_visit(self, class, name, method, ("%s.%s"):format(path, name), name, depth + 1)
        local is_users = errors.place_of(method) ~= nil
        if is_users then add_absent(self, method, module, path) end
        if (is_users or name == "forward") and rawget(module, name) == nil then
          self.later[#self.later + 1] = { holder = module, key = name, name = ("%s.%s"):format(path, name) }
        end
      end
    end
    local meta = getmetatable(class)
    class = meta and meta.__index
  end
end

-- Tables with a metatable, such as the result of ms.args, can be anything: only their own fields are looked at.
local function visit_table(self, t, name, depth)
  local is_module = tree.is_module(t)
  local has_own_alone = not is_module and getmetatable(t) ~= nil
  if parameter.is(t) or not is_module and #t > LONGEST_LIST then return end
  t = sealed.fields(t)
  for key, value in next, t do
    local path = ("%s.%s"):format(name, tostring(key))
    if has_own_alone then
      if is_plain(value) then add(self, t, key, value, path) end
    elseif not (is_module and INTERNAL[key]) then
      add_and_visit(self, t, key, value, path, path, is_module and tree.is_module(value) and depth or depth + 1)
    end
  end
  if is_module then visit_class(self, t, name, depth) end
  if not is_module and not has_own_alone then add(self, t, #t + 1, nil, ("%s.%d"):format(name, #t + 1)) end
end

function visit(self, value, name, depth)
  local kind = type(value)
  if kind ~= "table" and kind ~= "function" or tensor.is(value) or self.seen[value] or depth > DEEPEST then return end
  self.seen[value] = true
  if kind == "function" then visit_function(self, value, depth) else visit_table(self, value, name, depth) end
end

local function find_places(self)
  self.holders, self.keys, self.values, self.names, self.changed = {}, {}, {}, {}, {}
  self.seen, self.known, self.later = {}, {}, {}
  for _, root in ipairs(self.roots) do
    visit(self, root.value, root.name, 0)
    if root.model then add_absent(self, root.value, root.model, "model") end
  end
  -- Behind all others: there can be many, and a few places alone are watched.
  for _, place in ipairs(self.later) do add(self, place.holder, place.key, nil, place.name) end
  self.seen, self.known, self.later = nil, nil, nil
end

---What functions and a model can read.
---@param model moonshard.Module
---@param ... function? that are traced
---@return moonshard.Reads
function reads.new(model, ...)
  local self = setmetatable({ version = 0, roots = {}, settled = setmetatable({}, { __mode = "k" }) }, Reads)
  for i = 1, select("#", ...) do self.roots[i] = { value = (select(i, ...)), name = "", model = model } end
  self.roots[#self.roots + 1] = { value = model, name = "model" }
  find_places(self)
  return self
end

local function value_at(holder, key)
  if type(holder) == "function" then
    local _, value = debug.getupvalue(holder, key)
    return value
  end
  return rawget(holder, key)
end

---A number that is another one after any place has changed.
---@return integer
function Reads:look()
  local holders, keys, values = self.holders, self.keys, self.values
  for i = 1, #keys do
    local holder, before = holders[i], values[i]
    local now
    if type(holder) == "table" then now = rawget(holder, keys[i]) else now = value_at(holder, keys[i]) end
    if not rawequal(now, before) and (rawequal(now, now) or rawequal(before, before)) then -- no change: NaN
      local known = self.changed[i]
      if known then before = known.before end
      self.changed[i] = not rawequal(now, before) and { before = before, now = now } or nil
      values[i], self.version = now, self.version + 1
    end
  end
  return self.version
end

---Changes so far made no difference: forgets the places, and finds those behind what is there now.
function Reads:settle()
  if next(self.changed) == nil then return end
  for i in pairs(self.changed) do
    local holder = self.holders[i]
    self.settled[holder] = self.settled[holder] or {}
    self.settled[holder][self.keys[i]] = true
  end
  find_places(self)
end

---The name of the place that has a tensor.
---@param value moonshard.Tensor
---@return string? "class_weight, an upvalue of the function at a.lua:3,"; nil: no place has it
function Reads:name_of(value)
  for i, known in ipairs(self.values) do
    if rawequal(known, value) then return self.names[i] end
  end
end

local function text_of(value)
  if tensor.is_eager(value) then return "another tensor" end
  if is_reference(value) then return ("a %s"):format(type(value)) end
  return type(value) == "string" and ("%q"):format(value) or type(value) == "number" and ("%.9g"):format(value)
    or tostring(value)
end

---The places that changed, for messages: "alpha, an upvalue of the function at a.lua:3, was 1 and is 0.5"; nil: none.
---@return string?
function Reads:text()
  local places, list = {}, {}
  for i in pairs(self.changed) do places[#places + 1] = i end
  table.sort(places)
  for n, i in ipairs(places) do
    local change = self.changed[i]
    if n > 3 then
      list[n] = ("and %d more"):format(#places - 3)
      break
    end
    local kind = tensor.is_eager(change.now) and "tensor"
      or is_reference(change.now) and type(change.before) == type(change.now) and type(change.now)
    list[n] = kind and ("%s is another %s"):format(self.names[i], kind)
      or ("%s was %s and is %s"):format(self.names[i], text_of(change.before), text_of(change.now))
  end
  return list[1] and table.concat(list, "; ")
end

return reads
