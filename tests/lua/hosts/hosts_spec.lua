-- Several hosts from one machine. Most hosts here are this one, reached by a script that stands for ssh and reads from
-- a host's name how it behaves; the last specs have network namespaces, whose agent is `ip netns exec`.

local hosts = require("moonshard.cli.hosts.hosts")
local json = require("moonshard.base.text.json")
local launched = require("lua.support.launched")
local message = require("lua.support.message")
local program = require("lua.support.program")
local scratch = require("lua.support.scratch")
local all_out, together, with_recipe = launched.all_out, launched.together, launched.with_recipe
local has = message.has

local BIN = assert(os.getenv("MOONSHARD_BIN"), "MOONSHARD_BIN names the executable under test")

local AGENT = [==[#!/bin/sh
  host=$1; shift
  case $host in
    gone*) echo "ssh: Could not resolve hostname $host" >&2; exit 255;;
    mute*) exec sleep 50;;
    banner*) echo "Welcome to $host"; exec sh -c "$*";; # as sshd does
    old*) printf '\001moonshard-hosts-2\n'; exec sleep 50;;
    future*) printf '\001moonshard-hosts-3 99.1\n'; exec sleep 50;;
    stranger*) while :; do echo "not moonshard"; done;;
    bare*) rm -f recipe.lua; exec "$@";;
    homeless*) rmdir "$PWD"; cd /; exec "$@";;
    between*) exec 3<&0; "$@" <&3 & wait $!; exit;; # stays, as ssh does
  esac
  exec "$@"
]==]

local WHO = [==[
  local world = require "moonshard.distributed.world"
  io.write(("rank %d of %d, local rank %d, node %d of %d\n"):format(world.rank, world.size, world.local_rank(),
    world.node_of(world.rank), world.nodes()))
]==]

-- above(1) is the pid of a rank's launcher, above(2) of the program that an agent started, above(3) of the command.
local ABOVE = [==[
  local world, ffi = require "moonshard.distributed.world", require "ffi"
  ffi.cdef "int kill(int, int); int raise(int); int getpid(void); int usleep(unsigned);"
  jit.off() -- signals interrupt a loop
  local function read(path) local f = assert(io.open(path, "rb")) local t = f:read("*a") f:close() return t end
  local function above(levels)
    local pid = ffi.C.getpid()
    for _ = 1, levels do pid = tonumber(read("/proc/" .. pid .. "/stat"):match("^%d+ %b() %a (%d+)")) end
    return pid
  end
  local function wait() for _ = 1, 3000 do ffi.C.usleep(10000) end end
]==]

