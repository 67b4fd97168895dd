-- Convolutions, pools, group norm and other sizes of images: their numbers and gradients are PyTorch's
-- (tests/fixtures/images), and in models they train over ranks as on one.

local ms = require("moonshard")
local fixture = require("lua.support.fixture")
local has = require("lua.support.message").has
local message = fixture.message
local ops = ms.ops

local file = ms.safetensors.open("tests/fixtures/images/images.safetensors")

local function stored(name)
  local found = file:tensor(name)
  local x = ms.zeros(found.shape)
  file:read(name, 0, found.bytes, x.data)
  return x
end

local function numbers(x) return x:reshape(-1):tolist() end

-- Each case as a function of x and its constants, in the order of their names below.
local CASES = {
  conv2d = { "w", function(x, w) return ops.conv2d(x, w) end },
  conv2d_bias = { "w", "b", function(x, w, b) return x:conv2d(w, b, { stride = { 2, 1 }, padding = { 1, 2 } }) end },
  conv2d_groups = { "w", "b", function(x, w, b)
    return ops.conv2d(x, w, b, { stride = 2, padding = 2, dilation = 2, groups = 2 })
  end },
  conv2d_depthwise = { "w", function(x, w) return ops.conv2d(x, w, { padding = "same", groups = 4 }) end },
  conv2d_alone = { "w", "b", function(x, w, b) return ops.conv2d(x, w, b) end },
  conv1d = { "w", function(x, w) return x:conv1d(w, { stride = 2, padding = 3, dilation = 2, groups = 2 }) end },
  max_pool2d = { function(x) return x:max_pool2d(2) end },
  max_pool2d_overlapping = { function(x) return ops.max_pool2d(x, 3, { stride = 2, padding = 1 }) end },
  max_pool2d_tied = { function(x) return x:max_pool2d({ 3, 2 }, { stride = { 1, 2 }, padding = { 1, 0 } }) end },
  avg_pool2d = { function(x) return x:avg_pool2d(3, { stride = 2, padding = 1 }) end },
  avg_pool2d_inside = { function(x)
    return ops.avg_pool2d(x, { 3, 2 }, { stride = 2, padding = 1, count_include_pad = false })
  end },
  group_norm = { "g", "h", function(x, g, h) return x:group_norm(2, g, h) end },
  group_norm_line = { "g", "h", function(x, g, h) return ops.group_norm(x, 4, g, h, { eps = 1e-5 }) end },
  nearest = { function(x) return x:interpolate { scale_factor = 2 } end },
  nearest_size = { function(x) return ops.interpolate(x, { size = { 5, 11 } }) end },
  bilinear = { function(x) return x:interpolate { scale_factor = 2, mode = "bilinear" } end },
  bilinear_size = { function(x) return x:interpolate { size = { 4, 13 }, mode = "bilinear" } end },
}

-- The gradients of sum(v y) with respect to x and the constants, by a trainer.
local function gradients(make, given, names, v)
  local Net = ms.module "Net"
  function Net:init()
    for i, name in ipairs(names) do self[name] = ms.parameter { init = "zeros", unpack(given[i].shape) } end
  end
  function Net:forward(batch)
    local all = {}
    for i, name in ipairs(names) do all[i] = batch[name] + self[name] end
    return (make(unpack(all)) * v):sum()
  end
  local model, batch, found = Net(), {}, {}
  ms.fully_shard(model)
  for i, name in ipairs(names) do batch[name] = given[i] end
  local train = ms.trainer {
    model = model, optimizer = ms.optim.sgd { lr = 0 }, forward = function(net, b) return net(b) end,
  }
  train:step(batch)
  for _, name in ipairs(names) do found[name] = numbers(train:gradient(name)) end
  return found
end

