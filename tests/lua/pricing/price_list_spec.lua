-- Lists of prices: the same in one process and in several, and after Ctrl-C as far as they came.

local forked = require("moonshard.price.forked")
local has = require("lua.support.message").has
local program = require("lua.support.program")
local scratch = require("lua.support.scratch")
local tree = require("moonshard.nn.tree")

local MESHES = "1x16,2x8,3x5,4x4,8x2,16x1,5x5"

-- A small model; `at` runs with its mesh before the first step. rule: another one of reshard_after_forward.
local function recipe(at, rule)
  local path = scratch.path() .. ".lua"
  scratch.write(path, ([=[
    local ms = require "moonshard"
    local ffi = require "ffi"
    local cfg = ms.args { mesh = "1x-1", batch = 1 }
    ffi.cdef "int kill(int, int); int getpid(void); int getppid(void);"
    local function signal(pid) ffi.C.kill(pid(), 2) end
    local model = ms.models.llama { vocab = 256, layers = 2, dim = 64, heads = 4, ffn = 128, seq = 32 }
    ms.fully_shard(model, { mesh = ms.init_device_mesh(cfg.device, cfg.mesh, { "replicate", "shard" }),
      units = { ms.re[[^layers\.\d+$]] }, reshard_after_forward = { { "layers", true }, %s { ms.re".", true } } })
    %s
    local data = ms.data.text { files = "tests/lua/recipes/text.txt", seq = 32, batch = cfg.batch }
    local train = ms.trainer { model = model, optimizer = ms.optim.adamw { lr = 1e-3 }, loss = ms.loss.cross_entropy }
    for step, batch in data:batches(2) do train:step(batch) end]=]):format(rule or "", at or ""))
  return path
end

local function list(path, ...)
  return program.run { "price", path, "-n", "16", "--cluster", "h100x8-400g", "--mesh-list", MESHES, ... }
end

describe("a list of prices", function()
  teardown(scratch.clear)

  it("E4 is the same in one process and in several, with what the recipe and warnings print", function()
    local path = recipe([[print("mesh", cfg.mesh) io.stderr:write("to standard error\n")]],
      [[{ "layers.0", false },]])
    for _, format in ipairs({ { "--json" }, {} }) do
      local one = list(path, "--processes", "1", unpack(format))
      assert.equal(0, one.status, one.err)
      has(one.out, "3x5 | 15 ranks")
      has(one.err, "mesh | 1x16 | to standard error | warning | mesh | 2x8")
      for _, processes in ipairs({ "2", "3", "40" }) do
        assert.same(one, list(path, "--processes", processes, unpack(format)))
      end
    end
  end)

  it("E4 calls meshes a tie whose prices differ by too little to decide", function()
    local show = require("moonshard.price.show")
    local function record(mesh, tokens_per_s, fits)
      return { mesh = mesh, tokens_per_s = tokens_per_s, tokens_per_s_per_rank = 1, step_ms = 1, exposed_ms = 0,
        peak_bytes = 1, fits = fits ~= false, limit = { kind = "compute" } }
    end
    local cluster = require("moonshard.price.cluster").load("h100x8")
    local function text(second)
      return show.table({ record("1x16", 1000), record("2x8", second), record("4x4", 999, false) }, cluster)
    end
    has(text(997), "a tie: 1x16, 2x8 differ | 5 %")
    assert.is_nil(text(940):find("a tie", 1, true))
    cluster.accuracy = 0.08
    has(text(940), "a tie: 1x16, 2x8 differ | 8 % | accurate")
    assert.is_nil(text(900):find("a tie", 1, true))
  end)

  it("is compiled by as many processes as asked for", function()
    local path = recipe [[print("pid", ffi.C.getpid())]]
    local function pids(processes)
      local seen, n = {}, 0
      for pid in list(path, "--processes", processes).err:gmatch("pid%s+(%d+)") do
        n = n + (seen[pid] and 0 or 1)
        seen[pid] = true
      end
      return n
    end
    assert.equal(1, pids("1"))
    assert.equal(3, pids("3"))
    program.refused(2, { "price", path, "-n", "16", "--cluster", "h100x8-400g", "--processes", "2" },
      "--processes 2 | --mesh-list")
  end)

  it("ends with the same error in one process and in several", function()
    for _, at in ipairs({ [[ms.nonsense()]], [[if cfg.mesh == "4x4" then local t = nil + 1 end]],
      [[os.exit(cfg.mesh == "2x8" and 7 or 8)]] }) do
      local path = recipe(at)
      local one = list(path, "--processes", "1")
      assert.equal(2, one.status, one.err)
      assert.same(one, list(path, "--processes", "3"))
    end
  end)

  it("is printed as far as it came after Ctrl-C", function()
    local one = list(recipe [[if cfg.mesh == "4x4" then signal(function() return ffi.C.getpid() end) end]],
      "--processes", "1")
    assert.equal(130, one.status)
    assert.equal("moonshard: interrupted after 3 of 7 meshes; those are printed\n", one.err)
    has(one.out, "1x16 | refused | 3x5")
    assert.is_nil(one.out:find("8x2", 1, true))
    local many = list(recipe [[if cfg.mesh == "8x2" then signal(function() return ffi.C.getppid() end) end]],
      "--processes", "2")
    assert.equal(130, many.status)
    has(many.err, "interrupted")
  end)

  it("ends searches and single plans with one line, too", function()
    local own = [[signal(function() return ffi.C.getpid() end)]]
    local third = [[local runs = package.loaded.runs or { n = 0 }
      runs.n = runs.n + 1
      package.loaded.runs = runs
      if runs.n == 3 then ]] .. own .. " end"
    local line = program.refused(130, { "tune", recipe(third), "-n", "16", "--cluster", "h100x8-400g" }, "interrupted")
    has(line, "plans | best so far | mesh")
    for _, command in ipairs({ "plan", "explain", "price" }) do
      program.refused(130, { command, recipe(own), "-n", "16", "--cluster", "h100x8-400g" }, "interrupted")
    end
  end)

  it("walks a model once for a plan, and not again for its price", function()
    local walks, inventory = 0, tree.inventory
    tree.inventory = function(...)
      walks = walks + 1
      return inventory(...)
    end
    local cluster = require("moonshard.price.cluster").load("h100x8-400g")
    cluster:describe_world(0, 16)
    local planned = require("moonshard.recipe.planned")
    local path = recipe()
    planned.run(path, assert(loadfile(path)), { { key = "mesh", text = "2x8" } }, function(compiled, trainer, batch)
      local price = require("moonshard.price.price")
      price.details(price.of(compiled, cluster, trainer, batch))
      compiled:free()
    end)
    tree.inventory = inventory
    assert.equal(1, walks)
  end)
end)

describe("a list that is divided among processes", function()
  it("comes in order, with nothing where nothing was returned, and numbers as they were", function()
    local got = {}
    forked.each {
      count = 50, processes = 4, work = function(i) return i ~= 7 and { i / 3 } or nil end,
      take = function(i, result) got[#got + 1] = { i, result } end,
    }
    assert.equal(50, #got)
    for i = 1, 50 do
      assert.equal(i, got[i][1])
      assert.equal(i ~= 7 and i / 3 or nil, got[i][2] and got[i][2][1])
    end
  end)

  it("says how a process ended that did not send all", function()
    local ok, raised = pcall(forked.each, { count = 4, processes = 2, take = function() end, work = function(i)
      if i == 2 then require("ffi").C.kill(require("ffi").C.getpid(), 9) end
      return { i }
    end })
    assert.is_false(ok)
    has(tostring(raised), "signal 9")
  end)
end)
