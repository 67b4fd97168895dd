-- The models of recipes/image_models.lua: PyTorch's logits, losses, gradients and ten steps of AdamW
-- (tests/fixtures/images), on one rank, over ranks and on the emulated device; layers of images and positions; and the
-- recipe that trains them.

local ms = require("moonshard")
local json = require("cjson")
local compare = require("moonshard.check.tolerance")
local breadth = require("lua.support.breadth")
local fixture = require("lua.support.fixture")
local has = require("lua.support.message").has
local program = require("lua.support.program")
local message = fixture.message
local nn = ms.nn

-- The emulated kernels are not built for the thread sanitizer.
local EMULATED = os.getenv("MOONSHARD_CONFIG") ~= "thread"
local runs = require("lua.support.emulated_runs").of("tests/lua/models/recipes/image_models.lua")
for _, model in ipairs({ "resnet", "unet" }) do
  runs:case(model .. " on 1x1", { "model=" .. model, "mesh=1x1" })
  runs:case(model .. " on 2x2", { "-n", "4", "model=" .. model, "mesh=2x2" })
  local steps = breadth.all and "steps=3" or "steps=2"
  if EMULATED and (breadth.all or model == "resnet") then
    runs:case(model .. " cuda", { "model=" .. model, "mesh=1x1", "device=cuda", steps }, "")
  end
  if EMULATED and (breadth.all or model == "unet") then
    runs:case(model .. " bf16", { "model=" .. model, "mesh=1x1", "dtype=bf16", steps })
    runs:case(model .. " bf16 cuda", { "model=" .. model, "mesh=1x1", "dtype=bf16", "device=cuda", steps }, "")
  end
end

local F32 = 2e-5

local function assert_reference(model, result)
  local file = ms.safetensors.open(("tests/fixtures/images/%s.safetensors"):format(model))
  local function stored(name)
    local found = file:tensor(name)
    local x = ms.zeros(found.shape)
    file:read(name, 0, found.bytes, x.data)
    return x:reshape(-1):tolist()
  end
  fixture.assert_close(stored("logits"), result.logits, F32, "logits")
  for step, loss in ipairs(stored("losses")) do
    if result.losses[step] then assert.near(loss, result.losses[step], F32 * (1 + loss)) end
  end
  for name, gradient in pairs(result.gradient) do
    fixture.assert_close(stored("gradient." .. name), gradient, F32, "gradient of " .. name)
  end
  if #result.losses < 10 then return end
  for name, after in pairs(result.after) do
    fixture.assert_close(stored("after." .. name), after, compare.PARAMETERS * F32, name)
  end
end

local DIVIDED = program.recipe [[
  local ms = require "moonshard"
  local cfg = ms.args { mesh = "", weight = -1, batch = false }
  local model = ms.nn.sequential { ms.nn.conv2d(4, 6, 3), ms.nn.max_pool2d(2), ms.nn.group_norm(2, 6) }
  ms.fully_shard(model, {
    mesh = ms.init_device_mesh("cpu", cfg.mesh, { "shard", "tensor" }),
    placements = cfg.weight >= 0 and { { "0.weight", { tensor = ms.Shard(cfg.weight) } } } or nil,
  })
  local train = ms.trainer {
    model = model, optimizer = ms.optim.sgd { lr = 0.1 },
    forward = function(net, batch)
      local x = cfg.batch and batch.x:redistribute { tensor = ms.Shard(0) } or batch.x
      local y = net(x:interpolate { scale_factor = 2, mode = "bilinear" })
      return (y * y * y):mean()
    end,
  }
  local x = ms.tensor((function() local t = {} for i = 1, 400 do t[i] = i * i % 17 / 17 end return t end)())
  for _ = 1, 3 do print(("%.4f"):format(train:step({ x = x:reshape(4, 4, 5, 5) }).loss)) end
]]

