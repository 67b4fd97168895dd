-- Reads parameters that are saved as they were kept, as records of codes with scales: their values, or their records in
-- another length than they were saved in, as a mesh with another tensor dimension has them.

local division = require("moonshard.shard.division")
local dtypes = require("moonshard.base.dtypes")
local engine = require("moonshard.base.ffi")
local records = require("moonshard.shard.records")
local C, ffi, check = engine.C, engine.ffi, engine.check

local stored_words = {}

local AT_ONCE = 2 ^ 22 -- elements of the whole parameter; a multiple of those of any record

-- The records of elements [first, first + count) of the whole parameter, and the element with which they begin.
local function read(checkpoint, of, fqn, first, count)
  local begin = math.floor(first / of.elements) * of.elements
  local from, n = records.count(of, begin), records.count(of, first + count - begin)
  local room = ffi.new("float[?]", n)
  checkpoint:read_pieces(of.dtype, fqn, division.whole(from + n), from, n, room)
  return room, begin
end

---Copies elements of a parameter, f32.
---@param checkpoint moonshard.Checkpoint
---@param of moonshard.Records that are saved
---@param fqn string
---@param first number
---@param count number
---@param out ffi.cdata* float[count]
function stored_words.values(checkpoint, of, fqn, first, count, out)
  local room, begin = read(checkpoint, of, fqn, first, count)
  check(C.ms_storage_read((dtypes.id(of.dtype)), of.elements, room, first - begin, count, out))
end

---Copies the records of elements of a part of a parameter, in another length than the saved ones.
---@param checkpoint moonshard.Checkpoint
---@param of moonshard.Records that are saved
---@param range moonshard.OwnedRange
---@param out ffi.cdata* float[range.count], zeros
function stored_words.convert(checkpoint, of, range, out)
  local wanted, fqn = range.stored, range.param.fqn
  local begin = division.index(wanted.part, wanted.first)
  local stop = division.index(wanted.part, wanted.first + wanted.count - 1) + 1
  while begin < stop do
    local count = math.min(AT_ONCE - begin % AT_ONCE, stop - begin)
    local room, start = read(checkpoint, of, fqn, begin, count)
    records.take(of, room, start, begin + count, wanted.records, wanted.part, wanted.first, wanted.count, out)
    begin = begin + count
  end
end

return stored_words
