-- A described cluster: reads a description by name or path, and gives it to the engine as an ms_cluster.
--
--   local cluster = require("moonshard.price.cluster")
--   local h100 = cluster.load("h100x8-400g")       -- or a path: "clusters/mine.lua"
--   print(h100.ranks_per_node, h100.device, h100:explain())

local device = require("moonshard.distributed.device")
local dtypes = require("moonshard.base.dtypes")
local engine = require("moonshard.base.ffi")
local fields = require("moonshard.price.fields")
local kernel_points = require("moonshard.price.kernel_points")
local names = require("moonshard.clusters")
local read_description = require("moonshard.price.read_description")
local refuse = require("moonshard.base.exit_status").refuse
local text_columns = require("moonshard.base.text.text_columns")
local world = require("moonshard.distributed.world")
local C, ffi, check = engine.C, engine.ffi, engine.check

---@class moonshard.Cluster
---@field name string as given: a name or a path
---@field about string? one sentence
---@field device string "cpu" or "cuda"
---@field ranks_per_node integer
---@field has_network boolean whether it has several nodes
---@field accuracy number? nine of ten held-out measurements lie within this part of their price; nil: not compared
---@field memory number bytes of a device; on the CPU of a node
---@field reserved number part of it that the plan cannot have: on a GPU, CUDA's context and the communicators
---@field peak table<string, number> FLOP/s of a rank's device (cpu: of one core), by dtype
---@field constants moonshard.ClusterConstant[] sorted by path
local Cluster = {}
Cluster.__index = Cluster

local cluster = {}

local function value_of(constant, default) return constant and constant.value or default end

-- Copies the constants of a group that have a place in a C struct. What is neither given nor has a default, such as a
-- field of the other kind of device, stays as the engine sets it.
local function fill(to, row, from)
  for key, field in pairs(row.rows) do
    if field.type == "group" and field.c and from[key] then
      fill(to[field.c], field, from[key])
    elseif field.type == "constant" and field.c then
      local value = value_of(from[key], field.default)
      if value then to[field.c] = value end
    end
  end
end

-- Bytes/s of a node to others: of all its rails, in each direction.
local function network_rate(network)
  return network.rails.value * network.rail.value / value_of(network.oversubscription, 1)
end

local function flags(seen, words)
  local sum = 0
  for word, name in pairs(words) do
    if not seen or seen[word] then sum = sum + tonumber(C[name]) end
  end
  return sum
end

-- A rate that may be given as a part of another one.
local function rate_of(constant, whole)
  if not constant then return 0 end
  return constant.kind == "part" and constant.value * whole or constant.value
end

-- No protocol moves more than the network does, whose rate a description that extends another one may have lowered.
local function rate_between(read, network)
  return math.min(rate_of(read.between, network), value_of(read.max_between, 1) * network)
end

local function fill_link(to, read, network)
  local row = fields.TREE.rows.links.of
  fill(to, row, read)
  to.algorithm = C[row.rows.algorithm.words[read.algorithm]]
  to.kinds = flags(read.kinds, row.rows.kinds.words)
  if not network then to.max_nodes = 1 end
  to.between = network and rate_between(read, network_rate(network)) or 0
  to.between_rank = network and rate_of(read.between_rank, network.rail.value) or 0
end

local function fill_links(self, to, read)
  local covered = 0
  for i, link in ipairs(read.links) do
    fill_link(to.link[i - 1], link.fields, read.network)
    covered = require("bit").bor(covered, to.link[i - 1].kinds)
  end
  to.links = #read.links
  local words = fields.TREE.rows.links.of.rows.kinds.words
  for word, name in pairs(words) do
    if require("bit").band(covered, C[name]) == 0 then
      refuse("MS_EINVAL", "cluster %s: links: none takes %s", self.name, word)
    end
  end
end

-- Refuses numbers that only the engine finds out of range, such as a small part of a small rate, with their place.
local function check_numbers(self, to)
  local ok, raised = pcall(check, C.ms_config_check("ms_cluster", to, ffi.sizeof(to)))
  if ok then return end
  local message = raised.message:gsub("^cluster: ", "")
  message = message:gsub("^link (%d+)", function(number) return "links." .. self.link_names[tonumber(number) + 1] end)
  message = message:gsub("^measured kernel (%d+)", function(number)
    return ("kernels.points[%d]"):format(number + 1)
  end)
  raised.message = ("cluster %s: %s"):format(self.name, message)
  error(raised, 0)
end

local function build(self, read)
  local to = engine.config("ms_cluster")
  fill(to, fields.TREE, read)
  fill(to, fields.TREE.rows.device, read.device)
  to.device = C[fields.TREE.rows.device.rows.kind.words[read.device.kind]]
  for name, constant in pairs(read.device.peak) do to.peak[dtypes.id(name)] = constant.value end
  fill_links(self, to, read)
  local points = read.kernels and read.kernels.points or {}
  self.points = kernel_points.array(points)
  to.point, to.points, to.point_size = self.points, #points, ffi.sizeof("ms_kernel_work")
  check_numbers(self, to)
  return to
