-- Checkpoints on the device cuda, over emulated libraries: they hold what the CPU writes, and go on on either device
-- and on any mesh.

local compare = require("moonshard.check.tolerance")
local ffi = require("ffi")
local json = require("cjson")
local ms = require("moonshard")
local program = require("lua.support.program")
local scratch = require("lua.support.scratch")

local new_path, read = scratch.path, scratch.read
local SAVED, STEPS = 3, 6

-- Trains tests/lua/recipes/parity.lua in every way that is listed, all at the same time; gives what each wrote.
local function train_all(ways)
  local runs, results = {}, {}
  for name, way in pairs(ways) do
    way.out = new_path()
    runs[name] = { "run", "tests/lua/recipes/parity.lua", "-n", tostring(way.ranks), "mesh=" .. way.mesh,
      "steps=" .. STEPS, "out=" .. way.out, unpack(way) }
    if way.cuda then
      table.insert(runs[name], "device=cuda")
      runs[name].environment = program.emulated_cuda("MOONSHARD_EMULATE_JITTER=50")
    end
  end
  for name, ended in pairs(program.run_all(runs)) do
    assert(ended.status == 0, name .. ": " .. ended.err)
    results[name] = json.decode(read(ways[name].out))
  end
  return results
end

local folders = { background = new_path(), waited = new_path(), cuda = new_path(), cpu = new_path() }
local whole, rest

local function saving(folder) return "save=" .. folder, "save_at=" .. SAVED end

local function train()
  local dropout = "dropout=true"
  whole = train_all {
    background = { ranks = 4, mesh = "2x2", cuda = true, dropout, "async=true", saving(folders.background) },
    waited = { ranks = 4, mesh = "2x2", cuda = true, dropout, saving(folders.waited) },
    cuda = { ranks = 2, mesh = "1x2", cuda = true, dropout, saving(folders.cuda) },
    cpu = { ranks = 3, mesh = "1x3", dropout, saving(folders.cpu) },
  }
  rest = train_all {
    same = { ranks = 4, mesh = "2x2", cuda = true, dropout, "load=" .. folders.background },
    graphs = { ranks = 4, mesh = "2x2", cuda = true, dropout, "--cuda-graph", "load=" .. folders.background },
    same_on_cpu = { ranks = 4, mesh = "2x2", "shared_masters=false", dropout, "load=" .. folders.waited },
    to_cpu = { ranks = 3, mesh = "1x3", dropout, "load=" .. folders.cuda },
    from_cpu = { ranks = 2, mesh = "1x2", cuda = true, dropout, "layout=ragged", "load=" .. folders.cpu },
  }
end

local function assert_close(expected, got, tolerance, what)
  local worst = compare.arrays(expected, got, { count = #expected, tolerance = tolerance })
  assert.is_falsy(worst and worst.differs, what)
end

local function assert_goes_on(from, name, tolerance)
  local before, after = whole[from], rest[name]
  assert.equal(STEPS - SAVED, #after.losses)
  assert_close({ unpack(before.losses, SAVED + 1) }, after.losses, tolerance, name .. ": losses")
  assert_close({ unpack(before.norms, SAVED + 1) }, after.norms, tolerance, name .. ": norms")
  for parameter, values in pairs(before.params) do
    assert_close(values, after.params[parameter], tolerance * compare.PARAMETERS, name .. ": " .. parameter)
  end
end

local function export(folder)
  local out = new_path()
  local ended = program.run({ "export", folder, out })
  assert.equal(0, ended.status, ended.err)
  return ms.safetensors.open(out)
end

describe("a checkpoint of the device cuda", function()
  setup(train)
  teardown(function()
    scratch.clear()
  end)

  it("K1 goes on bit for bit on the same mesh, on streams and as graphs", function()
    assert_goes_on("background", "same", 0)
    assert_goes_on("background", "graphs", 0)
  end)

  it("K1 goes on with parity on the CPU, and the CPU's on cuda, on other meshes", function()
    assert_goes_on("waited", "same_on_cpu", 1e-5)
    assert_goes_on("cuda", "to_cpu", 1e-5)
    assert_goes_on("cpu", "from_cpu", 1e-5)
  end)

  it("K3 saving in the background writes what saving does, and hinders nothing", function()
    assert.same(whole.waited.params, whole.background.params)
    local a, b = export(folders.waited), export(folders.background)
    local compared = 0
    for name in pairs(whole.waited.params) do
      local bytes = a:tensor(name).bytes
      assert.equal(ffi.string(a:data(name), bytes), ffi.string(b:data(name), bytes), name)
      compared = compared + 1
    end
    assert.truthy(compared > 10)
    a:close()
    b:close()
  end)

  it("K2 an export holds the parameters that the CPU's holds", function()
    local exported, cpu = export(folders.cuda), export(folders.cpu)
    for name in pairs(whole.cuda.params) do
      local n = exported:tensor(name).bytes / 4
      local got, expected = ffi.new("float[?]", n), ffi.new("float[?]", n)
      exported:read_f32(name, nil, 0, n, got)
      cpu:read_f32(name, nil, 0, n, expected)
      for i = 0, n - 1 do assert.near(expected[i], got[i], 1e-4) end
    end
    exported:close()
    cpu:close()
  end)
end)
