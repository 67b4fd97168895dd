-- What rank 0 says while a run reads weights, fills them or compiles for long: what it waits for, before the wait is
-- over.

local has = require("lua.support.message").has
local program = require("lua.support.program")
local scratch = require("lua.support.scratch")

-- A recipe that saves a checkpoint, and loads it in a wait that is long after so many seconds.
local function run(seconds, ...)
  local recipe = scratch.path()
  scratch.write(recipe, ([[
    local ms = require "moonshard"
    require("moonshard.distributed.long_wait").seconds = %s
    local model = ms.nn.sequential { ms.nn.linear(4, 2) }
    ms.fully_shard(model, { mesh = "1x2" })
    local train = ms.trainer { model = model, optimizer = ms.optim.sgd { lr = 0.1 }, loss = ms.loss.mse }
    train:step { inputs = ms.ones(2, 4), targets = ms.ones(2, 2) }
    ms.checkpoint.save(train, %q)
    ms.checkpoint.load(train, %q)
    print(ms.world().rank .. " ends")
  ]]):format(seconds, ...))
  return program.run({ "run", recipe, "-n", "2" })
end

describe("a long wait", function()
  teardown(scratch.clear)

  it("is named once, by rank 0, with what it waits for and at its end how long it was", function()
    local folder = scratch.folder()
    local ended = run("0", folder, folder)
    assert.equal(0, ended.status, ended.err)
    local lines = {}
    for line in ended.err:gmatch("[^\n]+") do
      lines[#lines + 1] = line:gsub("[%d.]+ s$", "S"):gsub("%([%d.]+ %a+ in", "(SIZE in"):gsub("million .*", "MILLION")
    end
    assert.same({ "compiling plan train, 1 unit on mesh 1x2 (replicate, shard)", "compiling took S",
      "filling   5e-06 MILLION", "filling   took S",
      ("loading   %s/step-00000001 (SIZE in 2 files)"):format(folder), "loading   took S" }, lines)
    has(ended.out, "0 ends")
  end)

  it("names the folder that a model is read from, with its size, and that of its adapters", function()
    local recipe, folder, adapter = scratch.path(), "tests/fixtures/huggingface/llama", "tests/fixtures/lora/llama"
    scratch.write(recipe, ([[
      local ms = require "moonshard"
      require("moonshard.distributed.long_wait").seconds = 0
      local model = ms.lora.merge(ms.lora.load(ms.huggingface.model(%q), %q))
      ms.fully_shard(model, { mesh = "1x1" })
      model:parameter("embed.weight")
    ]]):format(folder, adapter))
    local ended = program.run({ "run", recipe })
    assert.equal(0, ended.status, ended.err)
    has(ended.err, ("loading   %s ( | KiB in 3 files), %s | in 1 file)\nloading   took"):format(folder, adapter))
  end)

  it("is not named where it is short", function()
    local folder = scratch.folder()
    local ended = run("1e9", folder, folder)
    assert.equal("", ended.err)
  end)
end)

describe("the clock of a wait", function()
  local long_wait = require("moonshard.distributed.long_wait")
  local now, print_line = long_wait.now, long_wait.print

  after_each(function()
    long_wait.now, long_wait.print = now, print_line
  end)

  it("counts what the next piece will take", function()
    local said = {}
    long_wait.print = function(line) said[#said + 1] = line end
    local wait = long_wait.begin("filling", function() return "a state" end)
    wait:check(0.01)
    assert.same({}, said)
    wait:check(1e3)
    assert.same({ "filling   a state" }, said)
  end)

  it("decides: before the first piece after the limit, and not again", function()
    local said, at = {}, 0
    long_wait.now = function() return at end
    long_wait.print = function(line) said[#said + 1] = line end
    local wait = long_wait.begin("loading", function() return "a folder" end)
    wait:check()
    at = 0.4
    wait:check()
    assert.same({}, said)
    at = 0.6
    wait:check()
    wait:check()
    assert.same({ "loading   a folder" }, said)
    at = 12.34
    wait:finish()
    assert.same({ "loading   a folder", "loading   took 12.3 s" }, said)
  end)
end)
