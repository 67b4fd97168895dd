-- Adafactor on meshes of every kind: with a tensor dimension, experts of three axes, slices and copies of the state;
-- its state in checkpoints, inspected and exported; what is refused. Updates are compared with PyTorch's in
-- updates_spec.lua.

local checkpoint = require("moonshard.checkpoint")
local compare = require("moonshard.check.tolerance")
local ffi = require("ffi")
local has = require("lua.support.message").has
local json = require("cjson")
local ms = require("moonshard")
local program = require("lua.support.program")
local scratch = require("lua.support.scratch")
local re = ms.re

teardown(scratch.clear)

local TENSOR, EXPERTS = "tests/lua/recipes/tensor_parallel.lua", "tests/lua/recipes/experts.lua"

local function words(command, recipe, mesh, ...)
  local ranks = 1
  for size in mesh:gmatch("%d+") do ranks = ranks * tonumber(size) end
  return { command, recipe, "-n", tostring(ranks), "mesh=" .. mesh, "optimizer=adafactor", ... }
end

local _, equals_one_rank = program.checks {
  ["gpt2"] = words("check", TENSOR, "1x1x2"),
  ["mixer"] = words("check", TENSOR, "1x1x4", "model=mixer"),
  ["shards"] = words("check", TENSOR, "1x2x2", "model=mixer", "layout=ragged"),
  ["own copies"] = words("check", TENSOR, "2x1x2", "model=mixer", "own_copies=true"),
  ["slices"] = words("check", TENSOR, "2x1x2", "model=mixer", "sliced=true"),
  ["context"] = words("check", TENSOR, "1x1x2x2", "model=llama"),
  ["in bf16"] = words("check", TENSOR, "1x2x2", "model=llama", "dtype=bf16", "sequence_parallel=true"),
  ["all"] = words("check", TENSOR, "2x2x2", "batch=1", "model=mixer", "micro_batches=2", "ema=true"),
  ["frozen"] = words("check", TENSOR, "1x2x2", "freeze=fc1", "tied=true"),
  ["experts"] = words("check", EXPERTS, "1x3x1", "micro=2"),
  ["divided experts"] = words("check", EXPERTS, "1x2x2"),
  ["sliced experts"] = words("check", EXPERTS, "2x2x1", "over=true"),
}

-- Parameters of four and five axes, which tensor divides along each that is neither the first nor one of the last two.
local MANY_AXES = [[
local ms = require "moonshard"
local cfg = ms.args { mesh = "1x2" }
local SHAPES = { { 3, 4, 2, 5 }, { 2, 2, 6, 3, 2 }, { 1, 4, 3, 1, 4 }, { 5, 2, 1, 3 } }
local AXES = { 1, 2, 1, 1 }
local Net = ms.module "Net"
function Net:init()
  for i, shape in ipairs(SHAPES) do self["p" .. i] = ms.parameter { init = ms.init.normal(0, 1), unpack(shape) } end
end
function Net:forward(x)
  local sum = x:sum()
  for i = 1, #SHAPES do sum = sum + self["p" .. i]:tanh():sum() end
  return sum
end
local model, rules = Net(), {}
for i, axis in ipairs(AXES) do rules[i] = { "p" .. i, { tensor = ms.Shard(axis) } } end
ms.fully_shard(model, { mesh = ms.init_device_mesh("cpu", cfg.mesh, { "shard", "tensor" }), placements = rules })
local train = ms.trainer {
  model = model, optimizer = ms.optim.adafactor { lr = 0.1 }, forward = function(net, batch) return net(batch.x) end,
}
for _ = 1, 3 do train:step { x = ms.tensor { 0 } } end
]]

