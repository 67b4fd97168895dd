-- Ranks that disagree stop at the start, or where they part, and say which rank has what. Rank 2 of four differs in one
-- thing at a time; nothing may wait for the deadline, which is a minute.

local has = require("lua.support.message").has
local lacks = require("lua.support.message").lacks
local program = require("lua.support.program")

-- The recipe of all ranks: what they set, then what rank 2 sets.
local RECIPE = [[
local ms = require "moonshard"
local re = ms.re
local s = {
  sizes = { 2, 2 }, names = { "replicate", "shard" }, hidden = 8, units = { re"^layers" }, reshard = "default",
  dtype = "f32", layout = "rows", seed = 0, frozen = "none", batch = 4, clip = 1, prefetch = 1, micro = 1, steps = 3,
  optimizer = function() return ms.optim.adamw { lr = 0.01 } end, loss = ms.loss.mse,
  activation = function(x) return x:gelu() end, mesh = nil, evaluate = false,
}
%s
if ms.world().rank == 2 then %s end
local Net = ms.module "Net"
function Net:init()
  self.layers = { ms.nn.linear(4, s.hidden), ms.nn.linear(s.hidden, 2) }
end
function Net:forward(x)
  return self.layers[2](s.activation(self.layers[1](x)))
end
local model = Net()
ms.fully_shard(model, {
  mesh = s.mesh and s.mesh() or ms.init_device_mesh("cpu", s.sizes, s.names), units = s.units,
  reshard_after_forward = s.reshard, layout = s.layout, mp_policy = { param_dtype = s.dtype }, seed = s.seed,
  freeze = { { s.frozen, optional = true } },
})
local data = ms.data.random { inputs = 4, targets = 2 }
local train = ms.trainer {
  model = model, optimizer = s.optimizer(), loss = s.loss, clip_grad_norm = s.clip, prefetch = s.prefetch,
  micro_batches = s.micro, pad = s.pad, checkpoint = s.checkpoint,
}
local samples = {}
for i = 1, s.batch do samples[i] = i end
if s.call then s.call(train) end
for step = 1, s.steps do train:step(data:read(samples)) end
]]

-- Another one, whose data is from files: rank 2's can differ.
local OF_FILES = [[
local ms = require "moonshard"
local d = { files = "README.md", seq = 16, batch = 2, seed = 0, shuffle = true }
local valid, mesh, shares = "LICENSE", ms.init_device_mesh("cpu", "2x2", { "replicate", "shard" }), nil
%s
if ms.world().rank == 2 then %s end
local model = ms.models.gpt2 { vocab = 256, layers = 1, dim = 8, heads = 1, seq = 16 }
ms.fully_shard(model, { mesh = mesh })
d.mesh = shares
local data, checked = ms.data.text(d), ms.data.text { files = valid, seq = 16, batch = 1, valid_fraction = 0.5 }
local train = ms.trainer { model = model, optimizer = ms.optim.sgd { lr = 0.01 }, loss = ms.loss.cross_entropy }
for _, batch in data:batches(2) do train:step(batch) end
train:evaluate(checked.valid:batches(2))
print("trained")
]]

-- As that one: the data of a second part of the training, and of a second evaluation.
local LATER = OF_FILES:gsub("print", [[
local later = ms.data.text { files = s.files, seq = 16, batch = 2, seed = s.seed, mesh = shares }
if s.trains then for _, batch in later:batches(1) do train:step(batch) end end
train:evaluate(later.valid:batches(1))
%0]]):gsub("local d =", 's = { files = "README.md", seed = 0, trains = true }\n%0')

-- Batches of the recipe's own, of the samples that a sampler gives.
local SAMPLED = [[
local ms = require "moonshard"
local epoch_of, seed, skipped, steps = function(epoch) return epoch end, 0, nil, 0
%s
if ms.world().rank == 2 then %s end
local model = ms.nn.linear(2, 2)
ms.fully_shard(model, { mesh = "1x4" })
local train = ms.trainer { model = model, optimizer = ms.optim.sgd { lr = 0.01 }, loss = ms.loss.mse }
local sampler = ms.data.sampler { length = 16, seed = seed }
for epoch = 0, 1 do
  sampler:set_epoch(epoch_of(epoch))
  for at, sample in sampler:samples() do
    if at ~= skipped and steps < 6 then
      train:step { inputs = ms.full({ 1, 2 }, sample / 16), targets = ms.ones(1, 2) }
      steps = steps + 1
    end
  end
end
print("trained")
]]

