-- Parameters of shape {}: they train as those of one rank do on any mesh, as the closed forms of optimizers say, and go
-- through checkpoints, exports, averages and state dicts.

local cjson = require("cjson")
local has = require("lua.support.message").has
local program = require("lua.support.program")
local scratch = require("lua.support.scratch")

local RECIPE = "tests/lua/optimizers/recipes/scalars.lua"

local function check(ranks, ...) return { "check", RECIPE, "-n", ranks, ... } end
local function product(ranks, ...) return { "run", RECIPE, "-n", ranks, "product=true", ... } end

local folder = scratch.folder()

-- Sizes of replicate, shard, context and tensor.
local cases = {
  ["every dimension"] = check("16", "mesh=2x2x2x2", "muon=true", "steps=2"),
  ["context and tensor in bf16"] = check("4", "mesh=1x1x2x2", "micro_batches=2", "dtype=bf16"),
  ["ragged, 8-bit moments"] = check("4", "mesh=1x4x1x1", "layout=ragged", "moments=i8"),
  ["adafactor"] = check("4", "mesh=2x2x1x1", "optimizer=adafactor"),
  ["sliced lion"] = check("4", "mesh=2x2x1x1", "optimizer=lion", "moments=bf16", "sliced=true"),
  ["averages"] = check("2", "mesh=1x1x1x2", "optimizer=sgd", "ema=true"),
  ["restored"] = { "run", RECIPE, "-n", "4", "mesh=1x2x1x2", "restores=true" },
  ["restored over replicas"] = { "run", RECIPE, "-n", "4", "mesh=2x2x1x1", "restores=true", "layout=ragged" },
  ["saved"] = { "run", RECIPE, "-n", "4", "mesh=2x2x1x1", "ema=true", "saves=" .. folder },
  ["sgd"] = product("2", "mesh=1x2x1x1", "optimizer=sgd"),
  ["adam"] = product("4", "mesh=2x2x1x1", "optimizer=adam", "steps=1"),
  ["adamw"] = product("2", "mesh=2x1x1x1", "optimizer=adamw", "steps=1"),
  ["lion"] = product("2", "mesh=1x1x2x1", "optimizer=lion", "steps=1"),
  ["adafactor alone"] = product("2", "mesh=1x2x1x1", "optimizer=adafactor", "steps=1"),
}
local of, equals_one_rank = program.checks(cases)

local function lines_of(name)
  assert.equal(0, of(name).status, of(name).err)
  local list = {}
  for loss, norm, s in of(name).out:gmatch("loss (%S+) norm (%S+) s (%S+)") do
    list[#list + 1] = { loss = tonumber(loss), norm = tonumber(norm), s = tonumber(s) }
  end
  return list
end

local function close(expected, got) assert.is_true(math.abs(expected - got) <= 2e-6 * math.abs(expected), got) end

describe("parameters of shape {}", function()
  teardown(scratch.clear)

  it("S1 train on every kind of mesh as on one rank, with every optimizer", function()
    equals_one_rank("every dimension", "context and tensor in bf16", "ragged, 8-bit moments", "adafactor",
      "sliced lion", "averages")
  end)

  -- The loss is s^2, from s = 3: its gradient is 2 s.
  it("S13 are updated as the closed forms say", function()
    for step, line in ipairs(lines_of("sgd")) do
      close(9 * 0.8 ^ (2 * step - 2), line.loss)
      close(6 * 0.8 ^ (step - 1), line.norm)
      close(3 * 0.8 ^ step, line.s)
    end
    assert.equal(3, #lines_of("sgd"))
    close(3 - 0.1, lines_of("adam")[1].s)
    close(3 * (1 - 0.1 * 0.01) - 0.1, lines_of("adamw")[1].s)
    close(3 - 0.1, lines_of("lion")[1].s)
    close(3 - 0.1 * 3, lines_of("adafactor alone")[1].s)
  end)

  it("S14 come back from state dicts, copies in full and a rank's part", function()
    for _, name in ipairs({ "restored", "restored over replicas" }) do
      assert.equal(0, of(name).status, of(name).err)
      has(of(name).out, "restored")
    end
  end)

  it("go through checkpoints to other meshes, and are exported with shape []", function()
    assert.equal(0, of("saved").status, of("saved").err)
    local after = {}
    for i, mesh in ipairs({ "1x1x1x1", "1x2x1x2" }) do
      local ended = program.run({ "run", RECIPE, "-n", i == 1 and "1" or "4", "mesh=" .. mesh, "ema=true", "steps=1",
        "loads=" .. folder })
      assert.equal(0, ended.status, ended.err)
      after[i] = tonumber(ended.out:match("loss (%S+)"))
    end
    close(after[1], after[2])
    for _, averages in ipairs({ "--optimizer", "--ema" }) do
      local out = folder .. "/exported" .. averages
      assert.equal(0, program.run({ "export", folder, out, averages }).status)
      local listed = program.run({ "inspect", out .. "/model.safetensors", "--json" })
      assert.equal(0, listed.status, listed.err)
      local shapes = {}
      for _, tensor in ipairs(cjson.decode(listed.out).tensors) do shapes[tensor.name] = #tensor.shape end
      assert.equal(0, shapes["gate.scale"])
      assert.equal(0, shapes.temperature)
      assert.equal(2, shapes["up.weight"])
    end
  end)

  it("are declared with shape = {}, not by leaving out the sizes", function()
    scratch.write(folder .. "/none.lua", [[require("moonshard").parameter { init = "zeros" }]])
    program.refused(2, { "run", folder .. "/none.lua" }, "none.lua:1 | shape is missing | shape = {} for a scalar")
  end)
end)
