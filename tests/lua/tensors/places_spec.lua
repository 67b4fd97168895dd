-- Powers, statistics, order, indices and products by letters: their numbers and gradients are PyTorch's
-- (tests/fixtures/ops), in a trace they have the same shapes, and in models they train over ranks as on one.

local ms = require("moonshard")
local breadth = require("lua.support.breadth")
local fixture = require("lua.support.fixture")
local has = require("lua.support.message").has
local program = require("lua.support.program")
local message = fixture.message
local ops = ms.ops

local file = ms.safetensors.open("tests/fixtures/ops/ops.safetensors")

local function stored(name)
  local found = file:tensor(name)
  local x = ms.zeros(found.shape[1] and found.shape or { 1 }, { dtype = found.dtype == "I32" and "i32" or "f32" })
  file:read(name, 0, found.bytes, x.data)
  return found.shape[1] and x or x:reshape(1):index(0)
end

local function numbers(x) return x:reshape(-1):tolist() end

-- Each case as a function of x and of `of`, which reads the other tensors of the fixture.
local CASES = {
  pow_number = function(x) return x ^ 2.7 end,
  pow_whole = function(x) return x:pow(5) end,
  pow_of_number = function(x) return 1.5 ^ x end,
  pow_base = function(x, of) return x ^ of "e" end,
  pow_exponent = function(x, of) return of "a" ^ x end,
  pow_base_at_zero = function(x, of) return ops.pow(x, of "e") end,
  softplus = function(x) return x:softplus() end,
  var = function(x) return x:var({ 0, 2 }) end,
  var_all = function(x) return x:var() end,
  var_biased = function(x) return x:var { axis = 1, unbiased = false, keepdim = true } end,
  std = function(x) return ops.std(x, -1) end,
  logsumexp = function(x) return x:logsumexp(1) end,
  logsumexp_axes = function(x) return ops.logsumexp(x, { 0, 2 }, true) end,
  cumsum = function(x) return x:cumsum(1) end,
  cumsum_last = function(x) return x:cumsum() end,
  topk = function(x) return (x:topk(3, 1)) end,
  smallest = function(x) return (ops.topk(x, { k = 2, largest = false })) end,
  argmax = function(x) return x:argmax(1) end,
  argmax_all = function(x) return x:argmax() end,
  argmin = function(x) return ops.argmin(x, 2, true) end,
  gather = function(x, of) return ops.gather(x, of "index", { axis = 1 }) end,
  gather_short = function(x, of) return x:gather(2, of "index") end,
  scatter_add = function(x, of) return x:scatter_add(1, of "index", of "src") end,
  scatter_add_src = function(x, of) return ops.scatter_add(of "to", of "index", x, { axis = 1 }) end,
  roll = function(x) return x:roll(-2, 1) end,
  roll_all = function(x) return x:roll(9) end,
  tril = function(x) return x:tril(1) end,
  triu = function(x) return ops.triu(x, -1) end,
  one_hot = function(x) return ops.one_hot(x, 5, "f32"):cast("i32") end,
  split = function(x) return x:split(3, 1)[2] end,
  stack = function(x, of) return ops.stack({ x, of "other" }, 2) end,
  einsum_product = function(x, of) return ops.einsum("bij,jk->bki", x, of "m") end,
  einsum_batch = function(x, of) return x:einsum("bid,bjd->bij", of "o") end,
  einsum_turned = function(x, of) return ops.einsum("bid,bjd->jib", x, of "o") end,
  einsum_summed = function(x, of) return ops.einsum("bid,cjd->cb", x, of "o") end,
  einsum_elements = function(x, of) return ops.einsum("bij,jk->kbij", x, of "o") end,
  einsum_implied = function(x, of) return ops.einsum("zij, jk", x, of "o") end,
}

-- The gradient of sum(w y) with respect to x, by a trainer.
local function gradient(make, x, of, w)
  local shape = { init = "zeros", unpack(x.shape) }
  local model = ms.module {
    shift = ms.parameter(shape),
    forward = function(self, given) return make(given + self.shift, of) end,
  }
  ms.fully_shard(model)
  local train = ms.trainer {
    model = model, optimizer = ms.optim.sgd { lr = 0 },
    forward = function(net, batch) return (net(batch.inputs) * w):sum() end,
  }
  train:step { inputs = x }
  return numbers(train:gradient("shift"))
