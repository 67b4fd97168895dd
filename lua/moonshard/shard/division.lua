-- Which elements of a parameter make up a part of it: runs of elements, at equal distances. The ranks of a tensor
-- dimension have such parts, and so do the files that they write. See ms_division.

local engine = require("moonshard.base.ffi")
local C, ffi, check = engine.C, engine.ffi, engine.check

---@class moonshard.Division
---@field run number elements that lie one after another in the part and in the whole
---@field stride number from the beginning of a run to that of the next, in the whole
---@field origin number the beginning of the first run, in the whole

local division = {}

---@param elements number
---@return moonshard.Division
function division.whole(elements) return { run = elements, stride = elements, origin = 0 } end

local function read(get, of, index)
  local out = ffi.new("ms_division")
  check(get(of, index, out))
  return { run = tonumber(out.run), stride = tonumber(out.stride), origin = tonumber(out.origin) }
end

---The part of a parameter that this rank has.
---@param model ffi.cdata* ms_model*, after ms_model_shard
---@param index integer of the parameter, from 0
---@return moonshard.Division
function division.of(model, index) return read(C.ms_model_division, model, index) end

---The part of a parameter that this rank has in a state.
---@param state ffi.cdata* ms_state*
---@param index integer of the parameter, from 0
---@return moonshard.Division
function division.of_state(state, index) return read(C.ms_state_division, state, index) end

---@param part moonshard.Division
---@return boolean
function division.is_whole(part) return part.run == part.stride end

---@param a moonshard.Division
---@param b moonshard.Division
---@return boolean
function division.equals(a, b) return a.run == b.run and a.stride == b.stride and a.origin == b.origin end

---Where an element of a part is in the whole.
---@param part moonshard.Division
---@param element number of the part, from 0
---@return number index
---@return number run elements, with this one, that lie one after another in both
function division.index(part, element)
  local within = element % part.run
  return (element - within) / part.run * part.stride + part.origin + within, part.run - within
end

---How many elements of a part have an index in the whole below `index`.
---@param part moonshard.Division
---@param index number
---@return number
function division.below(part, index)
  local block = index % part.stride
  local within = math.max(0, math.min(block - part.origin, part.run))
  return (index - block) / part.stride * part.run + within
end

---How many elements [first, first + count) of a part are among elements [begin, stop) of another.
---@param part moonshard.Division
---@param first number
---@param count number
---@param other moonshard.Division
---@param begin number
---@param stop number
---@return number
function division.common(part, first, count, other, begin, stop)
  if division.equals(part, other) then return math.max(0, math.min(first + count, stop) - math.max(first, begin)) end
  local common, last = 0, first + count
  while first < last do
    local index, run = division.index(part, first)
    run = math.min(run, last - first)
    local from, to = division.below(other, index), division.below(other, index + run)
    common = common + math.max(0, math.min(to, stop) - math.max(from, begin))
    first = first + run
  end
  return common
end

return division
