-- safetensors from Lua, and moonshard inspect: what is read equals what the reference library read of the same files.

local ms = require("moonshard")
local fixture = require("lua.support.fixture")
local json = require("moonshard.base.text.json")
local has = require("lua.support.message").has
local program = require("lua.support.program")
local ffi = require("ffi")
local scratch = require("lua.support.scratch")

local FIXTURES = "tests/fixtures/safetensors/"

local function names_in(folder, ending)
  local list = {}
  local pipe = io.popen(("ls %s%s"):format(FIXTURES, folder))
  for name in pipe:lines() do
    if name:sub(-#ending) == ending then list[#list + 1] = name:sub(1, -#ending - 1) end
  end
  pipe:close()
  return list
end

local function with_path(action)
  local path = os.tmpname()
  local ok, raised = pcall(action, path)
  os.remove(path)
  if not ok then error(raised, 0) end
end

describe("safetensors", function()
  it("K5 gives the tensors and the bytes that the reference library gave", function()
    local compared = 0
    for _, name in ipairs(names_in("good", ".json")) do
      local expected = json.decode(scratch.read(FIXTURES .. "good/" .. name .. ".json"))
      local file = ms.safetensors.open(FIXTURES .. "good/" .. name .. ".safetensors")
      assert.equal(#expected, #file.tensors, name)
      for i, tensor in ipairs(file.tensors) do
        local found = { name = tensor.name, dtype = tensor.dtype, shape = tensor.shape, bytes = tensor.bytes,
          xxh3 = file:checksum(tensor.name) }
        assert.same(expected[i], found)
        compared = compared + 1
      end
      file:close()
    end
    assert.is_true(compared > 35)
  end)

  it("K5 reads values, parts and metadata", function()
    local file = ms.safetensors.open(FIXTURES .. "good/reference.safetensors")
    assert.same({ 3, 4 }, file:tensor("layers.0.weight").shape)
    local weight = ffi.cast("const float *", file:data("layers.0.weight"))
    for i = 0, 11 do assert.equal(i / 8, weight[i]) end
    local two = ffi.new("float[2]")
    file:read("layers.0.bias", 4, 8, two)
    assert.same({ -2, 3 }, { two[0], two[1] })
    assert.equal("format", file.metadata[1].key)
    assert.equal("pt", file.metadata[1].value)
    has(fixture.message(file.tensor, file,
      "layers.0.wieght"), "layers.0.wieght: | layers.0.weight")
    has(fixture.message(file.read, file, "layers.0.bias", 8, 8, two), "12")
    file:close()
    file:close()
    has(fixture.message(file.data, file, "mask"), "closed")
  end)

  it("K5 refuses every malformed file with its path and a reason", function()
    local refused = 0
    for _, name in ipairs(names_in("bad", ".safetensors")) do
      local path = FIXTURES .. "bad/" .. name .. ".safetensors"
      local message, raised = fixture.message(ms.safetensors.open, path)
      assert.equal("MS_EINVAL", raised.status, name)
      has(message, path)
      refused = refused + 1
    end
    assert.is_true(refused > 80)
  end)

  it("K5 writes, byte for byte, what the reference library writes", function()
    local original = FIXTURES .. "good/reference.safetensors"
    local source, declared = ms.safetensors.open(original), {}
    for i, tensor in ipairs(source.tensors) do declared[#source.tensors + 1 - i] = tensor end
    with_path(function(path)
      local writer = ms.safetensors.create(path, declared, { metadata = { format = "pt" }, sync = true })
      for _, tensor in ipairs(declared) do
        if tensor.bytes > 1 then writer:put(tensor.name, source:data(tensor.name) + 1, tensor.bytes - 1, 1) end
        if tensor.bytes > 0 then writer:put(tensor.name, ffi.string(source:data(tensor.name), 1)) end
      end
      writer:finish()
      assert.equal(scratch.read(original), scratch.read(path))
      has(fixture.message(writer.put, writer, "ids", "x"), "finished | given up")
    end)
  end)

  it("K5 the writer reports wrong arguments", function()
    with_path(function(path)
      local create = ms.safetensors.create
      local one = { { name = "a", dtype = "F32", shape = { 2 } } }
      local half = { { name = "a", dtype = "F32", shape = { 1.5 } } }
      has(fixture.message(create, path, one, { sink = true }), "option sink: | sync")
      has(fixture.message(create, path, half), "dimension 0 is 1.5")
      has(fixture.message(create, path, { { name = "a" } }), "tensor 1: write {")
      has(fixture.message(create, path, one, { metadata = { a = 1 } }), "keys | values")
      local writer = create(path, one)
      has(fixture.message(writer.put, writer, "b", "x"), "tensor b")
      writer:put("a", "1234")
      local message, raised = fixture.message(writer.finish, writer)
      assert.equal("MS_EINVAL", raised.status)
      has(message, '"a" | 4 to 8')
      assert.equal("", scratch.read(path))
      create(path, one):abort()
    end)
  end)
end)

describe("moonshard inspect", function()
  it("K5 prints tensors, sizes, checksums, metadata and totals", function()
    local ended = program.run({ "inspect", FIXTURES .. "folders/good" })
    assert.equal(0, ended.status, ended.err)
    assert.equal(FIXTURES .. [[
folders/good: 2 tensors, 3 elements, 6 B in 2 files
  a  F32  [1]  4 B  87b1e526910fd7e1  model-00001-of-00002.safetensors
  b  U8   [2]  2 B  2ef45c06a7585657  model-00002-of-00002.safetensors
by dtype
  F32  1 tensor  1 elements  4 B
  U8   1 tensor  2 elements  2 B
metadata
  total_size  6   model.safetensors.index.json
  format      pt  model-00001-of-00002.safetensors
  format      pt  model-00002-of-00002.safetensors
]], ended.out)
  end)

  it("K5 --json prints the same for programs", function()
    local ended = program.run({ "inspect", "--json", FIXTURES .. "good/reference.safetensors" })
    assert.equal(0, ended.status, ended.err)
    local found = json.decode(ended.out)
    local expected = json.decode(scratch.read(FIXTURES .. "good/reference.json"))
    assert.equal(#expected, #found.tensors)
    for i, tensor in ipairs(found.tensors) do
      for key, value in pairs(expected[i]) do assert.same(value, tensor[key]) end
    end
    assert.equal(8, found.totals.tensors)
    assert.equal(2, found.dtypes.F32.tensors - 1)
    assert.same({ { key = "format", value = "pt", file = FIXTURES .. "good/reference.safetensors" } }, found.metadata)
    local empty = program.run({ "inspect", "--json", "--no-checksums", FIXTURES .. "good/rank_zero.safetensors" })
    has(empty.out, '"name":"a","dtype":"F32","shape":[],"elements":1')
    assert.falsy(empty.out:find("xxh3", 1, true))
  end)

  it("K5 shows names of strangers without obeying them, and refuses bad files in a line", function()
    local named = program.run({ "inspect", FIXTURES .. "good/name_without_letters.safetensors" })
    has(named.out, "\\x1b[31m")
    assert.falsy(named.out:find("\27", 1, true))
    for arguments, why in pairs({
      [{ "inspect", FIXTURES .. "bad/hole.safetensors" }] = "hole",
      [{ "inspect", "none.safetensors" }] = "none.safetensors: No such file",
      [{ "inspect" }] = "moonshard inspect FILE|DIR",
      [{ "inspect", "a=b" }] = "file",
    }) do
      local ended = program.run(arguments)
      assert.equal(2, ended.status, ended.err)
      has(ended.err, why)
      assert.equal(1, select(2, ended.err:gsub("\n", "")))
    end
  end)
end)
