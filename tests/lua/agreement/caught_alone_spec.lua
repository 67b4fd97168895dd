-- A recipe that catches an error which one rank had, and the others had not, leaves its ranks a call apart: what runs
-- next would join batches of different steps. It is refused, whatever failed; where all ranks had an error, they go on.

local has = require("lua.support.message").has
local program = require("lua.support.program")

local RECIPE = [==[
local ms = require "moonshard"
local cfg = ms.args { how = "none", all = false, folder = "" }
local rank = ms.world().rank
local bad = rank == 1 or cfg.all
local model = ms.nn.sequential { ms.nn.linear(4, 8), ms.ops.relu, ms.nn.linear(8, 2) }
ms.fully_shard(model, { mesh = "1x2" })
local train = ms.trainer { model = model, optimizer = ms.optim.sgd { lr = 0.1 }, loss = ms.loss.mse }
local function batch(i)
  return { inputs = ms.randn { 4, 4, seed = 2 * i + rank }, targets = ms.randn { 4, 2, seed = 100 + 2 * i + rank } }
end
local function set(fails)
  local n = 0
  return function()
    n = n + 1
    if fails and n == 2 then error("cannot open the file") end
    if n < 3 then return n, batch(50 + n) end
  end
end
local ways = {
  none = function() end,
  iterator = function() train:evaluate(set(bad)) end,
  shape = function() train:set_parameter("0.bias", ms.zeros { bad and 7 or 8 }) end,
  name = function() return model:parameter(bad and "none" or "0.bias") end,
  batch = function() train:step(bad and 5 or batch(40)) end,
  call = function() return model(ms.zeros { 2, bad and 5 or 4 }) end,
  save = function() ms.checkpoint.save(train, bad and 5 or cfg.folder) end,
  within = function() ms.with_full_params(model, function() if bad then error("here") end end) end,
}
local i, ran = 0, 0
while i < 6 do
  i = i + 1
  if i == 3 then print("rank " .. rank .. " caught " .. tostring(not pcall(ways[cfg.how]))) end
  local ok, result = pcall(train.step, train, batch(i))
  if ok then ran = ran + 1 end
  local said = ok and ("loss %.9g"):format(result.loss) or tostring(result)
  io.stderr:write(("rank %d step %d %s\n"):format(rank, i, said))
end
local ok, result = pcall(train.evaluate, train, set(false))
io.stderr:write(("rank %d evaluated %s\n"):format(rank, tostring(result)))
io.stderr:write(("rank %d ran %d\n"):format(rank, ran))
if not ok then error(result, 0) end
]==]

local WAYS = { "iterator", "shape", "name", "batch", "call", "save", "within" }

-- Here the others learn of the error within the call, and have one, too.
local TOGETHER = { call = true, within = true }

local function run_all(all)
  local path, runs = program.recipe(RECIPE), { none = {} }
  for _, how in ipairs(WAYS) do runs[how] = {} end
  for how in pairs(runs) do
    runs[how] = { "run", path, "-n", "2", "--log-ranks", "all", "how=" .. how, "all=" .. tostring(all),
      "folder=" .. os.tmpname() .. "-none" }
  end
  local ended = program.run_all(runs)
  os.remove(path)
  return ended
end

-- The losses that a rank reported, by step.
local function losses(ended, rank)
  local list = {}
  for step, loss in ended.err:gmatch(("rank %d step (%%d+) loss ([%%d.e-]+)"):format(rank)) do
    list[tonumber(step)] = loss
  end
  return list
end

describe("an error that a recipe catches", function()
  it("U1 stops training on all ranks if one rank alone had it", function()
    local ended = run_all(false)
    local right = losses(ended.none, 0)
    assert.equal(0, ended.none.status, ended.none.err)
    assert.equal(6, #right)
    for _, how in ipairs(WAYS) do
      local run = ended[how]
      if TOGETHER[how] then
        assert.same(right, losses(run, 0))
      else
        assert.not_equal(0, run.status, how)
        for rank = 0, 1 do
          assert.same({ right[1], right[2] }, losses(run, rank), how)
        end
        has(run.err, "rank 1 failed | ranks disagree", how)
      end
    end
  end)

  it("U1 does not where all ranks had it", function()
    local ended = run_all(true)
    local right = losses(ended.none, 0)
    for how, run in pairs(ended) do
      assert.equal(0, run.status, how .. run.err)
      assert.same(right, losses(run, 0), how)
      if how ~= "none" then has(run.out, "rank 0 caught true | rank 1 caught true") end
    end
  end)
end)
