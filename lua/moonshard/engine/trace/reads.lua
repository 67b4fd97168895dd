-- What a traced function can read besides its inputs: upvalues and globals of the user's functions, fields of the
-- model's modules and of tables that these functions reach, and classes of modules; and fields and globals that these
-- functions name and that are not there yet.
--
-- A function is traced once per set of shapes, so whatever it reads there is a constant of its graph. This module
-- notices cheaply that such a place has another value, and the session then traces again and compares the graphs
-- (engine/trace/retrace.lua). A change that makes no difference today can make one tomorrow, as with a counter that has
-- a threshold, so every change counts.

local errors = require("moonshard.base.error")
local parameter = require("moonshard.tensor.parameter")
local sealed = require("moonshard.base.checks.sealed")
local tensor = require("moonshard.tensor.class")
local tree = require("moonshard.nn.tree")

local has_util, util = pcall(require, "jit.util")

local MAX_PLACES = 16384
local DEEPEST = 6
local MAX_FIELDS = 256 -- tables with more are data

-- Fields of modules that the library sets.
local INTERNAL = { _options = true, _order = true, _single_rank = true, session = true, sharding = true }

local PLAIN = { number = true, string = true, boolean = true }

---@class moonshard.Reads
---@field holders table[] of each place: the table that has it, or the function whose upvalue it is
---@field keys any[] of each place: the key, or the number of the upvalue
---@field values any[] of each place, when it was last looked at
---@field names string[] of each place, for messages
---@field roots table[] { value, name, model }: what is searched for places; of a function, the model that it is given
---@field tables { of: table, name: string, count: integer?, meta: any }[] tables with their metatable and, but for
---  modules, the number of their fields, when they were last looked at
---@field added integer fields that all modules were given after they were made, when they were last looked at
---@field added_to table<table, integer> the same of each module and class that can be read
---@field version integer counts changes
---@field changed table<integer, { before: any, now: any }> places that changed since the last comparison
---@field reshaped string[] tables and modules with other fields than at the last comparison, as text
local Reads = {}
Reads.__index = Reads

local reads = {}

local function is_plain(value) return PLAIN[type(value)] or tensor.is_eager(value) end

local function is_reference(value)
  local kind = type(value)
  return kind == "function" or kind == "table" and not tensor.is(value)
end

-- Whether the sharding refuses another value of a module's field (Sharding:check_unchanged).
local function is_of_sharding(key, value)
  return (parameter.is(value) or tree.is_module(value)) and not (type(key) == "string" and key:sub(1, 1) == "_")
end

local function add(self, holder, key, value, name)
  local known = self.known[holder] or {}
  if known[key] or #self.keys == MAX_PLACES then return end
  self.known[holder], known[key] = known, true
  local at = #self.keys + 1
  self.holders[at], self.keys[at], self.values[at], self.names[at] = holder, key, value, name
end

local visit

-- A place, and what can be read through it.
local function add_and_visit(self, holder, key, value, path, name, depth)
  add(self, holder, key, value, path)
  visit(self, value, name, depth)
end

-- Calls `visitor` with each text among the constants of a function's code, and of the functions within it: names of
-- globals and of fields, and texts.
local function each_constant(f, visitor)
  for i = -1, -math.huge, -1 do
    local ok, constant = pcall(util.funck, f, i)
    if not ok or constant == nil then return end
    if type(constant) == "string" then
      visitor(constant)
    elseif type(constant) == "proto" then
      each_constant(constant, visitor)
    end
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

