-- Dtypes of 8 and 4 bits from Lua: casts, printing, files, descriptions of clusters, and what refuses them.

local dtypes = require("moonshard.base.dtypes")
local ffi = require("ffi")
local fixture = require("lua.support.fixture")
local has = require("lua.support.message").has
local huggingface = require("lua.support.huggingface")
local json = require("moonshard.base.text.json")
local ms = require("moonshard")
local program = require("lua.support.program")
local scratch = require("lua.support.scratch")
local show = require("moonshard.tensor.show")

local CASTS = "tests/fixtures/low_precision/casts.safetensors"

local folder

before_each(function() folder = scratch.folder() end)
after_each(scratch.clear)

-- An eager tensor [n] of elements of a file.
local function tensor_of(file, name, dtype)
  local stored = file:tensor(name)
  local x = ms.zeros(stored.elements, { dtype = dtype })
  ffi.copy(x.data, file:data(name), stored.bytes)
  return x
end

describe("eager tensors of low precision", function()
  it("Q1 are cast as ml_dtypes casts", function()
    local file = ms.safetensors.open(CASTS)
    for _, dtype in ipairs { "f8e4m3", "f8e5m2", "e8m0" } do
      local codes = tensor_of(file, dtype .. ".inputs", "f32"):to(dtype)
      local expected, n = file:data(dtype .. ".codes"), file:tensor(dtype .. ".codes").bytes
      assert.equal(ffi.string(expected, n), ffi.string(codes.data, n), dtype)
      local all, values = ms.zeros(256, { dtype = dtype }), ffi.cast("const float *", file:data(dtype .. ".values"))
      for i = 0, 255 do all.data[i] = i end
      local wide = all:float()
      for i = 0, 255 do
        local value = values[i]
        assert.is_true(wide.data[i] == value or value ~= value and wide.data[i] ~= wide.data[i], dtype .. " " .. i)
      end
    end
    file:close()
  end)

  it("Q1 show their values", function()
    local x = ms.tensor({ { 1, -2.3 }, { 500, 0 } }, { dtype = "f8e4m3" })
    assert.equal("tensor f8e4m3 [2,2]", tostring(x))
    assert.equal("[[  1.0000,  -2.2500],\n [448.0000,   0.0000]]", show.text(x))
    assert.same({ { 1, -2.25 }, { 448, 0 } }, x:tolist())
    assert.equal(448, x:index(1, 0):item())
    assert.equal("[1024,    4]", show.text(ms.tensor { 1000, 3.5 }:to("float8_e8m0fnu")))
    assert.equal("[   3, -128,  127]", show.text(ms.tensor { 3.9, -300, 300 }:to("i8")))
    assert.equal("i8", ms.tensor({ -128, 127 }, { dtype = "int8" }).dtype)
  end)

  it("Q1 are moved by ops that do not compute", function()
    local x = ms.tensor({ { 1, 2, 3 }, { 4, 5, 6 } }, { dtype = "f8e5m2" })
    assert.same({ { 1, 4 }, { 2, 5 }, { 3, 6 } }, x:transpose(0, 1):tolist())
    assert.same({ 1, 2, 3, 4, 5, 6 }, x:reshape(-1):tolist())
    assert.same({ { 4, 5, 6 } }, x:slice(0, 1, 2):tolist())
    assert.same({ { 1, 2, 3, 1, 2, 3 }, { 4, 5, 6, 4, 5, 6 } }, ms.ops.concat(x, x, { axis = 1 }):tolist())
    assert.same({ { 1, 2, 3 }, { 4, 5, 6 } }, x:to("i8"):to("bf16"):to("f8e4m3"):float():tolist())
  end)

  it("Q1 are refused by name where something computes", function()
    local x = ms.tensor({ 1, 2 }, { dtype = "f8e4m3" })
    for what, call in pairs {
      add = function() return x + x end,
      less = function() return x:lt(x) end,
      matmul = function() return x:reshape(1, 2):mm(x:reshape(2, 1)) end,
      sum = function() return x:sum() end,
      relu = function() return ms.ops.relu(x) end,
    } do
      has(fixture.message(call), what .. ": | f8e4m3 | f32 or bf16")
    end
    has(fixture.message(ms.tensor, { 1 }, { dtype = "nf4" }), "ms.tensor | 2 elements of nf4 share a byte | u8")
    has(fixture.message(ms.zeros, 2, { dtype = "int4" }), "ms.zeros | 2 elements of i4 share a byte")
    has(fixture.message(x.to, x, "nf4"), "cannot cast to nf4 | f8e4m3")
    has(fixture.message(ms.randn, 2, { dtype = "i8" }), "ms.randn | i8")
    has(fixture.message(ms.tensor, { 128 }, { dtype = "i8" }), "128 does not fit in i8 | -128 to 127")
    has(fixture.message(ms.tensor, { 1 }, { dtype = "fp8" }), "fp8 | f8e4m3, f8e5m2, e8m0, i8, i4 or nf4")
    for name in pairs { f8e4m3 = 1, f8e5m2 = 1, e8m0 = 1, i8 = 1, i4 = 1, nf4 = 1 } do
      for _, use in ipairs { "param_dtype", "reduce_dtype", "output_dtype" } do
        has(fixture.message(ms.fully_shard, fixture.gpt2(), { mp_policy = { [use] = name } }), use .. " | " .. name)
      end
    end
    for name in pairs { f8e4m3 = 1, f8e5m2 = 1, e8m0 = 1, i4 = 1, nf4 = 1 } do
      has(fixture.message(ms.optim.adamw, { lr = 1, moments = name }),
        'moments must be | "f32", "bf16" or "i8" | not "' .. name .. '"')
    end
  end)
end)

