-- Compiles graphs to plans, and reads plans: text, JSON, summary, passes, and a comparison of two.

local bit = require("bit")
local dtypes = require("moonshard.base.dtypes")
local engine = require("moonshard.base.ffi")
local errors = require("moonshard.base.error")
local op_places = require("moonshard.engine.trace.op_places")
local roles = require("moonshard.shard.roles")
local C, ffi, check = engine.C, engine.ffi, engine.check

---@class moonshard.Plan
---@field handle ffi.cdata* ms_plan*
local Plan = {}
Plan.__index = Plan

local plan = {
  ---Categories of memory and phases, in the order of moonshard.h's enum ms_category and enum ms_phase.
  CATEGORIES = {},
  ---Names of categories for columns.
  SHORT = {},
  PHASES = { "first", "next", "last", "norm", "update", "evaluate", "outer", "gather" },
}

for i, names in ipairs({
  { "parameters", "params" }, { "optimizer", "optim" }, { "gradients", "grads" }, { "gathered", "gathered" },
  { "activations", "activ" }, { "workspace", "work" }, { "communication", "comm" },
}) do
  plan.CATEGORIES[i], plan.SHORT[names[1]] = names[1], names[2]
end

local function dump(self, json)
  local text = ffi.new("const char *[1]")
  check(C.ms_plan_dump(self.handle, json, text))
  return ffi.string(text[0])
end

---The plan as text: memory by category, then every instruction of every phase.
---@return string
function Plan:text() return dump(self, 0) end

---The plan as one JSON object.
---@return string
function Plan:json() return dump(self, 1) end

---The head of the plan: rank, mesh, fingerprint, peak, nodes and memory by category.
function Plan:__tostring() return self:text():match("^[^\n]*\n[^\n]*\n[^\n]*") end

---Where the ranks are and what replicas share: "4 ranks on 1 node: 2 replicas share one copy of the state".
---@return string
function Plan:nodes() return (self:text():match("^[^\n]*\n  ([^\n]*)")) end

---@class moonshard.PlanSummary
---@field instructions integer
---@field collectives table<string, integer> by phase
---@field bytes table<string, number> bytes of the arenas by category; they add up to the peak
---@field fullest table<string, number> peak bytes of each category, each at a different instruction
---@field peak_bytes number
---@field fingerprint string 16 hexadecimal digits
---@field flops number of one micro-batch
---@field comm_bytes table<string, number> bytes per step, by mesh dimension
---@field compile_ms number

---@return moonshard.PlanSummary the same table at every call
function Plan:summary()
  if self.summarized then return self.summarized end
  local s = ffi.new("ms_plan_summary")
  check(C.ms_plan_summarize(self.handle, s, ffi.sizeof(s)))
  local result = {
    instructions = s.instructions, peak_bytes = tonumber(s.peak_bytes), flops = s.flops, compile_ms = s.compile_ms,
    fingerprint = bit.tohex(s.fingerprint, 16),
    collectives = {}, bytes = {}, fullest = {}, comm_bytes = self.mesh:by_dimension(s.comm_bytes),
  }
  for i, name in ipairs(plan.CATEGORIES) do
    result.bytes[name], result.fullest[name] = tonumber(s.bytes[i - 1]), tonumber(s.fullest[i - 1])
  end
  for i, name in ipairs(plan.PHASES) do result.collectives[name] = s.collectives[i - 1] end
  self.summarized = result
  return result
end

---@class moonshard.Traffic bytes
---@field inside number read from memory that other ranks of the same node have written
---@field sent number to other nodes
---@field received number from other nodes

---An ms_traffic as a table.
---@param t ffi.cdata*
---@return moonshard.Traffic
function plan.traffic_of(t) return { inside = t.inside, sent = t.sent, received = t.received } end

---The bytes of an ms_traffic between nodes: sent, or received if that is more, because links carry both at once.
---@param t ffi.cdata*|moonshard.Traffic
---@return number
function plan.wire_bytes(t) return math.max(t.sent, t.received) end

