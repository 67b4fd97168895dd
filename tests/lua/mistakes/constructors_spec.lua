-- A constructor that failed leaves nothing behind: the corrected call works, with the values that the model had.

local has = require("lua.support.message").has
local program = require("lua.support.program")

local RECIPE = [[
local ms = require "moonshard"
local Net = ms.module "Net"
function Net:init() self.fc1, self.fc2 = ms.nn.linear(8, 4), ms.nn.linear(4, 4) end
function Net:forward(x) return self.fc2(self.fc1(x)) end
local model = Net()
local function fails(call, o)
  local ok, why = pcall(call, model, o)
  assert(not ok, "it did not fail")
  print(why)
end
local function trainer(_, o)
  o.model, o.loss, o.optimizer = model, ms.loss.mse, o.optimizer or ms.optim.adamw { lr = 0.1 }
  return ms.trainer(o)
end
]]

local TRAIN = [[
local train = trainer(model, { optimizer = ms.optim.sgd { lr = 0.1, momentum = 0.9 } })
local m = train:step { inputs = ms.randn { 4, 8, seed = 1 }, targets = ms.zeros(4, 4) }
print(("loss %.17g"):format(m.loss), train:optimizer_state("fc1.weight", "momentum").shape[1])
]]

-- Each has: what fails, and what the messages say. All end with the same loss.
local FAILED = {
  { "", "" },
  { "fails(trainer, { checkpoint = { evry = 1 } })", "unknown option evry | every?" },
  { "fails(trainer, { checkpoint = { resume = 'none/here' } })", "none/here" },
  { "fails(trainer, { ema = 0.9, clip_grad_norm = { { 'fc9', 1 } } })", "rule \"fc9\"" },
  { "fails(trainer, { optimizer = ms.optim.adafactor { lr = 0.1 }, checkpoint = { every = -1 } })", "-1" },
  { "model:parameter('fc1.weight') fails(trainer, { checkpoint = { evry = 1 } })", "evry" },
  { "fails(trainer, { nothing = 1 }) fails(trainer, { checkpoint = { evry = 1 } })", "option nothing | evry" },
}

-- The same before the model is sharded.
local NOT_SHARDED = {
  { "fails(ms.fully_shard, { mesh = 2, unitz = {} })", "option unitz | units?" },
  { "fails(ms.fully_shard, { mesh = 2, units = { 'fc9' } })", "rule \"fc9\"" },
  { "fails(ms.fully_shard, { mesh = 2, freeze = { 'fc9' } })", "rule \"fc9\"" },
  { "fails(ms.lora, { { 'fc9', { rank = 2 } } })", "rule \"fc9\"" },
}

describe("a constructor that failed", function()
  it("leaves nothing behind: the corrected call trains as if it had been the first", function()
    local paths, runs, facts = {}, {}, {}
    local function add(text, fact)
      paths[#paths + 1] = program.recipe(text)
      runs[#runs + 1], facts[#facts + 1] = { "run", paths[#paths], "-n", "2" }, fact
    end
    for _, row in ipairs(FAILED) do
      add(RECIPE .. "ms.fully_shard(model, { mesh = 2 })\n" .. row[1] .. "\n" .. TRAIN, row[2])
    end
    for _, row in ipairs(NOT_SHARDED) do
      add(RECIPE .. row[1] .. "\nms.fully_shard(model, { mesh = 2 })\n" .. TRAIN, row[2])
    end
    local ended, expected = program.run_all(runs), nil
    for i, run in ipairs(ended) do
      os.remove(paths[i])
      assert.equal(0, run.status, run.err)
      if facts[i] ~= "" then has(run.out, facts[i]) end
      local line = run.out:match("loss [^\n]+")
      expected = expected or line
      assert.equal(expected, line)
    end
    assert.truthy(expected)
  end)

  it("does not open a trained model to a second optimizer", function()
    local path = program.recipe(RECIPE .. "ms.fully_shard(model, { mesh = 2 })\n" .. TRAIN .. "fails(trainer, {})")
    local run = program.run({ "run", path, "-n", "2" })
    os.remove(path)
    assert.equal(0, run.status, run.err)
    has(run.out, "different optimizer | same optimizer | rules")
  end)
end)
