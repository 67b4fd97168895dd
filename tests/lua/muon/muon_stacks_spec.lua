-- Muon on stacks of matrices, as of experts, and by heads: every matrix is orthogonalised by itself, on every mesh, as
-- formulas in double say.

local breadth = require("lua.support.breadth")
local compare = require("moonshard.check.tolerance")
local has = require("lua.support.message").has
local json = require("cjson")
local program = require("lua.support.program")
local scratch = require("lua.support.scratch")
local stacks = require("lua.muon.recipes.stacks")

local LR, MOMENTUM, DECAY, STEPS = 0.5, 0.9, 0.1, 3
local A, B, C = 3.4445, -4.7750, 2.0315

-- ---- the formulas, of one matrix [m][n] ----------------------------------------------------------------------------

local function product(x, y)
  local out = {}
  for i = 1, #x do
    out[i] = {}
    for j = 1, #y[1] do
      local sum = 0
      for k = 1, #y do sum = sum + x[i][k] * y[k][j] end
      out[i][j] = sum
    end
  end
  return out
end

local function transposed(x)
  local out = {}
  for j = 1, #x[1] do
    out[j] = {}
    for i = 1, #x do out[j][i] = x[i][j] end
  end
  return out
end

local function added(a, x, b, y)
  local out = {}
  for i = 1, #x do
    out[i] = {}
    for j = 1, #x[1] do out[i][j] = a * x[i][j] + b * y[i][j] end
  end
  return out
end

local function orthogonal(u)
  local squares = 0
  for _, row in ipairs(u) do
    for _, value in ipairs(row) do squares = squares + value * value end
  end
  local x = added(1 / math.max(math.sqrt(squares), 1e-7), u, 0, u)
  for _ = 1, 5 do
    local gram = product(x, transposed(x))
    x = added(A, x, 1, product(added(B, gram, C, product(gram, gram)), x))
  end
  return x
end

local REACH = {
  original = function(rows, columns) return math.sqrt(math.max(1, rows / columns)) end,
  match_rms_adamw = function(rows, columns) return 0.2 * math.sqrt(math.max(rows, columns)) end,
  spectral = function(rows, columns) return math.sqrt(math.max(rows, columns)) end,
}

-- The weights of a parameter after each step, from zeros.
local function expected_of(of, adjust)
  local numel, after = of.matrices * of.rows * of.columns, {}
  local weight, momentum = {}, {}
  for i = 1, numel do weight[i], momentum[i] = 0, 0 end
  for step = 1, STEPS do
    local gradient = of.gradient(step)
    for matrix = 0, of.matrices - 1 do
      local first, u = matrix * of.rows * of.columns, {}
      for i = 1, of.rows do
        u[i] = {}
        for j = 1, of.columns do
          local at = first + (i - 1) * of.columns + j
          momentum[at] = MOMENTUM * momentum[at] + (1 - MOMENTUM) * gradient[at]
          u[i][j] = (1 - MOMENTUM) * gradient[at] + MOMENTUM * momentum[at]
        end
      end
      local x, by = orthogonal(u), LR * REACH[adjust](of.rows, of.columns)
      for i = 1, of.rows do
        for j = 1, of.columns do
          local at = first + (i - 1) * of.columns + j
          weight[at] = weight[at] * (1 - LR * DECAY) - by * x[i][j]
        end
      end
    end
    after[step] = { unpack(weight) }
  end
  return after
end

-- ---- runs ----------------------------------------------------------------------------------------------------------

