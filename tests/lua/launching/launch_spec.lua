-- Ranks that other launchers start: everything a user would type, with real processes.

local json = require("moonshard.base.text.json")
local has = require("lua.support.message").has
local line_has = require("lua.support.message").line_has
local program = require("lua.support.program")
local pty = require("lua.support.pty")
local scratch = require("lua.support.scratch")
local launched = require("lua.support.launched")
local all_out, find_port = launched.all_out, launched.find_port
local ranks, together, with_recipe = launched.ranks, launched.together, launched.with_recipe

local BIN = assert(os.getenv("MOONSHARD_BIN"), "MOONSHARD_BIN names the executable under test")
local TOY = "recipes/toy_hsdp.lua"
local SUM = launched.SUM
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

  -- Ranks 0 and 1 of a shell, which kills itself by SIGKILL once both have said that they run; then whether the run is
  -- over, and what the ranks reported.
  local function killed(job, variables, source, wrapper)
    local folder, over = os.tmpname(), nil
    os.remove(folder)
    os.execute("mkdir " .. folder)
    with_recipe(source, function(recipe)
      local script = {}
      for rank = 0, 1 do
        local run = ("%s run %s >%s/%d.out 2>%s/%d.err"):format(BIN, recipe, folder, rank, folder, rank)
        script[#script + 1] = ("env MOONSHARD_JOB_ID=%s %s %s &"):format(job, (variables:gsub("%%d", rank)),
          wrapper and ("sh -c '%s; exit 0'"):format(run) or ("sh -c 'exec %s'"):format(run))
      end
      script[#script + 1] = ("for i in $(seq 600); do cat %s/0.out %s/1.out | grep -c run | grep -q 2 && break; "
        .. "sleep 0.1; done; kill -9 $$"):format(folder, folder)
      scratch.write(folder .. "/script", table.concat(script, "\n"))
      os.execute(("sh %s/script </dev/null >/dev/null 2>&1"):format(folder))
      over = launched.is_over(job)
    end)
    local reports = scratch.read(folder .. "/0.err") .. scratch.read(folder .. "/1.err")
    os.execute("rm -r " .. folder)
    return over, reports
  end

  local MEETING = 'local world = require("moonshard.distributed.world") print("run", world.rank)'
  local TOGETHER = MEETING .. " while true do world.barrier() end"
  local OPEN_MPI = "OMPI_COMM_WORLD_RANK=%d OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_SIZE=2"

  it("L5 end when it is killed, whatever they do and whatever wraps them", function()
    local over, reports = killed("mpirun-killed", OPEN_MPI .. " PMIX_NAMESPACE=mpirun-killed", TOGETHER)
    assert.is_true(over)
    for rank = 0, 1 do has(reports, ("rank %d of 2 | the launcher | killed | (sh)"):format(rank)) end
    over, reports = killed("wrapped-killed", OPEN_MPI .. " PMIX_NAMESPACE=wrapped-killed", TOGETHER, true)
    assert.is_true(over)
    has(reports, "the launcher | killed | (sh)")
    local torchrun = ("RANK=%%d WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=%d "
      .. "TORCHELASTIC_RUN_ID=killed"):format(find_port())
    over, reports = killed("torchrun-killed", torchrun, TOGETHER)
    assert.is_true(over)
    has(reports, "the launcher | killed | (sh)")
    over, reports = killed("old-kernel-killed", OPEN_MPI .. " PMIX_NAMESPACE=old-kernel-killed luajit "
      .. "tests/lua/launching/without_pidfd.lua", TOGETHER)
    assert.is_true(over)
    has(reports, "the launcher | killed | (sh)")
    -- They never look up: they are killed.
    assert.is_true((killed("busy-killed", OPEN_MPI .. " PMIX_NAMESPACE=busy-killed", MEETING .. " while true do end")))
  end)

  it("L5 go on without a shell that has only set variables by hand", function()
    local by_hand = ("RANK=%%d WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=%d"):format(find_port())
    local path = scratch.path()
    local over, reports = killed("by-hand", by_hand, MEETING .. ([[
      local ffi = require("ffi")
      ffi.cdef "int usleep(unsigned microseconds); int getppid(void);"
      local parent = ffi.C.getppid()
      while ffi.C.getppid() == parent do ffi.C.usleep(10000) end
      ffi.C.usleep(200000)
      world.barrier()
      if world.rank == 0 then
        local file = assert(io.open("PATH", "w"))
        file:write("went on")
        file:close()
      end]]):gsub("PATH", path))
    assert.is_true(over)
    assert.equal("", reports)
    assert.equal("went on", scratch.read(path))
    scratch.clear()
  end)

  it("L2 are found by Slurm's variables", function()
    with_recipe(SUM, function(recipe)
      local variables = ("SLURM_PROCID=%%d SLURM_NTASKS=3 SLURM_LOCALID=%%d SLURM_STEP_NODELIST=node7 SLURM_NODEID=0 "
        .. "SLURM_JOB_ID=%d SLURM_STEP_ID=0"):format(find_port())
      assert.equal(SUMS, all_out(together(ranks(3, variables, BIN .. " run " .. recipe))))
    end)
  end)

  it("L2 are found by mpirun's variables", function()
    if not launched.can("command -v mpirun") then return pending("mpirun is not installed") end
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
    has(trained.out, "step 3/3")
  end)

  it("L2 are found by the variables of MPICH's mpiexec, also behind wrappers", function()
    with_recipe(SUM, function(recipe)
      -- One process starts all, as hydra's proxy does; between it and a rank there may be shells.
      local start = ("for rank in 0 1 2; do PMI_RANK=$rank PMI_SIZE=3 PMI_FD=6 MPI_LOCALNRANKS=3 "
        .. "%s & done; wait"):format("sh -c \"" .. BIN .. " run " .. recipe .. "; exit \\$?\"")
      assert.equal(SUMS, all_out(together({ "sh -c '" .. start .. "'" })))
      local alone = together(ranks(2, "PMI_ID=%d PMI_PORT=here:39911", BIN .. " run " .. recipe))
      for _, one in ipairs(alone) do
        assert.equal(2, one.status)
        has(one.err, "launcher")
      end
    end)
  end)

  it("L2 are found by mpiexec.hydra's variables", function()
    if not launched.can("command -v mpiexec.hydra") then return pending("mpiexec.hydra is not installed") end
    with_recipe(SUM, function(recipe)
      assert.equal(SUMS, all_out(together({ "mpiexec.hydra -launcher fork -n 3 " .. BIN .. " run " .. recipe })))
    end)
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
        "rank 0 of 2 | RANK | WORLD_SIZE | rank 1 of 2 | Open MPI | OMPI_COMM_WORLD_RANK | OMPI_COMM_WORLD_SIZE",
        "-n 2 | rank 0 of 2 | RANK | WORLD_SIZE",
        "--log-ranks",
        "Open MPI | rank 0 | mpirun -x MOONSHARD_RENDEZVOUS=tcp://host:port",
      }) do
        assert.equal(2, both[i].status)
        has(both[i].err, part)
      end
    end)
  end)

  it("write a log file each, and end as they would without", function()
    local logs = os.tmpname()
    os.remove(logs)
    local function log_of(rank)
      local file = assert(io.open(("%s/rank-%d.log"):format(logs, rank)))
      local text = file:read("*a")
      file:close()
      return text
    end
    local variables = ("RANK=%%d WORLD_SIZE=3 MASTER_ADDR=127.0.0.1 MASTER_PORT=%d"):format(find_port())
    local run = BIN .. " run --log-dir " .. logs .. " "
    with_recipe(SUM, function(recipe)
      assert.equal(SUMS, all_out(together(ranks(3, variables, run .. recipe))))
      for rank = 0, 2 do has(log_of(rank), (" out  rank %d of 3, sum 6\n"):format(rank)) end
    end)
    -- What launches only to write a file is no run of its own.
    with_recipe([[
      require("moonshard.distributed.world").barrier() os.execute(os.getenv("MOONSHARD_BIN") .. " ps --json")
    ]], function(recipe)
      local shown = together(ranks(2, (variables:gsub("WORLD_SIZE=3", "WORLD_SIZE=2")), run .. recipe))[1]
      assert.equal(0, shown.status, shown.err)
      local own = {}
      for _, one in ipairs(json.decode(shown.out)) do
        if (one.command or ""):find(recipe, 1, true) then own[#own + 1] = one end
      end
      assert.equal(1, #own, shown.out)
      assert.equal(2, #own[1].ranks)
      for _, rank in ipairs(own[1].ranks) do assert.equal("joined", rank.state) end
    end)
    with_recipe(([==[
      local world = require "moonshard.distributed.world"
      world.barrier()
      if world.rank == 1 then error("rank 1 does not like it", 0) end
      if world.rank == 2 then require("ffi").cdef "int raise(int);" require("ffi").C.raise(9) end
      world.barrier()
    ]==]), function(recipe)
      local failed = together(ranks(3, variables, run .. recipe))
      assert.same({ 3, 3 }, { failed[1].status, failed[3].status })
      assert.is_true(failed[2].status > 0)
      line_has(failed[2].err, "moonshard: | rank 1 of 3 | rank 1 does not like it\n")
      has(log_of(1), "err  moonshard: rank 1")
      line_has(failed[3].err, "moonshard: | rank 2 | signal 9 | Killed | memory")
    end)
    os.execute("rm -r " .. logs)
  end)

  it("show no bar, which only a person's terminal gets", function()
    local function raw(options, variables)
      local terminal = pty.spawn({ BIN, "run", TOY, "mesh=1x1", "steps=5", unpack(options) }, variables)
      local status = terminal:wait()
      local text = terminal.raw
      terminal:close()
      assert.equal(0, status, text)
      return text
    end
    local function has_bar(text) return text:find("▕", 1, true) ~= nil end
    assert.is_true(has_bar(raw({})))
    assert.is_false(has_bar(raw({ "--progress", "plain" })))
    local launchers = { { RANK = "0", WORLD_SIZE = "1" }, { PMI_RANK = "0", PMI_SIZE = "1" } }
    for _, variables in ipairs(launchers) do
      local plain = raw({}, variables)
      assert.is_false(has_bar(plain))
      has(plain, "step 5/5  loss")
      assert.is_true(has_bar(raw({ "--progress", "bar" }, variables)))
    end
    local piped = together({ BIN .. " run " .. TOY .. " mesh=1x1 steps=5",
      BIN .. " run --progress bar " .. TOY .. " mesh=1x1 steps=5", BIN .. " run --progress dots " .. TOY })
    assert.is_false(has_bar(piped[1].out))
    assert.is_true(has_bar(piped[2].out))
    assert.equal(2, piped[3].status)
    has(piped[3].err, "--progress dots | auto | bar | plain")
  end)

  it("L2 refuse a place to meet when nothing says which rank this is", function()
    for i, ended in ipairs(together({
      "MOONSHARD_RENDEZVOUS=tcp://127.0.0.1:29500 " .. BIN .. " run " .. TOY,
      "MOONSHARD_RENDEZVOUS=tcp://127.0.0.1:29500 " .. BIN .. " run -n 4 " .. TOY,
    })) do
      assert.equal(2, ended.status, i)
      has(ended.err, "MOONSHARD_RENDEZVOUS=tcp://127.0.0.1:29500 | --node-rank")
    end
  end)

  it("L4 each name the ranks that are missing", function()
    with_recipe(SUM, function(recipe)
      local variables = ("RANK=%%d WORLD_SIZE=5 MASTER_ADDR=127.0.0.1 MASTER_PORT=%d"):format(find_port())
      for _, one in ipairs(together(ranks(2, variables, BIN .. " run --timeout 1.5 " .. recipe))) do
        assert.equal(3, one.status)
        has(one.err, "ranks 2-4 of 5 | 1.5 s")
      end
    end)
  end)

  it("L5 notice a rank's death or failure without a launcher of ours", function()
    with_recipe(([==[
      local world = require "moonshard.distributed.world"
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
        has(died[rank + 1].err, ("moonshard: rank %d of 3: "):format(rank))
        has(died[rank + 1].err, "rank 1 | connection | process")
        assert.equal(3, failed[rank + 1].status)
        has(failed[rank + 1].err, "rank 1")
        has(failed[rank + 1].err, "rank 1 does not like it")
      end
      line_has(failed[2].err, "moonshard: | rank 1 of 3 | rank 1 does not like it\n")
    end)
  end)

  it("L3 keep the token secret: not in /proc, not programs that they start, not log files", function()
    with_recipe([==[
      local world = require "moonshard.distributed.world"
      world.barrier()
      local function read(path) local f = assert(io.open(path, "rb")) local t = f:read("*a") f:close() return t end
      local parent = "/proc/" .. read("/proc/self/stat"):match("^%d+ %b() %a (%d+)")
      local child = io.popen("env; cat /proc/$PPID/environ")
      local seen = read("/proc/self/environ") .. read("/proc/self/cmdline") .. tostring(os.getenv("MOONSHARD_TOKEN"))
        .. child:read("*a") .. (os.getenv("MOONSHARD_JOB_FD") and read(parent .. "/environ") or "")
      child:close()
      io.write(seen:find("correct-horse", 1, true) and "seen" or "hidden", "\n")
    ]==], function(recipe)
      local token = "MOONSHARD_TOKEN=correct-horse-battery "
      local variables = (token .. "RANK=%%d WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=%d"):format(find_port())
      assert.equal("hidden\nhidden", all_out(together(ranks(2, variables, BIN .. " run " .. recipe))))
      -- Those that need no token hide it too: it is not theirs to show.
      local logs = os.tmpname()
      os.remove(logs)
      local alone = token .. BIN .. " run " .. recipe
      local forked = ("%s%s run -n 2 --log-ranks all --log-dir %s %s"):format(token, BIN, logs, recipe)
      local node = ("%s%s run -n 2 --nodes 1 --rendezvous tcp://127.0.0.1:%d %s")
        :format(token, BIN, find_port(), recipe)
      assert.equal("[rank 0] hidden\n[rank 1] hidden\nhidden\nhidden", all_out(together({ alone, forked, node })))
      assert.is_false(launched.can("grep -rq correct-horse " .. logs))
      os.execute("rm -r " .. logs)
    end)
  end)

  it("L5 leave nothing when they are killed: no process, socket, name or file", function()
    with_recipe([==[
      local world = require "moonshard.distributed.world"
      world.barrier()
      if world.rank == 2 then
        require("ffi").cdef "int getppid(void); int kill(int, int); int raise(int);"
        require("ffi").C.raise(9)
      end
      world.barrier()
    ]==], function(recipe)
      local mark = recipe:match("[^/]*$")
      local variables = ("MOONSHARD_JOB_ID=%s RANK=%%d WORLD_SIZE=3 LOCAL_WORLD_SIZE=3 MASTER_ADDR=127.0.0.1 "
        .. "MASTER_PORT=%d"):format(mark, find_port())
      local sockets = io.open("/proc/net/unix"):read("*a"):gsub("[^@]*@(moonshard%-%x+)", "%1 ")
      for rank, one in ipairs(together(ranks(3, variables, BIN .. " run " .. recipe))) do
        assert.equal(rank == 3 and 137 or 3, one.status, one.err)
      end
      assert.is_false(launched.can(("grep -lsF 'MOONSHARD_JOB_ID=%s' /proc/[0-9]*/environ"):format(mark)))
      assert.is_false(launched.can("ls -A /dev/shm | grep -i moonshard"))
      for name in io.open("/proc/net/unix"):read("*a"):gmatch("@(moonshard%-%x+)") do
        has(sockets, name)
      end
    end)
  end)
end)
