-- The prompt over several hosts: rank 0 on the first of them reads what is typed here, or comes through a pipe. The
-- hosts are this machine under other names, reached by a script that stands for ssh.

local has = require("lua.support.message").has
local launched = require("lua.support.launched")
local program = require("lua.support.program")
local pty = require("lua.support.pty")
local scratch = require("lua.support.scratch")

local BIN = assert(os.getenv("MOONSHARD_BIN"), "MOONSHARD_BIN names the executable under test")
local FIRST = "moonshard> "
local INTERRUPT, END, TAB, UP = "\3", "\4", "\t", "\27[A"
-- A line that all ranks must run together.
local MEET = "ms.world().barrier() or 'met'"
-- The thread sanitizer delivers signals at library calls alone, which a Lua loop does not make.
local hears_in_loops = os.getenv("MOONSHARD_CONFIG") ~= "thread"

-- The host "late" gets everything half a second later; "noisy" speaks first.
local AGENT = [==[#!/bin/sh
  host=$1; shift
  case $host in
    late) exec perl -e 'use IO::Select; use Time::HiRes "time";
      pipe(my $in, my $out); my $pid = fork;
      if (!$pid) { open STDIN, "<&", $in; close $in; close $out; exec @ARGV }
      close $in; my $select = IO::Select->new(\*STDIN); my @held; my $open = 1;
      while ($open || @held) {
        if ($select->can_read(0.02) && $open) {
          if (sysread STDIN, my $bytes, 65536) { push @held, [time + 0.5, $bytes] } else { $open = 0 }
        }
        syswrite $out, (shift @held)->[1] while @held && $held[0][0] <= time;
      }
      close $out; waitpid $pid, 0;' "$@";;
    noisy) echo "Welcome to $host";;
  esac
  exec "$@"
]==]

