-- Replicas that take local steps, and evaluations: what differs there is named by its cause, on all ranks.

local has = require("lua.support.message").has
local program = require("lua.support.program")

-- Rank 1 changes the settings by one line.
local RECIPE = [[
local ms = require "moonshard"
local cfg = ms.args { change = "", mesh = "2x1", steps = 8, evaluate = false }
local s = { every = 3, lr = 0.7, batch = {}, length = function() return 3 end }
local rank = ms.world().rank
if rank == 1 then assert(loadstring("local s = ... " .. cfg.change))(s) end
local model = ms.nn.linear(8, 2)
ms.fully_shard(model, {
  mesh = ms.init_device_mesh("cpu", cfg.mesh, { "replicate", "shard" }),
  replicate_sync = not cfg.evaluate and { every = s.every, delay = s.delay, fragments = s.fragments,
    outer = ms.optim.sgd { lr = s.lr, momentum = 0.9, nesterov = true } } or nil,
})
local train = ms.trainer { model = model, optimizer = ms.optim.sgd { lr = 0.1 }, loss = ms.loss.mse }
local function batch(step)
  local length = s.length(step)
  return { inputs = ms.randn { 4, length, 8, seed = step }, targets = ms.zeros { 4, length, 2 } }
end
for step = 1, cfg.steps do
  if cfg.evaluate then
    local given = batch(step)
    given.counted_rows, given.first_row, given.sample_rows = s.counted, s.first, s.of_sample
    train:evaluate(coroutine.wrap(function() coroutine.yield(1, given) end))
  else
    train:step(batch(step))
  end
end
if rank == 0 then print("done") end
]]

local RANKS = " | rank 0 | rank 1"

-- The line, what the message has (nil: it is taken), and further settings.
local CASES = {
  { "s.every = 2", "ms.trainer: | every of replicate_sync is 3 on rank 0 and 2 on rank 1" },
  { "s.lr = 0.1", "learning rate | outer sgd | 0.7 | 0.1" },
  { "s.lr = function(step) return step > 3 and 0.1 or 0.7 end", "learning rate | outer sgd | step 6 | 0.7 | 0.1" },
  { "s.length = function(step) return step % 3 == 1 and 3 or 2 end",
    "shape | inputs | [4,3,8] | [4,2,8] | replicate_sync | step" },
  { "s.length = function(step) return step == 5 and 2 or 3 end", "shape | inputs | [4,3,8] | [4,2,8]" },
  { "s.lr = function(step) return 0.7 end" },
  { "s.counted = 3", "train:evaluate | batch.counted_rows is not given on rank 0", "evaluate=true" },
  { "s.first = 4", "train:evaluate | batch.first_row is not given on rank 0", "evaluate=true" },
  { "s.of_sample = 2", "train:evaluate | batch.sample_rows is 1 on rank 0 and 2 on rank 1", "evaluate=true" },
  { "", nil, "evaluate=true" },
  { "" },
}

describe("replicas of local steps, and evaluations", function()
  it("U1 are refused where they differ, by the cause", function()
    local path, runs = program.recipe(RECIPE), {}
    for i, case in ipairs(CASES) do
      runs[i] = { "run", path, "-n", "2", "--timeout", "60", "change=" .. case[1], case[3] }
    end
    local ended = program.run_all(runs)
    os.remove(path)
    for i, case in ipairs(CASES) do
      if case[2] then
        assert.not_equal(0, ended[i].status, case[1])
        has(ended[i].err, case[2] .. RANKS)
        assert.equal("", ended[i].out, case[1])
      else
        assert.equal(0, ended[i].status, case[1] .. ": " .. ended[i].err)
        assert.equal("done\n", ended[i].out, case[1])
      end
    end
  end)
end)
