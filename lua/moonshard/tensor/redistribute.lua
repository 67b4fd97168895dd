-- x:redistribute{...}: hints about which part of a value each rank of a mesh dimension has. They never change a number.

local axes = require("moonshard.tensor.axes")
local engine = require("moonshard.base.ffi")
local errors = require("moonshard.base.error")
local nearest = require("moonshard.base.names.nearest")
local ops = require("moonshard.tensor.ops")
local options = require("moonshard.base.checks.options")
local C = engine.C

local redistribute, methods = {}, {}
redistribute.methods = methods

local DIMENSIONS = { context = tonumber(C.MS_DIM_CONTEXT), tensor = tonumber(C.MS_DIM_TENSOR) }
local ORDER = { "context", "tensor" }

-- The axis of x that ranks divide, from 0; -1: none.
local function axis_of(x, dimension, placement)
  if placement == "replicate" then return -1 end
  if type(placement) == "table" and placement.axis then return axes.of(x, placement.axis) end
  if type(placement) == "table" and next(placement) == nil then return -1 end
  errors.invalid("redistribute: %s must be \"replicate\", ms.Replicate() or ms.Shard(axis), not %s", dimension,
    options.describe(placement))
end

---The same tensor; from here on each rank of a mesh dimension has all of it, or a part of an axis. Overrides what the
---rules of `placements` lead to; without that dimension it does nothing. Parts along `context` are folded: a run of
---positions near the beginning, and its mirror image near the end. The ranks must divide the axis.
---@param where table<string, table|string> by dimension, tensor or context: "replicate", ms.Replicate(), ms.Shard(axis)
---@return moonshard.Tensor
function methods:redistribute(where)
  if type(where) ~= "table" or where[1] ~= nil then
    errors.invalid("redistribute: give a placement by dimension, as in x:redistribute { tensor = \"replicate\" }, "
      .. "not %s", type(where) == "table" and "a list" or options.describe(where))
  end
  for dimension in pairs(where) do
    if not DIMENSIONS[dimension] then
      errors.raise("MS_ENAME", "redistribute: %s divides no values: %s", options.describe(dimension),
        nearest.advice(tostring(dimension), DIMENSIONS))
    end
  end
  local x = self
  for _, dimension in ipairs(ORDER) do
    if where[dimension] ~= nil then
      x = ops.redistribute(x, { dim = DIMENSIONS[dimension], along = axis_of(x, dimension, where[dimension]) })
    end
  end
  return x
end

return redistribute
