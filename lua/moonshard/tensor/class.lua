-- The class of tensors without any op: their fields, and a table of methods that tensor/init.lua fills. It lets ops,
-- values and text output recognise tensors without depending on the operators, which depend on them.

local dtypes = require("moonshard.base.dtypes")
local engine = require("moonshard.base.ffi")
local errors = require("moonshard.base.error")
local strict = require("moonshard.base.strict")
local C, ffi = engine.C, engine.ffi

---@class moonshard.Tensor
---@field shape integer[] sizes, outermost first
---@field dtype string "f32", "bf16", "i32", "u8", "f8e4m3", "f8e5m2", "e8m0" or "i8"
---@field trace moonshard.Trace? only symbols
---@field id integer? only symbols: value of the graph
---@field data ffi.cdata*? only eager tensors: array of the dtype's C type, row-major
---@field placement string? only eager tensors: "replicated", or the shard that this tensor holds; nil if unknown
---@operator add(moonshard.Tensor|number): moonshard.Tensor
---@operator sub(moonshard.Tensor|number): moonshard.Tensor
---@operator mul(moonshard.Tensor|number): moonshard.Tensor
---@operator div(moonshard.Tensor|number): moonshard.Tensor
---@operator unm: moonshard.Tensor
---@operator pow(number): moonshard.Tensor
local Tensor = { __name = "a tensor" }
local methods = {}

-- Fields that one kind of tensor has and the other lacks.
local OPTIONAL = { trace = true, id = true, data = true, placement = true }

-- x[2] is the third slice of x along its first axis.
function Tensor:__index(key)
  if type(key) == "number" then return methods.index(self, key) end
  local method = methods[key]
  if method == nil and type(key) == "string" and not OPTIONAL[key] then
    strict.unknown_method("a tensor", key, methods)
  end
  return method
end

-- Other fields belong to the layer itself.
function Tensor:__newindex(key, value)
  if type(key) == "number" then
    errors.invalid("x[%s] = ...: tensors are immutable; ms.ops.where and arithmetic return new tensors, "
      .. "train:set_parameter changes a parameter", tostring(key))
  end
  rawset(self, key, value)
end

strict.refuse_ipairs(Tensor, "x:tolist() returns one, and x:size(0) is its length")

local tensor = { class = Tensor, methods = methods }

---@param value any
---@return boolean
function tensor.is(value)
  return getmetatable(value) == Tensor
end

---Whether a value is an eager tensor, which holds its values.
---@param value any
---@return boolean
function tensor.is_eager(value)
  return getmetatable(value) == Tensor and rawget(value, "data") ~= nil
end

---An eager tensor over memory that will not change.
---@param dtype string
---@param shape integer[]
---@param data ffi.cdata* array of the dtype's C type
---@param placement string? "replicated", or the shard that this tensor holds
---@return moonshard.Tensor
function tensor.eager(dtype, shape, data, placement)
  return setmetatable({ dtype = dtype, shape = shape, data = data, placement = placement }, Tensor)
end

local info = ffi.new("ms_value_info")

---The tensor that represents a value of the graph.
---@param trace moonshard.Trace
---@param id integer
---@return moonshard.Tensor
function tensor.new(trace, id)
  engine.check(C.ms_graph_describe(trace.handle, id, info))
  local shape = {}
  for d = 1, info.ndim do shape[d] = tonumber(info.dims[d - 1]) end
  return setmetatable({ trace = trace, id = id, shape = shape, dtype = dtypes.names[info.dtype] }, Tensor)
end

---"[8,256,384]"
---@param shape integer[]
---@return string
function tensor.shape_text(shape)
  return "[" .. table.concat(shape, ",") .. "]"
end

function Tensor:__tostring()
  local placement = rawget(self, "placement")
  return ("tensor %s %s%s"):format(self.dtype, tensor.shape_text(self.shape), placement and ", " .. placement or "")
end

return tensor
