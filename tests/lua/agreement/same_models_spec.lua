-- What ranks do together on a model or a trainer is refused, on all of them, where they are at different ones of the
-- same parameters: it would mix these.

local breadth = require("lua.support.breadth")
local has = require("lua.support.message").has
local program = require("lua.support.program")
local scratch = require("lua.support.scratch")

-- Rank 1 has the models in the other order, as a loop by pairs has.
local RECIPE = [[
local ms = require "moonshard"
local cfg = ms.args { call = "", at = "", swap = true }
local function made(seed)
  local model = ms.models.gpt2 { vocab = 256, layers = 1, dim = 8, heads = 2, seq = 8 }
  ms.lora(model, { { ms.re"fc", { rank = 2 } } }, { train = { "head" } })
  ms.fully_shard(model, { seed = seed })
  return model, ms.trainer { model = model, optimizer = ms.optim.adamw { lr = 0.1 }, loss = ms.loss.cross_entropy,
    ema = 0.9 }
end
local m, t = made(1)
local other, of_other = made(2)
local x = ms.zeros { 2, 8, dtype = "i32" }
for _, train in ipairs { t, of_other } do train:step { tokens = x, targets = x } end
local one = m:state_dict { full = true }
if cfg.swap and ms.world().rank == 1 then m, t = other, of_other end
assert(loadstring("local ms, m, t, x, one, at = ... " .. cfg.call))(ms, m, t, x, one, cfg.at)
if ms.world().rank == 0 then print("done") end
]]

local CALLS = {
  't:step { tokens = x, targets = x }',
  'local n = 0 t:evaluate(function() n = n + 1 if n == 1 then return n, { tokens = x, targets = x } end end)',
  't:with_ema(function() end)',
  't:parameter("head.weight")',
  't:gradient("head.weight")',
  't:optimizer_state("head.weight", "exp_avg")',
  't:set_parameter("head.weight", ms.ones(256, 8))',
  't:set_rules { lr = 0.2 } t:step { tokens = x, targets = x }',
  'm(x)',
  'm:parameter("head.weight")',
  'm:set_parameter("head.weight", ms.ones(256, 8))',
  'm:state_dict { full = true }',
  'm:load_state_dict(m:state_dict())',
  'm:load_state_dict(one, { full = true })',
  'm:unshard()',
  'm:reshard()',
  'ms.with_full_params(m, function() end)',
  'ms.lora.merge(m)',
  'ms.lora.save(m, at)',
  'ms.lora.save(t, at, { ema = true })',
  'ms.huggingface.save(m, at)',
  'ms.huggingface.save(t, at, { ema = true })',
  'ms.checkpoint.save(t, at)',
  'ms.evaluate.perplexity(t, { files = "tests/lua/recipes/text.txt" })',
}

describe("ranks at different models", function()
  local path, ended

  setup(function()
    path = program.recipe(RECIPE)
    ended = {}
    local batch, size = {}, 0
    for i, call in ipairs(CALLS) do
      for _, swap in ipairs(breadth.few({ "false", "true" })) do
        batch[call .. swap] = { "run", path, "-n", "2", "--timeout", "60", "call=" .. call, "at=" .. scratch.path(),
          "swap=" .. swap }
        size = size + 1
      end
      if size >= 8 or i == #CALLS then
        for name, one in pairs(program.run_all(batch)) do ended[name] = one end
        batch, size = {}, 0
      end
    end
  end)
  teardown(function()
    os.remove(path)
    scratch.clear()
  end)

  it("U1 are refused in every call that ranks make together", function()
    for _, call in ipairs(CALLS) do
      local refused = ended[call .. "true"]
      assert.not_equal(0, refused.status, call)
      has(refused.err, "models | rank 0 | number 1 | rank 1 | number 2")
      assert.equal("", refused.out, call)
    end
  end)

  it("U1 are not what ranks at the same one are taken for #all", function()
    for _, call in ipairs(CALLS) do
      local one = ended[call .. "false"]
      assert.equal(0, one.status, call .. ": " .. one.err)
      assert.equal("done\n", one.out:match("[^\n]*\n$"), call)
    end
  end)
end)