---What a step moves along each dimension of the mesh: this rank, and all ranks of its node.
---@return table<string, { rank: moonshard.Traffic, node: moonshard.Traffic }>
function Plan:traffic()
  local moved, by = ffi.new("ms_traffic[2]"), {}
  for dim = 0, self.mesh.ndim - 1 do
    check(C.ms_plan_traffic(self.handle, dim, moved, moved + 1, ffi.sizeof("ms_traffic")))
    by[self.mesh:dim_name(dim)] = { rank = plan.traffic_of(moved[0]), node = plan.traffic_of(moved[1]) }
  end
  return by
end

---A list of the engine's, of kind "MS_PLAN_PASSES" and so on, as an array of its struct.
---@param self moonshard.Plan
---@param what string of enum ms_plan_rows
---@param row string the name of its struct
---@return ffi.cdata* rows [n]
---@return integer n
function plan.rows_of(self, what, row)
  local n = ffi.new("int[1]")
  check(C.ms_plan_list(self.handle, C[what], nil, 0, 0, n))
  local rows = ffi.new(row .. "[?]", n[0] + 1)
  check(C.ms_plan_list(self.handle, C[what], rows, ffi.sizeof(row), n[0], n))
  return rows, n[0]
end

---The kernels and collectives of a phase, in program order.
---@param self moonshard.Plan
---@param cluster ffi.cdata*? ms_cluster; nil: without times
---@param phase integer enum ms_phase
---@return ffi.cdata* list ms_price_event [n]
---@return integer n
function plan.timeline(self, cluster, phase)
  local n, row = ffi.new("int[1]"), ffi.sizeof("ms_price_event")
  check(C.ms_plan_timeline(self.handle, cluster, phase, nil, 0, 0, n))
  local list = ffi.new("ms_price_event[?]", n[0] + 1)
  check(C.ms_plan_timeline(self.handle, cluster, phase, list, row, n[0], n))
  return list, n[0]
end

---@class moonshard.PlanPass
---@field name string "lower"
---@field cached boolean whether its result was reused from an earlier plan of the same graph
---@field ms number
---@field before moonshard.PlanSize
---@field after moonshard.PlanSize

---The size of an unfinished plan before or after a pass.
---@class moonshard.PlanSize
---@field nodes integer of the graphs of training and evaluation
---@field instructions integer
---@field events integer
---@field buffers integer
---@field bytes number sum of all buffers; after the layout, the peak

local function size_at(pass, when)
  return { nodes = pass.nodes[when], instructions = pass.instructions[when], events = pass.events[when],
    buffers = pass.buffers[when], bytes = tonumber(pass.bytes[when]) }
end

---The passes of the compiler that made the plan, in order.
---@return moonshard.PlanPass[]
function Plan:passes()
  local rows, n = plan.rows_of(self, "MS_PLAN_PASSES", "ms_plan_pass")
  local passes = {}
  for i = 1, n do
    local row = rows[i - 1]
    passes[i] = { name = ffi.string(row.name), cached = row.cached ~= 0, ms = row.ms, before = size_at(row, 0),
      after = size_at(row, 1) }
  end
  return passes
end

---@class moonshard.Conversion a change of a value's placement on the ranks of a mesh dimension
---@field module string that needs it; of a sum: that made the summands
---@field dim string the mesh dimension
---@field shape integer[] of the value, of all ranks together
---@field dtype string
---@field from string "partial", "shard of axis 1"
---@field to string
---@field forward string op
---@field backward string? op; nil: the gradient needs none
---@field forward_bytes number that a rank moves in a micro-batch
---@field backward_bytes number
---@field regathered boolean backward gathers it once more

