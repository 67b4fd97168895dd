-- A teacher that is the average of its student: by a plain calculation, on meshes, in evaluations and plans.

local fixture = require("lua.support.fixture")
local has = require("lua.support.message").has
local json = require("cjson")
local message = fixture.message
local ms = require("moonshard")
local program = require("lua.support.program")
local scratch = require("lua.support.scratch")

teardown(scratch.clear)

local STEPS, ROWS, INPUTS, OUTPUTS, LR, DECAY = 6, 8, 3, 4, 0.2, 0.7

-- A linear student that learns its teacher's outputs, half as much as the targets.
local RECIPE = ([[
  local ms = require "moonshard"
  local cfg = ms.args { mesh = "1x1", names = "replicate shard", micro = 1, out = "" }
  local names = {}
  for name in cfg.names:gmatch("%%S+") do names[#names + 1] = name end
  local mesh = ms.init_device_mesh(cfg.device, cfg.mesh, names)
  local model = ms.nn.sequential { ms.nn.linear(%d, %d, { bias = false }) }
  ms.fully_shard(model, { mesh = mesh,
    placements = mesh:has("tensor") and { { "0.weight", { tensor = "colwise" } } } or nil })
  local train = ms.trainer {
    model = model, optimizer = ms.optim.sgd { lr = %g }, micro_batches = cfg.micro, ema = %g,
    teacher = function(student, batch) return student(batch.inputs) * 2 end,
    forward = function(student, batch)
      local y = student(batch.inputs)
      return ms.loss.mse(y, batch.targets) + ms.loss.mse(y, batch.teacher) * 0.5
    end,
  }
  local ranks, index = mesh:size(), mesh:get_index()
  if mesh:has("tensor") then ranks, index = mesh:size(0), mesh:get_local_rank(0) end
  local per = %d / ranks
  local function rows(x) return x:slice(0, index * per, (index + 1) * per) end
  local function batch(step)
    return { inputs = rows(ms.randn { %d, %d, seed = step }), targets = rows(ms.randn { %d, %d, seed = 100 + step }) }
  end
  local planned = ms.world().plan_only
  local result = { before = not planned and model:parameter("0.weight"):tolist() or nil, losses = {} }
  for step = 1, %d do result.losses[step] = train:step(batch(step)).loss end
  result.after = model:parameter("0.weight"):tolist()
  result.valid = train:evaluate(coroutine.wrap(function() coroutine.yield(1, batch(1)) end))
  if cfg.out ~= "" and ms.world().rank == 0 then
    local file = io.open(cfg.out, "w")
    file:write(require("moonshard.base.text.json").encode(result))
    file:close()
  end
]]):format(INPUTS, OUTPUTS, LR, DECAY, ROWS, ROWS, INPUTS, ROWS, OUTPUTS, STEPS)

local function times(x, w)
  local y = {}
  for r = 1, ROWS do
    y[r] = {}
    for o = 1, OUTPUTS do
      local sum = 0
      for i = 1, INPUTS do sum = sum + x[r][i] * w[o][i] end
      y[r][o] = sum
    end
  end
  return y
end

-- The same training in double precision.
local function by_hand(before)
  local w, average, losses = before, before, {}
  for step = 1, STEPS do
    local x = ms.randn({ ROWS, INPUTS, seed = step }):tolist()
    local targets = ms.randn({ ROWS, OUTPUTS, seed = 100 + step }):tolist()
    local y, taught, loss, new = times(x, w), times(x, average), 0, {}
    for o = 1, OUTPUTS do new[o] = { unpack(w[o]) } end
    for r = 1, ROWS do
      for o = 1, OUTPUTS do
        local a, b, n = y[r][o] - targets[r][o], y[r][o] - 2 * taught[r][o], ROWS * OUTPUTS
        loss = loss + (a * a + 0.5 * b * b) / n
        for i = 1, INPUTS do new[o][i] = new[o][i] - LR * (2 * a + b) / n * x[r][i] end
      end
    end
    local blended = {}
    for o = 1, OUTPUTS do
      blended[o] = {}
      for i = 1, INPUTS do
        blended[o][i] = step == 1 and new[o][i] or DECAY * average[o][i] + (1 - DECAY) * new[o][i]
      end
    end
    w, average, losses[step] = new, blended, loss
  end
  return w, losses
end

local function flat(rows)
  local list = {}
  for _, row in ipairs(rows) do
    for _, value in ipairs(row) do list[#list + 1] = value end
  end
  return list
end

describe("a teacher of averages", function()
  local recipe

  setup(function() recipe = program.recipe(RECIPE) end)
  teardown(function() os.remove(recipe) end)

  local function run(ranks, ...)
    local out = scratch.path()
    local ended = program.run { "run", recipe, "-n", tostring(ranks), "out=" .. out, ... }
    assert.equal(0, ended.status, ended.err)
    return json.decode(scratch.read(out))
  end

  it("G8 S13 trains as a calculation by hand does, on every mesh", function()
    for _, case in ipairs({
      { 1, "mesh=1x1" }, { 1, "mesh=1x1", "micro=4" }, { 2, "mesh=1x2" }, { 4, "mesh=2x2", "micro=2" },
      { 4, "mesh=2x2", "names=shard tensor" },
    }) do
      local got = run(unpack(case))
      local w, losses = by_hand(got.before)
      fixture.assert_close(losses, got.losses, 1e-5, table.concat(case, " "))
      fixture.assert_close(flat(w), flat(got.after), 1e-5, table.concat(case, " "))
      assert.is_true(got.valid > 0)
    end
  end)

  it("G8 can be planned and checked", function()
    local planned = program.run { "plan", recipe, "-n", "2", "mesh=1x2" }
    assert.equal(0, planned.status, planned.err)
    has(planned.out, "peak")
    local checked = program.run { "check", recipe, "-n", "2", "mesh=1x2", "--steps", "4" }
    assert.equal(0, checked.status, checked.err .. checked.out)
    has(checked.out, "equal within tolerance")
  end)

  it("G8 is refused where it makes no sense", function()
    local model = ms.nn.sequential { ms.nn.linear(3, 2) }
    ms.fully_shard(model)
    local optimizer = ms.optim.sgd { lr = 0.1 }
    local function with(more)
      local o = { model = model, optimizer = optimizer }
      for key, value in pairs(more) do o[key] = value end
      return ms.trainer(o)
    end
    local function same(student, batch) return student(batch.inputs) end
    local function loss(student, batch) return ms.loss.mse(student(batch.inputs), batch.teacher) end
    has(message(with, { teacher = same, forward = loss }), "teacher | ema = 0.999")
    has(message(with, { teacher = same, loss = ms.loss.mse, ema = 0.9 }), "teacher | forward")
    local batch = { inputs = ms.randn { 4, 3, seed = 1 } }
    local train = with { teacher = function() return 3 end, forward = loss, ema = 0.9 }
    has(message(train.step, train, batch), "teacher | tensor")
    train = with { teacher = function(_, b) return b.inputs, b.inputs end, forward = loss, ema = 0.9 }
    has(message(train.step, train, batch), "teacher | one tensor")
    local function sum(student, given) return student(given.inputs):sum() end
    train = with { teacher = sum, forward = loss, ema = 0.9 }
    has(message(train.step, train, batch), "teacher | 4 rows")
    train = with { teacher = same, forward = loss, ema = 0.9 }
    batch.teacher = ms.randn { 4, 2, seed = 1 }
    has(message(train.step, train, batch), "teacher already")
  end)
end)
