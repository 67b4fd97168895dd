-- Messages in a recipe's words: its names of options, the steps that it has done, and no number that stands for
-- something else.

local has = require("lua.support.message").has
local program = require("lua.support.program")
local recipe_names = require("moonshard.base.names.recipe_names")
local rows = require("moonshard.settings")
local scratch = require("lua.support.scratch")

-- Two ranks of which one does something else after six steps.
local RECIPE = [[
local ms = require "moonshard"
local cfg = ms.args { how = "", folder = "" }
if cfg.how == "copies" then
  local copied = ms.nn.linear(4, 4)
  ms.fully_shard(copied, { mesh = "2x1", mp_policy = { param_dtype = "bf16", param_copy = true },
    param_dtype = { { "bias", "f32" } }, shard_optimizer_over_replicate = true })
  copied:parameter("bias")
end
local model = ms.nn.linear(4, 4)
ms.fully_shard(model, { mesh = "1x2" })
local sgd = ms.optim.sgd { lr = 0.1 }
local function trainer() return ms.trainer { model = model, optimizer = sgd, loss = ms.loss.mse } end
local train, rank = trainer(), ms.world().rank
local batch = { inputs = ms.ones(2, 4), targets = ms.ones(2, 4) }
for _ = 1, 6 do train:step(batch) end
if cfg.how == "evaluate" then
  train:evaluate(coroutine.wrap(function() coroutine.yield(1, batch) end))
  model(batch.inputs)
  if rank == 1 then train:parameter("weight") else train:step(batch) end
elseif cfg.how == "rate" then
  train:set_rules { lr = rank == 1 and function() return 0.1 end or 0.1 }
else
  ms.checkpoint.save(train, cfg.folder)
  model = ms.nn.linear(4, 4)
  ms.fully_shard(model, { mesh = "1x2" })
  train = trainer()
  print(select(2, pcall(train.gradient, train, "bias")))
  ms.checkpoint.load(train, cfg.folder)
  print(select(2, pcall(train.gradient, train, "bias")))
  print(select(2, pcall(ms.with_full_params, model, { with_grads = true }, function() end)))
end
]]

local function run(...)
  local recipe = program.recipe(RECIPE)
  local ended = program.run { "run", recipe, "-n", "2", "--timeout", "60", ... }
  os.remove(recipe)
  return ended.err .. ended.out
end

-- Names of settings that messages of the engine print, and which no recipe has.
local ENGINES = { "shard_over_replicate", "replicate_dtype", "shard_dtype", "storage_dtype", "tensor_axis",
  "packed_moments", "max_norm", "max_value", "norm_groups", "fragment", "reshard", "reshard_size", "ema_decay" }

describe("messages", function()
  teardown(scratch.clear)

  it("name options as recipes do, wherever the engine raises them", function()
    local known = {}
    for _, list in pairs(rows) do
      for _, row in ipairs(list) do known[row.name] = true end
    end
    for _, name in ipairs(ENGINES) do
      assert.truthy(known[name], name)
      local said = recipe_names.of_engine(("unit 'a': %s is 3; leave %s out"):format(name, name))
      assert.is_nil((" " .. said):gsub("reduce_dtype%.[a-z]+", ""):find("[^%w_.]" .. name .. "[^%w_.]"), said)
      local own = ("unit '%s': x of parameter %s.weight in unit %s"):format(name, name, name)
      assert.equal(own, recipe_names.of_engine(own))
    end
    local said = run("how=copies")
    has(said, "shard_optimizer_over_replicate")
    assert.is_nil(said:find("[^_]shard_over_replicate"), said)
  end)

  it("after an evaluation or a call tell of the steps that are done", function()
    has(run("how=evaluate"), "rank 1 | train:parameter | (after step 6) | rank 0 | learning rate | (after step 6)")
  end)

  it("about rates that differ say which one is a function", function()
    has(run("how=rate"), "set_rules | rate is | given by a function on rank 1")
  end)

  it("about gradients that there are not say since when", function()
    local out = run("how=load", "folder=" .. scratch.path())
    has(out, "gradient | first step | gradient | checkpoint | loaded | gradient | checkpoint | loaded")
  end)
end)
