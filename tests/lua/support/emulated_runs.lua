-- Runs of one recipe on the CPU and on the emulated device cuda with the emulated kernels, all of them at once when the
-- first of them is asked about; what each wrote, and comparing that.

local compare = require("moonshard.check.tolerance")
local json = require("cjson")
local program = require("lua.support.program")

local TOLERANCE = 2e-2

local emulated_runs = {}
emulated_runs.__index = emulated_runs

---@param recipe string path of a recipe that takes out=PATH and writes JSON there
function emulated_runs.of(recipe)
  return setmetatable({ recipe = recipe, runs = {}, outs = {} }, emulated_runs)
end

---A run of the recipe.
---@param name string
---@param words string[] of its command line
---@param environment string? assignments, for the emulated kernels; nil: the CPU
function emulated_runs:case(name, words, environment)
  local folder = os.getenv("MOONSHARD_BIN"):match("^(.*)/")
  self.outs[name] = os.tmpname()
  self.runs[name] = { "run", self.recipe, "out=" .. self.outs[name], unpack(words) }
  self.runs[name].environment = environment and program.emulated_cuda(
    ("MOONSHARD_CUDA_LIBRARY=%s/tests/emulated/libmoonshard_cuda_emulated.so %s"):format(folder, environment))
end

---A plan of the recipe, without any GPU.
function emulated_runs:plan(name, words)
  self.runs[name] = { "plan", self.recipe, "--device", "cuda", unpack(words) }
  self.runs[name].environment = program.emulated_cuda("MOONSHARD_EMULATE_DEVICES=0")
end

---The same run with a trace, whose events `events` gives.
function emulated_runs:traced(name, words, environment)
  self:case(name, words, environment)
  local path = os.tmpname()
  self.outs[name .. " trace"] = path
  for _, word in ipairs({ "--trace", path }) do table.insert(self.runs[name], word) end
end

function emulated_runs:events(name)
  self:told(name)
  return self:read(name .. " trace").traceEvents
end

---How the run ended: status, out and err.
function emulated_runs:ended(name)
  self.all = self.all or program.run_all(self.runs)
  return self.all[name]
end

---The same of one that succeeded.
function emulated_runs:told(name)
  local run = self:ended(name)
  assert(run.status == 0, run.err)
  return run
end

---What the run wrote.
function emulated_runs:result(name)
  self:told(name)
  return self:read(name)
end

function emulated_runs:read(name)
  local file = assert(io.open(self.outs[name]))
  local text = file:read("*a")
  file:close()
  return json.decode(text)
end

---Fails unless both runs gave nearly the same losses, norms and, where they were written, parameters.
function emulated_runs:assert_as(expected, got)
  local one, other = self:result(expected), self:result(got)
  local function close(a, b, what)
    local worst = compare.arrays(a, b, { count = #a, tolerance = TOLERANCE })
    assert(not (worst and worst.differs), ("%s differs from %s: %s"):format(got, expected, what))
  end
  close(one.losses, other.losses, "losses")
  close(one.norms, other.norms, "norms")
  for name, values in pairs(one.params or {}) do close(values, other.params[name], name) end
end

function emulated_runs:remove()
  for _, path in pairs(self.outs) do os.remove(path) end
end

return emulated_runs