local function words(command, mesh, settings)
  local ranks = 1
  for size in mesh:gmatch("%d+") do ranks = ranks * tonumber(size) end
  local list = { command, "tests/lua/muon/recipes/muon_stacks.lua", "-n", tostring(ranks), "mesh=" .. mesh }
  for name, value in pairs(settings) do list[#list + 1] = ("%s=%s"):format(name, tostring(value)) end
  return list
end

local function assert_reference(mesh, settings, tolerance, environment)
  local out, list = scratch.path(), words("run", mesh, settings)
  list[#list + 1] = "out=" .. out
  local ended = program.run(list, environment)
  assert.equal(0, ended.status, mesh .. ": " .. ended.err)
  local found = json.decode(scratch.read(out))
  for name, of in pairs(stacks) do
    for step, expected in ipairs(expected_of(of, settings.adjust or "original")) do
      local worst = compare.arrays(expected, found[step][name], { count = #expected, tolerance = tolerance or 2e-5 })
      assert.is_false(worst.differs,
        ("%s, step %d of %s: %g and %g"):format(mesh, step, name, worst.expected, worst.got))
    end
  end
end

describe("Muon on stacks and by heads", function()
  teardown(scratch.clear)

  it("Q9 orthogonalises each matrix by itself, by every rule of its size", function()
    for adjust in pairs(REACH) do assert_reference("1x1x1", { adjust = adjust }) end
  end)

  it("Q9 has the same updates where shards, replicas and tensor ranks divide what is stacked", function()
    for _, case in ipairs(breadth.few {
      { "1x2x1", {} }, { "1x3x1", { layout = "ragged" } }, { "2x1x1", { own = true } }, { "4x1x1", {} },
      { "2x2x1", { over = true, own = true } }, { "1x1x2", { axis = 0 } }, { "1x1x2", { axis = 1 } },
      { "1x1x2", { axis = 2 } }, { "2x1x2", { axis = 1, own = true } }, { "1x2x2", { axis = 2, layout = "ragged" } },
    }) do
      assert_reference(case[1], case[2])
    end
  end)

  it("Q9 A1 has the same updates on the device cuda", function()
    if os.getenv("MOONSHARD_CONFIG") ~= "release" then return end
    local library = ("MOONSHARD_CUDA_LIBRARY=%s/tests/emulated/libmoonshard_cuda_emulated.so"):format(
      os.getenv("MOONSHARD_BIN"):match("^(.*)/"))
    assert_reference("1x1x2", { device = "cuda", axis = 2 }, 1e-4, program.emulated_cuda(library))
  end)

  it("Q9 divides a stack over the ranks, and its checks follow every matrix", function()
    local list = words("explain", "1x2x1", {})
    list[#list + 1] = "--json"
    local ended = program.run(list)
    assert.equal(0, ended.status, ended.err)
    local muon = json.decode(ended.out).muon
    for _, name in ipairs { "wide (%d/2)", "tall (%d/2)", "projection (%d/2)", "both (%d/2)" } do
      assert.is_truthy(muon.owners[name:format(1)] and muon.owners[name:format(2)])
    end
    assert.is_true(muon.balance < 1.1, muon.balance)
    for _, axis in ipairs(breadth.few { 1, 2 }) do
      local checked = program.run(words("check", "1x1x2", { axis = axis, adjust = "spectral" }))
      assert.equal(0, checked.status, checked.err .. checked.out)
    end
  end)

  it("Q9 names a number of heads that does not divide the rows, and what is no stack of matrices", function()
    local function refused(shape, muon)
      local recipe = program.recipe(([[
        local ms = require "moonshard"
        local Net = ms.module "Net"
        function Net:init() self.w = ms.parameter { %s } end
        function Net:forward(x) return (self.w * x):sum() end
        local model = Net()
        ms.fully_shard(model)
        local train = ms.trainer { model = model, forward = function(net, batch) return net(batch.x) end,
          optimizer = ms.optim.muon { lr = 1, %s } }
        train:step { x = ms.ones { %s } }
      ]]):format(shape, muon, shape))
      local ended = program.run { "run", recipe }
      os.remove(recipe)
      assert.equal(2, ended.status, ended.out .. ended.err)
      return ended.err
    end
    has(refused("12, 8", "heads = 5"), "'w' | heads is 5 | 12 rows")
    has(refused("12, 8", "groups = { { 'w', { heads = 1.5 } } }"), "'w' | heads is 1.5")
    has(refused("2, 2, 4, 4", ""), "'w' | 4 dimensions | adamw")
  end)
end)
