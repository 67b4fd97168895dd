-- What a traced function can read besides its inputs: numbers, strings, booleans and eager tensors in upvalues and
-- globals of the user's functions, and in fields of the model's modules and of tables that these functions reach.
--
-- A function is traced once per set of shapes, so whatever it reads there is a constant of its graph. This module
-- notices cheaply that such a place has another value, and the session then traces again and compares the graphs
-- (engine/retrace.lua). A place whose change made no difference, such as a counter, is not looked at again.

local errors = require("moonshard.base.error")
local parameter = require("moonshard.tensor.parameter")
local sealed = require("moonshard.base.sealed")
local tensor = require("moonshard.tensor.class")
local tree = require("moonshard.nn.tree")

local has_util, util = pcall(require, "jit.util")

local MOST_PLACES = 2048
local DEEPEST = 6
local LONGEST_LIST = 64 -- longer tables are data

-- Fields of modules that the library sets.
local INTERNAL = { _order = true, _single_rank = true, session = true, sharding = true }

local PLAIN = { number = true, string = true, boolean = true }

---@class moonshard.Reads
---@field holders table[] of each place: the table that has it, or the function whose upvalue it is
---@field keys any[] of each place: the key, or the number of the upvalue
---@field values any[] of each place, when it was last looked at
---@field names string[] of each place, for messages
---@field version integer counts changes
---@field changed table<integer, { before: any, now: any }> places that changed since the last comparison
local Reads = {}
Reads.__index = Reads

local reads = {}

local function is_watched(value) return PLAIN[type(value)] or tensor.is_eager(value) end

local function add(self, holder, key, value, name)
  if #self.keys == MOST_PLACES then return end
  local at = #self.keys + 1
  self.holders[at], self.keys[at], self.values[at], self.names[at] = holder, key, value, name
end

local visit

local function visit_upvalues(self, f, depth)
  local place = errors.place_of(f)
  for i = 1, math.huge do
    local name, value = debug.getupvalue(f, i)
    if not name then return end
    if is_watched(value) then
      add(self, f, i, value, ("%s, an upvalue of the function at %s,"):format(name, place))
    else
      visit(self, value, name, depth + 1)
    end
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

-- The constants of a function's code include the names of its globals, and those of fields.
local function visit_globals(self, f, depth)
  local globals = getfenv(f)
  for i = -1, -math.huge, -1 do
    local ok, name = pcall(util.funck, f, i)
    if not ok or name == nil then return end
    local holder = type(name) == "string" and holder_of(globals, name)
    local value = holder and rawget(holder, name)
    if holder and is_watched(value) then
      add(self, holder, name, value, ("the global %s"):format(name))
    elseif holder and name ~= "_G" then
      visit(self, value, name, depth + 1)
    end
  end
end

local function visit_function(self, f, depth)
  if not errors.place_of(f) then return end
  visit_upvalues(self, f, depth)
  if has_util then visit_globals(self, f, depth) end
end

-- The functions of a module's class, and of those that it inherits from.
local function visit_class(self, module, depth)
  local class = getmetatable(module).__index
  while type(class) == "table" do
    for name, method in next, class do
      if type(method) == "function" then visit(self, method, name, depth + 1) end
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
    if is_watched(value) then
      add(self, t, key, value, path)
    elseif not has_own_alone and not (is_module and INTERNAL[key]) then
      visit(self, value, path, is_module and tree.is_module(value) and depth or depth + 1)
    end
  end
  if is_module then visit_class(self, t, depth) end
end

function visit(self, value, name, depth)
  local kind = type(value)
  if kind ~= "table" and kind ~= "function" or tensor.is(value) or self.seen[value] or depth > DEEPEST then return end
  self.seen[value] = true
  if kind == "function" then visit_function(self, value, depth) else visit_table(self, value, name, depth) end
end

---What functions and a model can read.
---@param model moonshard.Module
---@param ... function? that are traced
---@return moonshard.Reads
function reads.new(model, ...)
  local self = setmetatable({ holders = {}, keys = {}, values = {}, names = {}, version = 0, changed = {}, seen = {} },
    Reads)
  for i = 1, select("#", ...) do visit(self, (select(i, ...)), "", 0) end
  visit(self, model, "model", 0)
  self.seen = nil
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
      self.changed[i] = { before = known and known.before, now = now }
      if not known then self.changed[i].before = before end
      values[i], self.version = now, self.version + 1
    end
  end
  return self.version
end

---Changes so far made no difference: forgets the places.
function Reads:settle()
  if next(self.changed) == nil then return end
  local kept = { holders = {}, keys = {}, values = {}, names = {} }
  for i = 1, #self.keys do
    if not self.changed[i] then
      for name, list in pairs(kept) do list[#list + 1] = self[name][i] end
    end
  end
  for name, list in pairs(kept) do self[name] = list end
  self.changed = {}
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
    list[n] = tensor.is_eager(change.now) and ("%s is another tensor"):format(self.names[i])
      or ("%s was %s and is %s"):format(self.names[i], text_of(change.before), text_of(change.now))
  end
  return list[1] and table.concat(list, "; ")
end

return reads
