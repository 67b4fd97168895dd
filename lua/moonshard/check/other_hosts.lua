-- Brings what the ranks of other hosts wrote for a check to the folder on rank 0's host, where it is compared.

local engine = require("moonshard.base.ffi")
local files = require("moonshard.check.files")
local input_file = require("moonshard.base.files.input_file")
local world = require("moonshard.distributed.world")
local ffi, C = engine.ffi, engine.C

ffi.cdef "typedef struct { int32_t bytes; char text[4092]; } ms_lua_check_piece;" -- as much as a rank gathers at once

local other_hosts = {}

local PIECE = 4092

local function is_far(rank) return world.node_of(rank) ~= world.node_of(0) end

-- Every rank's next piece of a text; a rank whose text has ended gives an empty one.
local function exchange(text, at, all)
  local mine, piece = ffi.new("ms_lua_check_piece"), text:sub(at, at + PIECE - 1)
  mine.bytes = #piece
  ffi.copy(mine.text, piece, #piece)
  engine.check(C.ms_world_all_gather_bytes(world.handle, mine, ffi.sizeof(mine), all))
end

-- Writes a file of each rank of another host on rank 0's.
local function bring(folder, pattern)
  local function path_of(rank) return folder .. "/" .. pattern:format(rank) end
  local text = is_far(world.rank) and assert(input_file.text(path_of(world.rank))) or ""
  local all, at, written = ffi.new("ms_lua_check_piece[?]", world.size), 1, {}
  local longest
  repeat
    exchange(text, at, all)
    at, longest = at + PIECE, 0
    for rank = 0, world.size - 1 do
      longest = math.max(longest, all[rank].bytes)
      if world.rank == 0 and is_far(rank) then
        written[rank] = written[rank] or files.open(path_of(rank), "wb")
        files.write(written[rank], path_of(rank), ffi.string(all[rank].text, all[rank].bytes))
      end
    end
  until longest == 0
  for rank, file in pairs(written) do files.close(file, path_of(rank)) end
end

---Collective over the world. Does nothing when all ranks are on one host.
---@param folder string the check's; every host has its own
function other_hosts.bring(folder)
  if world.nodes() == 1 then return end
  bring(folder, "%d.json")
  bring(folder, "batches-%d")
end

return other_hosts
