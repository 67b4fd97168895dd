-- Models whose logits are NaN or infinite generate nothing, on all ranks alike.

local has = require("lua.support.message").has
local program = require("lua.support.program")

local GENERATED = [[
local ms = require "moonshard"
local cfg = ms.args { value = "nan", mesh = "1", temperature = 1.0 }
local value = ({ nan = 0 / 0, inf = 1 / 0, none = 0 })[cfg.value]
local model = ms.models.gpt2 { vocab = 16, layers = 1, dim = 8, heads = 2, seq = 16 }
ms.fully_shard(model, { mesh = cfg.mesh })
-- Only the second prompt's logits: its token is the only one with such a row.
local rows = model:parameter("embed.weight"):tolist()
rows[8][3] = value
model:set_parameter("embed.weight", ms.tensor(rows))
local ok, message = pcall(ms.generate, model,
  { prompt = { { 1, 2, 3 }, { 7 } }, tokens = 3, temperature = cfg.temperature })
ms.log.print(ok and "generated" or tostring(message))
ms.log.print(#select(2, ms.generate(model, { prompt = { 1 }, tokens = 5 })) .. " tokens")
]]

local function run(source, ...)
  local recipe = program.recipe(source)
  local ended = program.run { "run", recipe, ... }
  os.remove(recipe)
  return ended
end

describe("logits that are not finite", function()
  for _, value in ipairs({ "nan", "inf" }) do
    it("end generation with the number of the prompt: " .. value, function()
      for _, temperature in ipairs({ "0", "1" }) do
        local ended = run(GENERATED, "-n", "2", "mesh=2", "value=" .. value, "temperature=" .. temperature)
        assert.equal(0, ended.status, ended.err)
        has(ended.out, "prompt 2 | NaN or infinite | no token", "5 tokens")
      end
    end)
  end
end)
