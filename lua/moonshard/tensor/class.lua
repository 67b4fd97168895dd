-- The class of tensors without any op: their fields, and a table of methods that tensor/init.lua fills. It lets ops,
-- values and text output recognise tensors without depending on the operators, which depend on them.

local dtypes = require("moonshard.base.dtypes")
local engine = require("moonshard.base.ffi")
local errors = require("moonshard.base.error")
local strict = require("moonshard.base.checks.strict")
local C, ffi = engine.C, engine.ffi

---@class moonshard.Tensor
---@field shape integer[] sizes, outermost first
---@field dtype string "f32", "bf16", "i32", "u8", "f8e4m3", "f8e5m2", "e8m0" or "i8"
---@field trace moonshard.Trace? only symbols
---@field id integer? only symbols: value of the graph
---@field data ffi.cdata*? only eager tensors: array of the dtype's C type, row-major
---@field placement string? only eager tensors: "replicated", or the shard that this tensor holds; nil if unknown
---@field _bytes integer? only eager tensors: of `data`
---@field _made string? only eager tensors: dtype and shape, to which a recipe could assign
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

-- What PyTorch's tensors are read by.
local READ_ELSEWHERE = {
  T = "it is x:t(), or x:transpose(0, 1)", device = "the mesh or --device chooses the device",
  is_cuda = "the mesh or --device chooses the device",
  grad = "train:gradient(name) returns the gradient of a parameter",
  ndim = "it is x:dim(), or #x.shape", requires_grad = "freeze of ms.fully_shard says which parameters train",
}

-- x[2] is the third slice of x along its first axis.
function Tensor:__index(key)
  if type(key) == "number" then return methods.index(self, key) end
  local method = methods[key]
  if method == nil and not OPTIONAL[key] then
    if READ_ELSEWHERE[key] then errors.raise("MS_ENAME", "a tensor has no field %s: %s", key, READ_ELSEWHERE[key]) end
    if type(key) ~= "string" or key:find("[^%w_]") then
      errors.invalid("x[%s]: an index is one number, from 0: x[2], or x:slice(axis, start, stop)",
        type(key) == "string" and ("%q"):format(key) or "a " .. type(key))
    end
    strict.unknown_method("a tensor", key, methods, self)
  end
  return method
end

-- Fields of PyTorch's tensors that are set there, and what is written here.
local SET_ELSEWHERE = {
  requires_grad = "parameters have gradients, and freeze of ms.fully_shard takes theirs; x:detach() is a constant",
  grad = "train:step(batch) computes gradients, and train:gradient(name) returns one",
}

-- Other fields belong to the layer itself.
function Tensor:__newindex(key, value)
  if type(key) == "number" then
    errors.invalid("x[%s] = ...: tensors are immutable; ms.ops.where and arithmetic return new tensors, "
      .. "train:set_parameter changes a parameter", tostring(key))
  end
  if not errors.called_by_layer() then
    errors.invalid("a tensor has no field %s: %s", tostring(key), SET_ELSEWHERE[key]
      or "tensors are immutable; ms.ops.where and arithmetic return new ones")
  end
  rawset(self, key, value)
end

strict.refuse_loops(Tensor, "x:tolist() returns one, and x:size(0) is its length")

local tensor = { class = Tensor, methods = methods }

---@param value any
---@return boolean
function tensor.is(value)
  return getmetatable(value) == Tensor
end

local function bytes_of(dtype, shape)
  local bytes = dtypes.sizes[dtype] or 0
  for _, size in ipairs(shape) do bytes = bytes * size end
  return bytes
end

-- "f32 [2,3]"
local function description(dtype, shape)
  local sizes = type(shape) == "table" and "[" .. table.concat(shape, ",") .. "]" or tostring(shape)
  return ("%s %s"):format(tostring(dtype), sizes)
end

---The bytes of an eager tensor's memory. A recipe can assign to its fields shape and dtype, which would tell of other
---values, or of memory beyond the end: reading the tensor is then an error.
---@param x moonshard.Tensor eager
---@return integer
function tensor.bytes(x)
  local made = rawget(x, "_made")
  if description(x.dtype, x.shape) ~= made then
    errors.invalid("a tensor %s was turned into %s by an assignment: neither shape nor dtype can be assigned; "
      .. "x:reshape(8, -1) and x:cast(\"bf16\") return new tensors", made, description(x.dtype, x.shape))
  end
  return rawget(x, "_bytes")
end

---Whether a value is an eager tensor, which holds its values: as many as its shape says.
---@param value any
---@return boolean
function tensor.is_eager(value)
  return getmetatable(value) == Tensor and rawget(value, "data") ~= nil and tensor.bytes(value) ~= nil
end

---An eager tensor over memory that will not change.
---@param dtype string
---@param shape integer[]
---@param data ffi.cdata* array of the dtype's C type
---@param placement string? "replicated", or the shard that this tensor holds
---@return moonshard.Tensor
function tensor.eager(dtype, shape, data, placement)
  return setmetatable({
    dtype = dtype, shape = shape, data = data, placement = placement, _bytes = bytes_of(dtype, shape),
    _made = description(dtype, shape),
  }, Tensor)
end

local info = ffi.new("ms_value_info")

---The tensor that represents a value of the graph.
---@param trace moonshard.Trace
---@param id integer
---@return moonshard.Tensor
function tensor.new(trace, id)
  engine.check(C.ms_graph_describe(trace.handle, id, info, ffi.sizeof(info)))
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
