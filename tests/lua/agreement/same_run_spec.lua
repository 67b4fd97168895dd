-- Ranks run one plan, in every step, evaluation and call, also after each has bound the plans of both: one that is
-- given another field, type or length is named before anything runs. Where a trainer may pad, ranks agree on the
-- longest, and train as one rank does with all rows.

local has = require("lua.support.message").has
local lacks = require("lua.support.message").lacks
local program = require("lua.support.program")

local RECIPE = "tests/lua/agreement/recipes/same_run.lua"

local SIX, NINE = "[4,6] | rank 0", "[4,9] | rank 1"

local function run(ranks, mesh, ...) return { "run", RECIPE, "-n", ranks, "--timeout", "60", "mesh=" .. mesh, ... } end

local function hosts(names, mesh, ...)
  return { "run", RECIPE, "--hosts", names, "--agent", "tests/fuzz/agent.sh", "--rendezvous", "tcp://127.0.0.1",
    "--timeout", "60", "mesh=" .. mesh, ... }
end

local TENSOR = "names=replicate shard tensor"

-- Runs that are refused, with the facts that the message has.
local REFUSED = {
  ["lengths in a step"] = { run("2", "1x2", "what=lengths"),
    "train:step | batch.tokens | i32 | pad = | tokens = 0 | targets = -100", SIX, NINE },
  ["lengths in the first step"] = { run("2", "1x2", "what=lengths", "warm=false"), SIX, NINE },
  ["lengths of replicas"] = { run("2", "2x1", "what=lengths"), SIX, NINE },
  ["lengths along tensor"] = { run("4", "1x2x2", TENSOR, "what=lengths", "on=3", "alike=2"), SIX, "[4,9] | rank 3" },
  ["lengths over hosts"] = { hosts("a:1,b:1", "2x1", "what=lengths"), SIX, "[4,9] | rank 1 on b" },
  ["fields"] = { run("3", "1x3", "what=field", "on=2"), "batch.extra | missing | f32 [4,2] | rank 0 | rank 2" },
  ["a field that nothing reads"] = { run("2", "1x2", "what=footnote"),
    "batch.footnote | f32 [4,2] | rank 0 | f32 [4,3] | rank 1" },
  ["dtypes"] = { run("2", "2x1", "what=dtype"), "batch.extra | f32 [4,2] | rank 0 | bf16 [4,2] | rank 1" },
  ["rows"] = { run("2", "1x2", "what=rows", "micro=2"), "batch.tokens | [8,6] | rank 1 | rows", SIX },
  ["lengths in an evaluation"] = { run("2", "1x2", "what=lengths", "in=evaluate"), "train:evaluate", SIX, NINE },
  ["fields in an evaluation"] = { run("2", "2x1", "what=field", "in=evaluate", "on=0"),
    "train:evaluate | batch.extra | f32 [4,2] | rank 0 | missing | rank 1" },
  ["lengths in a call"] = { run("2", "1x2", "what=lengths", "in=call"), "Net | argument 1", SIX, NINE },
  ["numbers in a call"] = { run("2", "2x1", "what=argument"), "Net | number 2 | rank 0 | number 3 | rank 1" },
  ["a field that forward reads"] = { run("2", "1x2", "what=factor"),
    "Net | forward | as before | rank 0 | factor was 1 and is 2 | rank 1 | ranks alike | argument" },
  ["a forward of more layers"] = { run("3", "3x1", "what=layers", "on=2"), "Net | as before | rank 0 | rank 2" },
  ["an upvalue of the forward"] = { run("4", "1x2x2", TENSOR, "what=upvalue", "on=0", "alike=2"),
    "Net | rank 0 | as before | rank 1 | upvalue" },
  ["a constant of another shape"] = { hosts("a:1,b:1", "1x2", "what=constant"),
    "Net | f32 [16] | f32 [1,16] | rank 1 on b" },
  ["batches of an evaluation"] = { run("2", "1x2", "what=batches"), "train:evaluate | none after | 2 | 3 | rank 1" },
  ["a step left out"] = { run("2", "1x2", "what=skip"), "step 3 | rank 0 | batch 3 | rank 1 | batch 4" },
  ["a step left out by the first"] = { run("2", "2x1", "what=skip", "on=0"),
    "step 3 | rank 1 | batch 3 | rank 0 | batch 4 | rank 0 left" },
  ["a step left out of own batches"] = { run("2", "1x2", "what=numbers"), "rank 0 | batch 3 | rank 1 | batch 4" },
}

