-- What a plain training run loads: not the parts of the Lua layer that it does not use, which would cost every start.

local program = require("lua.support.program")

local RECIPE = [==[
local ms = require "moonshard"
local model = ms.models.gpt2 { vocab = 256, layers = 1, dim = 8, heads = 2, seq = 4 }
ms.fully_shard(model, { mesh = ms.init_device_mesh("cpu", "1", { "shard" }) })
local data = ms.data.text { files = "LICENSE", seq = 4, batch = 1 }
local train = ms.trainer { model = model, optimizer = ms.optim.adamw { lr = 1e-3 }, loss = ms.loss.cross_entropy }
for step, batch in data:batches(1) do ms.log(step, train:step(batch)) end
for name in pairs(package.loaded) do print("loaded " .. name) end
]==]

local UNUSED = {
  "jinja", "huggingface", "lora", "evaluate", "sweep", "scaling", "price", "tune", "explain", "page", "check",
  "calibrate", "repl", "display", "checkpoint.policy", "checkpoint.manifest", "base.names.other_names",
}

describe("a plain training run", function()
  it("loads no part that it does not use", function()
    local path = program.recipe(RECIPE)
    local ended = program.run({ "run", path })
    os.remove(path)
    assert.equal(0, ended.status, ended.err)
    assert.truthy(ended.out:find("loaded moonshard.train.step\n", 1, true))
    for _, part in ipairs(UNUSED) do
      for name in ended.out:gmatch("loaded moonshard%.(%S+)") do
        assert.is_false(name == part or name:sub(1, #part + 1) == part .. ".", "moonshard." .. name)
      end
    end
  end)
end)
