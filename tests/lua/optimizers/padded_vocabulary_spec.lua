-- Rows of padding of a vocabulary, and the optimizers whose updates of the other rows depend on them.

local has = require("lua.support.message").has
local program = require("lua.support.program")

-- Prints what follows a step over tokens of the vocabulary.
local RECIPE = [[
local ms = require "moonshard"
local re = ms.re
local cfg = ms.args { family = "gpt2", pad = 1, optimizer = "adamw", tied = false, freeze = "" }
local o = { vocab = 30, layers = 1, dim = 8, heads = 2, seq = 8, pad_vocab_to_multiple_of = cfg.pad }
if cfg.family == "llama" then o.kv_heads, o.ffn = 2, 16 end
if cfg.family ~= "bert" then o.tied = cfg.tied end
local model = ms.models[cfg.family](o)
local frozen = cfg.freeze ~= "" and { { re(cfg.freeze), true } } or nil
ms.fully_shard(model, { mesh = "1x1", seed = 3, freeze = frozen })
local adamw, optimizer = ms.optim.adamw { lr = 0.01 }, nil
if cfg.optimizer == "muon" then
  optimizer = { { re"head.weight|.wq.weight", ms.optim.muon { lr = 0.02 } }, { re".", adamw } }
else
  optimizer = ms.optim[cfg.optimizer] { lr = 0.01 }
end
local train = ms.trainer { model = model, optimizer = optimizer, loss = ms.loss.cross_entropy }
local batch = { tokens = ms.tensor { dtype = "i32", { 1, 7, 2, 9, 29, 4, 3, 5 } },
  targets = ms.tensor { dtype = "i32", { 7, 2, 9, 29, 4, 3, 5, 0 } } }
if cfg.family == "bert" then batch.predicts = "masked" end
train:step(batch)
print(("%.7g"):format(train:evaluate(function(_, i) if not i then return 1, batch end end)))
]]

describe("rows of padding of a vocabulary", function()
  local path
  setup(function() path = program.recipe(RECIPE) end)
  teardown(function() os.remove(path) end)

  local function run(...)
    local ended = program.run { "run", path, ... }
    assert.equal(0, ended.status, ended.err)
    return ended
  end

  it("S13 change no update of the optimizers that look at elements, and nothing is said", function()
    for _, optimizer in ipairs({ "adamw", "lion", "sgd" }) do
      local plain, padded = run("optimizer=" .. optimizer), run("optimizer=" .. optimizer, "pad=64")
      assert.equal(plain.out, padded.out)
      assert.equal("", plain.err .. padded.err)
    end
  end)

  it("S13 change those of Muon and Adafactor, with a warning by parameter", function()
    for name, case in pairs({
      muon = { "head.weight (34) | ms.optim.muon", "optimizer=muon", "pad=64" },
      adafactor = { "embed.weight (2) | head.weight (2) | ms.optim.adafactor", "optimizer=adafactor", "pad=32" },
      llama = { "embed.weight (2) | ms.optim.adafactor", "optimizer=adafactor", "pad=32", "family=llama",
        "tied=true" },
      bert = { "embed.weight (2) | head.bias (2)", "optimizer=adafactor", "pad=32", "family=bert" },
      frozen = { "head.weight (2)", "optimizer=adafactor", "pad=32", "freeze=embed" },
    }) do
      local ended = run(unpack(case, 2))
      has(ended.err, "warning | padding | pad_vocab_to_multiple_of | " .. case[1])
      if name == "frozen" then assert.is_nil(ended.err:find("embed.weight", 1, true)) end
    end
    assert.equal("", run("optimizer=adafactor", "pad=30").err)
    assert.equal("", run("optimizer=muon", "pad=64", "freeze=head").err)
  end)
end)