-- Two models alike, of which a rank takes the other one.
local ALIKE = [[
local ms = require "moonshard"
local does, own = function(model, train, batch) train:step(batch) end, nil
%s
if ms.world().rank == 2 then %s end
local models, trainers = {}, {}
for i = 1, 2 do
  if own then own(ms.nn.linear(2, 2)(ms.ones(1, 2))) end
  models[i] = ms.nn.linear(2, 2)
  ms.fully_shard(models[i], { mesh = "1x4" })
  trainers[i] = ms.trainer { model = models[i], optimizer = ms.optim.sgd { lr = 0.1 }, loss = ms.loss.mse }
end
local batch = { inputs = ms.ones(4, 2), targets = ms.ones(4, 2) }
for i = 1, 2 do trainers[i]:step(batch) end
local taken = other or 1
does(models[taken], trainers[taken], batch)
print("trained")
]]

-- And one whose ranks compute each layer together; rank 2 writes another forward.
local DIVIDED = [[
local ms = require "moonshard"
local dimension, of_layer = "tensor", function(x) return x end
%s
if ms.world().rank == 2 then %s end
local Layer, Net = ms.module "Layer", ms.module "Net"
function Layer:init() self.scale = ms.parameter { 16, init = "ones" } end
function Layer:forward(x) return of_layer(x * self.scale) end
function Net:init() self.layers = { Layer(), Layer() } end
function Net:forward(x) return self.layers[2](x) end
local model = Net()
ms.fully_shard(model, { mesh = ms.init_device_mesh("cpu", { 1, 4 }, { "shard", dimension }) })
local train = ms.trainer { model = model, optimizer = ms.optim.adamw { lr = 0.01 }, loss = ms.loss.mse }
local x = ms.randn { 4, 16, 16, seed = 1 }
train:step { inputs = x, targets = x }
]]

local OWN = [[
  of_layer = function(x) return x:to_local { tensor = ms.Shard(1) }:%s:from_local { tensor = ms.Shard(1) } end]]
local ROTATED = "of_layer = function(x) return (x:reshape(4, 16, 2, 8):rope { theta = %s }):reshape(4, 16, 16) end"

local function run(on_2, on_all, source)
  local path = program.recipe((source or RECIPE):format(on_all or "", on_2))
  local ended = program.run({ "run", path, "-n", "4", "--timeout", "60" })
  os.remove(path)
  lacks(ended.err, "60 s") -- which a deadline that passed would name
  return ended
end