-- Everything that a checkpoint has of parameters and their state: bytes by kind and name.
local function contents(path)
  local source, all = checkpoint.open(path), {}
  for _, param in ipairs(source.parameters) do
    for kind, shape in pairs { param = param.shape, row_var = { unpack(param.shape, 1, #param.shape - 1) },
      col_var = { param.shape[#param.shape], unpack(param.shape, 1, #param.shape - 2) }, variance = param.shape } do
      local numel = 1
      for _, size in ipairs(shape) do numel = numel * size end
      assert.equal(kind == "param" or (#param.shape < 2) == (kind == "variance"), source:has(kind, param.name))
      if source:has(kind, param.name) then
        local values = ffi.new("float[?]", numel)
        source:read(kind, param.name, 0, numel, values)
        all[kind .. " " .. param.name] = ffi.string(values, 4 * numel)
      end
    end
  end
  source:close()
  return all
end

local function saved(mesh, ...)
  local folder = scratch.path()
  local ended = program.run(words("run", TENSOR, mesh, "saves=" .. folder, "model=mixer", ...))
  assert.equal(0, ended.status, mesh .. ": " .. ended.err)
  return folder
end

describe("Adafactor", function()
  it("S13 trains as one rank does with a tensor dimension, and with context", function()
    equals_one_rank("gpt2", "mixer", "context")
  end)

  it("S13 composes with shards, replicas, averages, bf16, micro-batches and frozen weights", function()
    equals_one_rank("shards", "in bf16", "all", "frozen")
  end)

  it("S13 trains where replicas have copies or slices of the state", function()
    equals_one_rank("own copies", "slices")
  end)

  it("S13 trains experts, a matrix each, however they are divided", function()
    equals_one_rank("experts", "divided experts", "sliced experts")
  end)

  it("S13 averages matrices after whichever axis is divided", function()
    local recipe = program.recipe(MANY_AXES)
    for mesh, ranks in pairs { ["1x2"] = 2, ["2x2"] = 4 } do
      local ended = program.run { "check", recipe, "-n", tostring(ranks), "mesh=" .. mesh }
      assert.equal(0, ended.status, ended.out .. ended.err)
    end
    os.remove(recipe)
  end)

  it("S13 A1 trains on the device cuda as one rank does", function()
    if os.getenv("MOONSHARD_CONFIG") ~= "release" then return end
    local library = ("MOONSHARD_CUDA_LIBRARY=%s/tests/emulated/libmoonshard_cuda_emulated.so"):format(
      os.getenv("MOONSHARD_BIN"):match("^(.*)/"))
    local ended = program.run(words("check", TENSOR, "1x2x2", "model=mixer", "device=cuda"),
      program.emulated_cuda(library))
    assert.equal(0, ended.status, ended.out .. ended.err)
  end)

  -- Sums that count replicas twice would cancel in the weights.
  it("S13 has the averages of one rank on every mesh, as the whole batch gives them", function()
    local one = contents(saved("1x1x1", "steps=2", "batch=4"))
    for _, mesh in ipairs {
      { "2x1x2", "own_copies=true" }, { "2x2x1", "own_copies=true", batch = 1 }, { "2x2x1", batch = 1 },
      { "2x1x2", "sliced=true" }, { "1x2x2" },
    } do
      local compared = 0
      for name, bytes in pairs(contents(saved(mesh[1], "steps=2", "batch=" .. (mesh.batch or 2), mesh[2]))) do
        local n = #bytes / 4
        local got, expected = ffi.cast("const float *", bytes), ffi.cast("const float *", one[name])
        local differs = compare.arrays(expected, got, { count = n, first = 0, tolerance = 1e-4 }).differs
        assert.is_false(differs, mesh[1] .. " " .. name)
        compared = compared + 1
      end
      assert.equal(20 + 2 * 10 + 10, compared)
    end
  end)

  it("K1 goes on from a checkpoint of another mesh, bit for bit with the same state", function()
    local folder = saved("1x2x2", "steps=2", "head_bias=true")
    local expected, kinds = contents(folder), {}
    for name in pairs(expected) do kinds[name:match("^%S+")] = true end
    assert.same({ param = true, row_var = true, col_var = true, variance = true }, kinds)
    for _, mesh in ipairs { "1x1x4", "2x1x2", "1x1x1", "2x2x1" } do
      folder = saved(mesh, "steps=0", "head_bias=true", "loads=" .. folder)
      assert.same(expected, contents(folder))
    end
    local on = contents(saved("1x2x2", "steps=3", "resume=true"))
    local half = saved("1x2x2", "steps=2", "resume=true")
    assert.same(on, contents(saved("1x2x2", "steps=3", "resume=true", "loads=" .. half)))
  end)

  it("K1 is exported under the names and in the shapes of PyTorch's state", function()
    local from, out = saved("1x1x2", "steps=1"), scratch.path()
    local ended = program.run { "export", from, out, "--optimizer" }
    assert.equal(0, ended.status, ended.err)
    local file, shapes = ms.safetensors.open(out .. "/optimizer.safetensors"), {}
    for _, tensor in ipairs(file.tensors) do shapes[tensor.name] = tensor.shape end
    assert.same({ 48, 1 }, shapes["state.layers.0.up.weight.row_var"])
    assert.same({ 1, 32 }, shapes["state.layers.0.up.weight.col_var"])
    assert.same({ 48 }, shapes["state.layers.0.up.bias.variance"])
    assert.same({}, shapes["state.layers.0.up.weight.step"])
    assert.is_nil(shapes["state.layers.0.up.bias.row_var"])
  end)

  it("M7 takes four bytes for each row and column, on every rank of every mesh #release", function()
    local rows_and_columns = 256 + 32 + 256 + 32
    for _ = 1, 2 do
      -- up, gate and down with biases, tokens with its bias, the norm
      rows_and_columns = rows_and_columns + 3 * (48 + 32) + (48 + 48 + 32) + (16 + 16 + 16) + 32
    end
    for _, mesh in ipairs { "1x1x1", "1x2x1", "2x2x2" } do
      local ended = program.run(words("plan", TENSOR, mesh, "model=mixer", "batch=1", "--json"))
      assert.equal(0, ended.status, ended.err)
      local bytes = json.decode(ended.out).bytes.optimizer
      assert.is_true(bytes >= 4 * rows_and_columns and bytes < 4 * rows_and_columns + 3 * 64, mesh .. " " .. bytes)
    end
  end)

  it("S13 has a state that is read whole, in PyTorch's shapes", function()
    local net = ms.module { w = ms.parameter { 2, 3, init = "ones" }, b = ms.parameter { 3, init = "zeros" },
      forward = function(self, x) return x:matmul(self.w) + self.b end }
    ms.fully_shard(net, { mesh = 1 })
    local train = ms.trainer { model = net, loss = ms.loss.mse, optimizer = ms.optim.adafactor { lr = 0.1 } }
    train:step { inputs = ms.tensor { 1, 2 }:reshape(1, 2), targets = ms.tensor { 0, 3, 6 }:reshape(1, 3) }
    -- y = 3, 3, 3; dL/dy = 2/3 (3, 0, -3) = (2, 0, -2); dL/dw = x' dy.
    local row, column = train:optimizer_state("w", "row_var"), train:optimizer_state("w", "col_var")
    assert.same({ 2, 1 }, row.shape)
    assert.same({ 1, 3 }, column.shape)
    for i, expected in ipairs { 8 / 3, 32 / 3 } do assert.near(expected, row:reshape(-1):tolist()[i], 1e-5) end
    for i, expected in ipairs { 10, 0, 10 } do assert.near(expected, column:reshape(-1):tolist()[i], 1e-5) end
    for i, expected in ipairs { 4, 0, 4 } do
      assert.near(expected, train:optimizer_state("b", "variance"):tolist()[i], 1e-5)
    end
    assert.equal(1, train:optimizer_state("w", "step"):item())
    has(select(2, pcall(train.optimizer_state, train, "b", "row_var")).message, "adafactor | row_var")
  end)

  -- The square of this eps is 0 in f32, as are the averages of a column that has no gradients.
  it("S13 leaves elements without gradients where they are, also with eps as of the paper", function()
    local net = ms.module { w = ms.parameter { 2, 3, init = "ones" }, b = ms.parameter { 3, init = "zeros" },
      forward = function(self, x) return x:matmul(self.w) + self.b end }
    ms.fully_shard(net, { mesh = 1 })
    local optimizer = ms.optim.adafactor { lr = 0.1, eps = { 1e-30, 1e-3 } }
    local train = ms.trainer { model = net, loss = ms.loss.mse, optimizer = optimizer }
    -- y = 1, 1, 1: the second column has no error, and the second row no input. The gradient of the first row is
    -- 2/3, 0, -2/3; row_var 8/27, 0; col_var 2/9, 0, 2/9. So its variances are 4/9, 0, 4/9, and its updates 1, 0, -1.
    train:step { inputs = ms.tensor { 1, 0 }:reshape(1, 2), targets = ms.tensor { 0, 1, 2 }:reshape(1, 3) }
    local w = train:parameter("w"):reshape(-1):tolist()
    for i, expected in ipairs { 0.9, 1, 1.1, 1, 1, 1 } do assert.near(expected, w[i], 1e-6) end
    assert.equal(0, train:parameter("b"):tolist()[2])
  end)

  it("S13 has PyTorch's defaults #release", function()
    local made = ms.optim.adafactor()
    assert.equal(1e-2, made.lr(1))
    assert.same({ -0.8, 2 ^ -23, 1e-3, 1, 0 },
      { made.beta2_decay, made.eps[1], made.eps[2], made.d, made.weight_decay })
    assert.same({ 1e-5, 1e-3 }, ms.optim.adafactor { eps = { 1e-5 } }.eps)
    assert.same({ 2 ^ -23, 0 }, ms.optim.adafactor { eps = { nil, 0 } }.eps)
  end)

  it("S13 refuses local steps, for which replicas would have different averages #release", function()
    local recipe = scratch.path()
    scratch.write(recipe, [[
      local ms = require "moonshard"
      local mesh = ms.init_device_mesh("cpu", "2x1", { "replicate", "shard" })
      local net = ms.nn.sequential { ms.nn.linear(4, 2) }
      ms.fully_shard(net, { mesh = mesh, replicate_sync = { every = 2, outer = ms.optim.sgd { lr = 1 } } })
      local train = ms.trainer { model = net, loss = ms.loss.mse, optimizer = ms.optim.adafactor {} }
      train:step { inputs = ms.randn { 3, 4 }, targets = ms.randn { 3, 2 } }
    ]])
    local ended = program.run { "run", recipe, "-n", "2" }
    assert.is_true(ended.status ~= 0)
    has(ended.err, "unit 'root' | local steps | replicate_sync | adafactor | adamw")
  end)

  it("S13 explains the bytes of each parameter's state #release", function()
    local ended = program.run(words("explain", TENSOR, "1x4x1", "model=mixer", "--json"))
    assert.equal(0, ended.status, ended.err)
    local found = {}
    for _, row in ipairs(json.decode(ended.out).decisions.freeze) do found[row.name] = row.kept_bytes.optimizer end
    assert.equal(4 * (256 + 32), found["embed.weight"])
    assert.equal(4 * (48 + 32), found["layers.1.up.weight"])
    assert.equal(4 * 48, found["layers.1.up.bias"])
  end)

  it("S13 refuses by name what it does not have #release", function()
    local function refused(message, options)
      local ok, raised = pcall(ms.optim.adafactor, options)
      assert.is_false(ok)
      has(raised.message, message)
    end
    refused("eps | two numbers | 0.001", { eps = 1e-3 })
    refused("eps | two numbers | a table", { eps = { 1e-7, 1e-3, 1 } })
    refused("eps | two numbers | a table", { eps = { eps1 = 1e-30 } })
    refused("eps[1] | number", { eps = { "1" } })
    refused("eps[2] | -1", { eps = { nil, -1 } })
    refused("beta2_decay | 0.5", { beta2_decay = 0.5 })
    refused("d | 0.5", { d = 0.5 })
    refused("weight_decay | -1", { weight_decay = -1 })
    refused("moments", { moments = "bf16" })
    refused("betas | beta2_decay", { betas = { 0.9, 0.99 } })
    local optimizer = ms.optim.adafactor { groups = { { re".", { eps = 1e-3 } } } }
    has(select(2, pcall(optimizer.param_groups, optimizer, { "w" })).message, "option eps")
  end)
end)
