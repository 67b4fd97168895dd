-- The REPL in a pseudo-terminal: editing, history, completion, and Ctrl-C wherever ranks may be.

local ffi = require("ffi")
local has = require("lua.support.message").has
local program = require("lua.support.program")
local pty = require("lua.support.pty")

local FIRST = "moonshard> "
local INTERRUPT, END, TAB, UP = "\3", "\4", "\t", "\27[A"
-- A line that all ranks must run together.
local MEET = "ms.world().barrier() or 'met'"
-- The thread sanitizer delivers signals at library calls alone, which a Lua loop does not make.
local hears_in_loops = os.getenv("MOONSHARD_CONFIG") ~= "thread"

local function with_repl(arguments, action)
  local state = os.tmpname()
  os.remove(state)
  local terminal
  local function start()
    local command = { assert(os.getenv("MOONSHARD_BIN")), "repl" }
    for _, argument in ipairs(arguments) do command[#command + 1] = argument end
    terminal = pty.spawn(command, { XDG_STATE_HOME = state, TERM = "vt100" })
    terminal:expect("Ctrl-D ends.")
    return terminal
  end
  local ok, raised = pcall(action, start, state)
  if terminal then terminal:close() end
  os.execute("rm -rf " .. state)
  if not ok then error(raised, 0) end
end

-- Types a line and waits for its answer, which is followed by the prompt.
local function answers(terminal, line, answer)
  terminal:send(line .. "\n")
  terminal:expect(line)
  terminal:expect("\n" .. answer .. "\n")
  terminal:expect(FIRST)
end

local function nothing(terminal, line)
  terminal:send(line .. "\n")
  terminal:expect(FIRST)
end

-- Presses Ctrl-C once the line runs, which it tells by printing a word. After that all ranks answer.
local function stops(terminal, line)
  terminal:send("print('be' .. 'gun') " .. line .. "\n")
  terminal:expect("begun\n")
  terminal:send(INTERRUPT)
  terminal:expect("interrupted\n")
  terminal:expect(FIRST)
  answers(terminal, MEET, "met")
end

local TRAINING = {
  "data = ms.data.random { inputs = 64, targets = 16 }",
  "sampler = ms.data.sampler { length = data.length }",
  "model = ms.nn.sequential { ms.nn.linear(64, 128), ms.ops.relu, ms.nn.linear(128, 16) }",
  [[ms.fully_shard(model, { mesh = "2x2", units = { re"^\\d$" } });]],
  "train = ms.trainer { model = model, optimizer = ms.optim.sgd { lr = 1e-3 }, loss = ms.loss.mse };",
  "next_batch = data:batches(sampler, 16)",
  "_, batch = next_batch()",
}

describe("moonshard repl in a terminal", function()
  it("I1 edits lines, keeps their history, and ends with Ctrl-D", function()
    with_repl({ "-n", "2" }, function(start, state)
      local terminal = start()
      terminal:expect(FIRST)
      answers(terminal, "40 + 2", "42")
      terminal:send("34\00112\0055\n") -- Ctrl-A goes to the beginning, Ctrl-E to the end
      terminal:expect("\n12345\n")
      terminal:expect(FIRST)
      terminal:send(END)
      assert.equal(0, terminal:wait())
      terminal:close()
      terminal = start()
      terminal:expect(FIRST)
      terminal:send(UP .. UP .. "0\n")
      terminal:expect("\n60\n")
      terminal:expect(FIRST)
      terminal:send(END)
      assert.equal(0, terminal:wait())
      local file = assert(io.open(state .. "/moonshard/history"))
      local text = file:read("*a")
      file:close()
      assert.is_truthy(text:find("40\\040+\\0402", 1, true) or text:find("40 + 2", 1, true), text)
      local pipe = io.popen("stat -c %a " .. state .. "/moonshard/history")
      assert.equal("600\n", pipe:read("*a"))
      pipe:close()
    end)
  end)

  it("I1 completes names, methods and parameters with Tab", function()
    with_repl({}, function(start)
      local terminal = start()
      terminal:expect(FIRST)
      nothing(terminal, "model = ms.models.gpt2 { vocab = 16, layers = 2, dim = 8, heads = 2, seq = 4 }")
      terminal:send("mod" .. TAB)
      terminal:expect("mod")
      terminal:send(TAB)
      terminal:expect("model   module")
      terminal:send("el:num" .. TAB)
      terminal:expect("model:num_parameters")
      terminal:send("() -- '\n")
      terminal:expect(FIRST)
      terminal:send("x = 'layers.1.attn.wq.b" .. TAB)
      terminal:expect("layers.1.attn.wq.bias")
      terminal:send("'\n")
      terminal:expect(FIRST)
      answers(terminal, "x", "layers.1.attn.wq.bias")
    end)
  end)

  it("I1 indents with Tab at the beginning of a line, and takes tabs of pasted text as they are", function()
    with_repl({}, function(start)
      local terminal = start()
      terminal:expect(FIRST)
      terminal:send(TAB .. "loads" .. TAB .. "\n") -- the second one completes
      terminal:expect("loadstring\n")
      terminal:expect(FIRST)
      terminal:send("s = [[\n")
      terminal:expect(".. ")
      terminal:send(TAB .. "b]]\n")
      terminal:expect(FIRST)
      answers(terminal, "#s", "3")
      terminal:send("\27[200~text = 'a\tmod\tb'\nfor i = 1, 2 do\n\tif i == 2 then\n\t\tprint(#text,\ti)\n\tend\nend\n"
        .. "\27[201~")
      local shown = terminal:expect("7\t2\n")
      assert.falsy(shown:find("model", 1, true), shown) -- which Tab after mod offers
      terminal:expect(FIRST)
      terminal:send("mod" .. TAB) -- the paste has ended
      terminal:expect("module")
      terminal:send("\n")
    end)
  end)

  it("I1 shows in moonshard ps that ranks are at the prompt, before and after a line", function()
    with_repl({ "-n", "2" }, function(start)
      local terminal = start()
      -- What is listed of the run, once so many ranks are at the prompt.
      local function listed(count)
        for _ = 1, 600 do
          local out = program.run({ "ps" }).out:match(("run %d [^\n]*\n[^\n]*\n[^\n]*\n[^\n]*"):format(terminal.pid))
          if select(2, out:gsub("at the prompt", "")) == count then return out end
          ffi.C.usleep(20000)
        end
        error("not listed")
      end
      terminal:expect(FIRST)
      local out = listed(2)
      assert.falsy(out:find("for rank", 1, true), out)
      terminal:send("if rank == 0 then io.read() end ms.world().barrier()\n")
      listed(0)
      terminal:send("\n")
      terminal:expect(FIRST)
      listed(2)
    end)
  end)

  it("I4 discards the typed text with Ctrl-C, a begun block too", function()
    with_repl({ "-n", "4" }, function(start)
      local terminal = start()
      terminal:expect(FIRST)
      terminal:send("error('not run'")
      terminal:expect("not run")
      terminal:send(INTERRUPT)
      terminal:expect("^C\n")
      terminal:expect(FIRST)
      terminal:send("for i = 1, 2 do\n")
      terminal:expect(".. ")
      terminal:send(INTERRUPT)
      terminal:expect(FIRST)
      answers(terminal, MEET, "met")
    end)
  end)

  it("I4 stops a line with Ctrl-C: in Lua, in waits, in steps; then all ranks train on", function()
    with_repl({ "-n", "4" }, function(start)
      local terminal = start()
      terminal:expect(FIRST)
      if hears_in_loops then
        stops(terminal, "while true do end")
        stops(terminal, "local x = 0 for i = 1, 1e15 do x = x + i % 7 end") -- what LuaJIT would compile
        stops(terminal, "while true do pcall(function() while true do end end) end")
        stops(terminal, "if rank == 2 then while true do end end ms.world().barrier()")
      end
      stops(terminal, "if rank == 2 then io.popen('sleep 100'):read() else ms.world().barrier() end")
      stops(terminal, "while true do ms.world().barrier() end")
      for _, line in ipairs(TRAINING) do nothing(terminal, line) end
      nothing(terminal, "first = train:step(batch).loss")
      stops(terminal, "while true do pcall(train.step, train, batch) end") -- which takes no error to itself
      for _ = 1, 5 do
        stops(terminal, "while true do train:step(batch) end")
        -- All ranks have taken the same steps, and they still agree on the loss: what differs would be told by rank.
        terminal:send("train.steps_done\n")
        assert.is_truthy(terminal:expect(FIRST):find("\n%d+\n"))
        nothing(terminal, "taken = train.steps_done")
        answers(terminal, "train:step(batch).loss < first and train.steps_done == taken + 1", "true")
      end
    end)
  end)

  it("I4 gives the prompt when a recipe is stopped, with what it has made", function()
    local lines = { "local ms = require 'moonshard'", "local re = ms.re" }
    for _, line in ipairs(TRAINING) do lines[#lines + 1] = line:match("^ms%.") and line or "local " .. line end
    lines[#lines + 1] = "for _ = 1, 3 do train:step(batch) end"
    lines[#lines + 1] = "print('be' .. 'gun') while true do train:step(batch) end"
    local path = program.recipe(table.concat(lines, "\n"))
    with_repl({ "-n", "4", path }, function(start)
      local terminal = start()
      terminal:expect("begun\n")
      terminal:send(INTERRUPT)
      terminal:expect("interrupted\n")
      terminal:expect(FIRST)
      answers(terminal, "train.steps_done >= 3 and train:step(batch).loss < 100", "true")
    end)
    os.remove(path)
  end)

  it("I1 ends the session with a report when a rank dies, at the prompt or in a line", function()
    for _, where in ipairs({ "prompt", "line" }) do
      with_repl({ "-n", "4" }, function(start)
        local terminal = start()
        terminal:expect(FIRST)
        nothing(terminal, "stat = io.open('/proc/self/stat')")
        terminal:send("@2 print(stat:read('*n'))\n")
        local victim = terminal:expect(FIRST):match("rank 2 printed: (%d+)")
        if where == "line" then
          terminal:send("print('be' .. 'gun') ms.world().barrier() while true do end\n")
          terminal:expect("begun\n")
        end
        os.execute("kill -9 " .. victim)
        has(terminal:expect("signal 9"), "rank 2")
        assert.equal(3, terminal:wait())
      end)
    end
  end)

  it("L7 restores the terminal when a signal ends the session", function()
    with_repl({ "-n", "2" }, function(start)
      local terminal = start()
      terminal:expect(FIRST)
      os.execute("kill -TERM " .. terminal.pid)
      assert.is_true(terminal:wait() > 128)
    end)
  end)
end)
