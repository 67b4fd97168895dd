-- Ranks on several nodes: checks that --nodes, --node-rank, --rendezvous and -n fit each other and the environment that
-- other launchers (torchrun, mpirun, mpiexec, srun) gave this process.

local ffi = require("ffi")
local refuse = require("moonshard.base.exit_status").refuse

ffi.cdef "int setenv(const char *name, const char *value, int overwrite);"

local nodes = {}

---Options for moonshard.cli.options.command_line.
nodes.OPTIONS = {
  ["--nodes"] = { name = "nodes", value = "count" },
  ["--node-rank"] = { name = "node_rank", value = "index" },
  ["--rendezvous"] = { name = "rendezvous", value = "text", what = "tcp://host:port, file:///path or env://" },
  ["--transport"] = { name = "transport", value = "text", what = "a name like tcp" },
}

-- Options that apply only to moonshard's own launcher.
local LAUNCHER_ONLY = { log_ranks = "--log-ranks", pin = "--pin", grace = "--grace" }

local function set_variable(name, value)
  if ffi.C.setenv(name, value, 1) ~= 0 then refuse("MS_ENOMEM", "cannot set the environment variable %s", name) end
end

local function check_launch(line)
  if not line.nodes then
    if line.node_rank then refuse("MS_EINVAL", "--node-rank %d needs --nodes", line.node_rank) end
    return
  end
  local several = line.nodes > 1
  line.node_rank = line.node_rank or (not several and 0)
  local last = line.nodes - 1
  if not line.node_rank then refuse("MS_EINVAL", "--nodes %d needs --node-rank: 0 to %d", line.nodes, last) end
  if line.node_rank > last then
    refuse("MS_EINVAL", "--node-rank %d: with --nodes %d it must be 0 to %d", line.node_rank, line.nodes, last)
  end
  if several and not line.rendezvous then
    refuse("MS_EINVAL", "--nodes %d needs --rendezvous: tcp://host:port, the same on every node, host being node 0's",
      line.nodes)
  end
end

---Whether another launcher started this process as one of several ranks, in which case it joins them instead of
---starting ranks. Refuses options that contradict that or each other.
---@param line moonshard.CommandLine
---@return boolean
function nodes.joins(line)
  check_launch(line)
  if line.nodes then return false end
  local task, why = require("moonshard.host").task()
  if not task then refuse("MS_EINVAL", "%s", why) end
  if task.size == 1 then
    local variable = not task.source and os.getenv("MOONSHARD_RENDEZVOUS")
    local place = line.rendezvous and "--rendezvous " .. line.rendezvous
      or variable and variable ~= "" and "MOONSHARD_RENDEZVOUS=" .. variable
    if place then
      refuse("MS_EINVAL", "%s gives the rendezvous, but the rank of this process is unknown: give --nodes and "
        .. "--node-rank, or set RANK and WORLD_SIZE", place)
    end
    return false
  end
  if line.ranks then
    refuse("MS_EINVAL", "-n %d starts ranks, but this process is already rank %d of %d (%s): omit -n to join "
      .. "them, or unset those variables", line.ranks, task.rank, task.size, task.source)
  end
  for name, option in pairs(LAUNCHER_ONLY) do
    if line[name] then
      refuse("MS_EINVAL", "%s applies only to ranks that moonshard starts; this process is rank %d of %d (%s)", option,
        task.rank, task.size, task.source)
    end
  end
  if line.rendezvous then set_variable("MOONSHARD_RENDEZVOUS", line.rendezvous) end
  return true
end

---Refuses a MOONSHARD_TIMEOUT that ranks could not use, before they start.
function nodes.check_timeout()
  local text = os.getenv("MOONSHARD_TIMEOUT")
  local seconds = tonumber(text)
  if text and text ~= "" and not (seconds and seconds > 0 and seconds < math.huge) then
    refuse("MS_EINVAL", "environment variable MOONSHARD_TIMEOUT=%q: it must be a number of seconds above 0", text)
  end
end

-- Networks and libraries that users of other programs name here, and what reaches them.
local RDMA = "ucx uses InfiniBand and RoCE, and auto chooses it where a host has them"
local FABRICS = {
  ib = RDMA, infiniband = RDMA, rdma = RDMA, roce = RDMA, verbs = RDMA, gloo = "tcp works over Ethernet",
  ethernet = "tcp works over Ethernet", nccl = "--device cuda uses NCCL",
}

-- Refuses a name of which the engine knows no transport; format: of what gave it.
local function check_transport(name, format)
  local engine, text = require("moonshard.base.ffi"), ffi.new("char[256]")
  engine.check(engine.C.ms_transport_describe(engine.C.MS_TRANSPORT_NAMES, text, 256))
  local names = ffi.string(text)
  for known in names:gmatch("%w+") do
    if known == name and known ~= "or" then return end
  end
  local fabric = FABRICS[name:lower()]
  refuse("MS_EINVAL", format .. ": must be " .. names .. (fabric and "; " .. fabric or ""), name)
end

---Sets the transport between hosts that --transport names, which ranks inherit. Refuses one that does not exist, also
---in MOONSHARD_TRANSPORT.
---@param line moonshard.CommandLine
function nodes.choose_transport(line)
  local variable = os.getenv("MOONSHARD_TRANSPORT")
  if line.transport then
    check_transport(line.transport, "--transport %s")
    set_variable("MOONSHARD_TRANSPORT", line.transport)
  elseif variable and variable ~= "" then
    check_transport(variable, "environment variable MOONSHARD_TRANSPORT=%q")
  end
end

---Sets the deadline of every wait for another rank, including the rendezvous. Call before joining the world.
---@param seconds number
function nodes.set_timeout(seconds)
  set_variable("MOONSHARD_TIMEOUT", ("%.17g"):format(seconds))
end

return nodes