describe("hosts", function()
  local agent

  setup(function()
    agent = scratch.path()
    scratch.write(agent, AGENT)
    os.execute("chmod +x " .. agent)
  end)
  teardown(scratch.clear)

  -- A command for `together`; MOONSHARD_JOB_ID marks all processes of the run.
  local function command(list, recipe, options)
    return ("%s run --hosts %s --agent %s --rendezvous tcp://127.0.0.1 %s %s"):format(BIN, list, agent, options or "",
      recipe)
  end

  local function run(list, source, options, variables)
    local ended
    with_recipe(source, function(recipe)
      ended = together({ (variables or "") .. " " .. command(list, recipe, options) })[1]
    end)
    return ended
  end

  it("H9 are read from lists, files and the agent's command", function()
    assert.same({ "ssh", "-p", "2222", "-i", "my key", "it's", 'a"b', "" }, hosts.words(
      [[ssh  -p 2222 -i 'my key' "it's" a\"b ""]]))
    local file = program.recipe("# comment\na:2\n\nb # another\n")
    for list, part in pairs({
      [""] = "--hosts", ["a:0"] = "a:0 | 1 rank", ["a,a:2"] = "a,a:2 | twice",
      ["a:2000,b:3000"] = "4096",
      ["n[1-"] = "bracket",
      ["-oProxyCommand=x"] = "-oProxyCommand", ["n[2-1]"] = "n[2-1]",
      ["@/nowhere/x"] = "/nowhere/x | --hosts @FILE | No such file | on each line",
      [file] = "is a file | --hosts @" .. file,
      ["a slots=2"] = "write a:2", ["a;b"] = "a;b | name | IPv4 | a:4 | commas", ["a:x"] = "a:x | a:4",
    }) do
      program.refused(2, { "run", "recipes/toy_hsdp.lua", "--hosts=" .. list }, part)
    end
    for _, one in ipairs({
      { { "--hosts", "a", "--agent", "ssh 'x" }, "--agent | quote" },
      { { "--hosts", "a", "--nodes", "2" }, "--hosts | --nodes" },
      { { "--hosts", "a", "--env", "1=2" }, "--env 1=2 | NAME=VALUE" },
      { { "--hosts", "a", "--env", "NOT_SET_HERE" }, "NOT_SET_HERE" },
      { { "--hosts", "a", "--env", "MOONSHARD_TOKEN" }, "MOONSHARD_TOKEN" },
      { { "--hosts", "a", "--rendezvous", "env://" }, "env:// | tcp://host" },
      { { "--hosts", "a", "--remote-moonshard", "/a b" }, "--remote-moonshard PATH | /a b" },
      { { "--agent", "ssh" }, "--agent needs --hosts" },
      { { "--hosts", "a", "--agent", "ssh", "-p", "2222" }, "--agent | quotes | 'ssh -p'" },
      { { "--hosts", "a", "--agent", "ip", "netns", "exec" }, "--agent | quotes | 'ip netns'" },
      { { "--hosts", "a:2", "b:2" }, "commas | --hosts a:2,b:2" },
      { { "--hosts", "a:2,b:2", "-n", "4" }, "-n 4 | a:2,b:2 | omit -n" },
      { { "--hosts", "a", "--transport", "infiniband" }, "--transport infiniband | tcp | ucx | RoCE" },
    }) do
      program.refused(2, { "run", "recipes/toy_hsdp.lua", unpack(one[1]) }, one[2])
    end
    for _, name in ipairs({ "plan", "explain" }) do
      program.refused(2, { name, "recipes/toy_hsdp.lua", "--hosts", "a" }, "--hosts | -n RANKS --ranks-per-node M")
    end
    program.refused(2, { "inspect", "recipes", "--hosts", "a" }, "moonshard inspect | one host | run")
    with_recipe(WHO, function(recipe)
      assert.equal("rank 0 of 3, local rank 0, node 0 of 2", all_out(together({ command("@" .. file, recipe) })))
      assert.equal("rank 0 of 3, local rank 0, node 0 of 2", all_out(together({ command("'a:2, b'", recipe) })))
    end)
    os.remove(file)
  end)

  it("H9 refuse a token of a wrong length like other input, before an agent starts", function()
    for _, token in ipairs({ "short", ("x"):rep(257) }) do
      local ended = program.run({ "run", "--hosts", "a,b", "--agent", "false", "recipes/toy_hsdp.lua" },
        "MOONSHARD_TOKEN=" .. token)
      assert.equal(2, ended.status, ended.err)
      has(ended.err, "MOONSHARD_TOKEN | 16 to 256 characters | " .. #token .. " | openssl rand -hex 16")
    end
  end)

  it("H9 pass --transport on to the ranks of every host", function()
    local ended = run("a,b", 'print(os.getenv("MOONSHARD_TRANSPORT"))', "--log-ranks all --transport tcp")
    has(all_out({ ended }), "[rank 0] tcp | [rank 1] tcp")
  end)

  it("H9 run ranks as launchers that were started by hand do, also different numbers of them", function()
    local ended = run("a:2,banner[07,9]:1", WHO, "--log-ranks all")
    assert.equal("[rank 0] rank 0 of 4, local rank 0, node 0 of 3\n[rank 1] rank 1 of 4, local rank 1, node 0 of 3\n"
      .. "[rank 2] rank 2 of 4, local rank 0, node 1 of 3\n[rank 3] rank 3 of 4, local rank 0, node 2 of 3",
      all_out({ ended }))
    has(ended.err, "[banner07] Welcome to banner07 | [banner9] Welcome to banner9")
    with_recipe(WHO, function(recipe)
      local alone = together({ ("%s run -n 2 --hosts localhost %s"):format(BIN, recipe) })
      assert.equal("rank 0 of 2, local rank 0, node 0 of 1", all_out(alone))
      -- All are this machine, so they meet at its loopback.
      local local_names = together({ ("%s run --hosts 127.0.0.1,localhost --agent %s %s"):format(BIN, agent, recipe) })
      assert.equal("rank 0 of 2, local rank 0, node 0 of 2", all_out(local_names))
    end)
  end)

  it("H9 pass settings, variables and the token on, which no process shows", function()
    local ended = run("a,banner", ABOVE .. [==[
      local cfg = require("moonshard").args { text = "" }
      local seen, known = "", {}
      for level = 0, 3 do
        local pid = above(level)
        seen = seen .. read("/proc/" .. pid .. "/environ") .. read("/proc/" .. pid .. "/cmdline")
      end
      local child = io.popen("env")
      seen = seen .. child:read("*a")
      child:close()
      for i, name in ipairs({ "MOONSHARD_X", "OMP_Y", "LUA_Z", "GIVEN", "TAKEN", "OTHER" }) do
        known[i] = tostring(os.getenv(name))
      end
      io.write(cfg.text, "|", table.concat(known, "|"), seen:find("correct-horse", 1, true) and "|seen" or "|hidden",
        seen:find("MOONSHARD_HOST_LINK", 1, true) and above(1) ~= 0 and "" or "|no link", "\n")
    ]==], [[--log-ranks all --env 'GIVEN=a $b' --env TAKEN 'text=it"s * $HOME']],
      "MOONSHARD_X=1 OMP_Y=2 LUA_Z=';;' TAKEN=t MOONSHARD_TOKEN=correct-horse-battery")
    local line = [[it"s * $HOME|1|2|;;|a $b|t|nil|hidden]]
    assert.equal("[rank 0] " .. line .. "\n[rank 1] " .. line, all_out({ ended }))
  end)

  it("H9 print what rank 0 does, and the lines of all whole", function()
    local source = [==[
      local rank = require("moonshard.distributed.world").rank
      for i = 1, 20000 do io.write("line ", i, " of rank ", rank, "\n") end
      io.stderr:write("rank ", rank, " warns\n")
    ]==]
    local lines = {}
    for i = 1, 20000 do lines[i] = ("line %d of rank 0\n"):format(i) end
    local ended = run("a,b", source)
    assert.equal(0, ended.status)
    assert.is_true(ended.out == table.concat(lines))
    assert.equal("rank 0 warns\n", ended.err)
    local count, next_line = 0, { 1, 1 }
    ended = run("a,b", source, "--log-ranks all")
    for line in ended.out:gmatch("[^\n]+") do
      local rank, i = line:match("^%[rank ([01])%] line (%d+) of rank %1$")
      assert.truthy(rank, line)
      assert.equal(next_line[rank + 1], tonumber(i))
      next_line[rank + 1] = next_line[rank + 1] + 1
      count = count + 1
    end
    assert.equal(40000, count)
    has(ended.err, "[rank 0] rank 0 warns | [rank 1] rank 1 warns")
  end)

  it("H9 fail where standard output is on a full disk", function()
    with_recipe("print('a line')", function(recipe)
      local ended = together({ ("sh -c '%s >/dev/full'"):format(command("a,b", recipe)) })[1]
      assert.equal(3, ended.status, ended.err)
      has(ended.err, "standard output: | No space left")
    end)
  end)

  it("H9 report the rank that failed first with its host, once, and end all others", function()
    -- The others wait in the engine, which they leave at once; ranks elsewhere are given 5 s. Rank 2 waits too: a
    -- signal that arrives when every rank has ended well does not make the run a failed one.
    local function failing(action)
      return ABOVE .. "if world.rank == 2 then " .. action .. " wait() end world.barrier()"
    end
    for action, facts in pairs({
      ["ffi.C.raise(9)"] = { 3, "rank 2 on b died | signal 9" },
      ["error('it is broken', 0)"] = { 2, "rank 2 on b failed | it is broken" },
      ["os.exit(7)"] = { 3, "rank 2 on b | os.exit(7)" },
      ["ffi.C.kill(above(1), 9)"] = { 3, "launcher | on b | signal 9" },
      ["ffi.C.kill(above(2), 9)"] = { 3, "host b | connection | signal 9" },
      ["ffi.C.kill(above(2), 15)"] = { 3, "host b | connection | signal 15" },
    }) do
      local ended = run("a:2,b:1,c:1", failing(action), nil, "MOONSHARD_JOB_ID=failing" .. facts[1])
      assert.equal(facts[1], ended.status, ended.err)
      has(ended.err, facts[2])
      assert.equal(1, select(2, ended.err:gsub("moonshard: [^\n]* b[ :]", "")), ended.err)
      assert.equal("", ended.out)
      assert.is_true(launched.is_over("failing" .. facts[1]))
    end
    local late = run("a:2,b:1,c:1", ABOVE .. "if world.rank == 2 then wait() end world.barrier()", "--timeout 1")
    assert.equal(3, late.status, late.err)
    has(late.err, "barrier | 1 s | for rank 2 on b; rank 2")
    -- The agent dies; what it started on its host does not, and its ranks end a moment later.
    local ended = run("a,between", ABOVE .. "if world.rank == 1 then ffi.C.kill(above(3), 9) end wait()", nil,
      "MOONSHARD_JOB_ID=between")
    assert.equal(3, ended.status)
    has(ended.err, "host between | connection | signal 9")
    assert.is_true(launched.is_over("between"))
    ended = run("a,b", "error('all know it', 0)")
    assert.equal(2, ended.status)
    has(ended.err, "moonshard: | all know it")
    assert.equal(1, select(2, ended.err:gsub("all know it", "")))
  end)

  it("H9 name the host that cannot take part, and start nothing elsewhere", function()
    local function refused(list, options, status, facts)
      local ended = run(list, "print('started')", options)
      assert.equal(status, ended.status, ended.err)
      assert.equal("", ended.out)
      has(ended.err, facts)
    end
    refused("a,gone", nil, 3, "[gone] ssh: Could not resolve | host gone | status 255 | without a password | true`")
    -- Greetings of other versions.
    refused("a,old", nil, 3, "host old | another version | it says 2, | --remote-moonshard")
    refused("a,future", nil, 3, "host future | another version | it says 3 99.1, | --remote-moonshard")
    refused("a,mute", "--timeout 1", 3, "host mute | 1 s")
    refused("a,stranger", nil, 3, "host stranger | not from moonshard")
    refused("a", "--remote-moonshard /nowhere/moonshard", 3, "host a | status 127 | --remote-moonshard")
    refused("a", "--agent /nowhere/agent", 3, "/nowhere/agent | No such file | host a")
    refused("a,b", "--rendezvous tcp://no-such-name.invalid", 2, "no-such-name.invalid | --rendezvous | first host")
    local variables = "MOONSHARD_INTERFACE=nosuch0"
    with_recipe(WHO, function(recipe)
      local ended = together({ ("%s %s run --hosts a,b --agent %s %s"):format(variables, BIN, agent, recipe) })[1]
      assert.equal(2, ended.status)
      has(ended.err, "host a | MOONSHARD_INTERFACE | nosuch0 | lo (127.0.0.1)")
    end)
  end)

  it("H9 name the host whose agent cannot start, and end the agents that have", function()
    -- Few descriptors: the pipes of the second or third agent fail, whatever the first has come to by then. Which of
    -- them it is depends on the descriptors that this process has inherited, so all limits between the two are tried.
    local named = {}
    for limit = 8, 64 do
      local job = ("few%d"):format(limit)
      local few = ("MOONSHARD_JOB_ID=%s prlimit --nofile=%d"):format(job, limit)
      local ended = run("a,b,c", "print('started')", nil, few)
      assert.equal(3, ended.status, ended.err)
      assert.equal("", ended.out)
      has(ended.err, "ulimit -n")
      assert.is_true(launched.is_over(job))
      local host = ended.err:match("host (%l):")
      if host then named[host] = true end
      if named.b and not host then break end -- all agents have started
    end
    assert.is_true(named.b and named.c)
  end)

  it("H9 say that a host lacks the working folder or the recipe", function()
    for list, facts in pairs({ homeless = "host homeless | working folder", bare = "host bare | recipe.lua" }) do
      local folder = scratch.path()
      os.execute("mkdir " .. folder)
      local path = list == "bare" and "recipe.lua" or program.recipe("print(1)")
      if list == "bare" then scratch.write(folder .. "/recipe.lua", "print(1)") end
      local ended = together({ ("-C %s %s"):format(folder, command(list, path)) })[1]
      assert.equal(2, ended.status, ended.err)
      has(ended.err, facts .. " | every host | " .. folder)
      assert.equal("", ended.out)
      os.remove(path)
    end
  end)

  it("H9 forward signals, and leave nothing when the command is killed", function()
    -- Ctrl-C ends a rank that waits for another; those of two hosts do so only where they compute together.
    local function signalled(number)
      local mark = "signal" .. number
      local ended = run(number == 2 and "a:2" or "a,b", ABOVE .. ([==[
        if world.rank == 1 then
          ffi.C.usleep(300000)
          ffi.C.kill(above(3), %d)
          for _ = 1, 50 do ffi.C.usleep(10000) end
        end
        while world.nodes() == 1 do world.barrier() end
        wait()
      ]==]):format(number), nil, "MOONSHARD_JOB_ID=" .. mark)
      assert.is_true(launched.is_over(mark))
      return ended
    end
    for number, facts in pairs({ [1] = "terminated", [2] = "interrupted", [15] = "terminated" }) do
      local ended = signalled(number)
      assert.equal(128 + number, ended.status, ended.err)
      assert.equal("moonshard: " .. facts .. "\n", ended.err)
    end
    assert.equal(137, signalled(9).status)
  end)

  it("H9 end when standard input does, whatever came before", function()
    for input, status in pairs({ [""] = 0, ["\1\255\255\255\255"] = 0, ["garbage\n"] = 0 }) do
      local ended = program.run({ "host" }, "timeout 20", input)
      assert.equal(status, ended.status, ended.err)
      assert.is_truthy(ended.out:find("^\1moonshard%-hosts%-3 %d[%w.]*\n$"), ended.out)
    end
    program.refused(2, { "host", "a" }, "a | moonshard run --hosts")
  end)

  it("H9 show their runs in ps", function()
    local path = scratch.path() -- a file: runs of other tests are shown too, and a log line has at most 16 KiB
    local ended = run("a,b", ABOVE .. ([==[
      if world.rank == 1 then
        os.execute(os.getenv("MOONSHARD_BIN") .. " ps --json --hosts x,gone --agent %s >%s 2>/dev/null")
      end
      world.barrier()
    ]==]):format(agent, path))
    assert.equal(0, ended.status, ended.err)
    local shown = assert(json.decode(scratch.read(path)))
    assert.equal("x", shown[1].host)
    has(json.encode(shown[1].runs), "--nodes 2 --node-rank 1")
    has(shown[2].why, "255")
    local text = together({ ("%s ps --hosts x,gone --agent %s"):format(BIN, agent) })[1]
    assert.equal(3, text.status)
    has(text.out, "host x")
    has(text.err, "host gone | 255")
  end)
end)

describe("hosts with networks of their own", function()
  local a, b = ("msc%d"):format(launched.find_port()), ("msd%d"):format(launched.find_port())
  local why_not

  setup(function() why_not = launched.make_two_hosts(a, b) end)
  teardown(function() launched.remove_hosts(a, b) end)

  it("H9 meet at the first one's interface, or at a place that is given", function()
    if why_not then return pending(why_not) end
    with_recipe(WHO, function(recipe)
      local run = ("%s run --hosts %s:2,%s:2 --agent 'ip netns exec' --timeout 20 --log-ranks all "):format(BIN, a, b)
      for _, command in ipairs({
        "MOONSHARD_INTERFACE=veth0 " .. run .. recipe, "MOONSHARD_INTERFACE=10.99.0.0/16 " .. run .. recipe,
        run .. "--rendezvous tcp://10.99.0.1 " .. recipe,
        run .. "--rendezvous tcp://10.99.0.1:29540 " .. recipe,
      }) do
        assert.equal("rank 0 of 4, local rank 0, node 0 of 2\nrank 1 of 4, local rank 1, node 0 of 2\n"
          .. "rank 2 of 4, local rank 0, node 1 of 2\nrank 3 of 4, local rank 1, node 1 of 2",
          (all_out(together({ command })):gsub("%[rank %d%] ", "")))
      end
      local ended = together({ run .. recipe })[1]
      assert.equal(2, ended.status)
      has(ended.err, "MOONSHARD_INTERFACE | --rendezvous | " .. a)
    end)
  end)

  it("H9 end together when a rank dies on one of them", function()
    if why_not then return pending(why_not) end
    with_recipe(ABOVE .. "if world.rank == 3 then ffi.C.raise(9) end wait()", function(recipe)
      local ended = together({ ("MOONSHARD_INTERFACE=veth0 MOONSHARD_JOB_ID=networks %s run --hosts %s:2,%s:2 "
        .. "--agent 'ip netns exec' --timeout 20 %s"):format(BIN, a, b, recipe) })[1]
      assert.equal(3, ended.status)
      has(ended.err, ("rank 3 on %s died | signal 9"):format(b))
      assert.is_false(launched.can("grep -lsF 'MOONSHARD_JOB_ID=networks' /proc/[0-9]*/environ"))
    end)
  end)
end)
