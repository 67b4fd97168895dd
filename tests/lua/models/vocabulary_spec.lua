-- A vocabulary that is padded for kernels and shards: what is seen of it, and what padding gets.

local ms = require("moonshard")
local message = require("lua.support.fixture").message
local has = require("lua.support.message").has

local function shape_of(model, wanted)
  for name, parameter in model:named_parameters() do
    if name == wanted then return parameter.shape end
  end
end

describe("a padded vocabulary", function()
  local function padded(model_of, changes)
    local config = { vocab = 13, layers = 1, dim = 8, heads = 2, seq = 4, ffn = 12, pad_vocab_to_multiple_of = 8 }
    for name, value in pairs(changes or {}) do config[name] = value end
    return model_of(config)
  end
  local tokens = { 3, 1, 12, 0 }

  for name, model_of in pairs({ gpt2 = ms.models.gpt2, llama = ms.models.llama }) do
    it("is seen in shapes of weights alone: " .. name, function()
      local with, without = padded(model_of), padded(model_of, { pad_vocab_to_multiple_of = 1 })
      local x = ms.tensor { tokens, dtype = "i32" }
      assert.same({ 16, 8 }, shape_of(with, "embed.weight"))
      assert.same({ 16, 8 }, shape_of(with, "head.weight"))
      assert.same({ 1, 4, 13 }, with(x).shape)
      assert.same(without(x):tolist(), with(x):tolist())
      local text = message(with, ms.tensor { { 13 }, dtype = "i32" })
      has(text, "token 13 | position 0 | [0,13)")
    end)

    it("has no gradient in its padding, tied or not: " .. name, function()
      for _, tied in ipairs({ true, false }) do
        local model = padded(model_of, { tied = tied })
        local optimizer, targets = ms.optim.adamw { lr = 0.1 }, { 1, 12, 0, 5 }
        local train = ms.trainer { model = model, optimizer = optimizer, loss = ms.loss.cross_entropy }
        train:step { tokens = ms.tensor { tokens, dtype = "i32" }, targets = ms.tensor { targets, dtype = "i32" } }
        for parameter in pairs(tied and { ["embed.weight"] = 1 } or { ["embed.weight"] = 1, ["head.weight"] = 1 }) do
          local gradient = train:gradient(parameter):tolist()
          for row = 14, 16 do assert.same({ 0, 0, 0, 0, 0, 0, 0, 0 }, gradient[row]) end
          assert.is_not.same({ 0, 0, 0, 0, 0, 0, 0, 0 }, gradient[13])
        end
        has(message(train.step, train, { tokens = ms.tensor { { 1 }, dtype = "i32" },
          targets = ms.tensor { { 13 }, dtype = "i32" } }), "target 13 | row 0")
      end
    end)
  end
end)
