-- Rests of gradients (error_feedback) where a step is not like the others: a parameter without a gradient, a step that
-- is refused, and another number of counted targets or micro-batches. Sums in 4 bits, over the shards and the replicas.

local breadth = require("lua.support.breadth")
local has = require("lua.support.message").has
local json = require("cjson")
local program = require("lua.support.program")
local scratch = require("lua.support.scratch")

-- Two weights, of which a step reads those whose inputs it has. Prints the norms of what the step reduced: as it says,
-- and of the gradients.
local RECIPE = [[
  local ms = require "moonshard"
  local cfg = ms.args { mesh = "1x2", layout = "rows", nan = false }
  local mesh = ms.init_device_mesh(cfg.device, cfg.mesh, { "replicate", "shard" })
  local model = ms.module { a = ms.parameter { 33, 8, init = "normal" }, b = ms.parameter { 40, 30, init = "normal" },
    forward = function(self, batch)
      local loss = (self.a * self.a * batch.a):sum()
      return batch.b and loss + (self.b * self.b * batch.b):sum() or loss
    end }
  ms.fully_shard(model, { mesh = mesh, layout = cfg.layout, mp_policy = {
    reduce_dtype = { shard = "i4", replicate = "i4", error_feedback = true } } })
  local train = ms.trainer { model = model, optimizer = ms.optim.sgd { lr = cfg.nan and 0 or 0.01 },
    forward = function(m, batch) return m(batch) end }
  local function batch(both, value)
    local a = ms.randn { 33, 8, seed = 1 }
    return { a = value and a * value or a, b = both and ms.randn { 40, 30, seed = 2 } or nil }
  end
  local function norm(name)
    local sum = 0
    for _, x in ipairs(train:gradient(name):reshape(-1):tolist()) do sum = sum + x * x end
    return sum
  end
  local function step(both)
    local m = train:step(batch(both))
    print(("%.4f"):format(m.grad_norm / math.sqrt(norm("a") + (both and norm("b") or 0))))
  end
  step(true)
  if cfg.nan then -- the weights stay, so gradients without rests have the bits of the first step
    local first = norm("b")
    print(pcall(train.step, train, batch(true, math.huge)) and "taken" or "refused")
    step(true)
    print(norm("b") == first)
    step(true)
    print(norm("b") == first)
  else
    step(false)
    step(true)
  end
]]

describe("error feedback", function()
  local recipe = program.recipe(RECIPE)
  teardown(function()
    os.remove(recipe)
    scratch.clear()
  end)

  local function run(...)
    return program.run { "run", recipe, "-n", "2", ... }
  end

  it("Q6 leaves the rests of a parameter alone that has no gradient in a step", function()
    for _, mesh in ipairs({ "1x2", "2x1" }) do
      local ended = run("mesh=" .. mesh)
      assert.equal(0, ended.status, ended.err)
      assert.equal("1.0000\n1.0000\n1.0000\n", ended.out, mesh)
    end
  end)

  it("Q6 refuses parameters with and without a gradient that are reduced together", function()
    local ended = run("layout=ragged")
    assert.not_equal(0, ended.status)
    has(ended.err, "unit root | error_feedback | 'b'")
  end)

  it("Q6 goes on after a step that is refused, with rests of zero", function()
    local ended = run("nan=true")
    assert.equal(0, ended.status, ended.err)
    assert.equal("1.0000\nrefused\n1.0000\ntrue\n1.0000\nfalse\n", ended.out)
  end)

  -- The distance of weights from those of sums in f32.
  local function distances(settings, environment)
    local function weights(...)
      local out = scratch.path()
      local list = { "run", "tests/lua/formats/recipes/counted_targets.lua", "-n", "2", "out=" .. out, ... }
      for name, value in pairs(settings) do list[#list + 1] = ("%s=%s"):format(name, tostring(value)) end
      local ended = program.run(list, environment)
      assert.equal(0, ended.status, ended.err)
      assert.equal("", (ended.err:gsub("[^\n]*step[^\n]*\n?", "")))
      return json.decode(scratch.read(out))
    end
    local exact = weights("sums=f32")
    local function distance(found)
      local sum = 0
      for i, value in ipairs(found) do sum = sum + (value - exact[i]) ^ 2 end
      return math.sqrt(sum)
    end
    return distance(weights("error_feedback=true")), distance(weights("error_feedback=false"))
  end

  it("Q6 is nearer to f32 than without it where the number of counted targets changes from step to step", function()
    for _, settings in ipairs(breadth.few {
      { mesh = "1x2", keep = 16 }, { mesh = "1x2", micro = 2 }, { mesh = "2x1", micro = 2, sync = "last" },
      { mesh = "2x1", reduction = "mean" }, { mesh = "1x2", reduction = "mean" }, { mesh = "2x1" }, { mesh = "1x2" },
    }) do
      local with, without = distances(settings)
      assert(with < 0.7 * without, ("%s: %g with feedback, %g without"):format(settings.mesh, with, without))
    end
  end)

  it("Q6 A1 is nearer to f32 than without it on the device cuda", function()
    if os.getenv("MOONSHARD_CONFIG") ~= "release" then return end
    local library = ("MOONSHARD_CUDA_LIBRARY=%s/tests/emulated/libmoonshard_cuda_emulated.so"):format(
      os.getenv("MOONSHARD_BIN"):match("^(.*)/"))
    local with, without = distances({ mesh = "1x2", device = "cuda" }, program.emulated_cuda(library))
    assert(with < 0.7 * without, ("%g with feedback, %g without"):format(with, without))
  end)
end)
