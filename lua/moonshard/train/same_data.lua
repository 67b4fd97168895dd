-- Ranks that share a data source must read the same one: each selects its part of the samples by their numbers, so with
-- other files on one host, or another seed, some samples would be trained on twice and others never, without an error.
--
-- A batch of a loader has a text that says what it is from (moonshard.data.loader). Ranks compare it once.

local engine = require("moonshard.base.ffi")
local errors = require("moonshard.base.error")
local world = require("moonshard.distributed.world")
local ffi = engine.ffi

local same_data = {}

local NAME_BYTES, TEXT_BYTES = 32, 224

ffi.cdef(("typedef struct { char shared_by[%d], text[%d]; } ms_lua_source;"):format(NAME_BYTES, TEXT_BYTES))

---Raises MS_EMISMATCH on all ranks of a model if two that share data have batches of different sources. Batches that
---are from no loader are not compared. Collective.
---@param session moonshard.Session
---@param what string for reports, equal on all ranks: "of the training data"
---@param batch { source: string?, shared_by: string? } this rank's
function same_data.require(session, what, batch)
  local ranks, first = session:ranks(), {}
  if #ranks == 1 then return end
  if batch.shared_by == "all" and session:data_ranks() < #ranks then
    errors.invalid("the data divides the samples over all ranks, but the ranks along dimension tensor of mesh %s need "
      .. "the same ones: give the data the mesh, as in ms.data.text { mesh = mesh, ... }",
      session.sharding.mesh:label())
  end
  local mine, all = ffi.new("ms_lua_source"), ffi.new("ms_lua_source[?]", #ranks)
  if type(batch.source) == "string" and type(batch.shared_by) == "string" then
    ffi.copy(mine.shared_by, batch.shared_by:sub(1, NAME_BYTES - 1))
    ffi.copy(mine.text, batch.source:sub(1, TEXT_BYTES - 1))
  end
  session:gather_bytes(mine, ffi.sizeof(mine), all, what)
  for place, rank in ipairs(ranks) do
    local sharers, text = ffi.string(all[place - 1].shared_by), ffi.string(all[place - 1].text)
    local other = first[sharers]
    if sharers ~= "" and other and other.text ~= text then
      errors.raise("MS_EMISMATCH", "the data differs between ranks that share it: %s has %s; %s has %s; give all ranks "
        .. "the same files and settings", world.rank_name(other.rank), other.text, world.rank_name(rank), text)
    end
    first[sharers] = other or { rank = rank, text = text }
  end
end

return same_data
