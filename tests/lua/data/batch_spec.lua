-- Batches of a recipe's own memory: what does not hold what it says is refused before anything reads it.

local ffi = require("ffi")
local ms = require("moonshard")
local has = require("lua.support.message").has

local function trainer()
  local model = ms.nn.linear(8, 1)
  ms.fully_shard(model)
  return ms.trainer { model = model, optimizer = ms.optim.sgd { lr = 0.1 }, loss = ms.loss.mse }
end

local function step(inputs, more)
  local batch = { inputs = inputs, targets = ms.zeros(2, 1) }
  for name, value in pairs(more or {}) do batch[name] = value end
  return pcall(function() return trainer():step(batch) end)
end

local function f32(data, shape) return { data = data, dtype = "f32", shape = shape or { 2, 8 } } end

local function assert_refused(words, inputs, more)
  local ok, raised = step(inputs, more)
  assert.is_false(ok)
  has(tostring(raised), words)
end

describe("a batch in memory of the FFI", function()
  it("is taken from arrays, pointers and structures", function()
    local losses, struct = {}, ffi.new("struct { int before; float x[2][8]; }")
    local arrays = { ffi.new("float[?]", 16), ffi.new("float[16]"), ffi.new("float[2][8]"), struct.x,
      ffi.new("float[?]", 100) }
    local kept = ffi.new("float[16]")
    arrays[#arrays + 1] = kept + 0
    arrays[#arrays + 1] = ffi.cast("const float *", kept)
    arrays[#arrays + 1] = ffi.cast("void *", kept)
    for i, data in ipairs(arrays) do
      local numbers = ffi.cast("float *", data)
      for k = 0, 15 do numbers[k] = k / 16 end
      local ok, metrics = step(f32(data))
      assert.is_true(ok, tostring(metrics))
      losses[i] = metrics.loss
      assert.equal(losses[1], losses[i])
    end
    local ok, metrics = step({ data = arrays[1], dtype = "float32", shape = { 2, 8 } })
    assert.is_true(ok, tostring(metrics))
    assert.equal(losses[1], metrics.loss)
  end)

  it("is refused when it is too small", function()
    assert_refused("batch.inputs.data | 16 bytes | f32 | 64", f32(ffi.new("float[4]")))
    assert_refused("batch.inputs.data has 60 bytes", f32(ffi.new("float[?]", 15)))
    assert_refused("64 | 8589934592", f32(ffi.new("float[16]"), { 2 ^ 28, 8 }))
  end)

  it("is refused when its elements are others", function()
    assert_refused("batch.inputs.data | double [16] | f32 | float", f32(ffi.new("double[16]")))
    assert_refused("int * | f32 | float", f32(ffi.cast("int *", ffi.new("float[16]"))))
    assert_refused("float | dtype", f32(ffi.new("float")))
    assert_refused("int64_t | f32 | float", f32(5LL))
    assert_refused("is struct", f32(ffi.new("struct { float x[16]; }")))
    assert_refused("batch.inputs.data | float [16] | i32 | int32_t",
      { data = ffi.new("float[16]"), dtype = "i32", shape = { 2, 8 } })
    assert_refused("NULL", f32(ffi.cast("float *", nil)))
  end)

  it("is refused when it is no memory", function()
    assert_refused("batch.inputs.data | string", f32(("x"):rep(64)))
    assert_refused("batch.inputs.data | table", f32({ 1, 2, 3 }))
    assert_refused("batch.inputs | shape", ffi.new("float[16]"))
  end)

  it("is refused when its shape or type is none", function()
    local data = ffi.new("float[16]")
    assert_refused("batch.inputs | size 2 | -8", f32(data, { 2, -8 }))
    assert_refused("batch.inputs | size 2 | 0.5", f32(data, { 2, 0.5 }))
    assert_refused("batch.inputs | size 2", f32(data, { 2, "8" }))
    assert_refused("batch.inputs | shape | list", f32(data, 16))
    assert_refused("2^53", f32(data, { 2 ^ 33, 2 ^ 33 }))
    assert_refused("type f64", { data = data, dtype = "f64", shape = { 2, 8 } })
    assert_refused("batch.first_row | 0", f32(data), { first_row = -1 })
    assert_refused("batch.row_step | 1", f32(data), { row_step = 0 })
  end)

  it("is checked where it is evaluated; a plan is made for its shapes alone", function()
    local train, batch = trainer(), { inputs = f32(ffi.new("float[4]")), targets = ms.zeros(2, 1) }
    local function one() return coroutine.wrap(function() coroutine.yield(1, batch) end) end
    local ok, raised = pcall(train.evaluate, train, one())
    assert.is_false(ok)
    has(tostring(raised), "batch.inputs.data | 16 bytes")
    assert.truthy(train:compile(batch))
  end)
end)

describe("a field that says something about a batch", function()
  it("is refused as an array or as another type, with the advice to take another name", function()
    for _, name in ipairs({ "first_row", "row_step", "data_ms", "counted_rows", "sample_rows", "batch_number",
      "rows_of_last" }) do
      for _, wrong in ipairs({ ms.ones(2), 0 / 0, 1 / 0, "1", true }) do
        assert_refused("batch." .. name .. " | a finite number | another name", ms.ones(2, 8), { [name] = wrong })
      end
    end
    for _, name in ipairs({ "is_padded", "will_be_padded" }) do
      assert_refused("batch." .. name .. " | true or false | another name", ms.ones(2, 8), { [name] = ms.ones(2) })
    end
  end)

  it("can be an array where only a text says something", function()
    local model = ms.nn.linear(8, 1)
    ms.fully_shard(model)
    local train = ms.trainer { model = model, optimizer = ms.optim.sgd { lr = 0.1 },
      forward = function(net, b) return ms.loss.mse(net(b.source), b.targets) end }
    assert.is_true(train:step({ source = ms.ones(2, 8), targets = ms.zeros(2, 1) }).loss >= 0)
  end)
end)

describe("an array whose rows are not those of the batch", function()
  it("is refused where micro-batches would each have a part of it", function()
    local function loss_of(micro_batches, rows)
      local model = ms.nn.linear(8, 1)
      ms.fully_shard(model)
      local train = ms.trainer { model = model, optimizer = ms.optim.sgd { lr = 0 }, micro_batches = micro_batches,
        forward = function(net, b) return ms.loss.mse(net(b.inputs), b.targets) * b.table:mean() end }
      return train:step({ inputs = ms.ones(4, 8), targets = ms.zeros(4, 1), table = ms.ones(unpack(rows)) }).loss
    end
    assert.is_true(math.abs(loss_of(1, { 6 }) - loss_of(2, { 1, 6 })) < 1e-6)
    for _, rows in ipairs({ 2, 4, 8 }) do assert.is_true(loss_of(2, { rows }) >= 0) end
    local ok, raised = pcall(loss_of, 2, { 6 })
    assert.is_false(ok)
    has(tostring(raised), "batch.table | 6 rows | 4 | 2 micro-batches | size 1")
  end)
end)