---The changes of placement of a training step, in program order.
---@return moonshard.Conversion[]
function Plan:conversions()
  local rows, n = plan.rows_of(self, "MS_PLAN_CONVERSIONS", "ms_plan_conversion")
  local list = {}
  for i = 1, n do
    local row, shape = rows[i - 1], {}
    for d = 1, row.value.ndim do shape[d] = tonumber(row.value.dims[d - 1]) end
    local backward = ffi.string(row.backward)
    list[i] = { module = ffi.string(row.scope), dim = self.mesh:dim_name(row.mesh_dim), shape = shape,
      dtype = dtypes.names[row.value.dtype], from = ffi.string(row.from), to = ffi.string(row.to),
      forward = ffi.string(row.forward), backward = backward ~= "" and backward or nil,
      forward_bytes = row.forward_bytes, backward_bytes = row.backward_bytes,
      regathered = row.regathered ~= 0 }
  end
  return list
end

---@class moonshard.MemoryInUse
---@field phase string
---@field instruction integer from this one on, until that of the next item; numbered as in `moonshard plan`
---@field op string
---@field scope string module, or unit of a collective
---@field backward boolean
---@field bytes table<string, number> by category
---@field total number of all categories

---What this rank has in use, in program order: an item for the first instruction of each phase, and for each at which a
---category changes.
---@return moonshard.MemoryInUse[]
function Plan:memory_in_use()
  local rows, n = plan.rows_of(self, "MS_PLAN_MEMORY", "struct ms_peak")
  local list = {}
  for i = 1, n do
    local row, bytes = rows[i - 1], {}
    for c, name in ipairs(plan.CATEGORIES) do bytes[name] = tonumber(row.bytes[c - 1]) end
    list[i] = { phase = plan.PHASES[row.phase + 1], instruction = row.instruction, op = ffi.string(row.op),
      scope = ffi.string(row.scope), backward = row.backward ~= 0, bytes = bytes, total = tonumber(row.total_bytes) }
  end
  return list
end

---What runs at an instruction.
---@param item moonshard.MemoryInUse
---@return string "linear of blocks.3.mlp (backward)"
function plan.place_of(item)
  return item.op .. (item.scope ~= "" and " of " .. item.scope or "") .. (item.backward and " (backward)" or "")
end

---@class moonshard.ChunkedLoss a loss that makes the logits of a linear layer for some rows at a time
---@field rows integer of this rank, in a micro-batch
---@field classes integer
---@field chunks integer
---@field chunk integer rows
---@field logits_bytes number of a chunk
---@field whole_bytes number of all rows
---@field again boolean backward makes the logits again

---Such losses of a training step, in program order.
---@return moonshard.ChunkedLoss[]
function Plan:chunked_losses()
  local rows, n = plan.rows_of(self, "MS_PLAN_CHUNKED_LOSSES", "ms_chunked_loss")
  local list = {}
  for i = 1, n do
    local row = rows[i - 1]
    list[i] = { rows = tonumber(row.rows), classes = tonumber(row.classes), chunks = tonumber(row.chunks),
      chunk = tonumber(row.chunk), logits_bytes = tonumber(row.logits_bytes),
      whole_bytes = tonumber(row.whole_bytes), again = row.again ~= 0 }
  end
  return list
end

---@class moonshard.MuonOwners who orthogonalises the matrices that take Muon
---@field of table<string, integer> rank of the world, by parameter; where several ranks have matrices of one, by
---  "layers.0.experts.w1 (2/4)"
---@field flops table<integer, number> of a step, by rank; only of those that own a matrix
---@field matrices integer
---@field ranks integer that divide the work
---@field balance number the most work of a rank as a multiple of the mean

