-- ms.find_lr and sweeps sorted by loss: real runs of a recipe whose loss is a function of its rate.

local json = require("moonshard.base.text.json")
local has = require("lua.support.message").has
local program = require("lua.support.program")

-- What a run logs has its lowest loss at the rate 2e-3, and is a parabola in the rate's logarithm; above 0.05 it fails.
local RECIPE = [[
local ms = require "moonshard"
local cfg = ms.args { lr = 1e-2, steps = 20, mesh = "1x1" }
if cfg.lr > 0.05 then error("loss is nan at step 1", 0) end
local model = ms.nn.linear(2, 1)
ms.fully_shard(model, { mesh = ms.init_device_mesh("cpu", { 1, 1 }, { "replicate", "shard" }) })
local data = ms.data.random { inputs = 2, targets = 1 }
local train = ms.trainer { model = model, optimizer = ms.optim.adamw { lr = cfg.lr }, loss = ms.loss.mse }
local step = 0
for _, batch in data:batches(ms.data.sampler { length = data.length }, 4) do
  step = step + 1
  local m = train:step(batch)
  local away = math.log(cfg.lr / 2e-3)
  m.loss = 1 + away * away + (step <= 18 and 100 or step == 19 and 0.5 or -0.5)
  ms.log(step, m)
  if step == cfg.steps then break end
end
]]

local function with_sweep(text, action)
  local folder = os.tmpname()
  os.remove(folder)
  os.execute("mkdir " .. folder)
  local function write(name, content)
    local file = assert(io.open(folder .. "/" .. name, "w"))
    file:write(content)
    file:close()
  end
  write("recipe.lua", RECIPE)
  write("sweep.lua", 'local ms = require "moonshard"\n' .. text:gsub("OUT", ("%q"):format(folder .. "/out")))
  local ok, raised = pcall(action, function(...) return program.run({ "sweep", folder .. "/sweep.lua", ... }) end)
  os.execute("rm -rf " .. folder)
  if not ok then error(raised, 0) end
end

local FIND = [[
local rate = ms.find_lr {
  recipe = "recipe.lua", from = %s, to = %s, points = %d, steps = 20, settings = { mesh = "1x1" }, out = OUT,
}
io.stderr:write("found ", tostring(rate), "\n")
]]

describe("ms.find_lr", function()
  it("finds the rate with the lowest loss between those it tried; rates that fail are reported", function()
    with_sweep(FIND:format("1e-4", "0.1", 4), function(run)
      local ended = run()
      assert.equal(3, ended.status) -- one point failed
      assert.equal("found 0.002\n", ended.err)
      local head, first = ended.out:match("\n(lr%s+loss%s+tokens/s[^\n]*)\n([^\n]*)")
      assert.truthy(head, ended.out)
      -- The mean of the last two of twenty steps: 1 + ln(2)^2.
      assert.equal(("0.001 %.4f"):format(1 + math.log(2) ^ 2), first:match("^(%S+)%s+(%S+)") .. " " ..
        first:match("^%S+%s+(%S+)"))
      has(ended.out:match("lr=0.1: [^\n]*"), "recipe.lua:3: | loss | nan | step 1")
      has(ended.out:match("\nlr: ([^\n]*)"), "1.4805 | 0.001 | 0.002")
    end)
  end)

  it("draws the curve over the logarithm of the rates, with the suggestion marked", function()
    local show = '\nfor line in io.lines(OUT .. "/index.html") do io.stderr:write(line, "\\n") end'
    with_sweep(FIND:format("1e-4", "1e-2", 3) .. show, function(run)
      local ended = run()
      assert.equal(0, ended.status, ended.err)
      local curve = ended.err:match("<h2>Loss over lr</h2>.-</figure>")
      assert.truthy(curve, ended.err)
      assert.equal(3, select(2, curve:gsub("<circle ", "")))
      local places = {}
      for x in curve:gmatch('<circle class="c1" cx="([%d.]+)%%"') do places[#places + 1] = tonumber(x) end
      assert.is_true(math.abs(places[2] - (places[1] + places[3]) / 2) < 0.1, "rates are evenly spaced")
      local rate = ended.err:match("found (%S+)")
      has(curve, ">lr=" .. rate .. "</text>")
    end)
  end)

  it("says that the lowest loss may lie outside of what was tried", function()
    with_sweep(FIND:format("1e-5", "1e-3", 3), function(run)
      local ended = run()
      assert.equal(0, ended.status, ended.err)
      assert.equal("found 0.001\n", ended.err)
      has(ended.out, "0.001 | highest")
    end)
  end)

  it("says that a higher rate failed, and does not send there", function()
    with_sweep(FIND:format("1e-5", "0.1", 3), function(run) -- 1e-5, 1e-3, 0.1
      local ended = run()
      assert.equal(3, ended.status)
      assert.equal("found 0.001\n", ended.err)
      has(ended.out:match("\nlr: ([^\n]*)"), "0.001 | highest | did not fail | 0.1 | between")
    end)
  end)

  it("leaves standard output to the JSON when asked", function()
    with_sweep(FIND:format("1e-3", "4e-3", 3), function(run)
      local ended = run("--json")
      assert.equal(0, ended.status, ended.err)
      assert.equal(0.002, json.decode(ended.out).points[1].point.lr)
    end)
  end)

  it("refuses wrong ranges of rates", function()
    for wrong, says in pairs({
      ["from = 0, "] = "0 < from < to, not 0 and 0.1", ["from = 1, "] = "0 < from < to, not 1 and 0.1",
      ["points = 2, "] = "points | 3 | 2", ["rates = 2, "] = "rates",
    }) do
      with_sweep('ms.find_lr { recipe = "recipe.lua", ' .. wrong .. "ranks = 1, out = OUT }", function(run)
        local ended = run()
        assert.equal(2, ended.status)
        has(ended.err, says)
      end)
    end
  end)
end)

describe("a sweep sorted by loss", function()
  it("puts the lowest loss first in table, CSV and page", function()
    local text = [[ms.sweep {
      recipe = "recipe.lua", over = { lr = { 1e-4, 2e-3, 4e-2 } }, ranks = 1, steps = 20, sort = "loss", out = OUT,
    }]]
    with_sweep(text .. [[ for line in io.lines(OUT .. "/results.csv") do print("csv " .. line) end
      for line in io.lines(OUT .. "/index.html") do print("page " .. line) end ]], function(run)
      local ended = run()
      assert.equal(0, ended.status, ended.err)
      local order = {}
      for rate in ended.out:gmatch("\ncsv ([%d.e-]+),") do order[#order + 1] = tonumber(rate) end
      assert.same({ 2e-3, 1e-4, 4e-2 }, { order[1], math.min(order[2], order[3]), math.max(order[2], order[3]) })
      has(ended.out, "Loss over lr")
    end)
    with_sweep(text:gsub('"loss"', '"los"'), function(run)
      local ended = run()
      assert.equal(2, ended.status)
      has(ended.err, 'sort "los" | loss')
    end)
  end)
end)
