-- The state of models that a tensor dimension divides: checkpoints from mesh to mesh, state dicts, and files of Hugging
-- Face. All of it is compared bit for bit.

local checkpoint = require("moonshard.checkpoint")
local ffi = require("ffi")
local program = require("lua.support.program")
local scratch = require("lua.support.scratch")

teardown(scratch.clear)

local RECIPE = "tests/lua/recipes/tensor_parallel.lua"
local GPT2 = { "ema=true", "model=gpt2" }

-- Runs the recipe on a mesh "1x2x2".
local function run(mesh, ...)
  local ranks = 1
  for size in mesh:gmatch("%d+") do ranks = ranks * tonumber(size) end
  return program.run({ "run", RECIPE, "-n", tostring(ranks), "--timeout", "60", "mesh=" .. mesh, ... })
end

local function assert_runs(mesh, ...)
  local ended = run(mesh, ...)
  assert.equal(0, ended.status, mesh .. ": " .. ended.err)
  return ended
end

-- The bytes of every parameter, moment and average in a checkpoint, by kind and name.
local function contents(path)
  local source, all = checkpoint.open(path), {}
  for _, param in ipairs(source.parameters) do
    local numel = 1
    for _, size in ipairs(param.shape) do numel = numel * size end
    for _, kind in ipairs({ "param", "exp_avg", "exp_avg_sq", "ema" }) do
      local out = ffi.new("float[?]", numel)
      source:read(kind, param.name, 0, numel, out)
      all[kind .. " " .. param.name] = ffi.string(out, 4 * numel)
    end
  end
  source:close()
  return all
end

local function assert_same(expected, got, what)
  for name, bytes in pairs(expected) do assert.is_true(bytes == got[name], what .. ": " .. name) end
  for name in pairs(got) do assert.truthy(expected[name], what .. ": " .. name) end
end

-- Takes a checkpoint from mesh to mesh; all write the same.
local function assert_travels(meshes, ...)
  local folder, first = scratch.path(), nil
  assert_runs(meshes[1], "steps=2", "saves=" .. folder, ...)
  for i, mesh in ipairs(meshes) do
    if i > 1 then
      local next_folder = scratch.path()
      assert_runs(mesh, "steps=0", "loads=" .. folder, "saves=" .. next_folder, ...)
      folder = next_folder
    end
    local got = contents(folder)
    first = first or got
    assert_same(first, got, mesh)
  end
  return folder
end

describe("the state of a divided model", function()
  it("T7 goes in a checkpoint to other sizes of the tensor dimension, and of the others", function()
    assert_travels({ "1x1x2", "1x2x2", "2x1x1", "1x1x4", "2x2x1", "2x1x2", "1x1x2" }, unpack(GPT2))
  end)

  it("T7 goes to another layout, with a tied head", function()
    local folder = scratch.path()
    assert_runs("1x2x2", "steps=2", "saves=" .. folder, "tied=true", "layout=ragged", unpack(GPT2))
    local other = scratch.path()
    assert_runs("2x1x2", "steps=0", "loads=" .. folder, "saves=" .. other, "tied=true", unpack(GPT2))
    assert_same(contents(folder), contents(other), "rows")
  end)

  it("T7 of modules that no preset knows travels, too", function()
    assert_travels({ "1x2x2", "1x1x1", "1x1x4" }, "ema=true", "model=mixer")
  end)

  it("T7 goes on bit for bit on the same mesh", function()
    local at_two, at_three, whole = scratch.path(), scratch.path(), scratch.path()
    assert_runs("1x2x2", "steps=3", "saves=" .. whole, "resume=true", unpack(GPT2))
    assert_runs("1x2x2", "steps=2", "saves=" .. at_two, "resume=true", unpack(GPT2))
    assert_runs("1x2x2", "steps=3", "loads=" .. at_two, "saves=" .. at_three, "resume=true", unpack(GPT2))
    assert_same(contents(whole), contents(at_three), "third step")
  end)

  it("T7 is exported as one file that does not tell the mesh", function()
    local whole = scratch.path()
    local from = assert_travels({ "1x2x2" }, unpack(GPT2))
    assert_runs("1x1x1", "steps=0", "loads=" .. from, "saves=" .. whole, unpack(GPT2))
    local files = {}
    for _, source in ipairs({ from, whole }) do
      local divided = scratch.path()
      local ended = program.run({ "export", source, divided })
      assert.equal(0, ended.status, ended.err)
      files[#files + 1] = scratch.read(divided .. "/model.safetensors")
    end
    assert.is_true(files[1] == files[2])
  end)

  it("T7 comes back from state dicts, of parts and whole", function()
    assert_runs("1x2x2", "steps=1", "restores=true", "sequence_parallel=true")
  end)

  it("T7 is written for Hugging Face and read again on other meshes", function()
    local one, two = scratch.path(), scratch.path()
    assert_runs("1x2x2", "steps=1", "model=llama", "exports=" .. one)
    assert_runs("2x1x2", "steps=0", "model=llama", "folder=" .. one, "exports=" .. two)
    assert.is_true(scratch.read(one .. "/model.safetensors") == scratch.read(two .. "/model.safetensors"))
  end)
end)