describe("D10", function()
  it("trains while all agree", function()
    assert.equal(0, run("").status)
  end)

  for title, case in pairs({
    ["the mesh's shape"] = { "s.sizes = { 1, 4 }",
      'rank 2 | "1x4 (replicate, shard), ranks 0, 1, 2, 3"' },
    ["the mesh's names"] = { 's.names = { "shard", "replicate" }', 'rank 2 | "2x2 (shard, replicate), ranks' },
    ["the ranks of its mesh"] = {
      's.mesh = function() return ms.mesh_from_groups(ms.new_group { 0, 2, 1, 3 }, "shard") end',
      'rank 2 | "4 (shard), ranks 0, 2, 1, 3"' },
    ["which slice it trains over"] = {
      's.mesh = function() return ms.init_device_mesh("cpu", "2x2", s.names)["shard"] end',
      'rank 2 | "2 (shard), ranks 2, 3"' },
    ["a parameter's shape"] = { "s.hidden = 9",
      "rank 0 | layers.0.weight | 8x4 | layers.0 | param_dtype f32 | weight_decay 0.01" },
    ["units"] = { "s.units = nil", 'rank 0 | "unit layers.0"' },
    ["reshard_after_forward"] = { "s.reshard = true", "rank 2 | layers.0 | reshard_after_forward always" },
    ["param_dtype"] = { 's.dtype = "bf16"', "rank 2 | layers.0 | param_dtype bf16" },
    ["layout"] = { 's.layout = "ragged"', "layout ragged" },
    ["what is frozen"] = { 's.frozen = "layers.1.bias"',
      "rank 2 | layers.1.bias | layers.1 | frozen 1" },
    ["the seed"] = { "s.seed = 7", 'rank 0 | "seed 0" | rank 2 | "seed 7"' },
    ["the optimizer"] = { "s.optimizer = function() return ms.optim.sgd { lr = 0.01, weight_decay = 0.01 } end",
      "optimizer adamw | rank 2 | optimizer sgd" },
    ["a setting of the optimizer"] = {
      "s.optimizer = function() return ms.optim.adamw { lr = 0.01, betas = { 0.8, 0.99 } } end",
      "adamw.beta1 0.9 | rank 2 | adamw.beta1 0.8" },
    ["a group of the optimizer"] = { [[s.optimizer = function() return ms.optim.adamw { lr = 0.01,
        groups = { { re"bias", { weight_decay = 0 } } } } end]],
      "rank 0 | layers.0.bias | weight_decay 0.01 | rank 2 | layers.0.bias" },
    ["one setting of a group"] = { [[s.optimizer = function() return ms.optim.adamw { lr = 0.01,
        groups = { { re"bias", { eps = 0.5 } } } } end]], "rank 2 | layers.0.bias | eps 0.5 | optimizer and its groups",
      lacks = "-1" },
    ["the batch"] = { "s.batch = 8",
      "rank 0 | batch.inputs | f32 [4,4] | rank 2 | f32 [8,4] | as many rows" },
    ["clipping"] = { "s.clip = 2", "clip_grad_norm of ms.trainer is 1 on rank 0 | 2 on rank 2" },
    ["prefetch"] = { "s.prefetch = 0", "prefetch of ms.trainer is 1 on rank 0 | 0 on rank 2" },
    ["the computation"] = { "s.activation = function(x) return x:relu() end", "rank 2 | phase first" },
    ["accumulation"] = { "s.micro = 2", "micro_batches of ms.trainer is 1 on rank 0 | 2 on rank 2" },
    ["the learning rate"] = { "s.optimizer = function() return ms.optim.adamw { lr = 0.02 } end",
      "step 1" },
  }) do
    it("stops ranks that disagree on " .. title, function()
      local ended = run(case[1])
      assert.truthy(ended.status ~= 0)
      has(ended.err, case[2])
      has(ended.err, "rank 2")
      if case.lacks then assert.is_nil(ended.err:find(case.lacks .. "[,\"]")) end
    end)
  end

  it("stops ranks of which one computes its part of a layer differently, and names the layer", function()
    local along_context = 'dimension = "context" '
    for _, case in ipairs({
      { OWN:format('shift("tensor", 1)'), OWN:format('shift("tensor", 2)') },
      { OWN:format('all_reduce("tensor")'), OWN:format("relu()"), "layers.1" },
      { along_context .. "of_layer = ms.nn.dropout(0.1)", "of_layer = ms.nn.dropout(0.5)" },
      { along_context .. ROTATED:format("1e4"), ROTATED:format("1e2") },
    }) do
      local ended = run(case[2], case[1], DIVIDED)
      assert.equal(2, ended.status, ended.err)
      has(ended.err, "plans | rank 0 | rank 2 | phase first | layers.1")
      assert.equal(0, run("", case[1], DIVIDED).status)
    end
  end)

  it("stops ranks of which one runs other numbers of micro-batches #release", function()
    local ended = run("s.micro, s.batch = 4, 8", "s.micro = 2")
    assert.truthy(ended.status ~= 0)
    has(ended.err, "ms.trainer | micro_batches | 2 | 4 | rank 2")
  end)

  it("stops ranks that share data but have other files or settings #release", function()
    for case, expected in pairs({
      ['d.files = "LICENSE"'] = { 2, "tokens" }, ["d.seed = 1"] = { 2, "seed 0 | seed 1" },
      ["d.shuffle = false"] = { 2, "in order" }, ['valid = "README.md"'] = { 3, "seed 0 | tokens" },
    }) do
      local ended = run(case, nil, OF_FILES)
      assert.equal(expected[1], ended.status, ended.err)
      has(ended.err, "data | rank 0 has | rank 2 has | contents | files | " .. expected[2])
      assert.equal("", ended.out)
    end
    -- As long as the first, and other text.
    local path = os.tmpname()
    os.execute(("tr 'a-z' 'b-za' <README.md >%s"):format(path))
    has(run(('d.files = %q'):format(path), nil, OF_FILES).err, "rank 0 has | rank 2 has | contents")
    os.remove(path)
  end)

  it("stops ranks whose later data differs, in training or evaluation #release", function()
    for _, on_all in ipairs { "", "s.trains = false" } do
      for case, expected in pairs { ['s.files = "LICENSE"'] = "contents", ["s.seed = 1"] = "seed 0 | seed 1" } do
        local ended = run(case, on_all, LATER)
        assert.equal(3, ended.status, ended.err)
        has(ended.err, "data | rank 0 has | rank 2 has | files | " .. expected)
      end
    end
    assert.equal("trained\n", run("", "", LATER).out)
  end)

  it("stops ranks that take samples of another pass of a sampler #release", function()
    has(run("seed = 1", nil, SAMPLED).err, "data | rank 0 has | seed 0 | rank 2 has | seed 1")
    local ended = run("epoch_of = function() return 0 end", nil, SAMPLED)
    assert.equal(3, ended.status)
    has(ended.err, "rank 0 has | epoch 1 | rank 2 has | epoch 0 | same files, settings and epoch")
  end)

  it("stops ranks that train, evaluate, call or read another model, of the same parameters #release", function()
    for _, does in ipairs {
      "", "does = function(_, train, b) train:evaluate(coroutine.wrap(function() coroutine.yield(1, b) end)) end",
      "does = function(model, _, b) model(b.inputs) end", 'does = function(model) model:parameter("weight") end',
    } do
      has(run("other = 2", does, ALIKE).err, "rank 0 | number 1 | rank 2 | number 2 | same order")
    end
    assert.equal("trained\n", run("own = function() end", "", ALIKE).out) -- calls a model of its own
  end)

  it("trains where a rank leaves out a sample, and begins the next epoch before others", function()
    assert.equal("trained\n", run("skipped = 2", nil, SAMPLED).out)
  end)

  it("trains where replicas have files of their own #release", function()
    local ended = run('d.files = "LICENSE"', 'shares = mesh["shard"]', OF_FILES)
    assert.equal(2, ended.status) -- rank 3 shares them with rank 2
    has(ended.err, "rank 2 has | rank 3 has")
    ended = run("", 'shares = mesh["shard"] d.files = ms.world().rank < 2 and "README.md" or "LICENSE"', OF_FILES)
    assert.equal("trained\n", ended.out, ended.err)
  end)

  it("advises to look for an if around what one rank alone calls or is given #release", function()
    for case, expected in pairs({
      ['s.call = function(train) ms.checkpoint.save(train, "build") end'] = "ms.checkpoint.save",
      ["s.call = function(train) train.model(ms.ones(4, 4)) end"] = "ranks run",
      ['s.call = function(train) train:parameter("layers.0.weight") end'] = "train:parameter",
    }) do
      local ended = run(case)
      assert.equal(2, ended.status, ended.err)
      has(ended.err, expected .. " | same calls | same options | under an if")
    end
    for case, expected in pairs({
      ['s.pad = { inputs = 0 }'] = "pad of ms.trainer", ['s.checkpoint = { dir = "build" }'] = "checkpoint.dir",
    }) do
      local ended = run(case)
      assert.equal(2, ended.status, ended.err)
      has(ended.err, expected .. " | rank 0 | rank 2 | all ranks")
    end
  end)

  for title, case in pairs({
    ["ends before the first step"] = { "os.exit(0)", "2 left while rank" },
    ["makes fewer steps"] = { "s.steps = 1", "rank 2 | barrier" },
    ["fails before the first step"] = { 'error("no data here")', "no data here" },
  }) do
    it("stops the others when a rank " .. title, function()
      local ended = run(case[1])
      assert.truthy(ended.status ~= 0)
      has(ended.err, case[2])
    end)
  end
end)

describe("a rank whose part fails because another one died", function()
  local agreement = require("moonshard.distributed.agreement")
  local errors = require("moonshard.base.error")

  -- What is raised where this rank failed with one error, and the exchange of failures with another; nil: it worked.
  local function raised(own, why)
    local session = { ranks = function() return { 0, 1 } end,
      gather_bytes = function() if why then error(errors.new { status = why[1], message = why[2] }, 0) end end }
    local ok, got = pcall(agreement.raise_first_failure, session, "of the save", own == nil,
      own and errors.new { status = own[1], message = own[2] })
    assert.is_false(ok)
    return got
  end

  it("H4 names it besides its own error", function()
    local missing, died = { "MS_EIO", "no such folder" }, { "MS_EPEER", "rank 2 died" }
    local both = raised(missing, died)
    assert.equal("MS_EIO", both.status)
    has(both.message, "no such folder | rank 2 died")
    assert.equal("no such folder", raised(missing).message)
    assert.equal("no such folder", raised(missing, { "MS_ETIMEOUT", "late" }).message)
    assert.equal("rank 2 died", raised(nil, died).message)
  end)
end)
