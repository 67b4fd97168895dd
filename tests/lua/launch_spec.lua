-- Ranks that other launchers start, and nodes: everything a user would type, with real processes. Two hosts are two
-- network namespaces that a veth pair joins.

local program = require("lua.program")

local BIN = assert(os.getenv("MOONSHARD_BIN"), "MOONSHARD_BIN names the executable under test")
local TOY = "recipes/toy_hsdp.lua"

local WHO = [==[
  local world = require "moonshard.world"
  local line = ("rank %d of %d, local rank %d, node %d of %d"):format(world.rank, world.size, world.local_rank(),
    world.node_of(world.rank), world.nodes())
  io.write(line, "\n")
]==]

local SUM = [==[
  local world = require "moonshard.world"
  local engine = require "moonshard.ffi"
  local mine, all, sum = engine.ffi.new("double[1]", world.rank + 1), engine.ffi.new("double[?]", world.size), 0
  engine.check(engine.C.ms_world_exchange(world.handle, mine, 8, all))
  for rank = 0, world.size - 1 do sum = sum + all[rank] end
  io.write(("rank %d of %d, sum %d\n"):format(world.rank, world.size, sum))
]==]

local function can(command) return os.execute(command .. " >/dev/null 2>&1") == 0 end

-- A port that nobody listens at: asked for, and given back.
local function find_port()
  local ffi = require("ffi")
  if not pcall(function() return ffi.C.getsockname end) then
    ffi.cdef [[
      int socket(int, int, int); int bind(int, const void *, unsigned); int close(int);
      int getsockname(int, void *, unsigned *);
    ]]
  end
  local address, bytes = ffi.new("uint8_t[16]", { 2, 0, 0, 0, 127, 0, 0, 1 }), ffi.new("unsigned[1]", 16)
  local fd = ffi.C.socket(2, 1, 0)
  assert(ffi.C.bind(fd, address, 16) == 0 and ffi.C.getsockname(fd, address, bytes) == 0)
  ffi.C.close(fd)
  return address[2] * 256 + address[3]
end

local function read(path)
  local file = assert(io.open(path, "rb"))
  local text = file:read("*a")
  file:close()
  return text
end

---Runs shell commands at once, each as a rank; none runs for longer than a minute.
---@param commands string[]
---@return { out: string, err: string, status: integer }[]
local function together(commands)
  local base, script, ended = os.tmpname(), {}, {}
  for i, command in ipairs(commands) do
    script[i] = ("{ timeout -k 5 60 env %s >%s.%d.out 2>%s.%d.err </dev/null; echo $? >%s.%d.status; } &"):format(
      command, base, i, base, i, base, i)
  end
  os.execute(table.concat(script, "\n") .. "\nwait")
  for i in ipairs(commands) do
    local path = ("%s.%d."):format(base, i)
    ended[i] = { out = read(path .. "out"), err = read(path .. "err"), status = tonumber(read(path .. "status")) }
    for _, suffix in ipairs({ "out", "err", "status" }) do os.remove(path .. suffix) end
  end
  os.remove(base)
  return ended
end

