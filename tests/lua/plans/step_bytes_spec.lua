-- What a plan says that a step moves, for any number of micro-batches, is what a run counts in one.

local breadth = require("lua.support.breadth")
local json = require("moonshard.base.text.json")
local program = require("lua.support.program")
local scratch = require("lua.support.scratch")

local RECIPE = [[
local ms = require "moonshard"
local re = ms.re
local cfg = ms.args { mesh = "2x2", micro = 1, sync = "every", reshard = true }
local model = ms.models.llama { vocab = 64, layers = 2, dim = 16, heads = 2, ffn = 24, seq = 8 }
ms.fully_shard(model, { mesh = ms.init_device_mesh("cpu", cfg.mesh, { "replicate", "shard" }),
  units = { re"^layers\\.\\d+$" } })
local train = ms.trainer { model = model, optimizer = ms.optim.adamw { lr = 1e-3 }, loss = ms.loss.cross_entropy,
  micro_batches = cfg.micro, gradient_sync = cfg.sync, reshard_after_backward = cfg.reshard }
local tokens = ms.zeros({ cfg.micro, 8 }, { dtype = "i32" })
for step = 1, 2 do ms.log(step, train:step { tokens = tokens, targets = tokens }) end
]]

describe("the bytes of a step", function()
  teardown(scratch.clear)

  for _, micro in ipairs(breadth.few { 1, 2, 5, 3 }) do
    for _, sync in ipairs({ "every", "shard", "last" }) do
      it(("are those of %d micro-batches with sums in %s"):format(micro, sync), function()
        local recipe, metrics = program.recipe(RECIPE), scratch.path()
        for _, reshard in ipairs(breadth.few { "true", "false" }) do
          local words = { "micro=" .. micro, "sync=" .. sync, "reshard=" .. reshard }
          local ran = program.run { "run", recipe, "-n", "4", "--metrics", metrics, unpack(words) }
          local planned = program.run { "plan", recipe, "-n", "4", "--json", unpack(words) }
          assert.equal(0, ran.status, ran.err)
          assert.equal(0, planned.status, planned.err)
          local moved, said = json.decode(scratch.read(metrics):match("([^\n]+)\n$")).comm_bytes, {}
          for _, row in ipairs(json.decode(planned.out).traffic) do said[row.dim] = row.inside_bytes end
          assert.same(moved, said)
        end
        os.remove(recipe)
      end)
    end
  end
end)
