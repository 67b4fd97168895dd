-- Notices that a traced function would compute something else if it were traced now: a number that it reads outside its
-- inputs has changed, and its graph has the value of the first trace.
--
-- It is traced again when a place that it can read has another value (engine/trace/reads.lua), and at uses 2, 4, 8, ...
-- of its graph, which finds what cannot be watched; after a use that was refused, at every use until both are the same
-- again. Both graphs and their constants are compared. A trace takes about as long as a small step, so a place that
-- changes in every step costs one in every step.

local engine = require("moonshard.base.ffi")
local values = require("moonshard.tensor.values")
local C, ffi, check = engine.C, engine.ffi, engine.check

local retrace = {}

local function are_equal(a, b)
  local bytes = values.bytes(a)
  return ffi.string(a.data, bytes) == ffi.string(b.data, bytes)
end

-- What first differs between a graph and a later one of the same function; nil: nothing.
local function difference(before, now)
  local text = ffi.new("const char *[1]")
  check(C.ms_graph_difference(now.handle, before.handle, text))
  if text[0][0] ~= 0 then return ffi.string(text[0]) end
  for i, constant in ipairs(before.constants) do
    local other = now.constants[i].tensor
    if not rawequal(constant.tensor, other) and not are_equal(constant.tensor, other) then
      return ("an eager tensor %s [%s] has other values"):format(other.dtype, table.concat(other.shape, ","))
    end
  end
end

---Whether what costs about as much as a small step is due at a use: at 1, 2, 4, 8, ...
---@param uses integer
---@return boolean
function retrace.is_due(uses)
  while uses % 2 == 0 do uses = uses / 2 end
  return uses == 1
end

---A graph was just traced.
---@param graph moonshard.Trace
---@param watch moonshard.Reads what its function can read
function retrace.begin(graph, watch)
  watch:look()
  watch:compared()
  graph.uses, graph.version, graph.differed = 1, watch.version, false
end

---What the function of a graph would compute otherwise, and the places that changed; nil: it computes the same.
---@param graph moonshard.Trace about to be used again
---@param trace fun(): moonshard.Trace traces the function
---@param watch moonshard.Reads what it can read
---@return string? difference
---@return string? places
function retrace.changes(graph, trace, watch)
  local version = watch:look()
  graph.uses = graph.uses + 1
  if graph.version == version and not graph.differed and not retrace.is_due(graph.uses) then return nil end
  local again = trace()
  local differs = difference(graph, again)
  again:free()
  graph.differed = differs ~= nil
  if differs then return differs, watch:text() end
  watch:compared()
  graph.version = version
end

return retrace