end

local function check_whole(self, read)
  if not next(read.device.peak) then
    refuse("MS_EINVAL", 'cluster %s: device.peak is empty: give one by dtype, like bf16 = { "989 TFLOP/s", ... }',
      self.name)
  end
  if value_of(read.device.reserved, 0) >= read.device.memory.value then
    refuse("MS_EINVAL", "cluster %s: device.reserved: %s leaves nothing of the memory, %s", self.name,
      read.device.reserved.text, read.device.memory.text)
  end
end

---Reads a description. Raises, naming the field and its file, if something is wrong with it.
---@param name string of a shipped description, or a path
---@return moonshard.Cluster
function cluster.load(name)
  local read, constants = fields.read(read_description.of(name))
  local self = setmetatable({ name = name, about = read.about, device = read.device.kind, constants = constants,
    accuracy = read.accuracy and read.accuracy.value, ranks_per_node = read.ranks_per_node.value,
    has_network = read.network ~= nil, memory = read.device.memory.value,
    reserved = value_of(read.device.reserved, 0), peak = {}, link_names = {}, kernels = read.kernels }, Cluster)
  check_whole(self, read)
  for dtype, constant in pairs(read.device.peak) do self.peak[dtype] = constant.value end
  for i, link in ipairs(read.links) do self.link_names[i] = link.name end
  self.cdata = build(self, read)
  return self
end

---The cluster as the engine takes it. Valid while this object is.
---@return ffi.cdata* ms_cluster
function Cluster:struct() return self.cdata end

---Makes this process a rank of a described world of this cluster, so that plans are made for its devices. Ranks fill
---its nodes, or are on one.
---@param rank integer
---@param ranks integer
function Cluster:describe_world(rank, ranks)
  local per_node = self.ranks_per_node
  if ranks > per_node and not self.has_network then
    refuse("MS_EINVAL", "-n %d: cluster %s is one node of %d ranks, without a network: start at most %d, or take a "
      .. "cluster whose description has a network", ranks, self.name, per_node, per_node)
  end
  if ranks > per_node and ranks % per_node ~= 0 then
    refuse("MS_EINVAL", "-n %d: the nodes of cluster %s have %d ranks each: give a multiple of %d", ranks, self.name,
      per_node, per_node)
  end
  world.describe(rank, ranks, math.min(ranks, per_node))
  device.apply_options({ device = self.device })
  if self.device == "cpu" and not os.getenv("OMP_NUM_THREADS") then
    device.threads = math.max(1, math.floor(self.cdata.cores / self:sharing()))
  end
end

---The ranks that divide the cores and the memory of this rank's node on the CPU; 1 if each has a device.
---@return integer
function Cluster:sharing()
  return self.device == "cpu" and world.node_ranks(world.node_of(world.rank)) or 1
end

---The peak rate of products of a dtype that one rank has: of its GPU, or of its share of the node's cores.
---@param dtype string
---@return number? flops per second; nil if none is described
function Cluster:rank_peak(dtype)
  local peak = self.peak[dtype]
  if not peak or self.device ~= "cpu" then return peak end
  return peak * self.cdata.cores / self:sharing()
end

-- Without an accuracy of the description: the difference up to which a validation counts two meshes as equally fast.
local TIE = 0.05

---The difference of two prices, as a part of the better one, below which they do not tell which is faster.
---@return number
function Cluster:tie() return self.accuracy or TIE end

---Bytes that the arenas of a rank may have. On the CPU the ranks of a node divide its memory.
---@return number
function Cluster:room()
  return (self.memory - self.reserved) / self:sharing()
end

---All constants with their values and sources, as text.
---@return string
function Cluster:explain()
  local rows = { { "field", "value", "source", "from" } }
  for _, constant in ipairs(self.constants) do
    rows[#rows + 1] = { constant.path, constant.text, constant.source, constant.file }
  end
  local head = ("cluster %s%s\n"):format(self.name, self.about and ": " .. self.about or "")
  local measured = self.kernels
    and ("measured kernels: %d (%s)\n"):format(#self.kernels.points, self.kernels.source) or ""
  return head .. text_columns.of(rows) .. measured
end

---@return string
function Cluster:__tostring()
  return ("cluster %s: %d rank%s per node on %s"):format(self.name, self.ranks_per_node,
    self.ranks_per_node == 1 and "" or "s", self.device)
end

---Loads the cluster that a command was given. Raises, with the names that there are, if it was given none.
---@param command string "moonshard price"
---@param name string?
---@return moonshard.Cluster
function cluster.of_option(command, name)
  if name then return cluster.load(name) end
  refuse("MS_EINVAL", "%s needs --cluster: the path of a description, or one of %s", command,
    table.concat(names, ", "))
end

---The names of the descriptions that come with the program.
---@return string[]
function cluster.names() return { unpack(names) } end

return cluster
