-- Muon by rule: the directions of torch.optim.Muon, whole matrices on their owners, the same training on every mesh.
-- tests/lua/updates_spec.lua compares every update with PyTorch's.

local compare = require("moonshard.check.tolerance")
local engine = require("moonshard.base.ffi")
local fixture = require("lua.fixture")
local has = require("lua.message").has
local huggingface = require("lua.huggingface")
local json = require("cjson")
local ms = require("moonshard")
local program = require("lua.program")
local scratch = require("lua.scratch")
local trained = require("lua.trained")
local C, ffi, re = engine.C, engine.ffi, ms.re

local world = ms.world()
local run, with, few, parity_on_all = trained.run, trained.with, trained.few, trained.parity_on_all

before_each(function() world.describe(0, 1) end)

-- What one step with a learning rate of 1 subtracts from matrices of zeros whose gradients the fixture has.
local function directions(dtype)
  local path, out = program.recipe([==[
    local ms = require "moonshard"
    local json = require "moonshard.base.json"
    local cfg = ms.args { dtype = "f32", out = "" }
    local file, found = ms.safetensors.open("tests/fixtures/updates/muon.safetensors"), {}
    for name, shape in pairs { wide = { 6, 40 }, tall = { 40, 6 }, square = { 24, 24 }, row = { 1, 9 },
      large = { 48, 72 } } do
      local net = ms.module { w = ms.parameter { shape[1], shape[2], init = "zeros" }, forward = function(self, x)
        return (self.w * x):sum()
      end }
      ms.fully_shard(net)
      local train = ms.trainer {
        model = net, forward = function(model, batch) return model(batch.inputs) end,
        optimizer = ms.optim.muon {
          lr = 1, momentum = 0, nesterov = false, weight_decay = 0, adjust = "match_rms_adamw", dtype = cfg.dtype,
        },
      }
      local gradient = ms.zeros(shape)
      file:read_f32(("direction.%s.gradient"):format(name), nil, 0, shape[1] * shape[2], gradient.data)
      train:step { inputs = gradient }
      found[name] = (train:parameter("w") * -1):reshape(-1):tolist()
    end
    local written = assert(io.open(cfg.out, "w"))
    written:write(json.encode(found))
    written:close()
  ]==]), scratch.path()
  local ended = program.run { "run", path, "dtype=" .. dtype, "out=" .. out }
  os.remove(path)
  assert.equal(0, ended.status, ended.err)
  return json.decode(scratch.read(out))
end

-- Differences as a part of the norm.
local function distance(expected, got)
  local squares, of = 0, 0
  for i, value in ipairs(expected) do
    squares, of = squares + (value - got[i]) ^ 2, of + value ^ 2
  end
  return math.sqrt(squares / of)
end

describe("Muon", function()
  teardown(scratch.clear)

  it("Q9 has the directions of torch.optim.Muon: of f32 to 1e-5, of bf16 as near as PyTorch's", function()
    local file, f32, bf16 = ms.safetensors.open("tests/fixtures/updates/muon.safetensors"), directions("f32"),
      directions("bf16")
    for name, got in pairs(f32) do
      local function values(label) return huggingface.values_of(file, ("direction.%s.%s"):format(name, label)) end
      local exact = values("exact")
      local worst = compare.arrays(exact, got, { count = #exact, tolerance = 1e-5 })
      assert.is_false(worst.differs, name)
      local of_torch = distance(exact, values("bf16"))
      assert.is_true(distance(exact, bf16[name]) < math.max(1e-2, 2 * of_torch),
        ("%s: %g, PyTorch %g"):format(name, distance(exact, bf16[name]), of_torch))
    end
  end)

  it("Q9 trains on every mesh as on one rank", function()
    for _, layout in ipairs(few { "rows", "ragged" }) do
      parity_on_all({ optimizer = "muon", layout = layout }, 1e-5)
    end
  end)

  it("Q9 trains on every mesh as on one rank with other settings", function()
    local meshes = few { { 2, "1x2" }, { 2, "2x1" }, { 4, "2x2" } }
    for _, settings in ipairs(few {
      { micro = 3, sync = "last" }, { shared_masters = false }, { over_replicate = "all", shared_masters = false },
      { over_replicate = "blocks", shared_masters = false, layout = "ragged" }, { freeze = "layers.0" },
      { tail = "tied" }, { spare = true }, { ema = 0.9, groups = true, reshard = "true" },
    }) do
      parity_on_all(with(settings, { optimizer = "muon" }), 1e-5, meshes)
    end
  end)

  it("Q9 K1 goes on from a checkpoint on another mesh", function()
    local folder = scratch.path()
    local settings = { optimizer = "muon", steps = 8 }
    local whole = run(2, with(settings, { mesh = "1x2", save = folder, save_at = 5 }))
    for _, mesh in ipairs(few { { 2, "1x2", 0 }, { 4, "2x2", 1e-5 } }) do
      local rest = run(mesh[1], with(settings, { mesh = mesh[2], load = folder }))
      trained.assert_close({ unpack(whole.losses, 6) }, rest.losses, mesh[3], "losses")
      for name, values in pairs(whole.params) do
        trained.assert_close(values, rest.params[name], 100 * mesh[3], name)
      end
    end
    has(program.run({ "inspect", folder }).out, "muon and adamw")
    scratch.clear()
  end)
end)