describe("moonshard repl --hosts", function()
  local agent

  setup(function()
    agent = scratch.path()
    scratch.write(agent, AGENT)
    os.execute("chmod +x " .. agent)
  end)
  teardown(scratch.clear)

  local function words(list, ...)
    return { "repl", "--hosts", list, "--agent", agent, "--rendezvous", "tcp://127.0.0.1", ... }
  end

  local function repl(list, lines, ...)
    return program.run(words(list, ...), nil, type(lines) == "table" and table.concat(lines, "\n") .. "\n" or lines)
  end

  it("H13 runs lines from a pipe on the ranks of all hosts, and ends with it", function()
    local ended = repl("a:2,noisy:1", { "1 + 1", "rank * 10", "x = ms.world().size", MEET, "x", "@2 rank" })
    assert.equal("2\nrank 0: 0\nrank 1: 10\nrank 2: 20\nmet\n3\nrank 2: 2\n", ended.out)
    assert.equal(0, ended.status)
    assert.equal("[noisy] Welcome to noisy\n", ended.err)
    assert.same({ status = 0, out = "2\n", err = "" }, repl("a,b", "print(ms.world().size)"))
    assert.same({ status = 0, out = "", err = "" }, repl("a,b", ""))
    assert.same({ status = 7, out = "", err = "" }, repl("a,b:2", { "if rank == 2 then os.exit(7) end", "1" }))
    assert.same({ status = 4, out = "1\n", err = "" }, repl("a,b", { "1", "os.exit(4)" }))
    assert.same({ status = 0, out = "5\n", err = "" }, repl("a:2", { "5" }))
  end)

  it("H13 leaves all ranks usable after an error on one of another host", function()
    local ended = repl("a:2,b:2", {
      "if rank == 3 then error('no') end ms.world().barrier()", MEET, "if rank == 0 then ms.world().barrier() end",
      MEET, "x = = 1",
    })
    assert.equal("met\nmet\n", ended.out)
    assert.equal(2, ended.status)
    has(ended.err, "rank 3: stdin:1: no\n | ranks 0-2 | \nrank 0: stdin:3: | barrier | ranks 1-3 | \nstdin:5: | '='")
  end)

  it("H13 trains there, and after a recipe, as on one host", function()
    local lines = { "train.steps_done", "train.steps_done > 2 and train:parameter('0.weight'):sum():item()" }
    local toy = { "recipes/toy_hsdp.lua", "steps=3" }
    local function values(ended)
      assert.equal(0, ended.status, ended.err)
      return ended.out:match("\n(3\n[^\n]*\n)$")
    end
    local alone = program.run({ "repl", "-n", "4", unpack(toy) }, nil, table.concat(lines, "\n") .. "\n")
    assert.is_truthy(values(alone), alone.out)
    assert.equal(values(alone), values(repl("a:2,b:2", lines, unpack(toy))))
  end)

  it("H13 keeps the rest of the input for lines that read it, however long it is", function()
    local comment = ("-- %s\n"):format(("x"):rep(96))
    local lines = "os.execute('sleep 0.5')\n" .. comment:rep(1000) .. "io.read()\nhello\n"
    assert.same({ status = 0, out = "0\nrank 0: hello\nrank 1: nil\n", err = "" }, repl("a,b", lines))
  end)

  it("H13 prints lines and errors in their order where both go to one file", function()
    local path, expected, input = scratch.path(), {}, {}
    for i = 1, 20 do
      input[2 * i - 1], input[2 * i] = tostring(i), ("error('error %d')"):format(i)
      expected[i] = ("%d\nstdin:%d: error %d\n"):format(i, 2 * i, i)
    end
    scratch.write(path, table.concat(input, "\n") .. "\n")
    local command = words("a,b")
    local pipe = io.popen(("%s %s <%s 2>&1"):format(BIN, table.concat(command, " "), path))
    local text = pipe:read("*a")
    pipe:close()
    assert.equal(table.concat(expected), text)
  end)

  it("H13 ends with an error that names the rank or the host that died", function()
    local function dies(line, facts)
      local ended = repl("a:2,b:2", {
        "ffi = require 'ffi' ffi.cdef 'int raise(int); int kill(int, int);'",
        [[function above(n) local pid = "self" for _ = 1, n do
          pid = io.open("/proc/" .. pid .. "/stat"):read("*a"):match("^%d+ %b() %a (%d+)") end
          return tonumber(pid) end]],
        line, "1" })
      assert.equal(3, ended.status, ended.err)
      assert.equal("", ended.out)
      has(ended.err, facts)
    end
    dies("if rank == 2 then ffi.C.raise(9) end ms.world().barrier()", "rank 2 on b died | signal 9")
    -- The rank lives on for a moment, in which it enters no barrier.
    local after = "while true do end end ms.world().barrier()"
    dies("if rank == 2 then ffi.C.kill(above(1), 9) " .. after, "launcher on b | signal 9")
    dies("if rank == 2 then ffi.C.kill(above(2), 9) " .. after, "host b | connection | signal 9")
  end)

  it("H13 refuses what makes no sense", function()
    local there = { "repl", environment = "RANK=1 WORLD_SIZE=2" }
    has(program.run(there, there.environment).err, "repl | rank 1 of 2 | --hosts")
    program.refused(2, { "repl", "--agent", "ssh" }, "--agent needs --hosts")
    program.refused(2, { "repl", "--nodes", "2", "--node-rank", "0" }, "--nodes 2 needs --rendezvous")
    program.refused(2, words("a,b", "nowhere.lua"), "nowhere.lua")
  end)

  it("H13 runs on nodes that were started by hand, whose lines come from the first", function()
    local place = "--nodes 2 --rendezvous tcp://127.0.0.1:" .. launched.find_port()
    local lines = scratch.path()
    scratch.write(lines, "rank * 10\nif rank == 2 then error('no') end ms.world().barrier()\n" .. MEET .. "\n")
    local command = ("MOONSHARD_TOKEN=correct-horse-battery %s repl -n 2 %s --node-rank"):format(BIN, place)
    local ended = launched.together({
      ("sh -c '%s 0 <%s'"):format(command, lines), command .. " 1",
    })
    assert.equal("rank 0: 0\nrank 1: 10\nrank 2: 20\nrank 3: 30\nmet\n", ended[1].out, ended[1].err)
    has(ended[1].err, "rank 2: stdin:2: no")
    assert.same({ status = 2, out = "", err = "" }, ended[2])
    assert.equal(2, ended[1].status)
  end)

  local it_stops = hears_in_loops and it or pending
  it_stops("H13 stops the ranks of the node where Ctrl-C is pressed, and no later line", function()
    local ready, lines = scratch.path(), scratch.path()
    scratch.write(lines, ([==[
      if rank == 1 then io.open('%s', 'w'):close() while true do end end ms.world().barrier()
      began = os.time() while os.time() < began + 1 do end
      rank
    ]==]):format(ready))
    local command = ("MOONSHARD_TOKEN=correct-horse-battery %s repl --nodes 2 --rendezvous tcp://127.0.0.1:%d "
      .. "--node-rank"):format(BIN, launched.find_port())
    local ended = launched.together({
      ("sh -c '%s 0 <%s'"):format(command, lines),
      ("sh -c '%s 1 & while [ ! -e %s ]; do sleep 0.05; done; sleep 0.2; kill -INT $!; wait $!'"):format(command,
        ready),
    })
    assert.equal("rank 0: 0\nrank 1: 1\n", ended[1].out)
    assert.equal("interrupted\n", ended[1].err)
  end)

  it_stops("H13 stops the line that Ctrl-C is meant for, also where it comes late", function()
    local ready = scratch.path()
    local input = scratch.path()
    scratch.write(input, ([==[
      if rank == 0 then io.open('%s', 'w'):close() end while true do ms.world().barrier() end
      began = os.time() while os.time() < began + 2 do end
      rank
    ]==]):format(ready))
    local ended = launched.together({ ("sh -c '%s %s <%s & while [ ! -e %s ]; do sleep 0.05; done; sleep 0.2; "
      .. "kill -INT $!; wait $!'"):format(BIN, table.concat(words("a,late"), " "), input, ready) })[1]
    assert.equal("interrupted\n", ended.err)
    assert.equal("rank 0: 0\nrank 1: 1\n", ended.out)
  end)
end)

