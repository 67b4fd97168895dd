-- Arguments behind the last one that a function takes are errors in what recipes call: Lua drops them, and
-- x:transpose(0, 1, 2) or train:step(batch, 3) would do something other than what was asked.
--
-- The functions of a table are replaced by ones that count first. Those that take `...` decide themselves.

local options = require("moonshard.base.checks.options")

local arguments = {}

-- The functions as written, by those that count.
local originals = setmetatable({}, { __mode = "k" })

local OWN_SOURCE = debug.getinfo(1, "S").source

-- The counting function has the same parameters, for code that looks at the stack.
local MAKER = [[
local func, refuse = ...
return function(%s...)
  if select("#", ...) > 0 then refuse(...) end
  return func(%s)
end]]

---A function that takes no more arguments than this one; nil behind the last is no argument.
---@generic F: function
---@param holder string "ms", or an object as guides call it: "train"
---@param name string
---@param func F
---@return F
function arguments.exact(holder, name, func)
  local takes = debug.getinfo(func, "uS")
  if takes.isvararg or takes.what == "C" or originals[func] then return func end
  local names = {}
  for i = 1, takes.nparams do names[i] = debug.getlocal(func, i) end
  local all = table.concat(names, ", ")
  local of_object = names[1] == "self" or names[1] == holder
  local called = ("%s%s%s(%s)"):format(holder, of_object and ":" or ".", name, table.concat(names, ", ",
    of_object and 2 or 1))
  local function refuse(...)
    for i = 1, select("#", ...) do
      local further = select(i, ...)
      if further ~= nil then options.no_more(called, further) end
    end
  end
  local maker = MAKER:format(names[1] and all .. ", " or "", all)
  local counting = assert(loadstring(maker, OWN_SOURCE))(func, refuse)
  originals[counting] = func
  return counting
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
