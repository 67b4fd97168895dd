-- What recipes call looks at its arguments first. Arguments after the last one that a function takes are errors: Lua
-- drops them, and x:transpose(0, 1, 2) or train:step(batch, 3) would do something other than what was asked. So are
-- lists with a nil among their items (checks/lists.lua), whose rest Lua drops.
--
-- The functions of a table are replaced by ones that look. Those that take `...` count themselves.

local errors = require("moonshard.base.error")
local lists = require("moonshard.base.checks.lists")
local options = require("moonshard.base.checks.options")

local arguments = {}

-- The functions as written, by those that count.
local originals = setmetatable({}, { __mode = "k" })

local OWN_SOURCE = debug.getinfo(1, "S").source

-- The looking function has the same parameters, for code that looks at the stack.
local MAKER = [[
local func, refuse, check = ...
return function(%s...)
  if select("#", ...) > 0 then refuse(%s...) end
  check(%s)
  return func(%s)
end]]

local VARIADIC = [[
local func, _, check = ...
return function(%s...)
  check(%s...)
  return func(%s...)
end]]

local function looking(func, called, names, is_variadic)
  local who = called:match("^[^(]*")
  local function refuse(...)
    local count = select("#", ...)
    while count > #names and select(count, ...) == nil do count = count - 1 end
    if count <= #names then return end
    local receiver = who:find(":", 1, true) and 1 or 0 -- it is no argument in the eyes of a user
    local given = {}
    for i = receiver + 1, count do given[i - receiver] = options.describe((select(i, ...))) end
    local taken = #names - receiver
    local list = table.concat(given, ", ", 1, #given - 1) .. (given[2] and " and " or "") .. given[#given]
    errors.invalid("%s: it takes %s argument%s, and was given %s: the last has no place%s", called,
      taken == 0 and "no" or taken, taken == 1 and "" or "s", list,
      names[#names] == "o" and ", since options are one table" or "")
  end
  local function check(...)
    for i = 1, select("#", ...) do
      local argument = select(i, ...)
      if type(argument) == "table" and getmetatable(argument) == nil then
        lists.check(who, argument)
        lists.check_fields(who, argument)
      end
    end
  end
  local all = table.concat(names, ", ")
  local first = all ~= "" and all .. ", " or ""
  local maker = is_variadic and VARIADIC:format(first, first, first) or MAKER:format(first, first, all, all)
  return assert(loadstring(maker, OWN_SOURCE))(func, refuse, check)
end

local function names_of(func)
  local names = {}
  for i = 1, debug.getinfo(func, "u").nparams do names[i] = debug.getlocal(func, i) end
  return names
end

-- Whether a function was written in Lua and does not look yet.
local function is_original(func) return debug.getinfo(func, "S").what ~= "C" and not originals[func] end

local function replaced(func, called, names)
  local replacement = looking(func, called, names, debug.getinfo(func, "u").isvararg)
  originals[replacement] = func
  return replacement
end

---A function that takes no more arguments than this one, and no list with a nil among its items; nil after the last
---argument is no argument.
---@generic F: function
---@param holder string "ms", or an object as guides call it: "train"
---@param name string
---@param func F
---@return F
function arguments.exact(holder, name, func)
  if not is_original(func) then return func end
  local names = names_of(func)
  local of_object = names[1] == "self" or names[1] == holder
  return replaced(func, ("%s%s%s(%s)"):format(holder, of_object and ":" or ".", name, table.concat(names, ", ",
    of_object and 2 or 1)), names)
end

---The same for a table that is called.
---@param holder string "ms.lora"
---@param called table
function arguments.exact_call(holder, called)
  local meta = getmetatable(called)
  local call = meta and rawget(meta, "__call")
  if not call or not is_original(call) then return end
  local names = names_of(call)
  meta.__call = replaced(call, ("%s(%s)"):format(holder, table.concat(names, ", ", 2)), names)
end

---Replaces all functions of a table by such.
---@generic T: table
---@param holder string
---@param functions T
---@return T functions
function arguments.exact_all(holder, functions)
  for name, func in next, functions do
    if type(func) == "function" and type(name) == "string" and not name:find("^_") then
      functions[name] = arguments.exact(holder, name, func)
    end
  end
  return functions
end

---Registers a function that replaces another one.
---@generic F: function
---@param func F
---@param by F
---@return F by
function arguments.replace(func, by)
  originals[by] = arguments.original(func)
  return by
end

---The function as it is written, for what reads its source.
---@param func function
---@return function
function arguments.original(func) return originals[func] or func end

return arguments