describe("safetensors files of low precision", function()
  local function write(path, tensors, metadata)
    local writer = ms.safetensors.create(path, tensors, { metadata = metadata })
    for _, t in ipairs(tensors) do writer:put(t.name, t.bytes) end
    writer:finish()
  end

  it("Q1 hold every type, and read back what was written", function()
    local all = {}
    for i = 0, 255 do all[i + 1] = string.char(i) end
    all = table.concat(all)
    local path, tensors = folder .. "/all.safetensors", {}
    for _, name in ipairs { "f8e4m3", "f8e5m2", "e8m0", "i8", "u8" } do
      tensors[#tensors + 1] = { name = name, dtype = dtypes.in_files[name], shape = { 2, 128 }, bytes = all }
    end
    write(path, tensors)
    local file = ms.safetensors.open(path)
    for _, t in ipairs(tensors) do
      assert.equal(t.dtype, file:tensor(t.name).dtype)
      assert.equal(8, file:tensor(t.name).bits)
      assert.is_nil(file:tensor(t.name).packed)
      assert.equal(all, ffi.string(file:data(t.name), 256))
    end
    local values = ffi.new("float[256]")
    for _, name in ipairs { "f8e4m3", "f8e5m2", "e8m0" } do
      assert.equal(256, file:read_f32(name, nil, 0, 256, values))
      local expected = tensor_of(file, name, name):reshape(-1):float().data
      for i = 0, 255 do assert.is_true(values[i] == expected[i] or values[i] ~= values[i], name .. " " .. i) end
    end
    has(fixture.message(file.read_f32, file, "i8", nil, 0, 1, values), "I8 | F8_E4M3, F8_E5M2 and F8_E8M0")
    file:close()
  end)

  it("Q1 round f32 numbers as a cast does, in a transposed view too", function()
    local path, n = folder .. "/rounded.safetensors", 35
    local x = ms.randn(n, { seed = 3 })
    for _, name in ipairs { "f8e4m3", "f8e5m2" } do
      local writer = ms.safetensors.create(path, { { name = "x", dtype = dtypes.in_files[name], shape = { 7, 5 } } })
      writer:put_f32("x", { rows = 5, columns = 7, first = 0, row_stride = 1, column_stride = 5 }, 0, n, x.data)
      writer:finish()
      local file = ms.safetensors.open(path)
      local turned = x:reshape(5, 7):transpose(0, 1):reshape(-1):to(name)
      assert.equal(ffi.string(turned.data, n), ffi.string(file:data("x"), n), name)
      file:close()
    end
  end)

  it("Q1 say what packed bytes hold, and inspect shows it", function()
    local path = folder .. "/packed.safetensors"
    write(path, {
      { name = "w", dtype = "nf4", shape = { 2, 6 }, bytes = "abcdef" },
      { name = "v", dtype = "i4", shape = { 4 }, bytes = "gh" },
      { name = "scale", dtype = "F8_E8M0", shape = { 2 }, bytes = "ij" },
    }, { format = "pt" })
    local file = ms.safetensors.open(path)
    assert.same({ dtype = "nf4", shape = { 2, 6 } }, file:tensor("w").packed)
    assert.same({ dtype = "i4", shape = { 4 } }, file:tensor("v").packed)
    assert.is_nil(file:tensor("scale").packed)
    assert.same({ "U8", 2, 3 }, { file:tensor("w").dtype, unpack(file:tensor("w").shape) })
    assert.equal("abcdef", ffi.string(file:data("w"), 6))
    file:close()
    local shown = program.run { "inspect", path }
    has(shown.out, "nf4 in U8  [2,6]  6 B")
    has(shown.out, "i4 in U8   [4]    2 B")
    has(shown.out, "F8_E8M0    [2]    2 B")
    local found = json.decode(program.run({ "inspect", path, "--json" }).out)
    local by_name = {}
    for _, t in ipairs(found.tensors) do by_name[t.name] = t end
    assert.same({ dtype = "nf4", shape = { 2, 6 } }, by_name.w.packed)
    assert.same({ 2, 3 }, by_name.w.shape)
    assert.is_nil(by_name.scale.packed)
  end)

  it("Q1 with wrong metadata about packed bytes are refused", function()
    local path = folder .. "/wrong.safetensors"
    for text, problem in pairs {
      ["[["] = "metadata moonshard.packed", ["3"] = "it must be an object",
      ['{"x":{"dtype":"nf4","shape":[4]}}'] = "tensor x: the file has no such tensor",
      ['{"w":{"dtype":"f32","shape":[4]}}'] = "tensor w: its dtype must be i4 or nf4", ['{"w":7}'] = "its dtype",
      ['{"w":{"dtype":"nf4"}}'] = "it has no shape", ['{"w":{"dtype":"nf4","shape":["a"]}}'] = "whole numbers",
      ['{"w":{"dtype":"nf4","shape":[5]}}'] = "U8 [2] does not hold nf4 [5]",
      ['{"w":{"dtype":"nf4","shape":[2,2]}}'] = "U8 [2] does not hold nf4 [2,2]",
      ['{"b":{"dtype":"nf4","shape":[4]}}'] = "I8 [2] does not hold nf4 [4]",
    } do
      write(path, { { name = "w", dtype = "U8", shape = { 2 }, bytes = "ab" },
        { name = "b", dtype = "I8", shape = { 2 }, bytes = "ab" } }, { ["moonshard.packed"] = text })
      local refused = fixture.message(ms.safetensors.open, path)
      assert.is_truthy(refused:find(problem, 1, true), text .. ": " .. refused)
      assert.is_truthy(refused:find("wrong.safetensors", 1, true), refused)
    end
    local function create(shape, metadata)
      return fixture.message(ms.safetensors.create, path, { { name = "w", dtype = "nf4", shape = shape } },
        { metadata = metadata })
    end
    has(create({ 2, 3 }), "tensor w | 2 elements of nf4 share a byte | last axis")
    has(create({}), "tensor w | last axis")
    has(create({ 2 }, { ["moonshard.packed"] = "{}" }), "moonshard.packed | leave it out")
  end)
end)

describe("Hugging Face folders in f8", function()
  -- A folder whose weights are f8 numbers, and one where they are stored so, with more tensors.
  local function folders(more)
    local tensors
    local rounded = huggingface.copy_of("gpt2_base", nil, function(list)
      tensors = list
      for _, t in ipairs(list) do t.values = ms.tensor(t.values):to("f8e4m3"):tolist() end
    end)
    local stored, declared = huggingface.copy_of("gpt2_base"), {}
    for _, t in ipairs(more) do tensors[#tensors + 1] = t end
    for i, t in ipairs(tensors) do declared[i] = { name = t.name, dtype = "F8_E4M3", shape = t.shape } end
    local writer = ms.safetensors.create(stored .. "/model.safetensors", declared)
    for _, t in ipairs(tensors) do
      writer:put_f32(t.name, nil, 0, #t.values, ffi.new("float[?]", #t.values, t.values))
    end
    writer:finish()
    return rounded, stored
  end

  it("Q1 are read if no scales belong to them", function()
    local rounded, stored = folders {}
    assert.same(huggingface.logits_of(rounded):tolist(), huggingface.logits_of(stored):tolist())
    local _, scaled = folders { { name = "h.0.mlp.c_fc.weight_scale", shape = { 1 }, values = { 2 } } }
    has(fixture.message(ms.huggingface.model, scaled), "extra: | h.0.mlp.c_fc.weight_scale")
  end)
end)

describe("clusters", function()
  it("Q1 describe peaks of 8-bit floats", function()
    local cluster = require("moonshard.price.cluster")
    for name, peak in pairs { h100x8 = 1979e12, h200x8 = 1979e12, b200x8 = 4500e12, ["h100x8-400g"] = 1979e12 } do
      local described = cluster.load(name)
      for _, dtype in ipairs { "f8e4m3", "f8e5m2" } do
        assert.equal(peak, described:struct().peak[dtypes.id(dtype)], name)
        assert.equal(peak, described:rank_peak(dtype), name)
      end
      assert.is_true(described:rank_peak("bf16") < peak)
      assert.is_nil(described:rank_peak("i8"))
    end
    assert.is_nil(cluster.load("a100-80x8"):rank_peak("f8e4m3")) -- Ampere has no products of f8
  end)
end)
