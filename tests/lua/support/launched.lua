-- Ranks that other launchers start, as specs need them: processes that are told who they are by variables, run at once.

local assert = require("luassert")
local program = require("lua.support.program")
local scratch = require("lua.support.scratch")

local launched = {}

-- Sums the ranks' numbers from 1 over all of them; only ranks that can compute together do.
launched.SUM = [==[
  local world = require "moonshard.distributed.world"
  local engine = require "moonshard.base.ffi"
  local mine, all, sum = engine.ffi.new("double[1]", world.rank + 1), engine.ffi.new("double[?]", world.size), 0
  engine.check(engine.C.ms_world_all_gather_bytes(world.handle, mine, 8, all))
  for rank = 0, world.size - 1 do sum = sum + all[rank] end
  io.write(("rank %d of %d, sum %d\n"):format(world.rank, world.size, sum))
]==]

---Whether a shell command works.
---@param command string
---@return boolean
function launched.can(command) return os.execute(command .. " >/dev/null 2>&1") == 0 end

---Whether no process of a run is left, which an end by force takes a moment for.
---@param job string the run's MOONSHARD_JOB_ID
---@return boolean
function launched.is_over(job)
  for _ = 1, 100 do
    -- grep's status is that of processes that end meanwhile, too.
    local list = ("grep -lsF MOONSHARD_JOB_ID=%s /proc/[0-9]*/environ"):format(job)
    if launched.can(('test -z "$(%s)"'):format(list)) then return true end
    os.execute("sleep 0.1")
  end
  return false
end

---A port without a listener, bound until this process ends: the kernel gives it to no outgoing connection meanwhile,
---which otherwise takes it before a rank listens. A rank may bind it, too, since both allow the reuse.
---@return integer
function launched.find_port()
  local ffi = require("ffi")
  if not pcall(function() return ffi.C.getsockname end) then
    ffi.cdef [[
      int socket(int, int, int); int setsockopt(int, int, int, const void *, unsigned);
      int bind(int, const void *, unsigned); int getsockname(int, void *, unsigned *);
    ]]
  end
  local STREAM_CLOEXEC, SOL_SOCKET, SO_REUSEADDR = 1 + 0x80000, 1, 2
  local address, bytes = ffi.new("uint8_t[16]", { 2, 0, 0, 0, 127, 0, 0, 1 }), ffi.new("unsigned[1]", 16)
  local fd = ffi.C.socket(2, STREAM_CLOEXEC, 0)
  assert(ffi.C.setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, ffi.new("int[1]", 1), 4) == 0)
  assert(ffi.C.bind(fd, address, 16) == 0 and ffi.C.getsockname(fd, address, bytes) == 0)
  return address[2] * 256 + address[3]
end

---Runs shell commands at once, each as a rank; none runs for longer than a minute.
---@param commands string[]
---@return { out: string, err: string, status: integer }[]
function launched.together(commands)
  local base, script, ended = os.tmpname(), {}, {}
  for i, command in ipairs(commands) do
    script[i] = ("{ timeout -k 5 60 env %s >%s.%d.out 2>%s.%d.err </dev/null; echo $? >%s.%d.status; } &"):format(
      command, base, i, base, i, base, i)
  end
  os.execute(table.concat(script, "\n") .. "\nwait")
  for i in ipairs(commands) do
    local path = ("%s.%d."):format(base, i)
    local status = tonumber(scratch.read(path .. "status"))
    ended[i] = { out = scratch.read(path .. "out"), err = scratch.read(path .. "err"), status = status }
    for _, suffix in ipairs({ "out", "err", "status" }) do os.remove(path .. suffix) end
  end
  os.remove(base)
  return ended
end

---The lines that all of them wrote, sorted; every one must have ended well.
---@param ended { out: string, err: string, status: integer }[]
---@return string
function launched.all_out(ended)
  local lines = {}
  for _, one in ipairs(ended) do
    assert.equal(0, one.status, one.err)
    for line in one.out:gmatch("[^\n]+") do lines[#lines + 1] = line end
  end
  table.sort(lines)
  return table.concat(lines, "\n")
end

---Calls action with the path of a recipe that is there for so long.
---@param source string
---@param action fun(path: string)
function launched.with_recipe(source, action)
  local path = program.recipe(source)
  local ok, raised = pcall(action, path)
  os.remove(path)
  if not ok then error(raised, 0) end
end

---What ranks 0 to size - 1 run, each with its variables, in which %d stands for the rank.
---@param size integer
---@param variables string
---@param command string
---@return string[]
function launched.ranks(size, variables, command)
  local commands = {}
  for rank = 0, size - 1 do commands[rank + 1] = variables:gsub("%%d", rank) .. " " .. command end
  return commands
end

---Makes two hosts, network namespaces that a veth pair joins: 10.99.0.1 and 10.99.0.2, each at its veth0.
---@param a string name
---@param b string
---@return string? why_not where there is no root or no iproute2
function launched.make_two_hosts(a, b)
  if not launched.can("command -v ip") then return "iproute2 is not installed" end
  for _, command in ipairs({
    ("ip netns add %s"):format(a), ("ip netns add %s"):format(b),
    ("ip link add veth0 netns %s type veth peer name veth0 netns %s"):format(a, b), -- prose: a command
    ("ip -n %s addr add 10.99.0.1/24 dev veth0"):format(a), ("ip -n %s addr add 10.99.0.2/24 dev veth0"):format(b),
    ("ip -n %s link set veth0 up"):format(a), ("ip -n %s link set veth0 up"):format(b),
    ("ip -n %s link set lo up"):format(a), ("ip -n %s link set lo up"):format(b), -- prose: commands
  }) do
    if not launched.can(command) then return "namespaces need root: " .. command end -- prose: shown, not compared
  end
  return nil
end

---@param ... string names
function launched.remove_hosts(...)
  for _, name in ipairs({ ... }) do os.execute(("ip netns del %s 2>/dev/null"):format(name)) end
end

return launched
