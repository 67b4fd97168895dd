-- Objects whose settings are read when they are made: a trainer, an optimizer, a mesh, data. Assigning to a field of
-- one later would change nothing, or half of what depends on it, so it is an error that says what to write instead.
--
-- The fields of a sealed object are kept in a table of their own, so that every assignment reaches the metatable, which
-- lets only the Lua layer itself write. Settings that are tables, which a recipe can still change from within, are
-- compared with what they were when they were read.
--
-- Objects that are read later than they are made, as parameters, are held until then: what is assigned to them is
-- checked and converted as what they were made of.

local errors = require("moonshard.base.error")
local nearest = require("moonshard.base.names.nearest")

local sealed = {}

local FIELDS = {} -- a key that no recipe has

---@class moonshard.Sealing
---@field what string "a trainer"
---@field answers table<string, string> by field: what to do instead of assigning to it
---@field otherwise string the same for all other fields
---@field never table<string, string>? the same for fields that it never has, also before it is sealed
---@field open table<string, fun(value: any): string?>? fields that can be assigned; what is wrong with a value, or nil
---@field held table<string, fun(value: any): any>? fields that can be assigned until then: what is kept of a value
---@field before string? what to do instead of assigning to another field until then
---@field tables table<string, integer>? settings that are tables of the recipe's: down to which depth they are settings
---@field depth integer? the same for all other fields that are plain tables

local sealings = setmetatable({}, { __mode = "k" }) -- by class
local held = setmetatable({}, { __mode = "k" }) -- objects that are not read yet
local copies = setmetatable({}, { __mode = "k" }) -- of the tables among an object's settings, by object and name
-- By object and name: the recipe's own tables, of which an object may have what was read from them instead.
local sources = setmetatable({}, { __mode = "k" })

---The table that has an object's fields: the object itself, if it is not sealed.
---@generic T
---@param object T
---@return T
function sealed.fields(object) return rawget(object, FIELDS) or object end

local function is_plain(value) return type(value) == "table" and getmetatable(value) == nil end

local function copy_of(value, depth)
  if depth == 0 or not is_plain(value) then return value end
  local copy = {}
  for key, inner in pairs(value) do copy[key] = copy_of(inner, depth - 1) end
  return copy
end

local function note_table(object, name, value, depth)
  copies[object], sources[object] = copies[object] or {}, sources[object] or {}
  copies[object][name], sources[object][name] = copy_of(value, depth), is_plain(value) and value or nil
end

local function answer(sealing, name)
  if sealing.answers[name] then return sealing.answers[name] end
  local near = nearest.name_called_here(name, sealing.answers)
  if near then return ("did you mean %s? %s"):format(near, sealing.answers[near]) end
  return sealing.otherwise
end

local function assign(self, name, value)
  local fields, sealing = rawget(self, FIELDS), sealings[getmetatable(self)]
  local never = sealing.never and sealing.never[name]
  if never then errors.invalid("%s has no field %s: %s", sealing.what, name, never) end
  if not fields then
    rawset(self, name, value)
    return
  end
  local read = held[self] and sealing.held[name]
  if read then
    fields[name] = read(value)
    return
  end
  local open = sealing.open and sealing.open[name]
  local wrong = open and open(value)
  if wrong then errors.invalid("%s of %s %s", name, sealing.what, wrong) end
  if not open and not errors.called_by_layer() then
    errors.invalid("%s of %s cannot be assigned: %s", tostring(name), sealing.what,
      held[self] and sealing.before or answer(sealing, name))
  end
  fields[name] = value
  if sealing.tables and sealing.tables[name] then note_table(self, name, value, sealing.tables[name]) end
end

---The table that has the methods of a value, sealed or not.
---@param value any
---@return table? nil: there is none
function sealed.methods(value)
  local meta = debug.getmetatable(value)
  local index = type(meta) == "table" and (sealings[meta] and meta or rawget(meta, "__index"))
  return type(index) == "table" and index or nil
end

---Makes objects of a class ones that can be sealed.
---@param class table their metatable
---@param sealing moonshard.Sealing
function sealed.class(class, sealing)
  local inherited = class.__index
  local of_class = type(inherited) == "function" and inherited
    or function(_, name) return inherited and inherited[name] end
  sealings[class] = sealing
  class.__newindex = assign
  function class.__index(self, name)
    local fields = rawget(self, FIELDS)
    local value = fields and fields[name]
    if value ~= nil then return value end
    return of_class(self, name)
  end
  function class.__pairs(self)
    local iterator, of, first = pairs(sealed.fields(self))
    return iterator, of, first
  end
end

local function keep_apart(object, given)
  local fields, sealing = {}, sealings[getmetatable(object)]
  for name, value in next, object do fields[name] = value end
  for name in pairs(fields) do rawset(object, name, nil) end
  rawset(object, FIELDS, fields)
  local depths = {}
  for name, value in pairs(fields) do depths[name] = is_plain(value) and sealing.depth or nil end
  for name, depth in pairs(sealing.tables or {}) do depths[name] = depth end
  for name, depth in pairs(depths) do
    local source = given and given[name]
    note_table(object, name, is_plain(source) and source or fields[name], depth)
  end
end

---Holds an object of such a class until its settings are read.
---@generic T
---@param object T
---@return T object
function sealed.hold(object)
  keep_apart(object)
  held[object] = true
  return object
end

---Seals an object of such a class, whose settings have been read.
---@generic T
---@param object T
---@param given table? the recipe's options, where the object has others in place of tables among them
---@return T object
function sealed.seal(object, given)
  held[object] = nil
  if not rawget(object, FIELDS) then keep_apart(object, given) end
  return object
end

---The recipe's tables among an object's settings, for another object that is sealed with them.
---@param object any sealed
---@return table<string, table> by name
function sealed.sources(object) return sources[object] or {} end

-- The first place where a table differs from its copy: its name, and both values.
local function difference(name, before, now)
  if not (is_plain(before) and is_plain(now)) then
    if rawequal(before, now) or before ~= before and now ~= now then return nil end
    return name, before, now
  end
  for _, of in ipairs({ before, now }) do
    for key in pairs(of) do
      local inner = type(key) == "number" and ("%s[%g]"):format(name, key) or ("%s.%s"):format(name, tostring(key))
      local place, was, is = difference(inner, before[key], now[key])
      if place then return place, was, is end
    end
  end
end

local function text_of(value)
  if type(value) == "string" then return ("%q"):format(value) end
  local meta = type(value) == "table" and getmetatable(value)
  return type(value) == "table" and (meta and meta.__name or "a table") or tostring(value)
end

---Raises if a table among an object's settings is no longer as it was when it was read.
---@param who string "train:step"
---@param object any
function sealed.check(who, object)
  local sealing = sealings[getmetatable(object)]
  for name, before in pairs(copies[object] or {}) do
    local now = sources[object][name]
    local place, was, is = difference(name, before, now == nil and sealed.fields(object)[name] or now)
    if place then
      errors.invalid("%s: %s of %s was %s and is %s, but it is read only once: %s", who, place, sealing.what,
        text_of(was), text_of(is), answer(sealing, name))
    end
  end
end

return sealed
