-- What dropout draws belongs to a row of the global batch and to an element of it: the same masks on every mesh and for
-- every way to divide a batch, others for other rows; so a run with dropout has the numbers of one rank.

local json = require("moonshard.base.text.json")
local breadth = require("lua.support.breadth")
local program = require("lua.support.program")
local scratch = require("lua.support.scratch")
local trained = require("lua.support.trained")

local RECIPE = "tests/lua/models/recipes/dropout_rows.lua"

-- How many of 40 steps have the mask of an earlier one.
local REPEATED = [[
local ms = require "moonshard"
local cfg = ms.args { seed = 1 }
local M = ms.module "M"
function M:init() self.w = ms.parameter { 64, init = "ones" } end
function M:forward(x) return ms.ops.dropout(x * self.w, { p = 0.5 }) end
local model = M()
ms.fully_shard(model, { mesh = "1" })
local train = ms.trainer { model = model, optimizer = ms.optim.sgd { lr = 0 }, seed = cfg.seed,
  forward = function(net, batch) return net(batch.x):sum() end }
local seen, again = {}, 0
for _ = 1, 40 do
  train:step { x = ms.ones { 1, 64 } }
  local mask = train:gradient("w"):values():gsub("[^02]", "")
  if seen[mask] then again = again + 1 end
  seen[mask] = true
end
print(again .. " masks again")
]]

local function words_of(ranks, out, settings)
  local words = { "run", RECIPE, "-n", tostring(ranks), "out=" .. out, unpack(settings) }
  words.environment = settings.environment
  return words
end

-- The masks of each run, by its name.
local function masks_of(runs)
  local all, outs = {}, {}
  for name, settings in pairs(runs) do
    outs[name] = scratch.path()
    all[name] = words_of(settings.ranks, outs[name], settings)
  end
  local masks = {}
  for name, ended in pairs(program.run_all(all)) do
    assert.equal(0, ended.status, ("%s: %s"):format(name, ended.err))
    local file = assert(io.open(outs[name]))
    masks[name] = json.decode(file:read("*a"))
    file:close()
  end
  return masks
end

-- Ranks that share heads of keys repeat these, in ops that fewer ranks do not need.
local SHARED_HEADS = [[
  local ms = require "moonshard"
  local re = ms.re
  local Net = ms.module "Net"
  function Net:init()
    self.wq, self.wk, self.wv = ms.nn.linear(8, 16), ms.nn.linear(8, 8), ms.nn.linear(8, 8)
    self.wo = ms.nn.linear(16, 8)
  end
  function Net:forward(x)
    local q, k, v = self.wq(x):reshape(4, 6, 4, 4), self.wk(x):reshape(4, 6, 2, 4), self.wv(x):reshape(4, 6, 2, 4)
    local y = ms.nn.masked_attention(q, k, v, { prefix = 2 }):reshape(4, 6, 16)
    return self.wo(y):dropout { p = 0.5 }
  end
  local model = Net()
  ms.fully_shard(model, {
    mesh = ms.init_device_mesh("cpu", { 1, ms.world().size }, { "shard", "tensor" }),
    placements = {
      { "wq", { tensor = "colwise", heads = 4 } }, { re"w[kv]", { tensor = "colwise", kv_heads = 2 } },
      { "wo", { tensor = "rowwise" } },
    },
  })
  local train = ms.trainer { model = model, optimizer = ms.optim.sgd { lr = 1 }, loss = ms.loss.mse }
  for seed = 1, 2 do
    local m = train:step { inputs = ms.randn { 4, 6, 8, seed = seed }, targets = ms.ones(4, 6, 8) }
    ms.log.print(("%.4f"):format(m.loss))
  end
]]

local function assert_masks(masks, expected)
  for name, places in pairs(masks) do
    for place, rows in pairs(places) do assert.same(expected[place], rows, ("%s: %s"):format(name, place)) end
  end
end

