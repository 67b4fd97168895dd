-- Errors as values: what is wrong, where in the recipe, and in which module. The Lua layer raises all of its errors
-- here, so that every message starts with the user's own file and line. Names and values in it come from files, recipes
-- and other ranks: whatever they contain, a message is safe to print.
--
-- The place is the first function on the stack outside the Lua layer: the recipe, or the file that defines a user's
-- layer.

local util = require("jit.util")
local context = require("moonshard.base.context")
local text_lines = require("moonshard.base.text.text_lines")

---@class moonshard.Error
---@field code integer status of moonshard.h; 1 (MS_EINVAL) for errors of the Lua layer without a more specific one
---@field status string name of the code: "MS_ESHAPE"
---@field message string what is wrong, and what would be right
---@field where string? "recipe.lua:12"
---@field path string? FQN of the module whose forward was being traced: "layers.3.attn.wq"
---@field c_where string? "file.c:123" of the C source that raised it
---@field traceback string? for an error that Lua itself raised during a trace
local Error = {}
Error.__index = Error

function Error:__tostring()
  local parts = {}
  if self.where then parts[#parts + 1] = self.where end
  if self.path then parts[#parts + 1] = "in " .. self.path end
  parts[#parts + 1] = self.message
  return table.concat(parts, ": ")
end

local errors = {}

-- The codes of moonshard.h that Lua code raises; the specs compare them with the header.
local CODES = {
  MS_EINVAL = 1, MS_ESHAPE = 2, MS_EDTYPE = 3, MS_ENAME = 4, MS_ERULE = 5, MS_ENOMEM = 6, MS_EIO = 7,
  MS_EUNSUPPORTED = 8, MS_EMISMATCH = 11, MS_EINTERNAL = 15,
}
errors.CODES = CODES

-- "@lua/moonshard/" or "@/usr/local/share/lua/5.1/moonshard/": the prefix of chunk names in this layer.
local own_prefix = debug.getinfo(1, "S").source:match("^(.*/)base/[^/]*$") or "@lua/moonshard/"

local function is_own(info) return info.source:sub(1, #own_prefix) == own_prefix end

local function place(info, line)
  return (info.source:sub(1, 1) == "@" and info.source:sub(2) or info.short_src) .. ":" .. line
end

-- ---- tail calls: `return x:matmul(y)` is one ---------------------------------------------------------------------
--
-- A tail call removes the calling function from the stack, so a traceback lacks the line at fault. But a function that
-- is missing from the stack can only have left by a tail call, and its bytecode has the lines of those.

local function opcode(func, pc)
  local instruction = util.funcbc(func, pc)
  return instruction and instruction % 256
end

local function last_opcode(source)
  local func, pc = assert(loadstring(source)), 0
  while opcode(func, pc + 1) do pc = pc + 1 end
  return opcode(func, pc)
end

-- With a fixed number of arguments, and with a variable number. The opcodes differ between LuaJIT versions.
local TAIL_CALL = {
  [last_opcode("local f = ... return f(1)")] = true, [last_opcode("local f = ... return f(...)")] = true,
}

-- The lines of a Lua function's tail calls, without duplicates, ascending.
local function lines_of_tail_calls(func)
  local lines, seen, pc = {}, {}, 1
  while opcode(func, pc) do
    local line = TAIL_CALL[opcode(func, pc)] and util.funcinfo(func, pc).currentline
    if line and not seen[line] then
      seen[line] = true
      lines[#lines + 1] = line
    end
    pc = pc + 1
  end
  table.sort(lines)
  return lines
end

-- The place in a forward that left the stack by a tail call; "recipe.lua:12 or 14" where there are several candidates.
local function place_of_tail_call(forward)
  local info = type(forward) == "function" and debug.getinfo(forward, "S")
  if not info or info.what == "C" or is_own(info) then return nil end
  local lines = lines_of_tail_calls(forward)
  return lines[1] and place(info, table.concat(lines, " or "))
end

-- ---- places -----------------------------------------------------------------------------------------------------

---The nearest caller outside the Lua layer, "recipe.lua:12"; nil if there is none.
---@param before_forward boolean? where a module was called whose forward has not begun
---@return string?
function errors.caller(before_forward)
  local level = 2
  while true do
    local info = debug.getinfo(level, "Slf")
    if not info then return nil end
    if info.what ~= "C" and info.currentline > 0 and not is_own(info) then return place(info, info.currentline) end
    if info.func == context.call_module and not before_forward then
      local _, module = debug.getlocal(level, 1)
      local left = place_of_tail_call(module.forward)
      if left then return left end
    end
    level = level + 1
  end
end

---Whether the function that called its caller, such as one that assigns to a field, belongs to the Lua layer.
---@return boolean
function errors.called_by_layer()
  return is_own(debug.getinfo(3, "S"))
end

---Where a function outside the Lua layer is written, "recipe.lua:12"; nil for others.
---@param func function
---@return string?
function errors.place_of(func)
  local info = debug.getinfo(func, "S")
  if info.what == "C" or is_own(info) then return nil end
  return place(info, info.linedefined)
end

---@param fields table fields of moonshard.Error
---@return moonshard.Error
function errors.new(fields)
  fields.status = fields.status or "MS_EINVAL"
  fields.code = fields.code or CODES[fields.status]
  fields.message = text_lines.indented(fields.message)
  fields.where = fields.where and text_lines.escape(fields.where)
  return setmetatable(fields, Error)
end

---@param value any
---@return boolean
function errors.is(value)
  return getmetatable(value) == Error
end

---Whether an error of a plan is not one of what was to be compiled, such as a mesh that a model refuses.
---@param raised any
---@return boolean
function errors.is_fault(raised)
  return not errors.is(raised) or raised.status == "MS_EINTERNAL" or raised.status == "MS_EINTERRUPT"
end

local function current_path()
  return context.path ~= "" and context.path or nil
end

---As string.format; the longest texts are cut where they would hide the rest.
---@param format string
---@param ... any
---@return string
function errors.format(format, ...)
  local arguments, count = { ... }, select("#", ...)
  text_lines.shorten(arguments, count)
  return format:format(unpack(arguments, 1, count))
end

---Raises an error of the given status at the recipe's line.
---@param status string one of errors.CODES
---@param format string
---@param ... any arguments of string.format
function errors.raise(status, format, ...)
  error(errors.new({
    status = status,
    message = errors.format(format, ...),
    where = errors.caller(),
    path = current_path(),
  }), 0)
end

---Raises MS_EINVAL at the recipe's line.
---@param format string
---@param ... any arguments of string.format
function errors.invalid(format, ...)
  errors.raise("MS_EINVAL", format, ...)
end

---Raises at a place recorded earlier, e.g. where a rule was written.
---@param where string? "recipe.lua:12"; nil: the caller's line
---@param status string
---@param format string
---@param ... any arguments of string.format
function errors.raise_at(where, status, format, ...)
  error(errors.new({ status = status, message = errors.format(format, ...), where = where or errors.caller() }), 0)
end

---Raises the error that the engine recorded. A message that begins with a place ("recipe.lua:3: ...", a rule) keeps it.
---@param code integer
---@param status string
---@param message string
---@param c_where string
function errors.raise_c(code, status, message, c_where)
  local where, rest = message:match("^([^\n:]+:%d+): (.*)$")
  local path = current_path()
  if path and message:sub(1, #path + 5) == "in " .. path .. ": " then message = message:sub(#path + 6) end
  error(errors.new({
    code = code,
    status = status,
    message = rest or message,
    where = where or errors.caller(),
    path = not where and path or nil,
    c_where = c_where,
  }), 0)
end

-- Lua lists every place where it looked for a module.
local function shorten_missing_module(raised)
  local missing, name = raised:match("^(.-module '([^\n]-)' not found):\n")
  if not missing then return raised end
  if name:find("^moo?n") then return missing .. ": did you mean moonshard?" end
  return ("%s: there is no %s.lua in the folder of the recipe, the working directory or LUA_PATH"):format(missing,
    (name:gsub("%.", "/")))
end

-- Adds a suggestion to Lua's own "attempt to call method 'view' (a nil value)". The table is loaded on demand.
local function explained(raised)
  raised = shorten_missing_module(raised)
  local is_luas = raised:find("stack overflow", 1, true) or raised:find("attempt to %l+ .* %(a %l+ value%)$")
    or raised:find(": attempt to [%l ]+ a nil value$")
    or raised:find(": attempt to compare .*table") or raised:find("%(number expected, got table%)$")
  return is_luas and require("moonshard.base.names.advice").explain(raised) or raised
end

---What to print of a raised value.
---@param raised any
---@return string
function errors.text(raised)
  return errors.is(raised) and text_lines.indented(tostring(raised)) or text_lines.message(tostring(raised))
end

---Turns a value raised during a trace into an error; for use as xpcall's handler. Errors of Lua itself ("attempt to
---index ...") get the module path and keep their traceback.
---@param raised any
---@return any
function errors.adopt(raised)
  if errors.is(raised) or type(raised) ~= "string" then return raised end
  local where, message = explained(raised):match("^([^\n]-:%d+): (.*)$")
  local is_own_place = where and where:sub(1, #own_prefix - 1) == own_prefix:sub(2)
  return errors.new({
    message = text_lines.message(message or raised),
    where = is_own_place and errors.caller() or where,
    path = current_path(),
    traceback = debug.traceback(raised, 2),
  })
end

-- A text about a value without one. LuaJIT's tostring returns whatever a recipe's __tostring does.
local function text_of(raised)
  local meta = debug.getmetatable(raised)
  if type(raised) == "number" then return tostring(raised) end
  if not (meta and meta.__tostring) then
    return ("error was called with %s instead of a message"):format(raised == nil and "nil" or "a " .. type(raised))
  end
  local ok, text = pcall(tostring, raised)
  if ok and type(text) == "string" then return nil end
  return ("error was called with a %s whose __tostring failed: %s"):format(type(raised),
    ok and "it returned a " .. type(text) or tostring(text))
end

-- What to write where a method of this layer was called with a dot, data.batches(2): its self is the first argument.
-- The method may have passed it on to others; the recipe called the outermost.
local function for_a_dot()
  local name
  for level = 3, 12 do
    local info = debug.getinfo(level, "nS")
    if not info or info.what ~= "C" and not is_own(info) then break end
    local first, self = debug.getlocal(level, 1)
    if first == "self" and type(self) ~= "table" and info.name then name = info.name end
  end
  return name and ("%s was called with a dot: call methods with a colon, object:%s(...)"):format(name, name)
end

---Turns a value that a recipe raised into one line, for use as xpcall's handler. Values without text get one. Texts
---without a place (error("...", 0), dofile of a missing file), or with one in this layer, get the recipe's line.
---@param raised any
---@return any
function errors.locate(raised)
  if errors.is(raised) then return raised end
  if type(raised) ~= "string" then
    local text = text_of(raised)
    if not text then return raised end
    raised = text
  end
  local own = raised:sub(1, #own_prefix - 1) == own_prefix:sub(2)
  raised = own and for_a_dot() or explained(raised)
  local has_place = raised:match("^[^\n]-:%d+: ")
  if has_place and not own then return raised end
  return errors.new({
    status = raised == "not enough memory" and "MS_ENOMEM" or nil, -- LuaJIT's own
    message = text_lines.message(raised), where = errors.caller(),
  })
end

return errors
