-- Muon by rule: the directions of torch.optim.Muon, whole matrices on their owners, the same training on every mesh.
-- tests/lua/optimizers/updates_spec.lua compares every update with PyTorch's.

local compare = require("moonshard.check.tolerance")
local breadth = require("lua.support.breadth")
local has = require("lua.support.message").has
local huggingface = require("lua.support.huggingface")
local json = require("cjson")
local ms = require("moonshard")
local program = require("lua.support.program")
local scratch = require("lua.support.scratch")
local trained = require("lua.support.trained")

local world = ms.world()
local run, with, few, parity_on_all = trained.run, trained.with, breadth.few, trained.parity_on_all

before_each(function() world.describe(0, 1) end)

-- What one step with a learning rate of 1 subtracts from matrices of zeros whose gradients the fixture has.
local function directions(dtype)
  local path, out = program.recipe([==[
    local ms = require "moonshard"
    local json = require "moonshard.base.text.json"
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

  it("Q9 A1 trains on the device cuda as on the CPU", function()
    if os.getenv("MOONSHARD_CONFIG") ~= "release" then return end
    local library = ("MOONSHARD_CUDA_LIBRARY=%s/tests/emulated/libmoonshard_cuda_emulated.so"):format(
      os.getenv("MOONSHARD_BIN"):match("^(.*)/"))
    for ranks, mesh in ipairs { "1x1", "1x2" } do
      local settings, out = { optimizer = "muon", mesh = mesh, steps = 3, groups = true }, scratch.path()
      local words = { "device=cuda", "out=" .. out, "-n", tostring(ranks) }
      for name, value in pairs(settings) do words[#words + 1] = ("%s=%s"):format(name, tostring(value)) end
      local recipe = "tests/lua/recipes/parity.lua"
      local ended = program.run({ "run", recipe, unpack(words) }, program.emulated_cuda(library))
      assert(ended.status == 0, ended.err)
      local cpu, cuda = run(ranks, settings), json.decode(scratch.read(out))
      trained.assert_close(cpu.losses, cuda.losses, 1e-4, "losses")
      for name, values in pairs(cpu.params) do trained.assert_close(values, cuda.params[name], 1e-3, name) end
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

  it("Q9 K4 refuses a checkpoint under rules that give a matrix another optimizer #release", function()
    local recipe = program.recipe [[
      local ms = require "moonshard"
      local cfg = ms.args { muon = "0", load = "", save = "" }
      local model = ms.nn.sequential { ms.nn.linear(8, 8), ms.nn.linear(8, 8) }
      ms.fully_shard(model)
      local train = ms.trainer { model = model, loss = ms.loss.mse, optimizer = {
        { ms.re("^" .. cfg.muon .. "\\.weight$"), ms.optim.muon { lr = 0.1 } },
        { ms.re ".", ms.optim.sgd { lr = 0.1, momentum = 0.9 } } } }
      if cfg.load ~= "" then ms.checkpoint.load(train, cfg.load) end
      train:step { inputs = ms.ones(2, 8), targets = ms.zeros(2, 8) }
      if cfg.save ~= "" then ms.checkpoint.save(train, cfg.save) end
    ]]
    local folder = scratch.path()
    assert.equal(0, program.run({ "run", recipe, "save=" .. folder }).status)
    assert.equal(0, program.run({ "run", recipe, "load=" .. folder }).status)
    local other = program.run({ "run", recipe, "load=" .. folder, "muon=1" })
    os.remove(recipe)
    scratch.clear()
    assert.equal(2, other.status, other.err)
    has(other.err, ".weight | muon | sgd | same rules")
  end)

  it("Q9 keeps one moment of a matrix, in f32, also where others are in fewer bits: bytes are exact", function()
    local matrices = 2 * (17 * 16 + 17 * 7)
    for _, layout in ipairs { "rows", "ragged" } do
      local plain = run(1, { mesh = "1x1", layout = layout, steps = 1 })
      local all = 0
      for _, values in pairs(plain.params) do all = all + #values end
      for moments, bytes in pairs { f32 = 4, bf16 = 2 } do
        local muon = run(1, { mesh = "1x1", layout = layout, steps = 1, optimizer = "muon", moments = moments })
        local wanted = 4 * matrices + 2 * bytes * (all - matrices)
        -- Segments begin at multiples of 32 elements.
        local padding = muon.plan.bytes.optimizer - wanted
        assert.is_true(padding >= 0 and padding < 16 * 32 * 8, ("%s %s: %d"):format(layout, moments, padding))
        assert.equal(muon.plan.peak_bytes, muon.peak_bytes)
      end
    end
  end)

  it("Q9 counts the bytes that owners exchange #release", function()
    for _, mesh in ipairs(few { { 2, "1x2" }, { 2, "2x1" }, { 4, "2x2" } }) do
      local ran = run(mesh[1], { optimizer = "muon", mesh = mesh[2], steps = 2 })
      assert.equal(ran.plan.peak_bytes, ran.peak_bytes)
      for dim, bytes in pairs(ran.comm_bytes) do
        assert.equal(ran.plan.comm_bytes[dim], bytes, mesh[2] .. " " .. dim)
      end
    end
  end)

  local GPT2 = { "recipes/gpt2.lua", "-n", "4", "size=124M", "seq=32", "batch=1", "dtype=f32" }

  local function explained(more)
    local ended = program.run { "explain", "--json", more[1], more[2] or "optimizer=adamw", unpack(GPT2) }
    assert.equal(0, ended.status, ended.err)
    return json.decode(ended.out)
  end

  it("Q9 divides the work of GPT-2 evenly, and every rank's plan says who does it #release", function()
    for _, mesh in ipairs { "mesh=1x4", "mesh=2x2" } do
      local muon, owned = explained({ mesh, "optimizer=muon" }).muon, {}
      assert.is_true(muon.balance <= 1.1, muon.balance)
      for name, rank in pairs(muon.owners) do
        assert.is_truthy(name:find("^layers.*weight$"))
        owned[rank] = (owned[rank] or 0) + 1
      end
      for rank = 0, 3 do assert.is_true(owned[rank] >= 12 and owned[rank] <= 24) end
    end
    assert.is_nil(explained({ "mesh=1x4" }).muon)
    local text = program.run { "explain", "mesh=1x4", "optimizer=muon", unpack(GPT2) }
    has(text.out, "muon: 72 matrices")
    has(text.out, "1.00 times the mean")
    has(text.out, "muon, lr x 1, weight decay 0.1")
  end)

  it("Q9 exchanges a part of the matrices at a time, while others are computed, in less memory than all of them take",
    function()
      local function read(command, ...)
        local ended = program.run { command, "--json", "mesh=2x2", "optimizer=muon", ... }
        assert.equal(0, ended.status, ended.err)
        return json.decode(ended.out)
      end
      -- Four square matrices and two that are four times as wide in each of twelve layers. All at once would take a
      -- fourth of them in each of four buffers: sent and received, over either dimension.
      local all = 4 * 12 * (4 + 2 * 4) * 768 ^ 2
      local plan = read("plan", unpack(GPT2))
      local communication = (plan.plan or plan).bytes.communication
      assert.is_true(communication < 0.7 * all, communication / all)
      for _, phase in ipairs(read("price", "--cluster", "h100x8", unpack(GPT2)).phases) do
        if phase.name == "update" then
          assert.same({ replicate = 0, shard = 0 }, phase.waiting_ms)
        end
      end
    end)

  it("Q9 has a price: the operations of the iterations, and the exchanges #release", function()
    local function priced(optimizer)
      local ended = program.run { "price", "--json", "--cluster", "h100x8", "mesh=1x4", "optimizer=" .. optimizer,
        unpack(GPT2) }
      assert.equal(0, ended.status, ended.err)
      return json.decode(ended.out)
    end
    local adamw, muon = priced("adamw"), priced("muon")
    -- 5 (4 m^2 n + 2 m^3) of four square matrices and two that are four times as wide in each of twelve layers, a
    -- fourth of it on this rank, which computes at most 67 TFLOP/s in f32.
    local flops = 12 * 5 * (4 * 6 + 2 * 18) * 768 ^ 3 / 4
    assert.is_true(muon.step_ms > adamw.step_ms + 1e3 * flops / 67e12)
  end)
end)

-- A recipe of a small model with an optimizer, and what running it ends with.
local function ends_with(optimizer, o)
  o = o or {}
  local path = program.recipe(([==[
    local ms = require "moonshard"
    local re = ms.re
    local muon, adamw = ms.optim.muon { lr = 0.01 }, ms.optim.adamw { lr = 0.01 }
    local function linear(a, b) return ms.nn.linear(a, b) end
    local model = ms.nn.sequential { linear(4, 6), linear(6, 4), ms.nn.layer_norm(4) }
    ms.fully_shard(model, { %s })
    local train = ms.trainer { model = model, loss = ms.loss.mse, optimizer = %s }
    for step = 1, 2 do train:step { inputs = ms.randn { 4, 4, seed = step }, targets = ms.randn { 4, 4 } } end
    %s
    print "done"
  ]==]):format(o.shard or "mesh = '1x1'", optimizer, o.after or ""))
  local ended = program.run { "run", path, "-n", tostring(o.ranks or 1) }
  os.remove(path)
  return ended.status == 0 and ended.out or ended.err
end

describe("rules of optimizers", function()
  local WEIGHTS = [[{ { re[=[^[01]\.weight$]=], muon }, { re".", adamw } }]]

  it("Q9 take the first that matches", function()
    has(ends_with(WEIGHTS, { after = [[
      assert(train:optimizer_state("0.weight", "momentum").shape[1] == 6)
      assert(train:optimizer_state("0.bias", "exp_avg_sq").shape[1] == 6)
      assert(tostring(train):find("muon and adamw", 1, true), tostring(train))
      local m = train:step { inputs = ms.randn { 4, 4 }, targets = ms.randn { 4, 4 } }
      assert(m.lr == 0.01 and m.muon_lr == 0.01)
      local ok, why = pcall(train.optimizer_state, train, "0.weight", "exp_avg_sq")
      assert(not ok and tostring(why):find("muon keeps no exp_avg_sq", 1, true), tostring(why))
    ]] }), "done")
  end)

  it("Q9 leave frozen parameters out, of any shape", function()
    has(ends_with([[muon]], { shard = [[mesh = '1x1', freeze = { { re"bias|^2", true } }]] }), "done")
  end)

  it("Q9 refuse, by name, what Muon cannot train #release", function()
    for _, case in ipairs {
      { "muon", "parameter '0.bias' | muon | 1 dimension | adamw" },
      { [[{ { re"weight", muon }, { re".", adamw } }]], "parameter '2.weight' | muon | 1 dimension" },
      { [[{ { re"bias", adamw } }]], [[no rule matches 0.weight: end with { re".", ms.optim.adamw { ... } }]] },
      { [[{ { re"bias", adamw }, { re".", ms.optim.adamw { lr = 1 } } }]],
        "one Muon and one other optimizer: make it once, local adamw = | groups | write adamw in both rules" },
      { [[{ { re"bias", adamw }, { re".", ms.optim.sgd { lr = 1 } } }]], "ms.optim.sgd | ms.optim.adamw | choose one" },
      { [[ms.optim.muon { lr = -1 }]], "ms.optim.muon: lr must be at least 0 and finite, not -1" },
      { [[{ { re"bias", "adamw" } }]], "must be an optimizer | ms.optim." },
      { [[{ { re"nothing", muon }, { re".", adamw } }]], "nothing" },
      { [[ms.optim.muon { lr = 1, adjust = "orignal" }]], "original" },
      { [[ms.optim.muon { lr = 1, steps = 100 }]], "steps must be 1 to 99, not 100" },
      { [[ms.optim.muon { lr = 1, dtype = "i8" }]], 'dtype must be "f32" or "bf16", not "i8"' },
      { [[ms.optim.muon { lr = 1, momentum = 1 }]], "momentum must be at least 0 and below 1, not 1" },
      { WEIGHTS, "ms.set_rules: lr belongs to one optimizer", { after = [[ms.set_rules(model, { lr = 1 })]] } },
      { WEIGHTS, "groups belongs to one optimizer | give groups to each optimizer where its rule makes it",
        { after = [[ms.set_rules(model, { groups = {} })]] } },
      { WEIGHTS, "local SGD", { shard = [[mesh = "2x1", replicate_sync = { every = 2,
        outer = ms.optim.sgd { lr = 0.7 } }]], ranks = 2 } },
    } do
      has(ends_with(case[1], case[3]), case[2])
    end
  end)
end)