describe("dropout", function()
  teardown(scratch.clear)

  local alone

  setup(function() alone = masks_of({ alone = { ranks = 1 } }).alone end)

  it("S15 draws the same masks on every mesh and for every number of micro-batches", function()
    assert_masks(masks_of({
      shards = { ranks = 2, "mesh=1x2" }, replicas = { ranks = 4, "mesh=4x1" }, both = { ranks = 4, "mesh=2x2" },
      parts = { ranks = 1, "micro=8" }, more = { ranks = 2, "mesh=2x1", "micro=2" },
    }), alone)
    assert_masks(masks_of({
      all = { ranks = 4, "mesh=1x4", "micro=2" },
      dealt = { ranks = 2, "mesh=1x2", "by=step", "micro=2" }, dealt_more = { ranks = 4, "mesh=2x2", "by=step" },
    }), alone)
  end)

  it("S15 draws other masks for every row, and one for what has no rows", function()
    for place, rows in pairs(alone) do
      local masks, different = {}, 0
      for _, row in ipairs(rows) do
        local mask = table.concat(row, " ")
        if not masks[mask] then masks[mask], different = true, different + 1 end
      end
      -- per_row draws three numbers for each of the eight rows, of which some can be the same.
      if place == "constant" then assert.equal(1, different)
      elseif place == "per_row" then assert(different > 2, place)
      else assert.equal(#rows, different, place) end
      local kept, count = 0, 0
      for _, row in ipairs(rows) do
        for _, value in ipairs(row) do
          assert.is_true(value == 0 or value == 2)
          kept, count = kept + value / 2, count + 1
        end
      end
      local few = place == "constant" and 18 or place == "per_row" and 24 or count -- numbers that were drawn
      assert(math.abs(kept / count - 0.5) < 2.5 / math.sqrt(few), ("%s keeps %d of %d"):format(place, kept, count))
    end
  end)

  it("S15 draws the same masks where ranks share heads of keys", function()
    local path = program.recipe(SHARED_HEADS)
    local runs = {}
    for ranks = 1, 4, 3 do runs[ranks] = { "run", path, "-n", tostring(ranks) } end
    local ended = program.run_all(runs)
    os.remove(path)
    assert.equal(0, ended[1].status, ended[1].err)
    assert.equal(0, ended[4].status, ended[4].err)
    assert.equal(ended[1].out, ended[4].out)
  end)

  it("S15 draws others from another seed", function()
    local other = masks_of({ seed = { ranks = 1, "seed=1" } }).seed
    for place, rows in pairs(other) do assert.not_same(alone[place], rows, place) end
  end)

  it("A1 draws the same on the device cuda, with its kernels", function()
    local kernels = os.getenv("MOONSHARD_CONFIG") == "thread" and "host" or "emulated"
    local library = ("MOONSHARD_CUDA_LIBRARY=%s/tests/emulated/libmoonshard_cuda_%s.so"):format(
      os.getenv("MOONSHARD_BIN"):match("^(.*)/"), kernels)
    assert_masks(masks_of({
      cuda = { ranks = 2, "mesh=1x2", "device=cuda", "micro=2", environment = program.emulated_cuda(library) },
      dealt = { ranks = 2, "mesh=2x1", "device=cuda", "by=step", environment = program.emulated_cuda(library) },
    }), alone)
  end)

  it("S15 S6 trains as one rank does on the global batch", function()
    local one = trained.run(1, { mesh = "1x1", dropout = true })
    for _, settings in ipairs(breadth.few {
      { 2, mesh = "1x2" }, { 4, mesh = "2x2", micro = 3 }, { 4, mesh = "4x1" }, { 4, mesh = "1x4", recompute = "ops" },
      { 1, mesh = "1x1", micro = 6 }, { 2, mesh = "2x1", micro = 2, sync = "last" },
    }) do
      local ranks = table.remove(settings, 1)
      trained.assert_parity(one, trained.run(ranks, trained.with(settings, { dropout = true })), 1e-5)
    end
  end)

  for _, seed in ipairs({ 2 ^ 21, 2 ^ 32, 2 ^ 45 + 1, 2 ^ 53 - 1 }) do
    it(("S15 draws another mask in every step with the seed %.0f"):format(seed), function()
      local recipe = program.recipe(REPEATED)
      local ended = program.run { "run", recipe, ("seed=%.0f"):format(seed) }
      os.remove(recipe)
      assert.equal(0, ended.status, ended.err)
      assert.equal("0", ended.out:match("^(%d+) masks again"))
    end)
  end
end)