end

describe("an op of PyTorch's", function()
  for name, make in pairs(CASES) do
    local function of(key) return stored(name .. "." .. key) end

    it("G2 gives its numbers and its gradient: " .. name, function()
      local x, expected = of "x", of "y"
      local y = make(x, of)
      assert.same(expected.shape, y.shape)
      assert.equal(expected.dtype, y.dtype)
      fixture.assert_close(numbers(expected), numbers(y), 2e-6, name)
      if file.by_name[name .. ".dx"] then
        fixture.assert_close(numbers(of "dx"), gradient(make, x, of, of "w"), 5e-6, "gradient of " .. name)
      end
    end)
  end

  it("G2 has a case for each of the fixture's", function()
    for _, tensor in ipairs(file.tensors) do assert.truthy(CASES[tensor.name:match("^[^.]+")], tensor.name) end
  end)
end)

local x = ms.tensor { { 1, -2, 3 }, { 4, 5, -6 } }
local index = ms.tensor({ { 2, 0 }, { 1, 1 } }, { dtype = "i32" })
local inf, nan = math.huge, 0 / 0

describe("special numbers", function()
  it("G2 are ordered as PyTorch's: NaN is the largest, and of equal elements the first comes first", function()
    local given = ms.tensor { 1, nan, 3, -inf, 3, nan, -0.0, 0 }
    local values, at = given:topk(8)
    assert.same({ 1, 5, 2, 4, 0, 6, 7, 3 }, at:tolist())
    assert.equal(3, values:tolist()[3])
    assert.equal(1, given:argmax():item())
    assert.equal(1, given:argmin():item())
    assert.equal(3, (select(2, given:topk(8, 0, false))):tolist()[1])
    assert.equal(1, ms.tensor({ 2, -1, -1 }):argmin():item())
    assert.same({ 3, 6, 7, 0, 2, 4, 1, 5 }, (select(2, given:topk(8, 0, false))):tolist())
  end)

  it("G2 statistics over all axes keep as many of size 1, if asked", function()
    for _, y in ipairs({ x:var(nil, true), x:std { keepdim = true }, x:logsumexp { keepdim = true } }) do
      assert.same({ 1, 1 }, y.shape)
    end
  end)

  it("G2 of equal elements std has a gradient of 0", function()
    local Spread = ms.module "Spread"
    function Spread:init() self.w = ms.parameter { 2, 3, init = "ones" } end
    function Spread:forward(scale) return (self.w * scale):std(1) end
    local model = Spread()
    ms.fully_shard(model, { mesh = ms.init_device_mesh("cpu", "1x1", { "replicate", "shard" }) })
    local train = ms.trainer { model = model, optimizer = ms.optim.sgd { lr = 1 },
      forward = function(m, batch) return m(batch.scale):sum() end }
    train:step { scale = ms.tensor { { 2, 2, 2 }, { 1, 2, 3 } } }
    local w = train:parameter("w"):tolist()
    assert.same({ 1, 1, 1 }, w[1])
    -- d std / d w_i = (x_i - mean) s_i / (2 std) with s = x, n - 1 = 2, mean 2 and std 1
    for i, expected in ipairs({ 1.5, 1, -0.5 }) do assert.is_near(expected, w[2][i], 1e-6) end
  end)

  it("G2 triangles far beyond the corners are whole or empty", function()
    local whole = ms.ones(2, 2):tolist()
    assert.same(whole, ms.ones(2, 2):tril(2 ^ 40):tolist())
    assert.same(whole, ms.ones(2, 2):triu(-2 ^ 40):tolist())
    assert.same({ { 0, 0 }, { 0, 0 } }, ms.ones(2, 2):triu(2 ^ 32):tolist())
  end)

  it("G2 ops of the table take their inputs first, in a list or one by one", function()
    local column = ms.tensor({ { 1 }, { 0 } }, { dtype = "i32" })
    for _, y in ipairs({ ms.ops.gather(x, 1, column), ms.ops.gather(x, column, { axis = 1 }),
      ms.ops.gather({ x, column }, { axis = 1 }) }) do
      assert.same({ { -2 }, { 4 } }, y:tolist())
    end
  end)

  it("G2 take an axis and keepdim in a table, too, and pieces by a function", function()
    assert.same({ { 2 }, { 1 } }, x:argmax({ axis = 1, keepdim = true }):tolist())
    assert.same(x:argmin(1):tolist(), x:argmin({ axis = 1 }):tolist())
    assert.same({ { 3 }, { -6 } }, ms.ops.split(x, 2, 1)[2]:tolist())
    assert.equal(2, #ms.ops.chunk(x, 2, 0))
    has(message(function() x:argmax { dim = 1 } end), "argmax | dim | axis")
    has(message(function() ms.ops.split(3, 1) end), "split | tensor | 3")
    for _, name in ipairs({ "split", "chunk" }) do
      assert.truthy(("\n" .. ms.ops.help()):find("\n" .. name .. " ", 1, true), name)
    end
  end)

  it("G2 what is no tensor, no distance and no count is refused by the name of the op", function()
    for text, call in pairs({
      ["one_hot | i32 | not 3"] = function() ms.ops.one_hot(3, 5) end,
      ["one_hot | i32 | f32"] = function() ms.ops.one_hot(x, 5) end,
      ["tril | tensor | not 3"] = function() ms.ops.tril(3) end,
      ["var | f32 | not 3"] = function() ms.ops.var(3) end,
      ["argmax | f32 | i32"] = function() index:argmax() end,
      ["logsumexp | f32 | i32"] = function() index:logsumexp() end,
      ["roll | whole number"] = function() x:roll() end,
      ["roll | one axis"] = function() x:roll({ 1, 1 }, { 0, 1 }) end,
      ["topk | k | whole number"] = function() x:topk() end,
    }) do
      has(message(call), text)
    end
  end)

  it("G2 of infinity pass through logsumexp", function()
    local y = ms.tensor({ { -inf, -inf }, { inf, 1 }, { 1000, 1000 } }):logsumexp(1):tolist()
    assert.same({ -inf, inf }, { y[1], y[2] })
    assert.near(1000 + math.log(2), y[3], 1e-4)
  end)

  it("G2 in bf16 are computed in f32 and rounded once", function()
    local near = (ms.tensor { 100, 101, 102, 103 }):cast("bf16")
    assert.equal("bf16", near:var().dtype)
    assert.near(5 / 3, near:var():float():item(), 0.01)
    assert.near(103.44, near:logsumexp():float():item(), 0.3)
    assert.near(2 ^ 2.7, (ms.tensor({ 2 }):cast("bf16") ^ 2.7):float():item(), 0.02)
    assert.same({ 256, 256 }, (ms.zeros(2):cast("bf16"))
      :scatter_add(0, ms.tensor({ 0, 1 }, { dtype = "i32" }), ms.full({ 2 }, 256):cast("bf16")):float():tolist())
  end)
end)

describe("pieces", function()
  it("G2 of an axis join to the whole", function()
    assert.same(x:tolist(), ops.cat(x:split(2, 1), 1):tolist())
    assert.same(x:tolist(), ops.cat(x:split({ 1, 2 }, 1), 1):tolist())
    assert.equal(2, #x:chunk(2, -1))
    has(message(function() return x:split({ 1, 1 }, 1) end), "split: | 2 elements | axis 1 | [2,3] | 3")
    has(message(function() return x:split(0, 1) end), "split: | whole number | 0")
  end)
end)

describe("what does not fit", function()
  for title, case in pairs({
    ["an index outside of the axis"] = { function() return x:gather(0, index) end,
      "gather: index 2 | position 0 | [0,2)" },
    ["a class too large"] = { function() return ops.one_hot(index, 2) end, "one_hot | index 2 | [0,2)" },
    ["an index below 0"] = { function() return x:gather(0, ms.tensor({ { -1 } }, { dtype = "i32" })) end,
      "gather: index -1 | [0,2) | axis 0" },
    ["an index of floats"] = { function() return x:gather(0, x) end, "gather: | i32 | f32" },
    ["an index longer than x"] = { function() return x:gather(0, ms.zeros(1, 4, { dtype = "i32" })) end,
      "gather: | [2,3] | [1,4] | axis 0" },
    ["src of another shape"] = { function() return x:scatter_add(1, index, x) end,
      "scatter_add: | index | [2,2] | src" },
    ["more than there are"] = { function() return x:topk(4) end, "topk: k is 4 | [2,3] | 3" },
    ["an axis that is not there"] = { function() return x:cumsum(2) end, "cumsum: | axis 2" },
    ["a variance of one element"] = { function() return x:slice(0, 0, 1):var(0) end, "var of | unbiased = false" },
    ["an option that is not there"] = { function() return x:var { axes = 1 } end, "var | axes | axis" },
    ["a triangle of a vector"] = { function() return ms.ones(3):tril() end, "tril | [3] | two axes" },
    ["no letters"] = { function() return ops.einsum("i1,ij->j", x, x) end, "einsum | '1' | letter" },
    ["a letter twice"] = { function() return ops.einsum("ii,ij->j", x, x) end,
      "einsum | i is twice | different letters" },
    ["a letter from nowhere"] = { function() return ops.einsum("ij,jk->iq", x, x) end,
      "einsum | q is in no operand | \"ij\" or \"jk\"" },
    ["letters that are too few"] = { function() return ops.einsum("i,ij->j", x, x) end,
      "einsum | first operand | [2,3] | 2 axes | \"i\" has 1" },
    ["sizes that differ"] = { function() return ops.einsum("ij,jk->ik", x, x) end,
      "einsum | j is 3 | 2 in the second | another letter" },
    ["one operand"] = { function() return ops.einsum("ij->ji", x) end, "einsum | two operands | permute" },
    ["three operands"] = { function() return ops.einsum("ij,jk,kl->il", x, x, x) end, "einsum | two of them" },
    ["no tensor"] = { function() return ops.einsum("ij,jk->ik", x, 3) end, "einsum | second operand | 3" },
  }) do
    it("G2 is refused: " .. title, function() has(message(case[1]), case[2]) end)
  end
end)

describe("help", function()
  it("G2 lists ops and what consists of them", function()
    local text = ops.help()
    for name in pairs({
      pow = 1, roll = 1, cumsum = 1, topk = 1, gather = 1, scatter_add = 1, var = 1, std = 1, logsumexp = 1, argmax = 1,
      argmin = 1, one_hot = 1, tril = 1, triu = 1, stack = 1, einsum = 1, greater = 1, softplus = 1, detach = 1,
    }) do
      assert.truthy(("\n" .. text):find("\n" .. name .. " ", 1, true), name)
    end
  end)
end)

-- The emulated kernels are not built for the thread sanitizer.
local runs = require("lua.support.emulated_runs").of("tests/lua/tensors/recipes/places.lua")
local EMULATED = os.getenv("MOONSHARD_CONFIG") ~= "thread"
runs:case("f32 cpu", { "mesh=1x1x1" })
runs:case("wrong cpu", { "mesh=1x1x1", "wrong=true" })
if EMULATED then
  runs:case("f32 cuda", { "mesh=1x1x1", "device=cuda" }, "")
  runs:case("bf16 cpu", { "mesh=1x1x1", "dtype=bf16" })
  runs:case("bf16 cuda", { "mesh=1x1x1", "dtype=bf16", "device=cuda" }, "")
  runs:case("wrong cuda", { "mesh=1x1x1", "wrong=true", "device=cuda" }, "")
end

describe("a model of these ops", function()
  teardown(function() runs:remove() end)

  it("G2 trains on the emulated device cuda as on the CPU", function()
    if not EMULATED then return end
    runs:assert_as("f32 cpu", "f32 cuda")
    runs:assert_as("bf16 cpu", "bf16 cuda")
  end)

  it("G2 fails by name where an index is outside of its axis", function()
    for name, text in pairs({ ["wrong cpu"] = "gather: index | [0,12)", ["wrong cuda"] = "gather: | 0 to 11" }) do
      if runs.runs[name] then
        local ended = runs:ended(name)
        assert.not_equal(0, ended.status)
        has(ended.err, text)
      end
    end
  end)

  it("G2 trains over ranks as on one", function()
    for _, settings in ipairs(breadth.few({
      { "mesh=1x2x1" }, { "mesh=2x1x1" }, { "mesh=1x2x1", "dtype=bf16" }, { "mesh=1x1x2" },
    })) do
      local ended = program.run({ "check", "tests/lua/tensors/recipes/places.lua", "-n", "2", unpack(settings) })
      assert.equal(0, ended.status, ended.err .. ended.out)
      has(ended.out, "tolerance")
    end
  end)
end)
