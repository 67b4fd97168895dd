-- ms.scaling: prices of one recipe on few nodes and many, which shape wins where, and closed forms.

local axis = require("moonshard.metrics.axis")
local closed_forms = require("moonshard.price.closed_forms")
local cluster = require("moonshard.price.cluster")
local has = require("lua.support.message").has
local json = require("moonshard.base.text.json")
local lines = require("moonshard.page.lines")
local program = require("lua.support.program")
local report = require("moonshard.scaling.report")
local scratch = require("lua.support.scratch")
local shapes = require("moonshard.scaling.shapes")
local units = require("moonshard.page.units")

describe("closed forms", function()
  -- 7e9 parameters gathered twice in bf16 and reduced in f32, on 2 nodes of 8: 100 GB/s of a rank inside, 40 GB/s of a
  -- node between.
  local links = { inside = 100e9, between = 40e9, ranks_per_node = 8 }
  local function case(shards, replicas)
    return { parameters = 7e9, shards = shards, replicas = replicas, gathers = 2, gather_bytes = 2, reduce_bytes = 4 }
  end

  it("E5 FSDP over two nodes moves V between them", function()
    local shard, replicate = closed_forms.bytes(case(16, 1))
    assert.equal(15 / 16 * 56e9, shard)
    assert.equal(0, replicate)
    assert.near(15 / 16 * 56 / 40, closed_forms.seconds(shard, replicate, 16, 1, links), 1e-9)
  end)

  it("E5 HSDP moves V inside the nodes, and synchronises its shards between them", function()
    local shard, replicate = closed_forms.bytes(case(8, 2))
    assert.equal(7 / 8 * 56e9, shard)
    assert.equal(2 * 0.5 * 7e9 / 8 * 4, replicate)
    assert.near(7 / 8 * 56 / 100 + 3.5 / (40 / 8), closed_forms.seconds(shard, replicate, 8, 2, links), 1e-9)
  end)

  it("E5 replicas that share a node share its bandwidth with fewer groups", function()
    local shard, replicate = closed_forms.bytes(case(4, 4))
    assert.near(shard / 100e9 + replicate / (40e9 / 4), closed_forms.seconds(shard, replicate, 4, 4, links), 1e-9)
  end)

  it("E5 on one node nothing moves between nodes", function()
    local shard, replicate = closed_forms.bytes(case(4, 2))
    assert.near((shard + replicate) / 100e9, closed_forms.seconds(shard, replicate, 4, 2, links), 1e-12)
  end)
end)

describe("shapes of a scaling study", function()
  it("are meshes of all ranks", function()
    assert.equal("1x64", shapes.mesh(shapes.read("fsdp"), 8, 8))
    assert.equal("8x8", shapes.mesh(shapes.read("hsdp"), 8, 8))
    assert.equal("4x16", shapes.mesh(shapes.read("hsdp:2"), 8, 8))
    assert.equal("1x8x8", shapes.mesh(shapes.read("fsdp tensor:8"), 8, 8))
    assert.equal("4x8x2", shapes.mesh(shapes.read("hsdp:2 tensor:2"), 8, 8))
  end)

  it("are left out where they are another shape or do not divide", function()
    assert.is_nil(shapes.mesh(shapes.read("hsdp"), 1, 8))
    assert.is_nil(shapes.mesh(shapes.read("hsdp:2"), 3, 8))
    assert.is_nil(shapes.mesh(shapes.read("fsdp tensor:3"), 2, 8))
  end)

  it("are taken once, also by two names", function()
    local list = shapes.distinct({ "fsdp", "hsdp", "fsdp", "hsdp:1", "tensor:8 hsdp", "hsdp:1 tensor:8", "hsdp:2" })
    for i, shape in ipairs(list) do list[i] = shape.name end
    assert.same({ "fsdp", "hsdp", "tensor:8 hsdp", "hsdp:2" }, list)
  end)

  it("are refused with what is possible", function()
    for _, wrong in ipairs({ "ddp", "fsdp:2", "hsdp:0", "tensor:8", "fsdp tensor:1", "" }) do
      assert.has_error(function() shapes.read(wrong) end)
    end
  end)
end)

