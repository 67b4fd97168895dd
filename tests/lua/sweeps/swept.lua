-- A sweep in a folder of its own, for specs: its definition, its runs, and the files that it wrote.

local json = require("moonshard.base.text.json")
local program = require("lua.support.program")
local scratch = require("lua.support.scratch")

local RECIPE = "tests/lua/recipes/sweep_point.lua"

local swept = {}

---@param text string
---@return string[]
function swept.lines_of(text)
  local lines = {}
  for line in text:gmatch("[^\n]+") do lines[#lines + 1] = line end
  return lines
end

---How often a pattern is found.
---@param text string
---@param pattern string
---@return integer
function swept.count(text, pattern) return select(2, text:gsub(pattern, "")) end

-- A sweep's file in a folder of its own, and what it wrote there.
local function new_sweep()
  local folder = os.tmpname()
  os.remove(folder)
  os.execute("mkdir " .. folder)
  local sweep = { folder = folder, out = folder .. "/out", trace = folder .. "/trace" }
  sweep.file = folder .. "/my_sweep.lua"
  function sweep.define(fields)
    local file = assert(io.open(sweep.file, "w"))
    file:write(([[
      local ms = require "moonshard"
      ms.sweep {
        recipe = %q, out = %q, order = "given", %s
      }
    ]]):format(sweep.recipe or RECIPE, sweep.out, fields))
    file:close()
  end
  function sweep.run(...) return program.run({ "sweep", sweep.file, ... }) end
  function sweep.read(name) return scratch.read(sweep.out .. "/" .. name) end
  function sweep.results() return assert(json.decode(sweep.read("results.json"))) end
  function sweep.traced() return swept.lines_of(scratch.read(sweep.trace)) end
  function sweep.remove() os.execute("rm -rf " .. folder) end
  return sweep
end

---Calls action with a sweep whose files are there for so long.
---@param action fun(sweep: table)
function swept.with_sweep(action)
  local sweep = new_sweep()
  local ok, raised = pcall(action, sweep)
  sweep.remove()
  if not ok then error(raised, 0) end
end

return swept
