-- Eager tensors: made, computed with, read, printed; constants of a trace; modules called on them.

local ms = require("moonshard")
local errors = require("moonshard.base.error")
local has = require("lua.support.message").has
local program = require("lua.support.program")
local fixture = require("lua.support.fixture")
local message = fixture.message
local re = ms.re
local ffi = require("ffi")

local function assert_fails(text, call)
  local got = message(call)
  has(got, text)
end

local function assert_near(expected, got, tolerance)
  if type(expected) == "table" then
    assert.equal(#expected, #got)
    for i, item in ipairs(expected) do assert_near(item, got[i], tolerance) end
  else
    assert.near(expected, got, tolerance or 1e-6)
  end
end

describe("I2 eager tensors", function()
  it("read NaNs of any bits as numbers", function()
    for _, bits in ipairs({ 0xffffffff, 0xfff00000, 0xffd00000, 0xffc00001, 0xff900000, 0xffc00000, 0x7fffffff }) do
      local x = ms.tensor { 1, 2, 3 }
      ffi.cast("uint32_t *", x.data)[1] = bits
      assert.equal("[  1, nan,   3]", x:values())
      assert.equal("number", type(x[1]:item()))
      assert.equal(3, #x:tolist())
      assert.equal("nan", (("%f"):format(x:tolist()[2]):gsub("-", "")))
    end
    local half = ms.ones { 2, dtype = "bf16" }
    ffi.cast("uint16_t *", half.data)[0] = 0xffff
    assert.equal("[nan,   1]", half:values())
  end)

  it("are made of the arrays of batches, which are refused where tensors are wanted", function()
    local data = ffi.new("int32_t[6]", 1, 2, 3, 4, 5, 6)
    local array = { data = data, dtype = "i32", shape = { 2, 3 } }
    local x = ms.tensor(array)
    data[0] = 9 -- a copy
    assert.same({ { 1, 2, 3 }, { 4, 5, 6 } }, x:tolist())
    assert.equal("i32", x.dtype)
    assert.equal("f32", ms.tensor(array, { dtype = "f32" }).dtype)
    assert.same({ { 9, 2, 3 }, { 4, 5, 6 } }, ms.tensor(array, { dtype = "float32" }):tolist())
    local bf16 = { data = ms.ones({ 2, dtype = "bf16" }).data, dtype = "bf16", shape = { 2 } }
    assert.same({ 1, 1 }, ms.tensor(bf16):tolist())
    assert.same({}, ms.tensor({ data = ffi.new("float[1]", 2), dtype = "f32", shape = {} }).shape)
    assert_fails("24 bytes | f32 | 28", function()
      ms.tensor { data = ffi.new("float[6]"), dtype = "f32", shape = { 7 } }
    end)
    assert_fails("int | f32 | float", function() ms.tensor { data = data, dtype = "f32", shape = { 6 } } end)
    local model = ms.nn.embedding(10, 2)
    local _, batch = ms.data.text({ files = "README.md", seq = 8, batch = 2 }):batches(1)()
    assert.same({ 2, 8 }, ms.tensor(batch.tokens).shape)
    assert.same({ 2, 3, 2 }, model(ms.tensor(array)).shape)
    for _, call in ipairs({
      function() return model(array) end,
      function() return x + array end,
      function() return ms.ops.add(array, x) end,
      function() return ms.ops.cast(array, { out_dtype = "f32" }) end,
      function() return ms.ops.concat({ x, array }, { axis = 0 }) end,
    }) do
      assert_fails("array | batch | ms.tensor", call)
    end
  end)

  it("are made of numbers, filled and counted", function()
    assert.same({ { 1, 2, 3 }, { 4, 5, 6 } }, ms.tensor({ { 1, 2, 3 }, { 4, 5, 6 } }):tolist())
    assert.equal(2.5, ms.tensor(2.5):item())
    assert.same({}, ms.tensor(2.5).shape)
    assert.same({ { 0, 0 } }, ms.zeros(1, 2):tolist())
    assert.same({ { 1, 1 } }, ms.ones({ 1, 2 }):tolist())
    assert.same({ 7, 7 }, ms.full({ 2 }, 7):tolist())
    assert.same({ 0, 1, 2 }, ms.arange(3):tolist())
    assert.same({ 5, 3, 1 }, ms.arange(5, 0, -2):tolist())
  end)

  it("have the element type that was asked for", function()
    assert.equal("f32", ms.ones(2).dtype)
    assert.equal("i32", ms.arange(3, { dtype = "i32" }).dtype)
    assert.same({ 1, 255 }, ms.tensor({ 1, 255, dtype = "u8" }):tolist())
    -- 1 + 2^-9 has no place in 8 bits of mantissa.
    assert.same({ 1, 3.140625 }, ms.tensor({ 1 + 2 ^ -9, 3.14159, dtype = "bfloat16" }):tolist())
    assert_fails("1.5 | i32", function() ms.tensor { 1.5, dtype = "i32" } end)
    assert_fails("256 | u8", function() ms.full({ 2 }, 256, { dtype = "u8" }) end)
    assert_fails("type f16", function() ms.zeros { 2, dtype = "f16" } end)
  end)

  it("are equal after the same seed, and different in each call", function()
    ms.manual_seed(3)
    local a, b = ms.randn(64, 64), ms.randn(64, 64)
    ms.manual_seed(3)
    assert.same(a:tolist(), ms.randn(64, 64):tolist())
    assert.not_same(a:tolist(), b:tolist())
    assert.near(0, a:mean():item(), 0.1)
    assert.near(1, (a ^ 2):mean():item(), 0.1)
    local uniform = ms.rand { 1000, seed = 9 }
    assert.same(uniform:tolist(), ms.rand({ 1000 }, { seed = 9 }):tolist())
    assert.near(0.5, uniform:mean():item(), 0.05)
    assert.is_true(uniform:max():item() < 1 and (-uniform):max():item() <= 0)
  end)

  it("compute by every op of the table as in a trace", function()
    local x = ms.tensor { { 1, 2, 3 }, { 4, 5, 6 } }
    assert.same({ { 3, 5, 7 }, { 9, 11, 13 } }, (2 * x + 1):tolist())
    assert.same({ { 0, 0, 0 }, { 0, 0, 0 } }, (x - x):tolist())
    assert_near({ { 1, 0.5, 1 / 3 }, { 0.25, 0.2, 1 / 6 } }, (1 / x):tolist())
    assert.same({ { 1, 4, 9 }, { 16, 25, 36 } }, (x ^ 2):tolist())
    assert.same({ { 11, 22, 33 }, { 14, 25, 36 } }, (x + ms.tensor { 10, 20, 30 }):tolist())
    assert.same({ { 14, 32 }, { 32, 77 } }, ms.ops.matmul(x, x, { trans_b = true }):tolist())
    assert.same({ 6, 15 }, x:sum(1):tolist())
    assert.same({ { 1, 4 }, { 2, 5 }, { 3, 6 } }, x:transpose(0, 1):tolist())
    assert.same({ 1, 2, 3, 4, 5, 6 }, x:reshape(-1):tolist())
    assert.same({ { 1, 1, 0 }, { 0, 0, 0 } }, ms.ops.less(x, ms.full({ 2, 3 }, 3)):tolist())
    assert.same({ { 4, 5, 6 }, { 1, 2, 3 } }, ms.ops.embedding(x, ms.tensor { 1, 0, dtype = "i32" }):tolist())
    local y, stats = unpack(ms.ops.apply("layer_norm", { x, ms.ones(3), ms.zeros(3) }))
    assert_near({ { 2, 1.2247357 }, { 5, 1.2247357 } }, stats:tolist(), 1e-5)
    assert_near({ { -1.2247357, 0, 1.2247357 }, { -1.2247357, 0, 1.2247357 } }, y:tolist(), 1e-5)
    assert_near(math.log(3), ms.loss.cross_entropy(ms.zeros(2, 3), ms.tensor { 0, 2, dtype = "i32" }):item())
  end)

  it("give parts by index and slice", function()
    local x = ms.arange(24):reshape(2, 3, 4)
    assert.same({ 20, 21, 22, 23 }, x[1][-1]:tolist())
    assert.equal(6, x:index(0, 1, 2):item())
    assert.same({ { 4, 5, 6, 7 } }, x[0]:slice(0, 1, 2):tolist())
    assert_fails("index 2 | axis 0 | [2,3,4] | 0 to 1", function() return x[2] end)
    assert_fails("index 0 of axis 3", function() return x:index(0, 0, 0, 0) end)
  end)

  it("compile an op once for its shapes", function()
    local clock = require("moonshard.base.clock")
    local function seconds(call)
      local begin = clock.now()
      for n = 1, 500 do call(n) end
      return clock.now() - begin
    end
    local x, best = ms.ones(5), 0
    -- More shapes than are kept compiled: nothing is lost but time.
    for round = 1, 5 do
      local fresh = seconds(function(n) assert.equal(round, (round * ms.ones(n))[0]:item()) end)
      best = math.max(best, fresh / seconds(function() return (x * round)[0]:item() end))
    end
    assert.is_true(best > 2, best)
  end)

  it("print shape and type, and values on request", function()
    local x = ms.tensor { { 1, -2.5 }, { 1000, 4 } }
    assert.equal("tensor f32 [2,2]", tostring(x))
    assert.equal("[[   1.0000,   -2.5000],\n [1000.0000,    4.0000]]", x:values())
    assert.equal("[1, 2, 3]", ms.tensor({ 1, 2, 3, dtype = "i32" }):values())
    assert.equal("[[[0, 1],\n  [2, 3]],\n\n [[4, 5],\n  [6, 7]]]", ms.arange(8):reshape(2, 2, 2):values())
    assert.equal("[   nan,    inf,   -inf, 0.5000]",
      (ms.tensor { 0, 1, -1, 0.5 } / ms.tensor { 0, 0, 0, 1 }):values())
    assert.equal("1.0000e-06", ms.tensor(1e-6):values())
    local large = ms.arange(10000):reshape(100, 100):values()
    assert.equal("[[   0,    1,    2, ...,   97,   98,   99],", large:match("^[^\n]*"))
    assert.equal(7, select(2, large:gsub("\n", "")) + 1)
  end)

  it("are not read beyond their memory after a shape or a type was assigned", function()
    local function longer()
      local x = ms.ones(1, 2)
      x.shape[1] = 100000
      return x
    end
    for _, read in ipairs {
      function(x) return x + 1 end, function(x) return x:sum() end, function(x) return x:tolist() end,
      function(x) return x:item() end, function(x) return x:values() end, function(x) return x[99999] end,
      function(x) return ms.nn.linear(2, 2)(x) end,
      function(x)
        local model = ms.fully_shard(ms.nn.linear(2, 100000, { bias = false }))
        model:set_parameter("weight", x)
      end,
    } do
      has(message(read, longer()), "f32 [1,2] | f32 [100000,2] | reshape")
    end
    local x = ms.ones(4)
    x.shape = { 9 }
    has(message(x.tolist, x), "f32 [4] | f32 [9]")
    x.shape, x.dtype = { 4 }, "i8"
    has(message(x.tolist, x), "f32 [4] | i8 [4] | cast")
    -- As many bytes, of other values.
    x.shape, x.dtype = { 2, 2 }, "f32"
    has(message(x.tolist, x), "f32 [4] | f32 [2,2] | reshape")
    x.shape, x.dtype = { 4 }, "i32"
    has(message(x.tolist, x), "f32 [4] | i32 [4] | cast")
    x.shape, x.dtype = 4, "f32"
    has(message(x.tolist, x), "f32 [4] | f32 4 | reshape")
    x.shape = { 4 }
    assert.same({ 1, 1, 1, 1 }, x:tolist())
  end)

  it("refuse what makes no sense, at the recipe's line", function()
    assert_fails("eager_spec.lua:", function() ms.zeros(0) end)
    assert_fails("size 0 of axis 0", function() ms.zeros(0) end)
    assert_fails("1 | axis 1 | 2", function() ms.tensor { { 1, 2 }, { 3 } } end)
    assert_fails("nil | item 3", function() ms.tensor { 1, nil, 3 } end)
    assert_fails("empty", function() ms.tensor {} end)
    assert_fails("dtyp: | dtype?", function() ms.zeros { 2, dtyp = "f32" } end)
    assert_fails("shapes do not broadcast", function() return ms.ones(2) + ms.ones(3) end)
    assert_fails("one element", function() ms.ones(2):item() end)
    assert_fails("cast | u8 | f32 | bf16 | i32", function() ms.ones(2):cast("u8") end)
    assert_fails("eager | 2", function() ms.zeros(2 ^ 20, 2 ^ 10) end)
    assert_fails("input 1 | values", function() ms.ops.relu(3) end)
    assert_fails("no elements", function() ms.arange(0) end)
    assert_fails("seed | integer", function() ms.manual_seed(-1) end)
  end)
end)

describe("I2 in a trace", function()
  it("an eager tensor is a constant", function()
    local scale = ms.tensor { 1, 10, 100 }
    local Scaled = ms.module "Scaled"
    function Scaled:init() self.weight = ms.parameter { 3, init = "ones" } end
    function Scaled:forward(x) return x * self.weight * scale + scale end
    local model = Scaled()
    assert.same({ { 2, 20, 200 }, { 3, 30, 300 } }, model(ms.tensor { { 1, 1, 1 }, { 2, 2, 2 } }):tolist())
    local train = ms.trainer { model = model, optimizer = ms.optim.sgd { lr = 0 }, loss = ms.loss.mse }
    local batch = { inputs = ms.ones(1, 3), targets = ms.zeros(1, 3) }
    local wanted = (4 + 400 + 40000) / 3
    assert.near(wanted, train:step(batch).loss, 1e-2)
    -- Other plans of the model use the same memory in between.
    model(ms.ones(50, 3))
    assert.near(wanted, train:step(batch).loss, 1e-2)
  end)

  it("a symbol has no values", function()
    local kept
    local model = ms.nn.linear(2, 2)
    ms.trace.graph(model, { inputs = { { "x", "f32", { 1, 2 } } }, fn = function(inputs)
      kept = model(inputs.x)
      assert_fails("symbol", function() kept:tolist() end)
      return { outputs = { y = kept } }
    end })
    assert_fails("symbol | ended", function() return kept + 1 end)
  end)
end)

describe("a module called on eager tensors", function()
  it("computes before it is sharded, with the weights that it will start from", function()
    local model = fixture.gpt2()
    local tokens = ms.tensor({ { 1, 2, 3, 4 } }, { dtype = "i32" })
    local before = model(tokens):tolist()
    local weight = model:parameter("head.weight"):tolist()
    assert_fails("shard", function() model:set_parameter("head.weight", weight) end)
    ms.fully_shard(model, { units = { re[[^layers\.\d+$]] } })
    assert.same(before, model(tokens):tolist())
    assert.same(weight, model:parameter("head.weight"):tolist())
  end)

  it("is a part of its model", function()
    local model = ms.nn.sequential { ms.nn.linear(3, 4), ms.ops.relu, ms.nn.linear(4, 2) }
    local x = ms.randn(5, 3)
    local whole = model(x)
    assert.same(whole:tolist(), model[3](ms.ops.relu(model[1](x))):tolist())
    local train = ms.trainer { model = model, optimizer = ms.optim.sgd { lr = 1 }, loss = ms.loss.mse }
    train:step { inputs = x, targets = ms.zeros(5, 2) }
    assert.not_same(whole:tolist(), model(x):tolist())
    assert.same(model(x):tolist(), model[3](ms.ops.relu(model[1](x))):tolist())
    assert.same(model:parameter("2.weight"):tolist(), model[3]:parameter("weight"):tolist())
  end)

  it("may be looked at before its trainer is made", function()
    local function trained(look)
      local model = ms.nn.sequential { ms.nn.linear(3, 4), ms.nn.layer_norm { 4 }, ms.nn.linear(4, 2) }
      ms.fully_shard(model, { units = { "0" } })
      local x = ms.randn { 5, 3, seed = 1 }
      if look then
        model(x)
        model:set_parameter("0.bias", model:parameter("0.bias"))
      end
      local train = ms.trainer { model = model, loss = ms.loss.mse, optimizer = ms.optim.adamw {
        lr = 0.1, groups = { { re"bias|1", { weight_decay = 0 } } },
      } }
      for _ = 1, 3 do train:step { inputs = x, targets = ms.ones(5, 2) } end
      return train:parameter("0.weight"):tolist()
    end
    assert.same(trained(false), trained(true))
  end)

  it("takes other arguments, and returns what forward returns", function()
    local Pair = ms.module "Pair"
    function Pair:forward(x, factor, name) return x * factor, name, nil, x end
    local pair = Pair()
    local doubled, name, nothing, same = pair(ms.ones(2), 2, "two")
    assert.same({ { 2, 2 }, "two", { 1, 1 } }, { doubled:tolist(), name, same:tolist() })
    assert.is_nil(nothing)
    assert.same({ 3, 3 }, (pair(ms.ones(2), 3, "three")):tolist())
    assert_fails("argument 2 | table", function() pair(ms.ones(2), {}) end)
    assert_fails("eager", function() pair(2) end)
  end)

  it("keeps its error's place", function()
    assert_fails("0: | matmul",
      function() ms.nn.sequential({ ms.nn.linear(3, 4) })(ms.ones(2, 5)) end)
  end)
end)

describe("on several ranks", function()
  it("I2 a rank computes alone, and all compute together with a sharded model", function()
    local recipe = program.recipe([==[
      local ms = require "moonshard"
      local world = ms.world()
      if world.rank == 1 then assert((ms.ones(3) * 2):sum():item() == 6) end
      local model = ms.nn.linear(3, 4)
      if world.rank == 2 then model(ms.ones(1, 3)) end
      local alone = model(ms.ones(2, 3)):tolist()
      ms.fully_shard(model)
      local together = model(ms.ones(2, 3)):tolist()
      for row = 1, 2 do for column = 1, 4 do assert(alone[row][column] == together[row][column]) end end
      -- Every rank may bring its own rows.
      local mine = model(ms.full({ 1, 3 }, world.rank)):tolist()[1]
      local bias = model:parameter("bias"):tolist()
      if world.rank == 0 then for i = 1, 4 do assert(mine[i] == bias[i]) end end
      assert(tostring(model:parameter("bias")) == "tensor f32 [4], replicated")
      local part = model:local_parameter("weight")
      local texts = {
        [0] = "tensor f32 [2,3], shard 0 of 3: rows 0 to 1 of [4,3]",
        "tensor f32 [2,3], shard 1 of 3: rows 2 to 3 of [4,3]",
        "tensor f32 [0,3], shard 2 of 3: no rows of [4,3]",
      }
      assert(tostring(part) == texts[world.rank], tostring(part))
      if world.rank == 2 then assert(part:values() == "[]") end
      if world.rank == 0 then print("fine") end
    ]==])
    local ended = program.run({ "run", recipe, "-n", "3" })
    os.remove(recipe)
    assert.equal("fine\n", ended.out, ended.err)
    assert.equal(0, ended.status)
  end)
end)

describe("errors of eager work", function()
  it("have a status", function()
    local _, raised = message(function() return ms.ones(2) + ms.ones(3) end)
    assert.is_true(errors.is(raised))
    assert.equal("MS_ESHAPE", raised.status)
  end)
end)
