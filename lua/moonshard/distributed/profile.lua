-- Records chosen steps of a run and writes them as a trace, for `moonshard run --trace FILE --trace-steps A-B`.
--
-- Steps are counted by the trainer, from 1. During the chosen steps every exec that runs gets the recorder; before and
-- after, execs run without it.

local engine = require("moonshard.base.ffi")
local errors = require("moonshard.base.error")
local input_file = require("moonshard.base.files.input_file")
local output_file = require("moonshard.base.files.output_file")
local text_lines = require("moonshard.base.text.text_lines")
local world = require("moonshard.distributed.world")
local C, ffi = engine.C, engine.ffi

local profile = {}

-- { path, first, last, file, is_new }, or nil. file: rank 0's, which keeps other runs from writing it; is_new: it did
-- not exist before.
local wanted
local recorder -- ms_profile*, from the first chosen step to the last
local recorded = 0 -- the last recorded step

---Requests a trace. Must be called before the first step.
---@param path string
---@param first integer
---@param last integer
function profile.request(path, first, last)
  wanted = { path = path, first = first, last = last }
  if world.rank ~= 0 then return end
  wanted.is_new = not input_file.exists(path)
  wanted.file = output_file.claim("trace", path)
end

---Ends the request. A file that this run has made, but not written, is removed.
---@param is_written boolean?
function profile.forget(is_written)
  local ended = wanted
  wanted = nil
  if not ended or not ended.file then return end
  if ended.is_new and not is_written then os.remove(ended.path) end
  ended.file:close()
end

-- The first chosen step is about to begin.
local function begin()
  local out = ffi.new("ms_profile *[1]")
  engine.check(C.ms_profile_new(world.handle, out))
  recorder = ffi.gc(out[0], C.ms_free)
end

-- Collective.
local function write()
  engine.check(C.ms_profile_write(recorder, wanted.path))
  if world.rank == 0 then
    require("moonshard.base.text.progress").finish()
    local shown = text_lines.escape(wanted.path)
    local steps = recorded == wanted.first and ("step %d is"):format(recorded)
      or ("steps %d-%d are"):format(wanted.first, recorded)
    io.stderr:write(("moonshard: %s traced in %s: open it in ui.perfetto.dev, or `moonshard trace %s`\n")
      :format(steps, shown, shown))
  end
  profile.forget(true)
end

---Called by the trainer at the start of a step.
---@param step integer
function profile.step_begins(step)
  if wanted and not recorder and step >= wanted.first and step <= wanted.last then begin() end
end

---Called by the trainer at the end of a step. Collective at the last chosen step.
---@param step integer
---@param began number clock.now() at its start
function profile.step_ends(step, began)
  if not wanted or not recorder then return end
  engine.check(C.ms_profile_mark(recorder, "step " .. step, began))
  recorded = step
  if step >= wanted.last then write() end
end

---Records work outside the engine, such as preparing data.
---@param what string
---@param began number clock.now() at its start
function profile.mark(what, began)
  if wanted and recorder then engine.check(C.ms_profile_mark(recorder, what, began)) end
end

---Called before an exec runs: attaches the recorder, or detaches it.
---@param exec moonshard.Exec
function profile.attach_recorder(exec)
  local now = wanted and recorder or nil
  if exec.recorder ~= now then
    C.ms_exec_set_profile(exec.handle, now)
    exec.recorder = now
  end
end

---Called at the end of the run. Writes whatever part of a requested trace exists; collective in that case.
---@param cut_short boolean? the run ended early: an empty trace is then not an error
function profile.finish(cut_short)
  if not wanted then return end
  if recorded > 0 then return write() end
  local first, last = wanted.first, wanted.last
  profile.forget()
  if cut_short then return end
  errors.invalid("--trace-steps %d-%d: the run ended before step %d, so there is nothing to trace", first, last,
    first)
end

return profile
