-- Ranks on several nodes: by --nodes, by another launcher's variables, and on two hosts, network namespaces that a veth
-- pair joins.

local launched = require("lua.support.launched")
local has = require("lua.support.message").has
local program = require("lua.support.program")
local scratch = require("lua.support.scratch")
local all_out, find_port = launched.all_out, launched.find_port
local ranks, together, with_recipe = launched.ranks, launched.together, launched.with_recipe

local BIN = assert(os.getenv("MOONSHARD_BIN"), "MOONSHARD_BIN names the executable under test")
local TOY = "recipes/toy_hsdp.lua"
local SUM = launched.SUM

local UNEQUAL = [==[
  local ms = require "moonshard"
  print(ms.init_device_mesh("cpu", "2x2", { "replicate", "shard" }))
]==]

local WHO = [==[
  local world = require "moonshard.distributed.world"
  local line = ("rank %d of %d, local rank %d, node %d of %d"):format(world.rank, world.size, world.local_rank(),
    world.node_of(world.rank), world.nodes())
  io.write(line, "\n")
]==]

describe("nodes", function()
  it("L5 check their options", function()
    for arguments, part in pairs({
      ["--node-rank 1"] = "--node-rank 1 needs --nodes",
      ["--nodes 2"] = "--nodes 2 needs --node-rank: 0 to 1",
      ["--nodes 2 --node-rank 2"] = "--node-rank 2 | --nodes 2 | 0 to 1",
      ["--nodes 2 --node-rank 1"] = "--nodes 2 needs --rendezvous: tcp://host:port",
      ["--nodes 2 --node-rank 1 --rendezvous here"] = "here: | tcp://host:port",
      ["--nodes 2 --node-rank 1 --rendezvous tcp://10.9.8.7:1"] = "`openssl rand -hex 16`",
      ["--rendezvous tcp://127.0.0.1:1"] = "--nodes | --node-rank | RANK | WORLD_SIZE",
    }) do
      local ended = together({ ("%s run %s %s"):format(BIN, TOY, arguments) })[1]
      assert.equal(2, ended.status, ended.err)
      has(ended.err, part)
    end
  end)

  it("H4 L5 of one host know each other, and exchange bytes", function()
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
      assert.equal("[rank 0] rank 0 of 4, sum 10\n[rank 1] rank 1 of 4, sum 10\n[rank 2] rank 2 of 4, sum 10\n"
        .. "[rank 3] rank 3 of 4, sum 10", all_out(nodes(recipe)))
    end)
    -- Once the other ranks have heard of the death before the launcher has.
    with_recipe([==[
      local world, C = require "moonshard.distributed.world", require("ffi").C
      require("ffi").cdef "int raise(int); int kill(int, int); int getppid(void);"
      if world.rank == 3 then
        os.execute(("kill -STOP %d; { sleep 0.7; kill -CONT %d; } </dev/null >/dev/null 2>&1 &"):format(C.getppid(),
          C.getppid()))
        C.raise(9)
      end
      while true do world.finish() end
    ]==], function(recipe)
      local ended = nodes(recipe)
      assert.equal(3, ended[1].status)
      has(ended[1].err, "rank 3 died") -- as the store noticed it, or as rank 2 heard it from its launcher
      assert.equal(3, ended[2].status)
      has(ended[2].err, "moonshard: | rank 3 | signal 9")
    end)
  end)

  it("L5 are shown by ps with the numbers that their ranks have in the world", function()
    with_recipe([==[
      local world = require "moonshard.distributed.world"
      local ps = io.popen(os.getenv("MOONSHARD_BIN") .. " ps --json")
      local told = ps:read("*a")
      ps:close()
      if world.local_rank() == 0 then io.write(told) end
    ]==], function(recipe)
      local commands = {}
      local common = ("run -n 2 --nodes 2 --rendezvous tcp://127.0.0.1:%d"):format(find_port())
      for node = 0, 1 do commands[node + 1] = ("%s %s --node-rank %d %s"):format(BIN, common, node, recipe) end
      local shown = together(commands)
      for node = 0, 1 do
        assert.equal(0, shown[node + 1].status, shown[node + 1].err)
        local out, command = shown[node + 1].out, "%-%-node%-rank " .. node .. " " .. recipe:gsub("%p", "%%%0")
        local mine = out:match(command .. ".-%]")
        assert.truthy(mine, out)
        for rank = 2 * node, 2 * node + 1 do has(mine, ('"rank":%d,'):format(rank)) end
      end
    end)
  end)

  it("D12 L5 are refused with different numbers of ranks", function()
    with_recipe(WHO, function(recipe)
      local place, commands = ("tcp://127.0.0.1:%d"):format(find_port()), {}
      for node = 0, 1 do
        commands[node + 1] = ("%s run -n %d --nodes 2 --node-rank %d --timeout 3 --rendezvous %s %s"):format(BIN,
          2 + node, node, place, recipe)
      end
      local ended = together(commands)
      assert.equal(3, ended[1].status)
      has(ended[1].err, "6 ranks | rank 0 | 4")
      assert.equal(2, ended[2].status)
      has(ended[2].err, "6 ranks | rank 0 | 4 | -n, --nodes, WORLD_SIZE")
    end)
  end)

  it("L5 are refused with the same --node-rank twice", function()
    local command = ("%s run -n 2 --nodes 2 --node-rank 0 --timeout 2 --rendezvous tcp://127.0.0.1:%d %s"):format(BIN,
      find_port(), TOY)
    local ended = together({ command, command })
    assert.truthy(ended[1].status > 0 and ended[2].status > 0)
    has(ended[1].err .. ended[2].err, "is rank | came first | --node-rank") -- whichever came second
  end)

  it("L4 name the ranks of a node that is missing", function()
    local function start(node)
      return ("%s run -n 2 --nodes 3 --node-rank %d --timeout 1 --rendezvous tcp://127.0.0.1:%d %s"):format(BIN, node,
        find_port(), TOY)
    end
    local ended = together({ start(0), start(1) })
    for i, part in ipairs({ "ranks 2-5 of 6 | 1 s", "rank 0 of 6 | 1 s" }) do
      assert.equal(3, ended[i].status)
      has(ended[i].err, part)
    end
  end)

  it("L3 one node's launcher makes a token that nobody sees", function()
    with_recipe([==[
      local world = require "moonshard.distributed.world"
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

  setup(function() why_not = launched.make_two_hosts(a, b) end)
  teardown(function() launched.remove_hosts(a, b) end)

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

  it("L2 meet by Slurm's variables, at the first host of the step's list", function()
    if why_not then return pending(why_not) end
    with_recipe(WHO, function(recipe)
      local commands = {}
      for rank = 0, 3 do
        local command = ("%s SLURM_PROCID=%d SLURM_NTASKS=4 SLURM_LOCALID=%d SLURM_JOB_ID=4711 SLURM_STEP_ID=0 "
          .. "SLURM_STEP_NODELIST='10.99.0.[1-2]' %s run --timeout 20 %s"):format(TOKEN, rank, rank % 2, BIN, recipe)
        commands[rank + 1] = on(rank < 2 and a or b, command)
      end
      assert.equal(WHO_OF_TWO, all_out(together(commands)))
    end)
  end)

  it("L2 meet as mpirun starts them, where a variable tells the place", function()
    if why_not then return pending(why_not) end
    if not launched.can("command -v mpirun") then return pending("mpirun is not installed") end
    local reach = program.recipe(([==[#!/bin/sh
      while [ "${1#-}" != "$1" ]; do shift; done
      host=%s; [ "$1" = 10.99.0.2 ] && host=%s
      shift
      exec ip netns exec $host sh -c "$*"
    ]==]):format(a, b))
    os.execute("chmod +x " .. reach)
    with_recipe(WHO, function(recipe)
      -- Each has a folder for its sessions: two that make the same one at the same time fail.
      local folders = { scratch.path(), scratch.path() }
      local function mpirun(folder)
        return on(a, TOKEN .. "mpirun --allow-run-as-root --mca orte_tmpdir_base " .. folder
          .. " --mca oob_tcp_if_include veth0 --mca plm_rsh_agent " .. reach
          .. " -n 4 -H 10.99.0.1:2,10.99.0.2:2 -x MOONSHARD_TOKEN ")
      end
      for _, folder in ipairs(folders) do os.execute("mkdir " .. folder) end
      local place = "-x MOONSHARD_RENDEZVOUS=tcp://10.99.0.1:29508 "
      local run = BIN .. " run --timeout 20 " .. recipe
      local ended = together({ mpirun(folders[1]) .. place .. run, mpirun(folders[2]) .. run })
      assert.equal(WHO_OF_TWO, all_out({ ended[1] }))
      has(ended[2].err, "Open MPI | rank 0 | mpirun -x MOONSHARD_RENDEZVOUS=tcp://")
    end)
    os.remove(reach)
    scratch.clear()
  end)

  it("D12 with different numbers of ranks are named, wherever their ranks are", function()
    if why_not then return pending(why_not) end
    with_recipe(UNEQUAL, function(recipe)
      local function refused(alone, first, second)
        local commands = {}
        for rank = 0, 3 do
          local command = ("%s RANK=%d WORLD_SIZE=4 MASTER_ADDR=10.99.0.1 MASTER_PORT=29506 %s run --timeout 20 %s")
            :format(TOKEN, rank, BIN, recipe)
          commands[rank + 1] = on(rank == alone and b or a, command)
        end
        for _, one in ipairs(together(commands)) do
          assert.equal(2, one.status)
          assert.truthy(one.err:find("node 0 %([^)]+%) has 3 ranks, node 1 %([^)]+%) has 1 rank"), one.err)
          has(one.err, ("dimension shard | size 2 | ranks 2 and 3 | nodes %d and %d"):format(first, second))
        end
      end
      refused(3, 0, 1)
      refused(2, 1, 0)
    end)
  end)

  it("H1 L1 meet by --nodes, exchange bytes, and train", function()
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
      assert.equal("rank 0 of 4, sum 10\nrank 1 of 4, sum 10\nrank 2 of 4, sum 10\nrank 3 of 4, sum 10",
        (all_out(launch(recipe)):gsub("%[rank %d%] ", "")))
    end)
    local function losses(out)
      local list = {}
      for loss in out:gmatch("loss (%S+)") do list[#list + 1] = loss end
      return list
    end
    local ended = launch(TOY .. " steps=5")
    for _, one in ipairs(ended) do assert.equal(0, one.status, one.err) end
    local here = program.run({ "run", TOY, "-n", "4", "steps=5" })
    assert.equal(5, #losses(here.out))
    assert.same(losses(here.out), losses(ended[1].out:gsub("%[rank 1%][^\n]*\n", "")))
  end)

  it("H4 whose link goes down are named on both, within the deadline and 2 seconds", function()
    if why_not then return pending(why_not) end
    with_recipe([==[
      local world = require "moonshard.distributed.world"
      local clock = require "moonshard.base.clock"
      local began = clock.now()
      -- The link can go down before the other host has heard of the last of these barriers.
      local ok, why = pcall(function()
        for _ = 1, 100 do world.barrier() end
        began = clock.now()
        if world.rank == 1 then os.execute("ip link set veth0 down") end
        while true do world.barrier() end
      end)
      io.write(("rank %d: %.1f s: %s\n"):format(world.rank, clock.now() - began, tostring(why)))
    ]==], function(recipe)
      local common = "run -n 2 --log-ranks all --nodes 2 --rendezvous tcp://10.99.0.1:29509 --timeout 4"
      local commands = {}
      for node, host in ipairs({ a, b }) do
        commands[node] = on(host, ("%s %s %s --node-rank %d %s"):format(TOKEN, BIN, common, node - 1, recipe))
      end
      local ended = together(commands)
      os.execute(("ip -n %s link set veth0 up"):format(a))
      for node, one in ipairs(ended) do
        for rank = 2 * node - 2, 2 * node - 1 do
          local seconds, why = one.out:match(("rank %d: ([%%d.]+) s: ([^\n]*)"):format(rank))
          assert.truthy(why, one.out .. one.err)
          assert.is_true(tonumber(seconds) < 6, one.out)
          assert.truthy(why:find(node == 1 and "ranks? [23]" or "rank 0") or why:find("ranks 0%-1"), why)
        end
      end
    end)
  end)

  it("L3 refuse a rank without the token, and need one at all", function()
    if why_not then return pending(why_not) end
    with_recipe(WHO, function(recipe)
      local run = (" MASTER_ADDR=10.99.0.1 MASTER_PORT=29504 WORLD_SIZE=2 RANK=%%d %s run --timeout %%g %s")
        :format(BIN, recipe)
      local ended = together({ on(a, TOKEN .. run:format(0, 3)),
        on(b, "MOONSHARD_TOKEN=a-guess-of-some-length " .. run:format(1, 20)) })
      assert.equal(3, ended[1].status)
      has(ended[1].err, "rank 1 of 2 | 3 s | 10.99.0.2")
      assert.equal(2, ended[2].status)
      has(ended[2].err, "rank 1 | refused | token")
      ended = together({ on(a, run:format(0, 2)) })
      assert.equal(2, ended[1].status)
      has(ended[1].err, "MOONSHARD_TOKEN")
    end)
  end)

  -- Where connections get one of two ports, a caller who leaves the choice to the system reaches itself and goes
  -- on doing so: rank 0 finds the port in use. No other spec here uses the two: for a minute after a connection was
  -- closed, the system gives its port to no other process.
  it("L3 rank 0 may come after a rank that has called the port for long, and never reaches itself", function()
    if why_not then return pending(why_not) end
    local ports = "sysctl -qw net.ipv4.ip_local_port_range="
    if not launched.can(on(a, ports .. "'29520 29521'")) then return pending("sysctl does not work here") end
    with_recipe(SUM, function(recipe)
      local run = ("WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=29520 %s run --timeout 20 %s"):format(BIN, recipe)
      local late = on(a, ("RANK=0 sh -c 'sleep 1; exec env %s'"):format(run))
      assert.equal("rank 0 of 2, sum 3\nrank 1 of 2, sum 3", all_out(together({ late, on(a, "RANK=1 " .. run) })))
    end)
    os.execute(on(a, ports .. "'32768 60999'"))
  end)

  it("L3 a rank does not call a port from that very port, though the system has no other", function()
    if why_not then return pending(why_not) end
    local ports = "sysctl -qw net.ipv4.ip_local_port_range="
    if not launched.can(on(a, ports .. "'29522 29522'")) then return pending("sysctl does not work here") end
    with_recipe(SUM, function(recipe)
      local run = ("WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=29522 %s run --timeout 1 %s"):format(BIN, recipe)
      local ended = together({ on(a, "RANK=1 " .. run) })
      assert.equal(3, ended[1].status)
      has(ended[1].err, "rank 0 of 2 | 1 s | Address already in use")
    end)
    os.execute(on(a, ports .. "'32768 60999'"))
  end)

  it("L1 local ranks bind the loopback alone", function()
    if why_not then return pending(why_not) end
    if not launched.can("command -v ss") then return pending("ss is not installed") end
    with_recipe([==[
      local world = require "moonshard.distributed.world"
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
