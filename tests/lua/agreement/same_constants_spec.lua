-- Eager tensors that a forward or a loss uses must have the same values on all ranks: replicas and shards that have
-- others are stopped before anything runs, and the tensor, the op that reads it and two ranks are named.

local has = require("lua.support.message").has
local program = require("lua.support.program")

-- Rank `on` has other values for one tensor of the recipe; on=-1: none has.
local RECIPE = [[
local ms = require "moonshard"
local cfg = ms.args { mesh = "1x2", what = "none", on = 1, every = 0 }
local rank = ms.world().rank
local function seed_of(what) return cfg.what == what and rank == cfg.on and 7 or 1 end

local Net = ms.module "Net"
function Net:init()
  self.first, self.second = ms.nn.linear(4, 8), ms.nn.linear(8, 3)
  self.buffer = ms.randn { 8, seed = seed_of("buffer") }
end
function Net:forward(x) return self.second(self.first(x) * self.buffer) end
local model = Net()
ms.fully_shard(model, {
  mesh = ms.init_device_mesh("cpu", cfg.mesh, { "replicate", "shard" }),
  replicate_sync = cfg.every > 0 and { every = cfg.every, outer = ms.optim.sgd { lr = 1 } } or nil,
})
local cross_entropy = ms.loss.cross_entropy { weight = ms.rand({ 3, seed = seed_of("weight") }):tolist() }
local scale = ms.rand { 3, seed = seed_of("scale") }
local half = ms.rand { 3, seed = seed_of("teacher") }
local train = ms.trainer {
  model = model, optimizer = ms.optim.adamw { lr = 0.01 }, ema = 0.9,
  forward = function(net, b)
    local logits = net(b.inputs) * scale + b.teacher * b.share
    return cross_entropy(logits, b.targets)
  end,
  teacher = function(net, b) return net(b.inputs) * half end,
}
local function batch(step)
  return { inputs = ms.randn { 4, 4, seed = 10 * step + rank }, share = rank + 1,
    targets = ms.tensor { rank % 3, 1, 2, 0, dtype = "i32" } }
end
if cfg.what == "called" then
  local x = batch(1).inputs
  model(x)
  model.buffer = ms.randn { 8, seed = seed_of("called") + 1 }
  model(x)
end
local function once() return coroutine.wrap(function() coroutine.yield(1, batch(9)) end) end
if cfg.what == "evaluated" then
  scale = ms.rand { 3, seed = seed_of("evaluated") }
  train:evaluate(once())
end
-- A tensor that a recipe writes into: an average of what this rank has seen, for example.
local function write(what, t) if cfg.what == what and (rank == cfg.on or cfg.on < 0) then t.data[1] = 7 end end
for step = 1, 3 do
  if step == 3 then
    write("written", scale)
    write("taught later", half)
  end
  train:step(batch(step))
end
train:evaluate(once())
write("evaluated later", scale)
train:evaluate(once())
local x = batch(1).inputs
model(x)
write("called later", model.buffer)
model(x)
if rank == 0 then print("trained") end
]]

describe("constants of ranks that train together", function()
  local path, ended

  local function run(ranks, mesh, ...) return { "run", path, "-n", ranks, "--timeout", "60", "mesh=" .. mesh, ... } end

  local RANKS = "differs between rank 0 and rank 1 | all ranks"

  -- Runs that are refused, with the facts that the message has.
  local REFUSED
  setup(function()
    path = program.recipe(RECIPE)
    REFUSED = {
      ["a loss's weights of classes"] = { run("2", "1x2", "what=weight"), "train:step | f32 [3] | reshape | "
        .. RANKS },
      ["an upvalue of a forward"] = { run("2", "2x1", "what=scale"), "train:step | scale, an upvalue | f32 [3] | mul | "
        .. RANKS },
      ["a module's buffer"] = { run("4", "2x2", "what=buffer", "on=3"),
        "model.buffer f32 [8] | mul | differs between rank 0 and rank 3" },
      ["what a teacher reads"] = { run("2", "1x2", "what=teacher"), "teacher | half, an upvalue | f32 [3] | "
        .. RANKS },
      ["what an evaluation reads"] = { run("2", "2x1", "what=evaluated"), "train:evaluate | scale | f32 [3] | "
        .. RANKS },
      ["what a call reads, later"] = { run("2", "1x2", "what=called"), "Net | model.buffer | f32 [8] | " .. RANKS },
      ["what a step reads, written between steps"] = { run("2", "1x2", "what=written"),
        "train:step | scale, an upvalue | f32 [3] | " .. RANKS, 3 },
      ["what a teacher reads, written between steps"] = { run("2", "1x2", "what=taught later"),
        "teacher | half, an upvalue | f32 [3] | " .. RANKS, 3 },
      ["what an evaluation reads, written before"] = { run("2", "1x2", "what=evaluated later"),
        "train:evaluate | scale, an upvalue | f32 [3] | " .. RANKS, 3 },
      ["what a call reads, written before"] = { run("2", "1x2", "what=called later"),
        "Net | model.buffer | f32 [8] | " .. RANKS, 3 },
      ["a tensor between local steps"] = { run("2", "2x1", "every=3", "what=scale"), "scale | f32 [3] | " .. RANKS },
      ["a tensor on another host"] = { { "run", path, "--hosts", "a:1,b:1", "--agent", "tests/fuzz/agent.sh",
        "--rendezvous", "tcp://127.0.0.1", "--timeout", "60", "mesh=1x2", "what=scale" },
        "scale | f32 [3] | rank 0 on a and rank 1 on b" },
    }
    local runs = { same = run("2", "1x2"), ["same replicas"] = run("2", "2x1"), ["changed on all"] = run("2", "1x2",
      "what=called", "on=-1"), ["written on all"] = run("2", "1x2", "what=written", "on=-1") }
    for name, case in pairs(REFUSED) do runs[name] = case[1] end
    ended = program.run_all(runs)
  end)
  teardown(function() os.remove(path) end)

  it("U1 train while they are the same, with fields of batches that differ", function()
    for _, name in ipairs({ "same", "same replicas", "changed on all", "written on all" }) do
      assert.equal(0, ended[name].status, name .. ": " .. ended[name].err)
      has(ended[name].out, "trained")
    end
  end)

  it("U1 are refused on all ranks where they differ, with the tensor, its op and the ranks", function()
    for name, case in pairs(REFUSED) do
      assert.equal(case[3] or 2, ended[name].status, name .. ": " .. ended[name].err)
      has(ended[name].err, case[2])
      assert.equal("", ended[name].out)
    end
  end)
end)
