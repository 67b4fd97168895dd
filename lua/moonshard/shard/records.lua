-- The records that parameters kept as codes are made of (kernels/formats/storage.h). Where a tensor dimension
-- divides such a parameter, they can be shorter than those of a whole one, so their length depends on the part that a
-- rank has. What they mean does not, and records of one length become those of another bit for bit.

local division = require("moonshard.shard.division")
local dtypes = require("moonshard.base.dtypes")
local engine = require("moonshard.base.ffi")
local C, ffi, check = engine.C, engine.ffi, engine.check

---@class moonshard.Records
---@field dtype string
---@field elements integer of a record
---@field words integer of 32 bits, of a record

local records = {}

---The records of a parameter of which the ranks of a tensor dimension have runs of so many elements.
---@param dtype string
---@param run number? nil: they do not divide it
---@return moonshard.Records
function records.of_runs(dtype, run)
  local elements, words = ffi.new("int64_t[1]"), ffi.new("int64_t[1]")
  check(C.ms_storage_record((dtypes.id(dtype)), run or 0, elements, words))
  return { dtype = dtype, elements = tonumber(elements[0]), words = tonumber(words[0]) }
end

---The records of a part of a parameter.
---@param dtype string
---@param part moonshard.Division in elements
---@return moonshard.Records
function records.of_part(dtype, part)
  return records.of_runs(dtype, not division.is_whole(part) and part.run or nil)
end

---The words of the records of so many elements.
---@param of moonshard.Records
---@param elements number
---@return number
function records.count(of, elements) return math.ceil(elements / of.elements) * of.words end

---A part in words instead of elements.
---@param of moonshard.Records of the part
---@param part moonshard.Division
---@return moonshard.Division
function records.in_words(of, part)
  return {
    run = records.count(of, part.run), stride = records.count(of, part.stride),
    origin = records.count(of, part.origin),
  }
end

---Copies elements [first, first + count) of a part of a parameter to records of another length. `whole` has the records
---of elements [begin, stop) of the whole parameter; elements of the part that are not among them stay.
---@param from moonshard.Records
---@param whole ffi.cdata* float[]
---@param begin number a multiple of from.elements
---@param stop number
---@param to moonshard.Records of the part
---@param part moonshard.Division
---@param first number a multiple of to.elements
---@param count number
---@param out ffi.cdata* float[] the records of these elements of the part
function records.take(from, whole, begin, stop, to, part, first, count, out)
  local at = math.max(first, division.below(part, begin))
  local last = math.min(first + count, division.below(part, stop))
  while at < last do
    local index, run = division.index(part, at)
    run = math.min(run, last - at)
    check(C.ms_storage_copy((dtypes.id(from.dtype)), from.elements, whole, index - begin, run, to.elements, out,
      at - first))
    at = at + run
  end
end

return records