describe("moonshard repl --hosts in a terminal", function()
  local agent = "tests/fuzz/agent.sh"

  -- Ends by showing the modes of the terminal.
  local function with_terminal(list, action)
    local state = scratch.path()
    local command = ("trap : INT; %s repl --hosts %s --agent %s --rendezvous tcp://127.0.0.1; echo status $?; stty -a")
      :format(BIN, list, agent)
    local terminal = pty.spawn({ "sh", "-c", command }, { XDG_STATE_HOME = state, TERM = "vt100" })
    local ok, raised = pcall(function()
      terminal:expect("Ctrl-D ends.")
      terminal:expect(FIRST)
      action(terminal, state)
    end)
    terminal:close()
    os.execute("rm -rf " .. state)
    if not ok then error(raised, 0) end
  end
  teardown(scratch.clear)

  local function answers(terminal, line, answer)
    terminal:send(line .. "\n")
    terminal:expect(line)
    terminal:expect("\n" .. answer .. "\n")
    terminal:expect(FIRST)
  end

  local function ends(terminal, status)
    terminal:expect("status " .. status .. "\n")
    terminal:expect(" icanon")
    terminal:expect(" echo ")
  end

  it("H13 edits lines, completes names, keeps a history, and ends with Ctrl-D", function()
    with_terminal("a:2,b:2", function(terminal, state)
      answers(terminal, "40 + 2", "42")
      terminal:send("34\00112\0055\n") -- Ctrl-A goes to the beginning, Ctrl-E to the end
      terminal:expect("\n12345\n")
      terminal:expect(FIRST)
      terminal:send("other_name = rank\n")
      terminal:expect(FIRST)
      terminal:send("other_" .. TAB)
      terminal:expect("other_name")
      terminal:send(" - rank\n")
      terminal:expect("\n0\n")
      terminal:expect(FIRST)
      terminal:send(UP .. UP .. UP .. "0\n")
      terminal:expect("\n123450\n")
      terminal:expect(FIRST)
      answers(terminal, "@0 require('moonshard.base.text.terminal').columns()", "rank 0: 100")
      -- The terminal is the line's once it asks; what is typed before belongs to the editor.
      terminal:send("io.write('as', 'ks: ') io.flush() return io.read()\n")
      terminal:expect("asks: ")
      terminal:send("typed\n")
      terminal:expect("rank 0: typed")
      terminal:expect(FIRST)
      terminal:send("io.write('no end') os.execute('sleep 0.1') error('both')\n")
      terminal:expect("no end\nstdin:8: both\n")
      terminal:expect(FIRST)
      terminal:send(END)
      ends(terminal, 0)
      assert.is_true(launched.can("test -s " .. state .. "/moonshard/history"))
    end)
  end)

  it("H13 stops a line with Ctrl-C on all hosts, discards typed text, and goes on", function()
    with_terminal("a:2,b:2", function(terminal)
      terminal:send("error('not run'")
      terminal:expect("not run")
      terminal:send(INTERRUPT)
      terminal:expect("^C\n")
      terminal:expect(FIRST)
      local lines = { "while true do ms.world().barrier() end" }
      if hears_in_loops then
        lines[2] = "while true do end"
        lines[3] = "if rank == 3 then while true do end end ms.world().barrier()"
      end
      for _, line in ipairs(lines) do
        for _ = 1, 2 do
          terminal:send("print('be' .. 'gun') " .. line .. "\n")
          terminal:expect("begun\n")
          terminal:send("1 +") -- typed ahead, which Ctrl-C discards
          terminal:expect("1 +")
          terminal:send(INTERRUPT)
          terminal:expect("^C\n")
          terminal:expect("interrupted\n")
          terminal:expect(FIRST)
          answers(terminal, MEET, "met")
        end
      end
      terminal:send("\26") -- Ctrl-Z does nothing
      answers(terminal, "1", "1")
      terminal:send("os.exit(6)\n")
      ends(terminal, 6)
    end)
  end)

  it("H13 gives the terminal back when a rank dies, or a host, or a signal ends the session", function()
    local above = [[io.open("/proc/self/stat"):read("*a"):match("^%d+ %b() %a (%d+)")]]
    for _, one in ipairs({
      { [[os.execute("kill -9 " .. io.open("/proc/self/stat"):read("*n"))]], "rank 1 on b died" },
      { ([[os.execute("kill -9 " .. io.open("/proc/" .. %s .. "/stat"):read("*a"):match("^%%d+ %%b() %%a (%%d+)"))]])
        :format(above), "host b: the connection ended" },
    }) do
      with_terminal("a,b", function(terminal)
        terminal:send("@1 " .. one[1] .. "\n")
        terminal:expect("\nmoonshard: " .. one[2])
        ends(terminal, 3)
      end)
    end
    with_terminal("a,b", function(terminal)
      -- The command that the shell started.
      os.execute(("kill -TERM $(cat /proc/%d/task/%d/children)"):format(terminal.pid, terminal.pid))
      ends(terminal, 143)
    end)
  end)
end)
