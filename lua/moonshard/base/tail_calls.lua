-- Where a function makes its tail calls. `return x:matmul(y)` is one: while it runs, Lua has forgotten the function
-- that made it, so an error's traceback lacks the very line that is wrong. But a function that is missing there can
-- only have left by a tail call, and its bytecode says on which lines those are.

local util = require("jit.util")

local tail_calls = {}

local function opcode(func, pc)
  local instruction = util.funcbc(func, pc)
  return instruction and instruction % 256
end

local function last_opcode(source)
  local func, pc = assert(loadstring(source)), 0
  while opcode(func, pc + 1) do pc = pc + 1 end
  return opcode(func, pc)
end

-- With a fixed number of arguments, and with as many as another call gives. Their numbers differ between versions.
local TAIL_CALL = {
  [last_opcode("local f = ... return f(1)")] = true, [last_opcode("local f = ... return f(...)")] = true,
}

---The lines of a Lua function's tail calls, each once.
---@param func function
---@return integer[] ascending
function tail_calls.lines(func)
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

return tail_calls
