-- Where a value that is not finite comes from: infinities that are values, of masks, of searches for a maximum and of
-- parts of classes that are padding, are no such place.

local has = require("lua.support.message").has
local program = require("lua.support.program")

-- Prints what a step says whose loss has infinities that are values, and an overflow in relu(x * 1e38) * 1e38, or none.
local RECIPE = [[
local ms = require "moonshard"
local cfg = ms.args { case = "", overflow = "op", micro = 1, mesh = "1x1", fused = false }
local over = cfg.mesh ~= "1x1"
local model = ms.models.gpt2 { vocab = 30, layers = 1, dim = 8, heads = 2, seq = 8, pad_vocab_to_multiple_of = 64 }
ms.fully_shard(model, { mesh = ms.init_device_mesh("cpu", cfg.mesh, { "shard", "tensor" }), seed = 1,
  placements = over and ms.rules.tensor_parallel(model) or nil })
local cross_entropy = ms.loss.cross_entropy { fused = cfg.fused }
local ones = ms.ones { 8, 8 }
local harmless = {
  [""] = function(_, b) return b.factor * 0 end,
  logsumexp = function(y) return y:logsumexp(-1) end,
  ["masked scores"] = function(y)
    return ms.ops.where(ones:triu(1):gt(0), -math.huge, y:matmul(y:transpose(0, 1))):softmax()
  end,
  ["added mask"] = function(y)
    return (y:matmul(y:transpose(0, 1)) + ms.ops.where(ones:triu(1):gt(0), -math.huge, 0)):softmax()
  end,
  ["largest"] = function(y) return ms.ops.where(y:gt(5), y, -math.huge):max(-1):clamp { min = -1 } end,
  ["scaled infinities"] = function(y) return ((y * 0 - math.huge) * 2 + 1):exp() end,
  ["in place"] = function(y) return ms.ops.where(y:gt(5), y, -math.huge):relu():tanh() end,
  ["repeated"] = function(y)
    local both = ms.ops.cat({ y, y * 0 - math.huge }, 1)
    return ms.ops.where(both:slice(1, 28, 32):gt(5), 1, 0)
  end,
  ["mask of the batch"] = function(y, b) return (y:matmul(y:transpose(0, 1)) + b.mask):softmax() end,
}
local function forward(net, b)
  local y = net(b.tokens)
  local loss = cross_entropy(y, b.targets) + harmless[cfg.case](y:reshape(-1, 30), b):cast("f32"):mean()
  if cfg.overflow == "op" then loss = loss + ((loss * 0 + 1e38) * b.factor:mean()):relu() end
  if cfg.overflow == "constant" then loss = loss + math.huge end
  return loss
end
local train = ms.trainer { model = model, optimizer = ms.optim.sgd { lr = 0 }, forward = forward,
  micro_batches = cfg.micro }
local function row(first) return { first, 2, 3, 4, 5, 6, 7, 8 } end
local batch = { tokens = ms.tensor { dtype = "i32", row(1), cfg.micro > 1 and row(9) or nil } }
batch.targets = batch.tokens
batch.factor = cfg.micro > 1 and ms.tensor { 1, 1e38 } or ms.tensor { 1e38 }
if cfg.case == "mask of the batch" then
  local rows = {}
  for i = 1, 8 * cfg.micro do
    rows[i] = {}
    for j = 1, 8 do rows[i][j] = j > (i - 1) % 8 + 1 and -math.huge or 0 end
  end
  batch.mask = ms.tensor(rows)
end
local ok, raised = pcall(train.step, train, batch)
if ms.world().rank == 0 then print(ok, raised) end
]]

describe("the place where a value that is not finite comes from", function()
  local path
  setup(function() path = program.recipe(RECIPE) end)
  teardown(function() os.remove(path) end)

  local CASES = { "", "logsumexp", "masked scores", "added mask", "largest", "scaled infinities", "in place",
    "repeated", "mask of the batch" }

  local function run(ranks, ...)
    local ended = program.run { "run", path, "-n", ranks, ... }
    assert.equal(0, ended.status, ended.err)
    return ended.out
  end

  for _, case in ipairs(CASES) do
    it("T16 is not an infinity that is a value: " .. case, function()
      local given = "case=" .. case
      has(run("1", given, "overflow=none"), "true")
      local said = run("1", given)
      has(said, "loss | step 1 | mul, forward | wrote inf | rank 0")
      assert.equal(case == "mask of the batch", said:find("input mask holds -inf", 1, true) ~= nil, said)
      has(run("1", given, "micro=2"), "loss | step 1 | mul, forward | wrote inf | rank 0")
    end)
  end

  it("T16 is not a part of the classes that is padding", function()
    for _, given in ipairs({ "case=logsumexp", "fused=true", "fused=false" }) do
      has(run("2", "mesh=1x2", given), "mul, forward | wrote inf | rank 0")
    end
  end)

  it("T16 is told where nothing else is found", function()
    has(run("1", "case=logsumexp", "overflow=constant"), "loss | step 1 | infinity | wrote inf | rank 0")
  end)
end)