describe("an op of images", function()
  for name, case in pairs(CASES) do
    it("G2 gives PyTorch's numbers and gradients: " .. name, function()
      local make, names, given = case[#case], { "x" }, { stored(name .. ".x") }
      for i = 1, #case - 1 do
        names[i + 1], given[i + 1] = case[i], stored(name .. "." .. case[i])
      end
      local expected, y = stored(name .. ".y"), make(unpack(given))
      assert.same(expected.shape, y.shape)
      fixture.assert_close(numbers(expected), numbers(y), 3e-6, name)
      for key, dx in pairs(gradients(make, given, names, stored(name .. ".v"))) do
        fixture.assert_close(numbers(stored(name .. ".d" .. key)), dx, 1e-5, "gradient of " .. key .. " of " .. name)
      end
    end)
  end

  it("G2 has a case for each of the fixture's", function()
    for _, tensor in ipairs(file.tensors) do assert.truthy(CASES[tensor.name:match("^[^.]+")], tensor.name) end
  end)

  it("G2 takes the attributes of the table's row, too", function()
    local x, w = stored("conv2d.x"), stored("conv2d.w")
    assert.same(numbers(ops.conv2d(x, w, { stride = { 2, 1 } })),
      numbers(ops.conv2d(x, w, { stride_h = 2, stride_w = 1 })))
    assert.same(numbers(x:max_pool2d(2)), numbers(ops.max_pool2d(x, { kernel_h = 2, kernel_w = 2 })))
    local both = ops.apply("max_pool2d", { x }, { kernel_h = 9, kernel_w = 7 })
    assert.same(numbers(x:reshape(8, -1):argmax(1)), numbers(both[2]))
  end)

  it("G2 in bf16 is computed in f32 and rounded once", function()
    local x = stored("bilinear.x"):cast("bf16")
    for _, o in ipairs({ { scale_factor = 3, mode = "bilinear" }, { size = { 5, 5 } } }) do
      local expected, y = numbers(x:float():interpolate(o)), x:interpolate(o)
      assert.equal("bf16", y.dtype)
      for i, value in ipairs(numbers(y:float())) do assert.near(expected[i], value, math.abs(expected[i]) / 256) end
    end
  end)
end)

local x, w = ms.zeros(1, 4, 5, 6), ms.zeros(3, 4, 3, 3)

describe("what does not fit", function()
  for title, case in pairs({
    ["a weight of other channels"] = { function() return x:conv2d(ms.zeros(3, 2, 3, 3)) end,
      "conv2d | [3,2,3,3] | 4 channels" },
    ["an image of two axes"] = { function() return ms.zeros(4, 5):conv2d(w) end, "conv2d | [4,5] | [N,C,H,W]" },
    ["a window larger than the image"] = { function() return x:conv2d(ms.zeros(3, 4, 6, 3)) end,
      "conv2d | height 6 | 5 elements" },
    ["padding of a word"] = { function() return x:conv2d(w, { padding = "valid" }) end, "conv2d | padding | valid" },
    ["padding that would differ by side"] = {
      function() return x:conv2d(ms.zeros(3, 4, 2, 2), { padding = "same" }) end, "conv2d | same | odd" },
    ["three strides"] = { function() return x:conv2d(w, { stride = { 1, 1, 1 } }) end, "conv2d | stride | two" },
    ["an option that is not there"] = { function() return x:conv2d(w, { strides = 2 }) end,
      "conv2d | strides | stride" },
    ["a bias of another size"] = { function() return x:conv2d(w, ms.zeros(4)) end, "conv2d | bias | [4] | [3]" },
    ["a window of one axis"] = { function() return ms.zeros(2, 4, 9):conv1d(w) end, "conv1d | weight | [3,4,3,3]" },
    ["padding of more than half of a pool"] = { function() return x:max_pool2d(2, { padding = 2 }) end,
      "max_pool2d | padding | half" },
    ["a pool without a kernel"] = { function() return x:avg_pool2d() end, "avg_pool2d | kernel | nil" },
    ["groups that do not divide"] = { function() return x:group_norm(3, ms.ones(4), ms.ones(4)) end,
      "group_norm | 3 groups | 4 channels" },
    ["group norm without a factor"] = { function() return x:group_norm(2) end, "group_norm: weight | tensor | nil" },
    ["two sizes"] = { function() return x:interpolate { size = 3, scale_factor = 2 } end, "size or scale_factor" },
    ["a size that is not whole"] = { function() return x:interpolate { scale_factor = 1.5 } end,
      "interpolate | 1.5 | height 5" },
    ["a mode that is not there"] = { function() return x:interpolate { size = 3, mode = "cubic" } end,
      "interpolate | bilinear | cubic" },
  }) do
    it("G2 is refused: " .. title, function() has(message(case[1]), case[2]) end)
  end
end)

describe("help", function()
  it("G2 lists ops of images", function()
    local text = ops.help()
    for _, name in ipairs({ "conv2d", "conv1d", "max_pool2d", "avg_pool2d", "group_norm", "interpolate" }) do
      assert.truthy(("\n" .. text):find("\n" .. name .. " ", 1, true), name)
    end
  end)
end)