local PADDED = {
  one = run("1", "1x1", "pad=true", "rows_of=3"),
  shards = run("3", "1x3", "pad=true"),
  replicas = run("3", "3x1", "pad=true", "micro=2"),
  hosts = hosts("a:2,b:1", "1x3", "pad=true"),
}

describe("ranks that run together", function()
  local ended

  setup(function()
    local runs = { same = run("2", "1x2"), ["same calls"] = run("2", "2x1", "in=call"),
      ["changed on all"] = run("2", "1x2", "what=layers", "on=-1") }
    for name, case in pairs(REFUSED) do runs[name] = case[1] end
    for name, arguments in pairs(PADDED) do runs["padded " .. name] = arguments end
    ended = program.run_all(runs)
  end)

  it("U1 train, evaluate and compute while they are given the same", function()
    for _, name in ipairs({ "same", "same calls" }) do
      assert.equal(0, ended[name].status, ended[name].err)
      has(ended[name].out, "trained")
    end
  end)

  it("U1 compute what forward has become on all ranks alike", function()
    assert.equal(0, ended["changed on all"].status, ended["changed on all"].err)
    has(ended["changed on all"].out, "changed")
  end)

  for name, case in pairs(REFUSED) do
    it("U1 are stopped on all ranks, before anything runs, by other " .. name, function()
      assert.not_equal(0, ended[name].status)
      for i = 2, #case do has(ended[name].err, case[i]) end
      assert.equal("", ended[name].out)
      assert.is_string(lacks(ended[name].err, "60 s"), "a deadline passed")
    end)
  end

  it("U1 pad to the longest of all ranks: the numbers of one rank with all rows", function()
    local of_one = ended["padded one"].out
    has(of_one, "padding 0.0000 | weight")
    for _, name in ipairs({ "shards", "replicas", "hosts" }) do
      local run_of = ended["padded " .. name]
      assert.equal(0, run_of.status, run_of.err)
      local given, expected = {}, {}
      for number in run_of.out:gmatch("[%d.]+") do given[#given + 1] = tonumber(number) end
      for number in of_one:gmatch("[%d.]+") do expected[#expected + 1] = tonumber(number) end
      assert.equal(#expected, #given)
      -- Rows of 4, 9 and 7 tokens: 20 of 27 places of each row of three were given.
      local at_padding = #expected - 1
      assert.near(1 - 20 / 27, given[at_padding], 1e-4)
      for i, number in ipairs(expected) do
        if i ~= at_padding then assert.near(number, given[i], 2e-5) end
      end
    end
  end)
end)

describe("the option pad", function()
  local ms = require("moonshard")
  local message = require("lua.support.fixture").message

  local function trainer(pad)
    local Net = ms.module "Net"
    function Net:init() self.w = ms.parameter { 5, 3 } end
    function Net:forward(tokens) return ms.ops.embedding(self.w, tokens) end
    return ms.trainer { model = ms.fully_shard(Net(), {}), loss = ms.loss.cross_entropy,
      optimizer = ms.optim.sgd { lr = 0.1 }, pad = pad }
  end

  local function ids(...) return ms.tensor { dtype = "i32", ... } end

  it("U1 names what it cannot pad, and with what", function()
    has(message(function() trainer { 0 } end), "ms.trainer | pad | names the fields")
    has(message(function() trainer { tokens = "0" } end), "pad | tokens | number")
    has(message(function() trainer {} end), "pad | empty")
    has(message(function()
      trainer { extra = 0 }:step { tokens = ids({ 1, 2 }), targets = ids({ 1, 2 }) }
    end), "pad | extra | no batch has")
  end)

  it("U1 is not counted as tokens", function()
    local path = program.recipe([[
      local ms = require "moonshard"
      local cfg = ms.args { mesh = "1x1x1x1", targets = true }
      local mesh = ms.init_device_mesh("cpu", cfg.mesh, { "replicate", "shard", "context", "tensor" })
      local place = math.floor(ms.world().rank / (mesh:size("context") * mesh:size("tensor")))
      local model = ms.models.gpt2 { vocab = 16, layers = 1, dim = 8, heads = 2, seq = 16 }
      local tensor = mesh:size("tensor") > 1
      ms.fully_shard(model, { mesh = mesh, placements = tensor and ms.rules.tensor_parallel(model) or nil })
      local pad, row, targets = { tokens = 0, more = 0 }, { dtype = "i32", {}, {} }, nil
      for i = 1, 2 do for j = 1, place == 0 and 12 or 4 do row[i][j] = j % 3 == 0 and 5 or j end end
      if cfg.targets then pad.targets, targets = -100, ms.tensor(row) end
      local train = ms.trainer { model = model, optimizer = ms.optim.sgd { lr = 0.1 }, pad = pad,
        forward = function(net, b) local y = net(b.tokens) return (y * y):mean() end }
      local m = train:step { tokens = ms.tensor(row), targets = targets, more = ms.tensor(row) }
      if ms.world().rank == 0 then print(m.tokens, m.tokens_per_s * m.step_ms / 1e3) end
    ]])
    for _, case in ipairs({ { "1", "1x1x1x1", 24 }, { "2", "1x2x1x1", 32 }, { "3", "3x1x1x1", 40 },
      { "4", "1x2x2x1", 32 }, { "4", "2x1x1x2", 32 } }) do
      for _, targets in ipairs({ "targets=true", "targets=false" }) do
        local ended = program.run { "run", path, "-n", case[1], "mesh=" .. case[2], targets }
        assert.equal(0, ended.status, ended.err)
        has(ended.out, ("%d | %d"):format(case[3], case[3]))
      end
    end
    os.remove(path)
  end)

  it("U1 leaves a batch alone that is the longest", function()
    local m = trainer { tokens = 0, targets = -100 }:step { tokens = ids({ 1, 2 }), targets = ids({ 1, 2 }) }
    assert.equal(0, m.padding)
    assert.is_nil(trainer():step({ tokens = ids({ 1, 2 }), targets = ids({ 1, 2 }) }).padding)
  end)

  it("U1 compare what a sampler gives them: its seed, order and epoch, and the data", function()
    for change, facts in pairs({
      ["data = ms.data.random { inputs = 4, targets = 2, length = 16, seed = rank }"] = "differs | seed 0 | seed 1",
      ["sampler = ms.data.sampler { length = 16, seed = rank }"] = "data differs | seed 0 | seed 1",
      ["sampler = ms.data.sampler { length = 16, shuffle = rank == 0 }"] = "data differs | in order",
      ["sampler:set_epoch(rank)"] = "data differs | epoch 0 | epoch 1",
      ["later = rank"] = "data differs | epoch 2 | epoch 3",
    }) do
      local path = program.recipe(([[
        local ms = require "moonshard"
        local rank = ms.world().rank
        local model = ms.nn.linear(4, 2)
        ms.fully_shard(model, { mesh = 2 })
        local data, sampler = ms.data.random { inputs = 4, targets = 2, length = 16 }, ms.data.sampler { length = 16 }
        local later = 0
        %s
        local train = ms.trainer { model = model, loss = ms.loss.mse, optimizer = ms.optim.sgd { lr = 0.1 } }
        for epoch = 1, 2 do
          for _, batch in data:batches(sampler, 2) do train:step(batch) end
          sampler:set_epoch(epoch + 1 + later)
        end
      ]]):format(change))
      local ended = program.run({ "run", path, "-n", "2", "--timeout", "60" })
      os.remove(path)
      assert.not_equal(0, ended.status)
      has(ended.err, facts)
    end
  end)
end)