local function all_out(ended)
  local lines = {}
  for _, one in ipairs(ended) do
    assert.equal(0, one.status, one.err)
    for line in one.out:gmatch("[^\n]+") do lines[#lines + 1] = line end
  end
  table.sort(lines)
  return table.concat(lines, "\n")
end

local function with_recipe(source, action)
  local path = program.recipe(source)
  local ok, raised = pcall(action, path)
  os.remove(path)
  if not ok then error(raised, 0) end
end

local function contains(text, part)
  assert.is_truthy(text:find(part, 1, true), ("%q is not in: %s"):format(part, text))
end

-- What ranks 0 to size - 1 run, each with its variables: format takes the rank.
local function ranks(size, variables, command)
  local commands = {}
  for rank = 0, size - 1 do commands[rank + 1] = variables:gsub("%%d", rank) .. " " .. command end
  return commands
end

local SUMS = "rank 0 of 3, sum 6\nrank 1 of 3, sum 6\nrank 2 of 3, sum 6"

describe("ranks that another program starts", function()
  it("L1 meet by env://, with MASTER_ADDR and MASTER_PORT alone or as torchrun sets the variables", function()
    with_recipe(SUM, function(recipe)
      local run = BIN .. " run " .. recipe
      local by_hand = ("RANK=%%d WORLD_SIZE=3 MASTER_ADDR=127.0.0.1 MASTER_PORT=%d"):format(find_port())
      assert.equal(SUMS, all_out(together(ranks(3, by_hand, run))))
      local torchrun = ("%s LOCAL_RANK=%%d LOCAL_WORLD_SIZE=3 GROUP_RANK=0 TORCHELASTIC_RUN_ID=none "
        .. "TORCHELASTIC_RESTART_COUNT=0 TORCHELASTIC_USE_AGENT_STORE=True"):format(by_hand)
      assert.equal(SUMS, all_out(together(ranks(3, torchrun, run))))
      assert.equal(SUMS, all_out(together(ranks(3, by_hand .. " MOONSHARD_RENDEZVOUS=env://", run))))
    end)
  end)

  it("L1 meet by tcp:// and by file://, named by a variable or by --rendezvous", function()
    with_recipe(SUM, function(recipe)
      local who, run = "RANK=%d WORLD_SIZE=3", BIN .. " run " .. recipe
      local tcp = ("tcp://127.0.0.1:%d"):format(find_port())
      assert.equal(SUMS, all_out(together(ranks(3, who .. " MOONSHARD_RENDEZVOUS=" .. tcp, run))))
      assert.equal(SUMS, all_out(together(ranks(3, who, run .. " --rendezvous " .. tcp))))
      local path = os.tmpname()
      os.remove(path)
      assert.equal(SUMS, all_out(together(ranks(3, who, run .. " --rendezvous file://" .. path))))
      assert.is_nil(io.open(path))
    end)
  end)

  it("L1 train as the ranks of our launcher do", function()
    local function last_loss(ended)
      assert.equal(0, ended.status, ended.err)
      return ended.out:match("step 5/5  loss ([%d.]+)")
    end
    local variables = ("RANK=%%d WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 MASTER_ADDR=localhost MASTER_PORT=%d")
      :format(find_port())
    local joined = together(ranks(2, variables, ("%s run %s mesh=1x2 steps=5"):format(BIN, TOY)))
    assert.equal(last_loss(program.run({ "run", TOY, "-n", "2", "mesh=1x2", "steps=5" })), last_loss(joined[1]))
    assert.equal(0, joined[2].status, joined[2].err)
  end)

  it("L2 are found by Slurm's variables", function()
    with_recipe(SUM, function(recipe)
      local variables = ("SLURM_PROCID=%%d SLURM_NTASKS=3 SLURM_LOCALID=%%d SLURM_STEP_NODELIST=node7 SLURM_NODEID=0 "
        .. "SLURM_JOB_ID=%d SLURM_STEP_ID=0"):format(find_port())
      assert.equal(SUMS, all_out(together(ranks(3, variables, BIN .. " run " .. recipe))))
    end)
  end)

  it("L2 are found by mpirun's variables", function()
    if not can("command -v mpirun") then return pending("mpirun is not installed") end
    local mpirun = "mpirun --oversubscribe --allow-run-as-root -n 4 " .. BIN .. " run "
    with_recipe(SUM, function(recipe)
      local lines = {}
      for rank = 0, 3 do lines[#lines + 1] = ("rank %d of 4, sum 10"):format(rank) end
      assert.equal(table.concat(lines, "\n"), all_out(together({ mpirun .. recipe })))
      local own = ("-x MOONSHARD_RENDEZVOUS=tcp://127.0.0.1:%d"):format(find_port())
      local named = mpirun:gsub(" %-n", " " .. own .. " -n") .. recipe
      assert.equal(table.concat(lines, "\n"), all_out(together({ named })))
    end)
    local trained = together({ mpirun .. TOY .. " mesh=2x2 steps=3" })[1]
    assert.equal(0, trained.status, trained.err)
    contains(trained.out, "step 3/3")
  end)

  it("L2 refuse what contradicts, with both sources named", function()
    with_recipe(SUM, function(recipe)
      local both = together({
        "RANK=0 WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 " .. BIN .. " run " .. recipe,
        "RANK=0 WORLD_SIZE=2 " .. BIN .. " run -n 2 " .. recipe,
        "RANK=0 WORLD_SIZE=2 " .. BIN .. " run --log-ranks all " .. recipe,
        "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_SIZE=1 " .. BIN .. " run " .. recipe,
      })
      for i, part in ipairs({
        "rank 0 of 2 (RANK, WORLD_SIZE) and rank 1 of 2 (Open MPI: OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_SIZE)",
        "-n 2 starts ranks, but this process is already rank 0 of 2 (RANK, WORLD_SIZE)",
        "--log-ranks is for ranks that moonshard starts",
        "Open MPI does not tell which host is rank 0's: mpirun -x MOONSHARD_RENDEZVOUS=tcp://host:port",
      }) do
        assert.equal(2, both[i].status)
        contains(both[i].err, part)
      end
    end)
  end)

  it("L4 each name the ranks that are missing", function()
    with_recipe(SUM, function(recipe)
      local variables = ("RANK=%%d WORLD_SIZE=5 MASTER_ADDR=127.0.0.1 MASTER_PORT=%d"):format(find_port())
      for _, one in ipairs(together(ranks(2, variables, BIN .. " run --timeout 1.5 " .. recipe))) do
        assert.equal(3, one.status)
        contains(one.err, "ranks 2-4 of 5 have not come within 1.5 s")
      end
    end)
  end)

  it("L5 hear of a rank's death or failure, although no launcher of ours watches", function()
    with_recipe(([==[
      local world = require "moonshard.world"
      world.barrier()
      if world.rank == 1 then
        if os.getenv("FAILS") then error("rank 1 does not like it", 0) end
        require("ffi").cdef "int raise(int);"
        require("ffi").C.raise(9)
      end
      world.barrier()
    ]==]), function(recipe)
      local variables = ("RANK=%%d WORLD_SIZE=3 MASTER_ADDR=127.0.0.1 MASTER_PORT=%d"):format(find_port())
      local died = together(ranks(3, variables, BIN .. " run " .. recipe))
      local failed = together(ranks(3, variables .. " FAILS=1", BIN .. " run " .. recipe))
      for _, rank in ipairs({ 0, 2 }) do
        assert.equal(3, died[rank + 1].status)
        contains(died[rank + 1].err, ("moonshard: rank %d of 3: "):format(rank))
        contains(died[rank + 1].err, "rank 1 died, or lost its connection: process ")
        assert.equal(3, failed[rank + 1].status)
        contains(failed[rank + 1].err, "rank 1 gave up: ")
        contains(failed[rank + 1].err, "rank 1 does not like it")
      end
      assert.truthy(failed[2].err:find("^moonshard: rank 1 of 3: [^\n]*rank 1 does not like it\n$"))
    end)
  end)

  it("L3 tell nobody the token", function()
    with_recipe([==[
      local world = require "moonshard.world"
      world.barrier()
      local function read(path) local f = assert(io.open(path, "rb")) local t = f:read("*a") f:close() return t end
      local seen = read("/proc/self/environ") .. read("/proc/self/cmdline") .. tostring(os.getenv("MOONSHARD_TOKEN"))
      io.write(seen:find("correct-horse", 1, true) and "seen" or "hidden", "\n")
    ]==], function(recipe)
      local variables = ("MOONSHARD_TOKEN=correct-horse-battery RANK=%%d WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 "
        .. "MASTER_PORT=%d"):format(find_port())
      assert.equal("hidden\nhidden", all_out(together(ranks(2, variables, BIN .. " run " .. recipe))))
    end)
  end)
end)

describe("nodes", function()
  it("L5 check their options", function()
    for arguments, part in pairs({
      ["--node-rank 1"] = "--node-rank 1 needs --nodes",
      ["--nodes 2"] = "--nodes 2 needs --node-rank: 0 to 1",
      ["--nodes 2 --node-rank 2"] = "--node-rank 2: with --nodes 2 it must be 0 to 1",
      ["--nodes 2 --node-rank 1"] = "--nodes 2 needs --rendezvous: tcp://host:port",
      ["--nodes 2 --node-rank 1 --rendezvous here"] = "rendezvous here: it must be tcp://host:port",
      ["--nodes 2 --node-rank 1 --rendezvous tcp://10.9.8.7:1"] = "`openssl rand -hex 16` makes one",
      ["--rendezvous tcp://127.0.0.1:1"] = "give --nodes and --node-rank, or set RANK and WORLD_SIZE",
    }) do
      local ended = together({ ("%s run %s %s"):format(BIN, TOY, arguments) })[1]
      assert.equal(2, ended.status, ended.err)
      contains(ended.err, part)
    end
  end)

  it("L5 of one host know each other, and cannot compute together", function()
    local function nodes(recipe)
      local common = ("run -n 2 --log-ranks all --nodes 2 --rendezvous tcp://127.0.0.1:%d"):format(find_port())
      local commands = {}
      for node = 0, 1 do commands[node + 1] = ("%s %s --node-rank %d %s"):format(BIN, common, node, recipe) end
      return together(commands)
    end
    with_recipe(WHO, function(recipe)
      assert.equal("[rank 0] rank 0 of 4, local rank 0, node 0 of 2\n[rank 1] rank 1 of 4, local rank 1, node 0 of 2\n"
        .. "[rank 2] rank 2 of 4, local rank 0, node 1 of 2\n[rank 3] rank 3 of 4, local rank 1, node 1 of 2",
        all_out(nodes(recipe)))
    end)
    with_recipe(SUM, function(recipe)
      for _, one in ipairs(nodes(recipe)) do
        assert.equal(2, one.status)
        contains(one.err, "CPU collectives between hosts are not in this build; the 4 ranks are on 2 hosts: ")
        contains(one.err, "(ranks 0-1) and ")
      end
    end)
    with_recipe([==[
      local world = require "moonshard.world"
      if world.rank == 3 then require("ffi").cdef "int raise(int);" require("ffi").C.raise(9) end
      while true do world.finish() end
    ]==], function(recipe)
      local ended = nodes(recipe)
      assert.equal(3, ended[1].status)
      contains(ended[1].err, "rank 3 died") -- as the store noticed it, or as rank 2 heard it from its launcher
      assert.equal(3, ended[2].status)
      contains(ended[2].err, "moonshard: rank 3 died: killed by signal 9")
    end)
  end)

  it("L4 name the ranks of a node that is missing", function()
    local function start(node)
      return together({ ("%s run -n 2 --nodes 3 --node-rank %d --timeout 1 --rendezvous tcp://127.0.0.1:%d %s"):format(
        BIN, node, find_port(), TOY) })[1]
    end
    local parts = { [0] = "ranks 2-5 of 6 have not come within 1 s", "rank 0 of 6 has not come within 1 s" }
    for node, part in pairs(parts) do
      local ended = start(node)
      assert.equal(3, ended.status)
      contains(ended.err, part)
    end
  end)

  it("L3 one node's launcher makes a token that nobody sees", function()
    with_recipe([==[
      local world = require "moonshard.world"
      world.barrier()
      io.write(os.getenv("MOONSHARD_TOKEN") and "seen" or "hidden", "\n")
    ]==], function(recipe)
      local command = ("%s run -n 3 --nodes 1 --rendezvous tcp://127.0.0.1:%d %s"):format(BIN, find_port(), recipe)
      assert.equal("hidden", all_out(together({ command })))
    end)
  end)
end)

describe("two hosts", function()
  local a, b = ("msa%d"):format(find_port()), ("msb%d"):format(find_port())
  local why_not

  local function set_up()
    if not can("command -v ip") then return "iproute2 is not installed" end
    for _, command in ipairs({
      ("ip netns add %s"):format(a), ("ip netns add %s"):format(b),
      ("ip link add veth0 netns %s type veth peer name veth0 netns %s"):format(a, b),
      ("ip -n %s addr add 10.99.0.1/24 dev veth0"):format(a), ("ip -n %s addr add 10.99.0.2/24 dev veth0"):format(b),
      ("ip -n %s link set veth0 up"):format(a), ("ip -n %s link set veth0 up"):format(b),
      ("ip -n %s link set lo up"):format(a), ("ip -n %s link set lo up"):format(b),
    }) do
      if not can(command) then return "network namespaces need root: " .. command end
    end
    return nil
  end

  setup(function() why_not = set_up() end)
  teardown(function()
    for _, name in ipairs({ a, b }) do os.execute(("ip netns del %s 2>/dev/null"):format(name)) end
  end)

  -- A host by the number of its first rank.
  local function on(host, command) return ("ip netns exec %s env %s"):format(host, command) end

  local WHO_OF_TWO = "rank 0 of 4, local rank 0, node 0 of 2\nrank 1 of 4, local rank 1, node 0 of 2\n"
    .. "rank 2 of 4, local rank 0, node 1 of 2\nrank 3 of 4, local rank 1, node 1 of 2"
  local TOKEN = "MOONSHARD_TOKEN=correct-horse-battery-staple "

  local function by_hand(variables, recipe)
    local commands = {}
    for rank = 0, 3 do
      local command = ("%s RANK=%d WORLD_SIZE=4 %s run --timeout 20 %s"):format(variables, rank, BIN, recipe)
      commands[rank + 1] = on(rank < 2 and a or b, command)
    end
    return together(commands)
  end

  it("L1 meet by tcp:// and by env://", function()
    if why_not then return pending(why_not) end
    with_recipe(WHO, function(recipe)
      assert.equal(WHO_OF_TWO, all_out(by_hand(TOKEN .. "MOONSHARD_RENDEZVOUS=tcp://10.99.0.1:29500", recipe)))
      assert.equal(WHO_OF_TWO, all_out(by_hand(TOKEN .. "MASTER_ADDR=10.99.0.1 MASTER_PORT=29501", recipe)))
      assert.equal(WHO_OF_TWO, all_out(by_hand(TOKEN .. "MASTER_ADDR=10.99.0.1 MASTER_PORT=29502 LOCAL_WORLD_SIZE=2 "
        .. "TORCHELASTIC_RUN_ID=7 TORCHELASTIC_USE_AGENT_STORE=True", recipe)))
    end)
  end)

  it("L1 meet by --nodes, and are named when CPU collectives are wanted", function()
    if why_not then return pending(why_not) end
    local function launch(recipe)
      local commands = {}
      local common = "run -n 2 --log-ranks all --nodes 2 --rendezvous tcp://10.99.0.1:29503 --timeout 20"
      for node, host in ipairs({ a, b }) do
        commands[node] = on(host, ("%s %s %s --node-rank %d %s"):format(TOKEN, BIN, common, node - 1, recipe))
      end
      return together(commands)
    end
    with_recipe(WHO, function(recipe)
      assert.equal(WHO_OF_TWO, (all_out(launch(recipe)):gsub("%[rank %d%] ", "")))
    end)
    with_recipe(SUM, function(recipe)
      for _, one in ipairs(launch(recipe)) do
        assert.equal(2, one.status)
        contains(one.err, "CPU collectives between hosts are not in this build; the 4 ranks are on 2 hosts: ")
      end
    end)
  end)

  it("L3 refuse a rank without the token, and need one at all", function()
    if why_not then return pending(why_not) end
    with_recipe(WHO, function(recipe)
      local run = (" MASTER_ADDR=10.99.0.1 MASTER_PORT=29504 WORLD_SIZE=2 RANK=%%d %s run --timeout %%g %s")
        :format(BIN, recipe)
      local ended = together({ on(a, TOKEN .. run:format(0, 5)),
        on(b, "MOONSHARD_TOKEN=a-guess-of-some-length " .. run:format(1, 20)) })
      assert.equal(3, ended[1].status)
      contains(ended[1].err, "rank 1 of 2 has not come within 5 s; turned away: 10.99.0.2:")
      assert.equal(2, ended[2].status)
      contains(ended[2].err, "(rank 1) was refused: it does not know the job's token")
      ended = together({ on(a, run:format(0, 2)) })
      assert.equal(2, ended[1].status)
      contains(ended[1].err, "give each the same one in the environment variable MOONSHARD_TOKEN")
    end)
  end)

  it("L1 local ranks bind the loopback alone", function()
    if why_not then return pending(why_not) end
    if not can("command -v ss") then return pending("ss is not installed") end
    with_recipe([==[
      local world = require "moonshard.world"
      world.barrier()
      if world.rank == 0 then
        local list = io.popen("ss -Hltn")
        for line in list:lines() do io.write(line:match("^%S+%s+%S+%s+%S+%s+(%S+)"), "\n") end
        list:close()
      end
      world.barrier()
    ]==], function(recipe)
      local tcp = "RANK=%d WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=29505"
      local commands = ranks(2, tcp, BIN .. " run " .. recipe)
      for i, command in ipairs(commands) do commands[i] = on(a, command) end
      assert.equal("127.0.0.1:29505", all_out(together(commands)))
      commands = ranks(2, tcp .. " LOCAL_WORLD_SIZE=2", BIN .. " run " .. recipe)
      for i, command in ipairs(commands) do commands[i] = on(a, command) end
      assert.equal("", all_out(together(commands)))
    end)
  end)
end)
