-- Mistakes that plain Lua passes over, as errors.
--
-- An unknown field (ms.nn.liner) would be a nil that is called later, or dropped from a list. LuaJIT's ipairs sees only
-- the array part of a table, so a loop over a loader or a tensor would do nothing; those below read the metatable
-- first, as Lua 5.2 does.

local advice = require("moonshard.base.names.advice")
local errors = require("moonshard.base.error")

local strict = {}

-- ---- names ----------------------------------------------------------------------------------------------------------

---Raises that a field does not exist.
---@param holder string "ms.nn"
---@param name any
---@param valid table<string, any> keys: the names that exist
function strict.unknown_field(holder, name, valid)
  name = tostring(name)
  errors.raise("MS_ENAME", "%s.%s does not exist: %s", holder, name, advice.for_field(name, valid))
end

local DOT = "%s was called with a dot, so that its self is %s: call the layer, layer(x), or write a colon"
local FARTHEST_CALLER = 4

-- The name of the method of a module that has the object as its self, as in layer.forward(x).
local function called_with_a_dot(object)
  local found
  for level = 4, 3 + FARTHEST_CALLER do
    local info = debug.getinfo(level, "n")
    if not info then break end
    local name, value = debug.getlocal(level, 1)
    if name == "self" and rawequal(value, object) then
      -- The call of a layer runs a function that no recipe can name.
      local own = info.namewhat == "method" or info.namewhat == "field" or info.namewhat == "global"
      found = own and info.name or "forward"
    end
  end
  return found
end

---Raises that a method does not exist, with the nearest names.
---@param holder string "a tensor"
---@param name string
---@param valid table<string, any> keys: the methods that exist
---@param object any the object
function strict.unknown_method(holder, name, valid, object)
  local method = called_with_a_dot(object)
  errors.raise("MS_ENAME", "%s has no method %s: %s", holder, name, method and DOT:format(method, holder)
    or advice.for_method(name, valid))
end

---Makes reading an unknown field an error, which names the fields that exist.
---@generic T: table
---@param holder string "ms.nn"
---@param fields T
---@param internal string? names that the layer uses itself, separated by blanks: nothing suggests or lists them
---@return T fields
function strict.fields(holder, fields, internal)
  local meta = getmetatable(fields) or {}
  meta.internal = {}
  for name in (internal or ""):gmatch("%S+") do meta.internal[name] = true end
  function meta.__index(_, name)
    local valid = {}
    for known in pairs(fields) do valid[known] = not meta.internal[known] or nil end
    strict.unknown_field(holder, name, valid)
  end
  return setmetatable(fields, meta)
end

---Whether a field of a table is for the layer itself.
---@param fields table
---@param name string
---@return boolean
function strict.is_internal(fields, name)
  local meta = getmetatable(fields)
  local internal = type(meta) == "table" and rawget(meta, "internal")
  return internal and internal[name] or false
end

-- Python's constants would be globals without a value, so that an option "False" would be as if it were left out.
local CONSTANTS = { True = "true", False = "false", None = "nil" }
if not getmetatable(_G) then
  setmetatable(_G, { __index = function(_, name)
    if CONSTANTS[name] then errors.invalid("%s is no value in Lua: write %s", name, CONSTANTS[name]) end
  end })
end

-- ---- loops ----------------------------------------------------------------------------------------------------------

local plain, plain_pairs = ipairs, pairs

local function refuse_loop(which, list)
  local kind = type(list)
  errors.invalid("%s takes a table, not %s%s", which, kind == "nil" and kind or "a " .. kind, kind == "function"
    and ": an iterator is looped over as it is, for name, parameter in model:named_parameters() do" or "")
end

-- luacheck: push ignore 121
pairs = function(list)
  if type(list) ~= "table" then refuse_loop("pairs", list) end
  local meta = getmetatable(list)
  local own = type(meta) == "table" and rawget(meta, "__pairs")
  if own then return own(list) end
  return plain_pairs(list) -- as a tail call, so that an error names the caller's line
end

ipairs = function(list)
  if type(list) ~= "table" then refuse_loop("ipairs", list) end
  local meta = getmetatable(list)
  local own = type(meta) == "table" and rawget(meta, "__ipairs")
  if own then return own(list) end
  local iterator, of, first = plain(list) -- no tail call of a built-in function: LuaJIT would not compile its callers
  return iterator, of, first
end
-- luacheck: pop

---Makes ipairs over objects of a class an error, and loops that take an object for an iterator (`for i, batch in data
---do`), which call it.
---@param class table their metatable
---@param instead string what to write instead
function strict.refuse_loops(class, instead)
  function class.__ipairs()
    errors.invalid("ipairs over %s, which is not a list: %s", rawget(class, "__name"), instead)
  end
  function class.__call()
    errors.invalid("%s is neither a function nor an iterator of a loop: %s", rawget(class, "__name"), instead)
  end
end

return strict
