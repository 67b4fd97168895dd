-- Reads initial values of parameters from files. A parameter with a `source` is read when the model's state is created:
-- each rank reads only the elements that it owns, in pieces, so no rank ever holds more of the model.

local clock = require("moonshard.base.clock")
local division = require("moonshard.shard.division")
local engine = require("moonshard.base.ffi")
local hash = require("moonshard.base.hash")
local world = require("moonshard.distributed.world")
local C, ffi, check = engine.C, engine.ffi, engine.check

local initial_values = {}

local PIECE = 2 ^ 20 -- elements per read

---@class moonshard.ValueSource
---@field read fun(first: number, count: number, out: ffi.cdata*): number reads elements of the flattened parameter as
---  f32; returns the number of bytes read from the file
---@field identity string equal for equal files

local function hash_of_all(identities)
  local texts = {}
  for text in pairs(identities) do texts[#texts + 1] = text end
  table.sort(texts)
  return hash.of_text(table.concat(texts, "\n"))
end

-- Ranks that read different files would train a mixture of two models.
local function compare(session, identities)
  session:require_same(hash_of_all(identities), "of the files that values were read from", function(rank)
    return ("rank %d reads the model from different files than rank %d: all ranks need the same files"):format(rank,
      world.rank)
  end)
end

local function fill(session, index, source, scratch)
  local first, count, bytes = ffi.new("int64_t[1]"), ffi.new("int64_t[1]"), 0
  local model = session.sharding:handle()
  local part = division.of(model, index)
  check(C.ms_model_owned(model, index, first, count))
  local begin, stop = tonumber(first[0]), tonumber(first[0] + count[0])
  while begin < stop do
    world.check_interrupt()
    local at, run = division.index(part, begin)
    local n = math.min(PIECE, stop - begin, run)
    bytes = bytes + source.read(at, n, scratch)
    check(C.ms_state_write(session.state, index, C.MS_TENSOR_PARAM, begin, n, scratch))
    begin = begin + n
  end
  return bytes
end

---Reads the values of every parameter with a source into a new state. Collective if there are any.
---@param session moonshard.Session
---@return { bytes: number, seconds: number }? read by this rank; nil if there are no sources
function initial_values.read(session)
  local identities, scratch, bytes, began = {}, nil, 0, clock.now()
  for i, param in ipairs(session.sharding.params) do
    local source = param.parameter.source
    if source then
      scratch = scratch or ffi.new("float[?]", PIECE)
      identities[source.identity] = true
      bytes = bytes + fill(session, i - 1, source, scratch)
    end
  end
  if not scratch then return nil end
  check(C.ms_state_seal(session.state))
  compare(session, identities)
  return { bytes = bytes, seconds = clock.now() - began }
end

return initial_values
