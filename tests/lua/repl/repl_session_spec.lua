-- What the prompt makes of a session: values that show themselves, blocks in the history, a curve of the losses, plans
-- side by side, and a recipe that does the same again.

local has = require("lua.support.message").has
local line_has = require("lua.support.message").line_has
local program = require("lua.support.program")
local pty = require("lua.support.pty")

local function repl(ranks, lines)
  local ended = program.run({ "repl", "-n", tostring(ranks) }, nil, table.concat(lines, "\n") .. "\n")
  assert.equal("", ended.err)
  assert.equal(0, ended.status)
  return ended.out
end

local TRAINING = {
  'data = ms.data.random { inputs = 16, targets = 4 };',
  'sampler = ms.data.sampler { length = data.length };',
  'model = ms.nn.sequential { ms.nn.linear(16, 32), ms.ops.relu, ms.nn.linear(32, 4) };',
  [[ms.fully_shard(model, { mesh = "1x2", units = { re"^\\d$" } });]],
  'local train = ms.trainer { model = model, optimizer = ms.optim.sgd { lr = 1e-2 }, loss = ms.loss.mse };',
  '_, batch = data:batches(sampler, 64)();',
}

local function training(...)
  local all = { unpack(TRAINING) }
  for _, line in ipairs({ ... }) do all[#all + 1] = line end
  return all
end

describe("a value at the prompt", function()
  it("I2 that is a tensor shows its shape, type and values, shortened when they are many", function()
    assert.equal("tensor f32 [2,2]\n[[3, 5],\n [7, 9]]\n", repl(2, {
      "x = ms.tensor { { 1, 2 }, { 3, 4 } };", "x * 2 + 1",
    }))
    local out = repl(2, { "ms.zeros(100)", "{ ms.zeros(2) }" })
    assert.equal("tensor f32 [100]\n[0, 0, 0, ..., 0, 0, 0]\n{ tensor f32 [2] }\n", out)
  end)

  it("I2 that is a trainer, data, a sampler or a batch describes itself in a line", function()
    local out = repl(2, training("train:step(batch);", "train", "data", "sampler",
      "batch.data_ms, batch.source, batch.shared_by = nil", "batch"))
    assert.equal(table.concat({
      "trainer of Sequential, 676 parameters, mesh 1x2 (replicate, shard): sgd, lr 0.01, 1 step done",
      "random data: 2048 samples, 16 numbers in, 4 out, seed 0",
      "sampler: 2048 samples, 1024 per rank and epoch, seed 0, epoch 0, position 128",
      "rank 0:\n  {\n    batch_number = 1,\n    first_row = 0,\n    inputs = tensor f32 [64,16],",
      "    row_step = 2,\n    targets = tensor f32 [64,4]\n  }\nrank 1: the same but first_row = 1", "",
    }, "\n"), out)
    local path = program.recipe(("some text\n"):rep(200))
    out = repl(2, { ("ms.data.text { files = %q, seq = 16, batch = 2 }"):format(path) })
    os.remove(path)
    line_has(out, "data: | 16 tokens | 2 ranks | seed | position 0")
  end)

  it("I2 that is ... is none, and a function's own ... is its arguments", function()
    local lines = { "...", "= ...", 'select("#", ...)', "(function(...) return ... end)(3)", "5, ..." }
    assert.equal("0\n3\n5\n", repl(1, lines))
  end)

  it("I2 that is a plan is one for all ranks", function()
    local out = repl(2, training("train:step(batch);", "train:plan()"))
    has(out:match("^[^\n]*"), "plan: | mesh 1x2 (replicate, shard) | fingerprint | peak")
    has(out, "\n  2 ranks on 1 node\n")
    assert.equal(3, select(2, out:gsub("\n", "")), out)
  end)

  it("I3 that is a plan is compared with one of other rules", function()
    local out = repl(2, training("train:step(batch);", "a = train:set_rules { reshard_after_forward = true };",
      "b = train:set_rules { reshard_after_forward = false };", "a:compare(b)"))
    local rows = {}
    for name, before, after in out:gmatch("\n([%l ]-)  +(%d[%d.]* %a+)  (%d[%d.]* %a+)") do
      rows[name] = { before, after }
    end
    assert.truthy(out:find("^ +before  after\npeak "), out)
    for _, name in ipairs({ "parameters", "optimizer", "gradients", "activations", "replicate per step" }) do
      assert.truthy(rows[name] and rows[name][1] == rows[name][2], name .. " in " .. out)
    end
    assert.truthy(rows["shard per step"][1] ~= rows["shard per step"][2]
      and out:find("\nshard per step[^\n]*%*\n"), out)
  end)
end)

describe("a session", function()
  it("I1 draws the losses of its steps", function()
    local out = repl(2, training("for _ = 1, 8 do train:step(batch) end", ":curve"))
    has(out, "training")
    has(out, "8  step")
    local ended = program.run({ "repl", "-n", "1" }, nil, ":curve\n:save\n:save /proc/nowhere/x.lua\n")
    assert.equal(3, select(2, ended.err:gsub("\n", "")), ended.err)
    has(ended.err, ":curve | no step | \n:save | :save FILE\n | \n:save /proc/nowhere/x.lua: | No such file")
  end)

  it("I1 is saved as a recipe that does the same again", function()
    local saved, loaded = os.tmpname(), program.recipe("local offset = 1\nfunction more(x) return x + offset end\n")
    local lines = training("x = = 1", "error('not this')", "for _ = 1, 3 do", "  last = train:step(batch).loss", "end",
      "train;", ":load " .. loaded, "local y = more(40)", "@1 z = 5", "print(last, y, z)", ":save " .. saved)
    local out = program.run({ "repl", "-n", "2" }, nil, table.concat(lines, "\n") .. "\n").out
    has(out, saved .. " | lines\n")
    local again = program.run({ "run", saved, "-n", "2", "--log-ranks", "all" })
    os.remove(saved)
    os.remove(loaded)
    assert.equal("", again.err)
    assert.equal(0, again.status)
    assert.equal(out:match("^[^\n]*\n"), again.out:match("%[rank 0%] ([^\n]*\n)"))
    assert.truthy(again.out:find("%[rank 1%] %S+\t41\t5\n"), again.out)
  end)

  it("I1 is saved with the settings of its command line, and files that return", function()
    local saved = os.tmpname()
    local recipe = program.recipe('local ms = require "moonshard"\nlocal cfg = ms.args { lr = 0.1, name = "x" }\n'
      .. "rate, called = cfg.lr, cfg.name\nlocal seven = 7\nif rate then return { seven } end\n")
    local out = program.run({ "repl", recipe, "-n", "1", "lr=0.5", "name=a b" }, nil,
      "print(rate, called, seven)\n:save " .. saved .. "\n").out
    local again, other = program.run({ "run", saved }), program.run({ "run", saved, "lr=0.7" })
    os.remove(saved)
    os.remove(recipe)
    has(out, "0.5\ta b\t7")
    assert.equal("0.5\ta b\t7\n", again.out, again.err)
    assert.equal("0.7\ta b\t7\n", other.out)
  end)

  it("I1 tells ranks apart by what is not shown", function()
    local out = repl(2, { "{ 1, 0.1 + 0.2 + rank * 1e-12 }", "x = ms.arange(100)",
      "x = x + x:ge(50):cast('f32') * x:lt(51):cast('f32') * rank", "x",
      "(function() local t = {} for i = 1, 500 do t[i] = i == 250 and rank or i end return t end)()",
      "ms.arange(100)" })
    assert.equal(3, select(2, out:gsub("rank 1: [^\n]*elements[^\n]*\n", "")), out)
  end)

  it("ends with the last 8 bits of any status", function()
    for code, status in pairs({ ["-1"] = 255, ["257"] = 1, ["0/0"] = 0, ["2.9"] = 2 }) do
      assert.equal(status, program.run({ "repl", "-n", "2" }, nil, ("os.exit(%s)\n"):format(code)).status)
    end
  end)

  it("I1 is saved with what lines make of the last result, with returns and labels", function()
    local saved = os.tmpname()
    local lines = { "function fact(n) return n <= 1 and 1 or n * fact(n - 1) end", "function none() end", "10 + 1",
      "fact(5) -- five", "none()", "y = _ + 1", "y", "z = _ + 1", "return fact(3)", "x = _", "(fact(4))", "w = _;",
      's = "abc"', "#s", "v = _", "do goto done ::done:: end", "local u = 1 do goto done ::done:: end",
      "if x then u = _ return 7 end", "t = _", "print(x, y, z, w, v, u, t)", ":save " .. saved }
    local out = program.run({ "repl", "-n", "1" }, nil, table.concat(lines, "\n") .. "\n").out
    local again = program.run({ "run", saved })
    os.remove(saved)
    assert.equal("", again.err)
    assert.equal("6\t121\t122\t24\t3\t3\t7\n", again.out)
    has(out, "6\t121\t122\t24\t3\t3\t7")
  end)

  it("I4 recalls a block of several lines as one entry", function()
    local state = os.tmpname()
    os.remove(state)
    local terminal = pty.spawn({ os.getenv("MOONSHARD_BIN"), "repl" }, { XDG_STATE_HOME = state, TERM = "vt100" })
    local ok, raised = pcall(function()
      terminal:expect("moonshard> ")
      terminal:send("for i = 7, 8 do\n")
      terminal:expect(".. ")
      terminal:send("  print(i * 1001)\n")
      terminal:expect(".. ")
      terminal:send("end\n")
      terminal:expect("\n7007\n8008\n")
      terminal:expect("moonshard> ")
      terminal:send("\27[A")
      terminal:expect("end")
      terminal:send("\n")
      terminal:expect("\n7007\n8008\n")
      terminal:expect("moonshard> ")
      terminal:send("error('x')\n")
      terminal:expect("stdin:7: x") -- the block was three lines each time
    end)
    terminal:close()
    os.execute("rm -rf " .. state)
    if not ok then error(raised, 0) end
  end)
end)
