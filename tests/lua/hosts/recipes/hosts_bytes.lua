-- Each rank prints what its plan and its transport count for some steps, the first rank of a host also what the
-- interface does.

local ms = require "moonshard"
local world, ffi = require "moonshard.distributed.world", require "ffi"
ffi.cdef "int usleep(unsigned);"
local cfg = ms.args {
  mesh = "2x2", names = "replicate shard", groups = "", interface = "lo", steps = 3, dtype = "f32", model = "linear",
  sequence_parallel = false, bias = true, replicate = "", shard = "f32",
}

-- Dimensions by names; with groups = "0 1,2 3|0 2,1 3" every group of each dimension.
local names, groups = {}, {}
for name in cfg.names:gmatch("%a+") do names[#names + 1] = name end
for dimension in cfg.groups:gmatch("[^|]+") do
  local list = {}
  for group in dimension:gmatch("[^,]+") do
    local ranks = {}
    for rank in group:gmatch("%d+") do ranks[#ranks + 1] = tonumber(rank) end
    list[#list + 1] = ms.new_group(ranks)
  end
  groups[#groups + 1] = list
end
local mesh = #groups > 0 and ms.mesh_from_groups(groups, names) or ms.init_device_mesh(nil, cfg.mesh, names)

local tensor, context = mesh:has("tensor"), mesh:has("context")
local is_gpt, place = cfg.model == "gpt", 0
for dim = 0, mesh.ndim - 1 do -- the rank's place among those of other rows
  local name = mesh:dim_name(dim)
  if name == "replicate" or name == "shard" then place = place * mesh:size(dim) + mesh:get_local_rank(dim) end
end
local function linear(inputs, outputs) return ms.nn.linear(inputs, outputs, { bias = cfg.bias }) end
local model = is_gpt and ms.models.gpt2 { vocab = 256, layers = 2, dim = 32, heads = 4, seq = 16 }
  or ms.nn.sequential { linear(512, 1024), ms.ops.relu, linear(1024, 256) }
local OF_LINEAR = { { ms.re[[^0\.]], { tensor = "colwise" } }, { ms.re[[^2\.]], { tensor = "rowwise" } } }
ms.fully_shard(model, {
  mesh = mesh, units = { is_gpt and ms.re[[^layers\.\d$]] or ms.re[[^\d$]] }, reshard_after_forward = true,
  placements = tensor and (is_gpt and ms.rules.tensor_parallel(model) or OF_LINEAR) or nil,
  sequence_parallel = cfg.sequence_parallel, mp_policy = {
    param_dtype = cfg.dtype, reduce_dtype = { shard = mesh:has("shard") and cfg.shard or nil,
      replicate = cfg.replicate ~= "" and cfg.replicate or nil },
  },
})
local train = ms.trainer {
  model = model, optimizer = ms.optim.adamw { lr = 1e-3 }, loss = is_gpt and ms.loss.cross_entropy or ms.loss.mse,
}
local function draw(columns, seed)
  if is_gpt then return (ms.rand { 4, 16, seed = seed + place } * 255):cast("i32") end
  return ms.randn { 4, columns, seed = seed + place }:reshape(unpack(context and { 1, 4, columns } or { 4, columns }))
end
local function step(i)
  local inputs, targets = draw(512, 10 * i), draw(256, 10 * i + 5)
  return train:step(is_gpt and { tokens = inputs, targets = targets } or { inputs = inputs, targets = targets })
end
local function interface()
  for line in io.lines("/proc/net/dev") do
    local name, rest = line:match("^%s*(%S+):%s*(.*)$")
    local counts = {}
    for count in (rest or ""):gmatch("%d+") do counts[#counts + 1] = tonumber(count) end
    if name == cfg.interface then return counts[9], counts[1] end
  end
end
local function counted() -- once the progress threads have nothing more to count
  world.barrier()
  ffi.C.usleep(300000) -- asleep, so that those threads have the processors
  local sent, received = world.transport_bytes()
  local out, into = interface()
  world.barrier()
  return { sent, received, out, into }
end
step(1)
local before, wire = counted(), {}
for i = 1, cfg.steps do wire[i] = step(1 + i).wire_bytes or {} end
local after, plan = counted(), train:plan():traffic()
local sent, received = 0, 0
for _, traffic in pairs(plan) do sent, received = sent + traffic.rank.sent, received + traffic.rank.received end
local by_dim = {}
for name, traffic in pairs(plan) do
  by_dim[#by_dim + 1] = ("%s=%d/%d"):format(name, math.max(traffic.rank.sent, traffic.rank.received),
    wire[1][name] or 0)
end
table.sort(by_dim)
io.write(("rank %d local %d planned %d %d transport %d %d interface %d %d %s\n"):format(world.rank,
  world.local_rank(), cfg.steps * sent, cfg.steps * received, after[1] - before[1], after[2] - before[2],
  after[3] - before[3], after[4] - before[4], table.concat(by_dim, " ")))
