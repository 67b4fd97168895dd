-- What a sweep makes of the runs of its points: repeats that differ, several trainers, steps before the first one, and
-- memory that the first plan does not show; and where the sweeps of one file write.

local has = require("lua.support.message").has
local json = require("moonshard.base.text.json")
local program = require("lua.support.program")
local scratch = require("lua.support.scratch")

-- Each run of it logs another loss and score: the next line of a file.
local RECIPE = [[
local ms = require "moonshard"
local cfg = ms.args { ends = "", sync = 0, mesh = "1", rows = 4, wide = 4, second = false, before = false,
  numbers = "", lr = 0.1, steps = 4 }
local model = ms.nn.sequential { ms.nn.linear(4, 8), ms.nn.linear(8, 4) }
ms.fully_shard(model, { mesh = ms.init_device_mesh("cpu", cfg.mesh, { "replicate" }),
  replicate_sync = cfg.sync > 0 and { every = cfg.sync, outer = ms.optim.sgd { lr = 0.7 } } or nil })
local sgd = ms.optim.sgd { lr = cfg.lr }
local train = ms.trainer { model = model, loss = ms.loss.mse, optimizer = sgd }
local other = ms.trainer { model = model, loss = ms.loss.mse, optimizer = sgd }
local function batch(rows) return { inputs = ms.ones { rows, 4 }, targets = ms.zeros { rows, 4 } } end
local number = 1
if cfg.numbers ~= "" and not ms.world().plan_only then
  local lines = {}
  for line in io.lines(cfg.numbers) do lines[#lines + 1] = tonumber(line) end
  number = table.remove(lines, 1)
  local file = io.open(cfg.numbers, "w")
  file:write(table.concat(lines, "\n"), "\n")
  file:close()
end
if cfg.before then ms.log(0, { loss = 99, valid_loss = 98 }) end
for step = 1, cfg.steps do
  local m = train:step(batch(cfg.rows))
  m.loss, m.score = number, step == cfg.steps and cfg.ends ~= "" and tonumber(cfg.ends) or 10 * number
  ms.log(step, m)
  if cfg.second then
    m = other:step(batch(cfg.wide))
    m.loss, m.score = 1000, 1000
    ms.log(step, m)
  end
end
]]

local function sweep(text, ...)
  local folder = scratch.folder()
  scratch.write(folder .. "/recipe.lua", RECIPE)
  scratch.write(folder .. "/numbers", "2\n9\n4\n")
  scratch.write(folder .. "/my_sweep.lua", 'local ms = require "moonshard"\n' .. text:gsub("FOLDER", folder))
  return program.run({ "sweep", folder .. "/my_sweep.lua", ... }), folder
end

local function point(folder) return json.decode(scratch.read(folder .. "/out/results.json")).points[1] end

describe("a sweep", function()
  teardown(scratch.clear)

  it("takes medians of losses and of a recipe's metrics, too, over repeats that differ", function()
    local ended, folder = sweep [[ms.sweep { recipe = "recipe.lua", out = "FOLDER/out", over = { lr = { 0.1 } },
      repeats = 3, settings = { mesh = "1", numbers = "FOLDER/numbers" } }]]
    assert.equal(0, ended.status, ended.err)
    assert.equal(4, point(folder).loss)
    assert.equal(40, point(folder).metrics.score)
  end)

  it("judges a point by its first trainer's steps, and leaves what was logged before them out", function()
    local ended, folder = sweep [[ms.sweep { recipe = "recipe.lua", out = "FOLDER/out", over = { lr = { 0.1 } },
      settings = { mesh = "1", second = true, before = true } }]]
    assert.equal(0, ended.status, ended.err)
    assert.equal(1, point(folder).loss)
    assert.equal(10, point(folder).metrics.score)
  end)

  it("has the bytes of its steps, of which not all synchronise", function()
    local ended, folder = sweep [[ms.sweep { recipe = "recipe.lua", out = "FOLDER/out", over = { sync = { 1, 2, 4 } },
      order = "given", settings = { mesh = "2", steps = 9 } }]]
    assert.equal(0, ended.status, ended.err)
    local bytes = {}
    for _, record in ipairs(json.decode(scratch.read(folder .. "/out/results.json")).points) do
      bytes[record.point.sync] = record.comm_bytes.replicate
    end
    assert.is_true(bytes[1] > 0)
    assert.near(bytes[1] / 2, bytes[2], 1e-9 * bytes[1]) -- steps 2 to 9, of which 2, 4, 6 and 8 do
    assert.near(bytes[1] / 4, bytes[4], 1e-9 * bytes[1])
  end)

  it("takes what prepare returns as Lua's functions do for a failure", function()
    for gives, says in pairs({ ['nil, "no such link"'] = "prepare: | no such link", ["false"] = "prepare: | false" }) do
      local ended = sweep(('ms.sweep { recipe = "recipe.lua", out = "FOLDER/out", over = { lr = { 0.1 } },\n'
        .. 'settings = { mesh = "1" }, prepare = function() return %s end }'):format(gives))
      assert.equal(3, ended.status, ended.err)
      has(ended.out .. ended.err, says)
    end
  end)

  it("asks for true or false of each point", function()
    for _, gives in ipairs({ "", "return nil", 'return "no"' }) do
      local ended = sweep(('ms.sweep { recipe = "recipe.lua", over = { lr = { 0.1 } },\n'
        .. 'settings = { mesh = "1" }, where = function() %s end }')
        :format(gives))
      assert.equal(2, ended.status)
      has(ended.err, "where | true or false | lr=0.1")
    end
  end)

  it("has no metric that ends with NaN or an infinity, whatever it was before, and sorts such a point last", function()
    local ended, folder = sweep [[ms.sweep { recipe = "recipe.lua", out = "FOLDER/out", over = {
      ends = { "inf", "3" } }, sort = "score", settings = { mesh = "1" } }]]
    assert.equal(0, ended.status, ended.err)
    local points = json.decode(scratch.read(folder .. "/out/results.json")).points
    assert.same({ "3", 3 }, { points[1].point.ends, points[1].metrics.score })
    assert.is_nil(points[2].metrics.score)
  end)

  it("sees memory that only a second trainer needs", function()
    local ended, folder = sweep [[ms.sweep { recipe = "recipe.lua", out = "FOLDER/out", over = { wide = { 4, 40000 } },
      memory_limit = "1MiB", settings = { mesh = "1", second = true } }]]
    assert.equal(0, ended.status, ended.err)
    local points = json.decode(scratch.read(folder .. "/out/results.json")).points
    assert.same({ "ok", "skipped" }, { points[1].status, points[2].status })
    has(points[2].reason, "planned | limit of 1.0 MiB | trainers")
  end)

  it("has a folder of its own in a file with several", function()
    local twice = [[local function run(rates) ms.sweep { recipe = "recipe.lua", over = { lr = rates },
      settings = { mesh = "1" } } end
      run { 0.1 }
      run { 0.2, 0.3 }]]
    local ended, folder = sweep(twice)
    assert.equal(0, ended.status, ended.err)
    for name, count in pairs({ ["build/sweep/my_sweep"] = 1, ["build/sweep/my_sweep-2"] = 2 }) do
      assert.equal(count, #json.decode(scratch.read(name .. "/results.json")).points)
    end
    assert.equal(0, program.run({ "sweep", folder .. "/my_sweep.lua", "--resume" }).status)
    os.execute("rm -rf build/sweep/my_sweep build/sweep/my_sweep-2")
  end)

  it("finds rates between near ones with as many digits as that takes", function()
    local ended, folder = sweep [[ms.find_lr { recipe = "recipe.lua", out = "FOLDER/out", from = 0.123, to = 0.15,
      points = 9, steps = 4, settings = { mesh = "1" } }]]
    assert.equal(0, ended.status, ended.err)
    local least, most, seen = math.huge, 0, 0
    for _, record in ipairs(json.decode(scratch.read(folder .. "/out/results.json")).points) do
      least, most, seen = math.min(least, record.point.lr), math.max(most, record.point.lr), seen + 1
    end
    assert.same({ 0.123, 0.15, 9 }, { least, most, seen })
  end)
end)