describe("a model of images", function()
  teardown(function()
    runs:remove()
    os.remove(DIVIDED)
  end)

  for _, model in ipairs({ "resnet", "unet" }) do
    it("G2 trains as PyTorch trains it, on 1 rank and on 2x2: " .. model, function()
      assert_reference(model, runs:result(model .. " on 1x1"))
      assert_reference(model, runs:result(model .. " on 2x2"))
    end)

    it("G2 trains on the emulated device cuda as on the CPU: " .. model, function()
      if runs.runs[model .. " cuda"] then assert_reference(model, runs:result(model .. " cuda")) end
      if not runs.runs[model .. " bf16"] then return end
      local cpu, cuda = runs:result(model .. " bf16"), runs:result(model .. " bf16 cuda")
      for step, loss in ipairs(cpu.losses) do assert.near(loss, cuda.losses[step], 0.02 * (1 + loss)) end
    end)
  end

  it("G2 trains by the recipe over ranks as on one", function()
    for _, settings in ipairs(breadth.few({ { "mesh=2x1" }, { "mesh=1x2", "model=resnet" },
      { "mesh=1x2", "model=unet" } })) do
      local ended = program.run({ "check", "recipes/images.lua", "-n", "2", "batch=4", "steps=3", "dim=32", "layers=2",
        "eval_images=8", unpack(settings) })
      assert.equal(0, ended.status, ended.err .. ended.out)
      has(ended.out, "tolerance")
    end
  end)

  it("G2 refuses settings that the recipe's model does not have, or would change", function()
    local function refused(...)
      local ended = program.run({ "run", "recipes/images.lua", "mesh=1x1", "steps=1", ... })
      assert.not_equal(0, ended.status)
      return ended.err
    end
    has(refused("model=unet", "layers=5"), "16 pixels | layers=5")
    has(refused("model=resnet", "heads=4"), "heads=")
    has(refused("model=unet", "dim=7"), "dim | multiple of 16")
    has(refused("model=none"), "vit, resnet or unet")
    has(refused("batch=0"), "batch=0 | at least 1")
    has(refused("eval_images=0"), "eval_images=0 | at least 1")
  end)

  it("G2 is computed by each rank for its images, where ranks divide them", function()
    local function losses(...)
      local ended = program.run({ "run", DIVIDED, ... })
      assert.equal(0, ended.status, ended.err)
      return ended.out
    end
    assert.equal(losses("mesh=1x1"), losses("-n", "2", "mesh=1x2", "batch=true"))
    assert.equal(losses("mesh=1x1"), losses("-n", "2", "mesh=2x1"))
  end)

  it("G2 has whole channels and windows on every rank: a placement that divides them is refused by name", function()
    local ended = program.run({ "run", DIVIDED, "-n", "2", "mesh=1x2", "weight=0" })
    assert.not_equal(0, ended.status)
    has(ended.err, "conv2d | 0.weight | axis 0 | tensor")
  end)
end)

describe("a convolution", function()
  it("G2 is priced as the products that it and its gradients are: slower than a GPU's f32 peak, not by far", function()
    local recipe = program.recipe [[
      local ms = require "moonshard"
      local cfg = ms.args { mesh = "1x1" }
      local model = ms.nn.sequential { ms.nn.conv2d(64, 64, 3), ms.nn.conv2d(64, 64, 3) }
      ms.fully_shard(model, { mesh = ms.init_device_mesh(cfg.device, cfg.mesh, { "replicate", "shard" }) })
      local train = ms.trainer {
        model = model, optimizer = ms.optim.sgd { lr = 1 },
        forward = function(net, batch) return net(batch.x):sum() end,
      }
      train:step { x = ms.ones(8, 64, 64, 64) }
    ]]
    local ended = program.run { "price", recipe, "--cluster", "h100x8", "--json" }
    os.remove(recipe)
    assert.equal(0, ended.status, ended.err)
    local peak, seen = 67e12, 0 -- of an H100 without tensor cores
    for _, op in ipairs(json.decode(ended.out).ops) do
      if op.op:find("^conv2d") then
        local rate = op.flops / (op.ms * 1e-3)
        assert(rate < peak and rate > 0.05 * peak, ("%s: %g FLOP/s"):format(op.op, rate))
        seen = seen + 1
      end
    end
    assert.equal(3, seen)
  end)
end)

