-- The engine's notes: what works, but slower than it could, or otherwise than a file says.

local engine = require("moonshard.base.ffi")
local world = require("moonshard.distributed.world")
local C, ffi = engine.C, engine.ffi

local notes = {}

---Prints the notes that are there. Only rank 0 prints, each note once.
function notes.print()
  local note = C.ms_note_next()
  while note ~= nil do
    if world.rank == 0 then io.stderr:write("moonshard: note: ", ffi.string(note), "\n") end
    note = C.ms_note_next()
  end
end

return notes
