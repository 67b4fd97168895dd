-- Which elements of a parameter make up a part of it: runs of elements, at equal distances. The ranks of a tensor
-- dimension have such parts, and so do the files that they write. See ms_division and ms_tensor_info.

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

local function from_engine(part)
  return { run = tonumber(part.run), stride = tonumber(part.stride), origin = tonumber(part.origin) }
end

---@class moonshard.TensorInfo what this rank has of a tensor
---@field first number of the elements
---@field count number
---@field sliced boolean whether no other replica has them
---@field part moonshard.Division of the parameter
---@field updates number that the parameter has had

local function read(info)
  return { first = tonumber(info.first), count = tonumber(info.count), sliced = info.sliced ~= 0,
    part = from_engine(info.part), updates = tonumber(info.updates) }
end

---What this rank owns of a parameter.
---@param model ffi.cdata* ms_model*, after ms_model_shard
---@param index integer of the parameter, from 0
---@return moonshard.TensorInfo
function division.owned(model, index)
  local info = ffi.new("ms_tensor_info")
  check(C.ms_model_describe(model, index, info, ffi.sizeof(info)))
  return read(info)
end

---The part of a parameter that this rank has.
---@param model ffi.cdata* ms_model*, after ms_model_shard
---@param index integer of the parameter, from 0
---@return moonshard.Division
function division.of(model, index) return division.owned(model, index).part end

---What this rank has of a tensor of a state.
---@param state ffi.cdata* ms_state*
---@param index integer of the parameter, from 0
---@param what integer enum ms_tensor_kind
---@return moonshard.TensorInfo
function division.kept(state, index, what)
  local info = ffi.new("ms_tensor_info")
  check(C.ms_state_describe(state, index, what, info, ffi.sizeof(info)))
  return read(info)
end

---What a state of a plan has of a parameter, and of its optimizer state, on this rank.
---@param plan ffi.cdata* ms_plan*
---@param index integer of the parameter, from 0
---@return moonshard.TensorInfo
function division.planned(plan, index)
  local info = ffi.new("ms_tensor_info")
  check(C.ms_plan_describe(plan, index, info, ffi.sizeof(info)))
  return read(info)
end

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
