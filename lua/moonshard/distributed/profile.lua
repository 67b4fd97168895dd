-- Records chosen steps of a run and writes them as a trace, for `moonshard run --trace FILE --trace-steps A-B`.
--
-- Steps are those of the trainer, from 1. While one of them is near, every exec that runs is given the recorder; before
-- and after, execs run without it.

local engine = require("moonshard.base.ffi")
local errors = require("moonshard.base.error")
local world = require("moonshard.distributed.world")
local C, ffi = engine.C, engine.ffi

local profile = {}

local wanted -- { path, first, last }, or nil
local recorder -- ms_profile*, between the first wanted step and the last
local recorded = 0 -- the last step that is in the recorder

---Asks for a trace. Must come before the first step.
---@param path string
---@param first integer
---@param last integer
function profile.request(path, first, last)
  wanted = { path = path, first = first, last = last }
end

-- The first step wanted is about to begin.
local function begin()
  local out = ffi.new("ms_profile *[1]")
  engine.check(C.ms_profile_new(world.handle, out))
  recorder = ffi.gc(out[0], C.ms_profile_free)
end

-- Collective.
local function write()
  engine.check(C.ms_profile_write(recorder, wanted.path))
  if world.rank == 0 then
    require("moonshard.base.progress").finish()
    local steps = recorded == wanted.first and ("step %d is"):format(recorded)
      or ("steps %d-%d are"):format(wanted.first, recorded)
    io.stderr:write(("moonshard: %s traced in %s: open it in ui.perfetto.dev, or `moonshard trace %s`\n")
      :format(steps, wanted.path, wanted.path))
  end
  wanted = nil
end

---The trainer begins a step.
---@param step integer
function profile.step_begins(step)
  if wanted and not recorder and step >= wanted.first and step <= wanted.last then begin() end
end

---The trainer has ended a step. Collective when it was the last one wanted.
---@param step integer
---@param began number clock.now() at its beginning
function profile.step_ends(step, began)
  if not wanted or not recorder then return end
  engine.check(C.ms_profile_mark(recorder, "step " .. step, began))
  recorded = step
  if step >= wanted.last then write() end
end

---The program did something of its own, like making data.
---@param what string
---@param began number clock.now() at its beginning
function profile.did(what, began)
  if wanted and recorder then engine.check(C.ms_profile_mark(recorder, what, began)) end
end

---An exec is about to run: it gets the recorder, or loses it.
---@param exec moonshard.Exec
function profile.attend(exec)
  local now = wanted and recorder or nil
  if exec.recorder ~= now then
    C.ms_exec_set_profile(exec.handle, now)
    exec.recorder = now
  end
end

---The run is over. Writes what there is of a trace that was asked for; collective then.
---@param cut_short boolean? the run was ended before its time: a trace of which there is nothing yet is no error
function profile.finish(cut_short)
  if not wanted then return end
  if recorded > 0 then return write() end
  if cut_short then return end
  errors.invalid("--trace-steps %d-%d: the run ended before step %d, so there is nothing to trace", wanted.first,
    wanted.last, wanted.first)
end


return profile