describe("a layer of images", function()
  it("G2 is described with its sizes, and has PyTorch's parameters", function()
    local net = nn.sequential {
      nn.conv2d(4, 8, { 3, 2 }, { groups = 2, stride = 2, bias = false }), nn.conv1d { 4, 6, 5 }, nn.max_pool2d(2),
      nn.avg_pool2d({ 3, 2 }, { stride = 1 }), nn.group_norm(2, 8), nn.upsample { scale_factor = 2 },
    }
    local shapes = {}
    for name, parameter in net:named_parameters() do shapes[name] = table.concat(parameter.shape, "x") end
    assert.same({ ["0.weight"] = "8x2x3x2", ["1.weight"] = "6x4x5", ["1.bias"] = "6", ["4.weight"] = "8",
      ["4.bias"] = "8" }, shapes)
    has(tostring(net), "Conv2d(4 -> 8, 3x2, 2 groups, no bias) | Conv1d(4 -> 6, 5) | MaxPool2d(2x2) | AvgPool2d(3x2)"
      .. " | GroupNorm(2 groups of 4) | Upsample(by 2, nearest)")
  end)

  it("G2 takes one image without the axis of the batch", function()
    local conv, line = nn.conv2d(3, 4, 3, { padding = "same" }), nn.conv1d(3, 2, 3)
    ms.fully_shard(conv)
    ms.fully_shard(line)
    local x = ms.randn(3, 5, 6)
    assert.same({ 4, 5, 6 }, conv(x).shape)
    fixture.assert_close(conv(x:unsqueeze(0)):reshape(-1):tolist(), conv(x):reshape(-1):tolist(), 0, "one image")
    assert.same({ 2, 7 }, line(ms.randn(3, 9)).shape)
  end)

  for title, case in pairs({
    ["groups that do not divide"] = { function() nn.conv2d(4, 6, 3, { groups = 4 }) end, "conv2d | 4 groups | 6" },
    ["a kernel of three"] = { function() nn.conv2d(4, 6, { 1, 2, 3 }) end, "conv2d | list of 2 | 3" },
    ["options in the place of the kernel"] = { function() nn.conv2d(4, 6, { kernel = 3 }) end,
      "conv2d | list of 2, not of 0 | (16, 32, 3, { padding = 1 })" },
    ["options among the numbers of a kernel"] = { function() nn.max_pool2d { 2, 3, stride = 1 } end,
      "max_pool2d | options follow | ({ 2, 3 }, { stride = ... })" },
    ["no kernel"] = { function() nn.conv2d(4, 6) end, "conv2d | kernel" },
    ["a norm's groups"] = { function() nn.group_norm(3, 8) end, "group_norm | 3 groups | 8" },
    ["an odd dimension of sines"] = { function() nn.sinusoidal(4, 5) end, "sinusoidal | even | 5" },
    ["no heads"] = { function() nn.alibi(0, 4) end, "alibi | heads | 0" },
  }) do
    it("G2 is refused: " .. title, function() has(message(case[1]), case[2]) end)
  end
end)

describe("positions", function()
  it("G2 by sines and cosines are those of the paper", function()
    local x = nn.sinusoidal(7, 6):tolist()
    for p = 0, 6 do
      for i = 0, 2 do
        assert.near(math.sin(p / 10000 ^ (i / 3)), x[p + 1][2 * i + 1], 1e-6)
        assert.near(math.cos(p / 10000 ^ (i / 3)), x[p + 1][2 * i + 2], 1e-6)
      end
    end
  end)

  it("G2 by distance are biases of masked attention, with the published slopes", function()
    local four, six = nn.alibi(4, 3):tolist(), nn.alibi(6, 2, 3):tolist()
    for h = 1, 4 do assert.near(-2 ^ (-2 * h), four[h][3][2], 1e-7) end
    assert.near(-2 ^ -2 * 2, four[1][3][1], 1e-7)
    assert.near(0, six[1][2][3], 0)
    -- six heads: those of four, then every second one of eight
    for h, slope in ipairs({ 2 ^ -2, 2 ^ -4, 2 ^ -6, 2 ^ -8, 2 ^ -1, 2 ^ -3 }) do
      assert.near(-slope, six[h][1][1], 1e-7)
    end
    local q = ms.zeros(1, 3, 4, 2)
    local v = ms.ones(1, 3, 4, 2)
    local y = nn.masked_attention(q, q, v, { mask = nn.alibi(4, 3) })
    assert.near(1, y:mean():item(), 1e-6)
  end)
end)