-- Who orthogonalises which part of a parameter's matrices.
local function parts_of(self, param)
  local rank, flops, parts = ffi.new("int[1]"), ffi.new("double[1]"), {}
  while true do
    check(C.ms_plan_owner(self.handle, param, #parts, rank, flops))
    if rank[0] < 0 then return parts end
    parts[#parts + 1] = { rank = rank[0], flops = flops[0] }
  end
end

---The owners of the matrices that take Muon; nil without any.
---@param sharding moonshard.Sharding
---@return moonshard.MuonOwners?
function Plan:muon_owners(sharding)
  local found, total, most = { of = {}, flops = {}, matrices = 0 }, 0, 0
  for i, param in ipairs(sharding.params) do
    local parts = parts_of(self, i - 1)
    for n, part in ipairs(parts) do
      local name = #parts == 1 and param.fqn or ("%s (%d/%d)"):format(param.fqn, n, #parts)
      found.of[name], found.matrices = part.rank, found.matrices + 1
      found.flops[part.rank] = (found.flops[part.rank] or 0) + part.flops
      total, most = total + part.flops, math.max(most, found.flops[part.rank])
    end
  end
  if found.matrices == 0 then return nil end
  found.ranks = roles.shards(sharding) * roles.ranks(sharding, "replicate") * roles.ranks(sharding, "tensor")
  found.balance = most * found.ranks / total
  return found
end

-- Rows of a comparison: a name and the values of two summaries.
local function rows_of(mesh, before, after)
  local size = require("moonshard.base.text.progress").size
  local rows = { { "peak", size(before.peak_bytes), size(after.peak_bytes) } }
  for _, name in ipairs(plan.CATEGORIES) do
    rows[#rows + 1] = { name, size(before.bytes[name]), size(after.bytes[name]) }
  end
  for dim = 0, mesh.ndim - 1 do
    local name = mesh:dim_name(dim)
    rows[#rows + 1] = { name .. " per step", size(before.comm_bytes[name]), size(after.comm_bytes[name] or 0) }
  end
  return rows
end

---Compares this plan with another one, as text: memory per rank by category, bytes per step by mesh dimension.
---@param after moonshard.Plan a plan under other rules, such as train:set_rules returns
---@return string
function Plan:compare(after)
  if getmetatable(after) ~= Plan then
    errors.invalid("plan:compare takes a plan, as train:plan() and train:set_rules return")
  end
  local rows, lines, width, first = rows_of(self.mesh, self:summary(), after:summary()), {}, 0, #"before"
  for _, row in ipairs(rows) do width, first = math.max(width, #row[1]), math.max(first, #row[2]) end
  table.insert(rows, 1, { "", "before", "after" })
  for i, row in ipairs(rows) do
    local mark = i > 1 and row[2] ~= row[3] and "  *" or ""
    lines[i] = ("%-" .. width .. "s  %" .. first .. "s  %s%s"):format(row[1], row[2], row[3], mark)
  end
  return table.concat(lines, "\n")
end

---Frees the plan immediately, for callers that compile many. It must not be used again.
function Plan:free()
  C.ms_free(ffi.gc(self.handle, nil))
  self.handle = nil
end

---@param value any
---@return boolean
function plan.is(value) return getmetatable(value) == Plan end

-- The graph of the last plan, while a list is compiled.
local list

---Calls a function that compiles a list of plans, of which many have graphs that are alike, as on several meshes: each
---plan takes over what the compilation of the last one has left. Keeps the last graph until the function returns.
---@param call fun()
function plan.listed(call)
  local outer = list
  list = {}
  local ok, raised = pcall(call)
  list = outer
  if not ok then error(raised, 0) end
end

local function take_compiled(graph)
  if list.graph and list.graph ~= graph then
    check(C.ms_graph_take_compiled(graph.handle, list.graph.handle, ffi.new("int[1]")))
  end
  list.graph = graph
end

---Compiles a traced graph.
---@param graph moonshard.Graph
---@param mesh moonshard.Mesh
---@param configure fun(config: ffi.cdata*) sets the fields of an ms_plan_config that differ from the defaults
---@return moonshard.Plan
function plan.compile(graph, mesh, configure)
  local config = engine.config("ms_plan_config")
  configure(config)
  if list then take_compiled(graph) end
  local out = ffi.new("ms_plan *[1]")
  local status = C.ms_plan_compile(graph.handle, config, out)
  if status ~= 0 then engine.check(status, function(message) return op_places.put_in(graph.places, message) end) end
  return setmetatable({
    handle = ffi.gc(out[0], C.ms_free),
    config = config,
    graph = graph,
    mesh = mesh,
  }, Plan)
end

return plan
