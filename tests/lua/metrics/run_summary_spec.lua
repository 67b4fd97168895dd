-- What a run says before its first step and after its last one, and what it says when it is interrupted.

local has = require("lua.support.message").has
local program = require("lua.support.program")
local scratch = require("lua.support.scratch")

describe("a run that logs its steps", function()
  teardown(scratch.clear)

  local function run(...)
    return program.run { "run", "recipes/quickstart.lua", "-n", "4", "layers=2", "dim=32", "seq=32", "sample=0",
      "eval_every=100", "eval_steps=1", ... }
  end

  it("says model, mesh, types, memory and data before step 1, and time, speed and files at the end", function()
    local folder = scratch.folder()
    local ended = run("steps=3", "svg=" .. folder .. "/loss.svg", "checkpoint=" .. folder .. "/run", "save_every=2",
      "--metrics", folder .. "/m.jsonl")
    assert.equal(0, ended.status, ended.err)
    local before, after = ended.out:match("^(.-)\nstep 1/3.*\n(done: [^\n]*)\n$")
    assert.truthy(before, ended.out)
    has(before, "model   GPT2 | parameters | 3 units | mesh    2x2 (replicate, shard) on cpu: 2 replicas | 2 shards")
    has(before, "types   computes in | sums gradients in f32 | memory | per rank: parameters | activations")
    has(before, "data | files of | bytes: | samples of 32 tokens, 2 per rank | for validation")
    has(after, "done: 3 steps in 0: | tokens/s | metrics " .. folder .. "/m.jsonl | checkpoint " .. folder)
    has(after, "step-00000003 | chart " .. folder .. "/loss.svg")
    local again = run("steps=4", "svg=", "checkpoint=" .. folder .. "/run", "resume=auto")
    has(again.out, "resumed after step 3 | done: 1 step in")
  end)

  it("says that a model whose folder has a tokenizer trains on bytes", function()
    local folder, recipe = scratch.folder() .. "/hf", scratch.path()
    scratch.write(recipe, ([[
      local ms = require "moonshard"
      ms.huggingface.save(ms.models.llama { vocab = 256, layers = 1, dim = 8, heads = 2, ffn = 8, seq = 16 }, %q)
    ]]):format(folder))
    assert.equal(0, program.run({ "run", recipe }).status)
    local function notes()
      local ended = program.run { "run", "recipes/llama.lua", "folder=" .. folder, "seq=16", "steps=1",
        "files=LICENSE" }
      assert.equal(0, ended.status, ended.err)
      return ended.err
    end
    assert.equal("", notes())
    scratch.write(folder .. "/tokenizer.json", "{}")
    has(notes(), folder .. " | bytes | moonshard tokenize")
  end)

  it("prints tables and tensors by what is in them", function()
    local recipe = scratch.path()
    scratch.write(recipe, [[
      local ms = require "moonshard"
      local x = ms.tensor { { 1, 2 }, { 3, 4 } }
      print(x.shape, { loss = 1.5 }, x)
      ms.log.print(x.shape)
    ]])
    assert.equal("{ 2, 2 }\t{ loss = 1.5 }\ttensor f32 [2,2]\n[[1, 2],\n [3, 4]]\n{ 2, 2 }\n",
      program.run({ "run", recipe }).out)
  end)

  it("says what it trains of a model whose parameters are frozen", function()
    local recipe = scratch.path()
    scratch.write(recipe, [[
      local ms = require "moonshard"
      local model = ms.nn.sequential { ms.nn.linear(4, 4), ms.nn.linear(4, 2) }
      ms.fully_shard(model, { mesh = "1x1", freeze = { { ms.re"^0", true } } })
      local train = ms.trainer { model = model, optimizer = ms.optim.sgd { lr = 0.1 }, loss = ms.loss.mse }
      for step = 1, 2 do ms.log(step, train:step { inputs = ms.ones(2, 4), targets = ms.ones(2, 2) }) end
    ]])
    local ended = program.run { "run", recipe }
    assert.equal(0, ended.status, ended.err)
    has(ended.out, "Sequential, 30 parameters, 10 of them trained, 1 unit | samples/s | done: 2 steps")
    assert.falsy(ended.out:find("tokens/s"))
  end)

  it("says what dimensions with another name do, and in which types weights are read by rules, too", function()
    local recipe, folder = scratch.path(), scratch.folder()
    scratch.write(recipe, ([[
      local ms = require "moonshard"
      local model = ms.lora(ms.models.llama { vocab = 16, layers = 1, dim = 8, heads = 2, ffn = 8, seq = 4 },
        { { ms.re"wq$", { rank = 2 } } })
      local mesh = ms.init_device_mesh("cpu", { 2, 2 }, { "dp_replicate", "dp_shard" })
      ms.fully_shard(model, { mesh = mesh, param_dtype = { { ms.re"lora_", "bf16" } } })
      local train = ms.trainer { model = model, optimizer = ms.optim.sgd { lr = 0.1 }, loss = ms.loss.cross_entropy }
      local tokens = ms.tensor({ { 1, 2, 3 } }, { dtype = "i32" })
      ms.log(1, train:step { tokens = tokens, targets = tokens })
      ms.lora.save(train, %q)
    ]]):format(folder .. "/adapted"))
    local ended = program.run { "run", recipe, "-n", "4" }
    assert.equal(0, ended.status, ended.err)
    has(ended.out, "mesh    2x2 (dp_replicate, dp_shard) on cpu: 2 replicas, parameters over 2 shards")
    has(ended.out, "types   computes in f32 and bf16 | adapters " .. folder .. "/adapted")
  end)

  it("rounds a number of parameters up to the next unit", function()
    local recipe = scratch.path()
    scratch.write(recipe, [[
      local ms = require "moonshard"
      local model = ms.nn.linear(1000, 999)
      local train = ms.trainer { model = model, optimizer = ms.optim.sgd { lr = 0.1 }, loss = ms.loss.mse }
      ms.log(1, train:step { inputs = ms.ones(1, 1000), targets = ms.ones(1, 999) })
    ]])
    has(program.run({ "run", recipe }).out, "Linear, 1M parameters")
  end)

  it("breaks lines of more than 120 columns after commas, and loses nothing", function()
    local ended = run("steps=1", "svg=")
    assert.equal(0, ended.status, ended.err)
    local memory = ended.out:match("\n(memory  .-)\ndata ")
    assert.truthy(memory:find(",\n        %a"), memory)
    for line in (ended.out:match("^(.-)\nstep 1") .. "\n"):gmatch("(.-)\n") do assert.is_true(#line <= 120, line) end
    for _, category in ipairs({ "parameters", "optimizer", "gradients", "activations" }) do
      assert.truthy(memory:find(category .. " [%d.]+ [KM]iB"), category)
    end
  end)

  it("counts the steps of a recipe that logs without a trainer", function()
    local recipe = scratch.path()
    scratch.write(recipe, [[local ms = require "moonshard"
      for step = 1, 3 do ms.log(step, { loss = 4 - step }) end]])
    local ended = program.run { "run", recipe }
    assert.equal(0, ended.status, ended.err)
    has(ended.out, "done: 3 steps in 0:00")
  end)

  it("says nothing of itself where the recipe logs no steps", function()
    local recipe = scratch.path()
    scratch.write(recipe, [[
      local ms = require "moonshard"
      local model = ms.nn.sequential { ms.nn.linear(4, 2) }
      local train = ms.trainer { model = model, optimizer = ms.optim.sgd { lr = 0.1 }, loss = ms.loss.mse }
      train:step { inputs = ms.ones(2, 4), targets = ms.ones(2, 2) }
      print("the recipe's own")
    ]])
    assert.equal("the recipe's own\n", program.run({ "run", recipe }).out)
  end)

  it("says after Ctrl-C how far it came, and which checkpoint is there", function()
    local recipe, root = scratch.path(), scratch.folder()
    scratch.write(recipe, ([[
      local ffi = require "ffi"
      local ms = require "moonshard"
      ffi.cdef "int kill(int process, int signal); int getppid(void);"
      local cfg = ms.args { async = false }
      local model = ms.nn.sequential { ms.nn.linear(4, 2) }
      ms.fully_shard(model, { mesh = "1x2" })
      local train = ms.trainer { model = model, optimizer = ms.optim.sgd { lr = 0.1 }, loss = ms.loss.mse }
      for step = 1, math.huge do
        ms.log(step, train:step { inputs = ms.ones(2, 4), targets = ms.ones(2, 2) })
        if step == 2 then ms.checkpoint.save(train, %q .. tostring(cfg.async), { async = cfg.async }) end
        if step == 3 and ms.world().rank == 0 then ffi.C.kill(ffi.C.getppid(), 2) end
      end
    ]]):format(root .. "/"))
    -- A save in the background ends with the run, and counts.
    for _, async in ipairs({ "false", "true" }) do
      local folder = root .. "/" .. async
      local ended = program.run { "run", recipe, "-n", "2", "async=" .. async }
      assert.equal(130, ended.status, ended.err)
      has(ended.err, "stopped | step | checkpoint | " .. folder .. "/step-00000002")
    end
  end)
end)