-- What a module's class has, and those that it inherits from: methods, and fields that modules share.
local function visit_class(self, module, path, depth)
  local class = getmetatable(module).__index
  while type(class) == "table" do
    self.added_to[class] = 0
    for name, value in next, class do
      if type(value) == "function" then
        add_and_visit(self, class, name, value, ("%s.%s"):format(path, name), name, depth + 1)
        local is_users = errors.place_of(value) ~= nil
        if is_users then add_absent(self, value, module, path) end
        if (is_users or name == "forward") and rawget(module, name) == nil then
          self.later[#self.later + 1] = { holder = module, key = name, name = ("%s.%s"):format(path, name) }
        end
      elseif name ~= "__index" then
        add_and_visit(self, class, name, value, ("%s.%s"):format(path, tostring(name)), tostring(name), depth + 1)
      end
    end
    local meta = getmetatable(class)
    class = meta and meta.__index
  end
end

local function count_of(t)
  local count = 0
  for _ in next, t do count = count + 1 end
  return count
end

-- Tables with a metatable, such as the result of ms.args, can be anything: only their own fields are looked at, and
-- what their metatable has.
local function visit_table(self, t, name, depth)
  local is_module = tree.is_module(t)
  local has_own_alone = not is_module and getmetatable(t) ~= nil
  if parameter.is(t) then return end
  t = sealed.fields(t)
  local count = count_of(t)
  if not is_module and count > MAX_FIELDS then return end
  for key, value in next, t do
    local path = ("%s.%s"):format(name, tostring(key))
    if has_own_alone then
      if is_plain(value) then add(self, t, key, value, path) end
    elseif is_module and is_of_sharding(key, value) then
      visit(self, value, path, tree.is_module(value) and depth or depth + 1)
    elseif not (is_module and INTERNAL[key]) then
      add_and_visit(self, t, key, value, path, path, is_module and tree.is_module(value) and depth or depth + 1)
    end
  end
  local meta = getmetatable(t)
  self.tables[#self.tables + 1] = { of = t, name = name, count = not is_module and count or nil, meta = meta }
  if is_module then
    visit_class(self, t, name, depth)
  elseif has_own_alone then
    visit(self, meta, name, depth + 1)
  else
    add(self, t, #t + 1, nil, ("%s.%d"):format(name, #t + 1))
  end
end

function visit(self, value, name, depth)
  local kind = type(value)
  if kind ~= "table" and kind ~= "function" or tensor.is(value) or self.seen[value] or depth > DEEPEST then return end
  self.seen[value] = true
  if tree.is_module(value) then self.added_to[value] = 0 end
  if kind == "function" then visit_function(self, value, depth) else visit_table(self, value, name, depth) end
end

-- Modules and classes of a model that lie too deep to be visited.
local function add_modules(self, model)
  for _, entry in ipairs(tree.inventory(model).modules) do
    local holder = entry.module
    while type(holder) == "table" and not self.added_to[holder] do
      self.added_to[holder] = 0
      local meta = getmetatable(holder)
      holder = meta and meta.__index
    end
  end
end

local function find_places(self)
  self.holders, self.keys, self.values, self.names, self.tables = {}, {}, {}, {}, {}
  self.seen, self.known, self.later, self.added_to = {}, {}, {}, {}
  for _, root in ipairs(self.roots) do
    visit(self, root.value, root.name, 0)
    if root.model then add_absent(self, root.value, root.model, "model") end
  end
  -- After all others: there can be many, and the number of places has a limit.
  for _, place in ipairs(self.later) do add(self, place.holder, place.key, nil, place.name) end
  self.seen, self.known, self.later = nil, nil, nil
  add_modules(self, self.roots[#self.roots].value)
  for holder in pairs(self.added_to) do
    local of = tree.added.of[holder]
    self.added_to[holder] = of and of.count or 0
  end
end

---What functions and a model can read.
---@param model moonshard.Module
---@param ... function? that are traced
---@return moonshard.Reads
function reads.new(model, ...)
  local self = setmetatable({ version = 0, roots = {}, changed = {}, reshaped = {}, added = tree.added.count }, Reads)
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

-- NaN is the value that it was, and 0 is not -0, by which a forward can divide.
local function is_same(now, before)
  if not rawequal(now, before) then return not rawequal(now, now) and not rawequal(before, before) end
  return type(now) ~= "number" or now ~= 0 or 1 / now == 1 / before
end

local function note_change(self, i, before, now)
  local known = self.changed[i]
  if known then before = known.before end
  self.changed[i] = not is_same(now, before) and { before = before, now = now } or nil
  self.version = self.version + 1
end

local function note_reshaped(self, name)
  self.reshaped[#self.reshaped + 1] = name
  self.version = self.version + 1
end

-- Fields that modules and classes were given meanwhile, in an order of their own: it is that of a message.
local function look_at_added(self)
  self.added = tree.added.count
  local names = {}
  for holder, of in pairs(tree.added.of) do
    local before = self.added_to[holder]
    if before and before ~= of.count then
      self.added_to[holder], names[#names + 1] = of.count, of.last
    end
  end
  table.sort(names)
  for _, name in ipairs(names) do note_reshaped(self, name .. ", which was added later") end
end

-- Fields that came, went or have another metatable to answer for them.
local function look_at_tables(self)
  for _, watched in ipairs(self.tables) do
    local count, meta = watched.count and count_of(watched.of), getmetatable(watched.of)
    if count ~= watched.count or not rawequal(meta, watched.meta) then
      local was = watched.count
      watched.count, watched.meta = count, meta
      note_reshaped(self, ("%s, which has %s"):format(watched.name, count ~= was and "other fields"
        or "another metatable"))
    end
  end
  if self.added ~= tree.added.count then look_at_added(self) end
end

---A number that is another one after any place has changed.
---@return integer
function Reads:look()
  local holders, keys, values = self.holders, self.keys, self.values
  for i = 1, #keys do
    local holder, before = holders[i], values[i]
    local now
    if type(holder) == "table" then now = rawget(holder, keys[i]) else now = value_at(holder, keys[i]) end
    if not is_same(now, before) then
      values[i] = now
      note_change(self, i, before, now)
    end
  end
  look_at_tables(self)
  return self.version
end

---What changed so far made no difference, or the trace itself changed it: only later changes count.
function Reads:compared()
  local version = self.version
  self:look()
  local moved = self.reshaped[1] ~= nil
  for _, change in pairs(self.changed) do
    moved = moved or is_reference(change.before) or is_reference(change.now)
  end
  if moved then find_places(self) end
  self.changed, self.reshaped, self.version = {}, {}, version
end

---The name of the place that has a tensor.
---@param value moonshard.Tensor
---@return string? "class_weight, an upvalue of the function at a.lua:3,"; nil: no place has it
function Reads:name_of(value)
  for i = 1, #self.keys do -- a value can be nil
    if rawequal(self.values[i], value) then return self.names[i] end
  end
end

local function kind_of(value)
  return tensor.is_eager(value) and "tensor" or parameter.is(value) and "parameter"
    or tree.is_module(value) and "module" or is_reference(value) and type(value)
end

local function text_of(value)
  if tensor.is_eager(value) then return "another tensor" end
  if is_reference(value) then return "a " .. kind_of(value) end
  return type(value) == "string" and ("%q"):format(value) or type(value) == "number" and ("%.9g"):format(value)
    or tostring(value)
end

local function text_of_change(name, change)
  local kind = kind_of(change.now)
  if not tensor.is_eager(change.now) and kind ~= kind_of(change.before) then kind = nil end
  return kind and ("%s is another %s"):format(name, kind)
    or ("%s was %s and is %s"):format(name, text_of(change.before), text_of(change.now))
end

---The places that changed, for messages: "alpha, an upvalue of the function at a.lua:3, was 1 and is 0.5"; nil: none.
---@return string?
function Reads:text()
  local places, list = {}, {}
  for i in pairs(self.changed) do places[#places + 1] = i end
  table.sort(places)
  for _, i in ipairs(places) do list[#list + 1] = text_of_change(self.names[i], self.changed[i]) end
  for _, name in ipairs(places[1] and {} or self.reshaped) do
    list[#list + 1] = name
  end
  local more = #list - 3
  if more > 0 then list = { list[1], list[2], list[3], ("and %d more"):format(more) } end
  return list[1] and table.concat(list, "; ")
end

return reads
