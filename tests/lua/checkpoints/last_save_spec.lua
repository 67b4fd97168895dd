-- What a run's last checkpoint has: all that was trained, also by a trainer that saves nothing itself.

local program = require("lua.support.program")
local scratch = require("lua.support.scratch")

-- Two trainers take turns; the second one has the last step, after the first one has saved.
local RECIPE = [[
local ms = require "moonshard"
local cfg = ms.args { dir = "", resume = "", mesh = "1x1", turns = 2 }
local model = ms.nn.sequential { ms.nn.linear(4, 4), ms.nn.linear(4, 2) }
ms.fully_shard(model, { mesh = ms.init_device_mesh(cfg.device, cfg.mesh, { "replicate", "shard" }) })
local optimizer = ms.optim.adamw { lr = 0.1 }
local function trainer(checkpoint)
  return ms.trainer { model = model, optimizer = optimizer, loss = ms.loss.mse, checkpoint = checkpoint }
end
local first, second = trainer { dir = cfg.dir, every = 2, resume = cfg.resume }, trainer()
for step = first.steps_done + 1, cfg.turns do
  for turn, train in ipairs({ first, second }) do
    train:step { inputs = ms.randn { 4, 4, seed = 2 * step + turn }, targets = ms.zeros { 4, 2 } }
  end
end
print("weights", table.concat(model:parameter("0.weight"):reshape(-1):tolist(), " "))
]]

describe("the last checkpoint of a run", function()
  teardown(scratch.clear)

  it("U2 has what another trainer of the model did after it was due", function()
    local recipe, found = program.recipe(RECIPE), {}
    for _, ranks in ipairs({ "1", "2" }) do
      local folder = scratch.path()
      for _, resume in ipairs({ "", "auto" }) do
        local ended = program.run { "run", recipe, "-n", ranks, "dir=" .. folder, "resume=" .. resume,
          "mesh=1x" .. ranks }
        assert.equal(0, ended.status, ended.err)
        found[resume] = assert(ended.out:match("weights\t([^\n]+)"), ended.out)
      end
      assert.equal(found[""], found.auto)
    end
    os.remove(recipe)
  end)
end)