describe("the answer of a scaling study", function()
  local function answers(fsdp, tensor)
    local function record(shape, per_rank, more)
      local r = { shape = shape, mesh = "16x8", nodes = 16, per_rank = per_rank, fits = true, tensor = 1, bytes = 1,
        room = 2 }
      for key, value in pairs(more or {}) do r[key] = value end
      return r
    end
    return report.answers({ cluster = cluster.load("h100x8-200g"), nodes = { 16 }, shapes = {}, curve = {
      record("fsdp", fsdp), record("hsdp", 1761), record("hsdp:2", 1750, { fits = false }),
      tensor and record("fsdp tensor:8", tensor, { tensor = 8 }) } })
  end

  it("names the shapes that tie with the fastest, as far as prices tell", function()
    local list = answers(1757)
    has(list[1], "16 nodes: hsdp, | 1761")
    has(list[2], "tie | fsdp | 1757 | 5 %")
    assert.equal(1, #answers(1600))
    list = answers(1757, 2000)
    has(list[2], "hsdp | 1761")
    has(list[3], "tie | fsdp")
    assert.equal(3, #list)
  end)
end)

describe("the batch of a scaling study", function()
  local function answers(of_hsdp)
    local list = {}
    for _, point in ipairs({ { "fsdp", 1, 1000 }, { "hsdp", 1, 800 }, { "fsdp", 4, 2000 }, { "hsdp", 4, of_hsdp } }) do
      list[#list + 1] = { shape = point[1], settings = { batch = point[2] }, per_rank = point[3], nodes = 16,
        fits = true, mesh = "16x8", tensor = 1, bytes = 1, room = 2 }
    end
    return report.answers({ cluster = cluster.load("h100x8-200g"), nodes = { 16 }, shapes = {},
      tradeoffs = { records = list }, curve = { list[1], list[2] } })
  end

  it("is named first where a larger one changes which shape is the fastest", function()
    has(answers(3000)[1], "larger batch changes | 16 nodes | batch=4, hsdp | 3000 | batch=1 fsdp | 1000")
    has(answers(1900)[1], "16 nodes: fsdp")
    has(answers(2050)[1], "16 nodes: fsdp") -- a tie, as far as prices tell
  end)
end)

describe("a logarithmic axis", function()
  it("has powers of its base, and of ten also twice and five times them", function()
    assert.same({ 1, 2, 4, 8 }, axis.log_ticks(1, 12, 2))
    assert.same({ 20, 50, 100, 200, 500 }, axis.log_ticks(15, 900, 10))
    assert.same({ 1e3, 1e4, 1e5, 1e6 }, axis.log_ticks(1e3, 5e6, 10))
    assert.same({}, axis.log_ticks(3, 3, 2))
  end)

  it("gives equal factors equal distances, and has a label at each tick", function()
    local function heights(log_y)
      local points = {}
      for i, y in ipairs({ 100, 200, 400 }) do points[i] = { x = 2 ^ i, y = y, low = 0, high = y, title = "" } end
      local svg, list = lines.svg({ title = "t", curves = { { class = "s1", points = points } }, log_y = log_y,
        x_base = 2, x_text = tostring, x_title = "nodes", y_title = "speed", y_unit = units.plain("tokens/s"),
        ideal = { x = 2, y = 100, text = "perfect" }, y_text = function(y) return y .. " a second" end }), {}
      for y in svg:gmatch('cy="([%d.]+)"') do list[#list + 1] = tonumber(y) end
      assert.is_nil(svg:find("nan"))
      return list, svg
    end
    local list, svg = heights(true)
    assert.near(list[1] - list[2], list[2] - list[3], 0.11)
    has(svg, "200 a second | 4 | 8 | speed, tokens/s | nodes | perfect")
    assert.truthy(svg:find('class="ideal" x1="9.000%%" x2="96.000%%"'), "from the first point to the last")
    list = heights(false)
    assert.near(2 * (list[1] - list[2]), list[2] - list[3], 0.21)
  end)
end)

describe("moonshard sweep with ms.scaling", function()
  local folder
  setup(function() folder = scratch.folder() end)
  teardown(scratch.clear)

  local function arguments(...)
    return { "sweep", "recipes/scaling.lua", "out=" .. folder .. "/out", "models=1B", "size=1B", "seq=256", ... }
  end

  it("prints which shape wins where, and writes a page that needs nothing else", function()
    local run = program.run(arguments("cluster=h100x8-25gbe", "shapes=fsdp,hsdp", "nodes=1,2"))
    assert.equal(0, run.status, run.err)
    has(run.out, "2 nodes | hsdp | fsdp | mesh=2x8")
    local page = scratch.read(folder .. "/out/index.html")
    for _, text in ipairs({ "<svg", "<table", "2x8", "1x16" }) do
      assert.is_truthy(page:find(text, 1, true), text)
    end
    has(page, "Scaling | logarithmic | Scaling per rank")
    assert.is_nil(page:find("src="))
    local results = json.decode(scratch.read(folder .. "/out/results.json"))
    assert.equal(3, #results.curve)
    for _, record in ipairs(results.curve) do
      assert.is_true(record.step > 0 and record.bytes > 0)
      assert.is_true(record.guide > 0 and record.guide < 1.05 * record.step) -- bytes alone take no longer than a step
    end
  end)

  it("says which shape is the fastest without a tensor dimension where one with it is faster", function()
    local run = program.run(arguments("cluster=h100x8-25gbe", "shapes=fsdp,hsdp,fsdp tensor:8", "nodes=2"))
    assert.equal(0, run.status, run.err)
    has(run.out, "2 nodes | fsdp tensor:8, mesh=1x2x8 | without a tensor | hsdp, mesh=2x8")
    has(scratch.read(folder .. "/out/index.html"), "without a tensor | hsdp, mesh=2x8")
  end)

  it("prints after Ctrl-C what it has priced, and where the curve is complete what it says", function()
    local function interrupted(mesh, batch)
      scratch.write(folder .. "/small.lua", ([[
        local ms, ffi = require "moonshard", require "ffi"
        local cfg = ms.args { mesh = "1x-1", batch = 1 }
        ffi.cdef "int kill(int, int); int getpid(void);"
        if cfg.mesh == "%s" and cfg.batch == %d then ffi.C.kill(ffi.C.getpid(), 2) end
        local model = ms.models.llama { vocab = 256, layers = 2, dim = 64, heads = 4, ffn = 128, seq = 32 }
        ms.fully_shard(model, { mesh = ms.init_device_mesh(cfg.device, cfg.mesh, { "replicate", "shard" }) })
        local data = ms.data.text { files = "tests/lua/recipes/text.txt", seq = 32, batch = cfg.batch }
        local train = ms.trainer { model = model, optimizer = ms.optim.adamw { lr = 1e-3 },
          loss = ms.loss.cross_entropy }
        for step, batch in data:batches(2) do train:step(batch) end]]):format(mesh, batch))
      scratch.write(folder .. "/study.lua", ([[require("moonshard").scaling { recipe = "small.lua", nodes = { 1, 2 },
        cluster = "h100x8-25gbe", shapes = { "fsdp", "hsdp" }, tradeoffs = { batch = { 2 } }, out = %q }]]):format(
        folder .. "/stopped"))
      local run = program.run { "sweep", folder .. "/study.lua" }
      assert.equal(130, run.status, run.err)
      assert.is_nil(io.open(folder .. "/stopped/index.html"))
      return run
    end
    local part = interrupted("2x8", 1)
    has(part.err, "interrupted | 2 plans")
    has(part.out, "nodes | ranks | fsdp | 16 | *")
    assert.is_nil(part.out:find("2 nodes", 1, true))
    local whole = interrupted("2x8", 2)
    has(whole.err, "interrupted | page")
    has(whole.out, "on 2 nodes: | bytes alone")
  end)

  it("refuses nodes that a cluster does not have, and shapes that do not exist", function()
    program.refused(2, arguments("nodes=2,1"), "ascending | 1 | 2")
    program.refused(2, arguments("shapes=ddp"), "hsdp")
    program.refused(2, arguments("cluster=h100x9"), "h100x8")
  end)

  it("refuses a recipe that has no plan on any mesh, for the reason of the first", function()
    program.refused(2, arguments("size=9B", "nodes=1,2"), "1x8 | 9B | 7B")
    program.refused(2, arguments("shapes=hsdp:3", "nodes=2"), "shapes | 8 ranks | hsdp:K | tensor:T")
  end)

  it("refuses options of the command that it would ignore", function()
    program.refused(2, arguments("--price", "h100x8-400g"), "--price")
    program.refused(2, arguments("--plan"), "--plan")
  end)
end)
