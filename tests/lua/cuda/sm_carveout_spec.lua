-- --sm-carveout: matrix products that can run at the same time as a collective leave multiprocessors to it, others use
-- all. Which ones these are, a plan says; that they are limited, and that collectives have no more thread blocks than
-- that, the emulated libraries log (tests/emulated_cuda). How much time it saves, they cannot tell.

local has = require("lua.support.message").has
local json = require("cjson")
local program = require("lua.support.program")

local PARITY = "tests/lua/recipes/parity.lua"
local CARVEOUT, PROCESSORS = 16, 132
local KERNELS = ("MOONSHARD_CUDA_LIBRARY=%s/tests/emulated/libmoonshard_cuda_emulated.so "):format(
  os.getenv("MOONSHARD_BIN"):match("^(.*)/"))

local runs, folders, outs = {}, {}, {}

-- Arguments of a command, of which some are numbers.
local function run(name, environment, words)
  runs[name] = { environment = environment }
  for i, word in ipairs(words) do runs[name][i] = tostring(word) end
end

local function plan(name, words)
  run(name, program.emulated_cuda("MOONSHARD_EMULATE_DEVICES=0"), { "plan", PARITY, unpack(words) })
end

for mesh, ranks in pairs({ ["1x1"] = "1", ["1x2"] = "2", ["2x2"] = "4" }) do
  local words = { "--device", "cuda", "-n", ranks, "mesh=" .. mesh, "micro=3" }
  plan("plain " .. mesh, { "--json", unpack(words) })
  plan("spared " .. mesh, { "--sm-carveout", CARVEOUT, "--json", unpack(words) })
  plan("told " .. mesh, { "--sm-carveout", CARVEOUT, "--summary", unpack(words) })
end
for rank = 0, 3 do
  local words = { "--device", "cuda", "-n", "4", "--rank", rank, "--sm-carveout", "8", "--json" }
  plan("rank " .. rank, { "mesh=2x2", unpack(words) })
  plan("part " .. rank, { "mesh=1x2x2", unpack(words) })
  runs["part " .. rank][2] = "tests/lua/recipes/tensor_parallel.lua"
end
plan("described", { "--sm-carveout", CARVEOUT, "--cluster", "h100x8", "-n", "2", "mesh=1x2", "--json" })

local function train(name, ranks, words, environment)
  folders[name], outs[name] = os.tmpname(), os.tmpname()
  os.remove(folders[name])
  assert(os.execute("mkdir " .. folders[name]))
  local settings = KERNELS .. ("MOONSHARD_EMULATE_PROCESSORS=%d MOONSHARD_EMULATE_LOG=%s %s"):format(PROCESSORS,
    folders[name], environment or "")
  run(name, program.emulated_cuda(settings), { "run", PARITY, "-n", ranks, "device=cuda", "out=" .. outs[name],
    unpack(words) })
end

-- Products with epilogues and sums, those of a fused loss, and of Muon: all of them can run at the same time as a
-- collective.
local COMPOSED = [==[
local ms = require "moonshard"
local cfg = ms.args { mesh = "1x2", steps = 2 }
local model = ms.models.gpt2 { vocab = 256, layers = 2, dim = 32, heads = 2, seq = 8, tied = true }
ms.fully_shard(model, {
  mesh = ms.init_device_mesh(cfg.device, cfg.mesh, { "replicate", "shard" }), units = { ms.re[[^layers\.\d+$]] },
  mp_policy = { param_dtype = "bf16", reduce_dtype = "f32" },
})
local data = ms.data.text { files = "README.md", seq = 8, batch = 2 }
local train = ms.trainer {
  model = model, loss = ms.loss.cross_entropy { fused = true }, optimizer = {
    { ms.re[[^layers\..*\.(w\w|fc\d)\.weight$]], ms.optim.muon { lr = 1e-2 } },
    { ms.re".", ms.optim.adamw { lr = 1e-3 } },
  },
}
for _, batch in data:batches(cfg.steps) do train:step(batch) end
]==]
local composed = program.recipe(COMPOSED)

local SHARDS, SPARED = { "mesh=1x2", "optimizer=sgd", "steps=3" }, { "--sm-carveout", CARVEOUT }
local function spared(words) return { SPARED[1], SPARED[2], unpack(words) } end

local TRAINS = os.getenv("MOONSHARD_CONFIG") ~= "thread"
if TRAINS then
  train("alone", 1, spared { "mesh=1x1", "optimizer=sgd", "steps=3" })
  train("shards", 2, SHARDS)
  train("spared shards", 2, spared(SHARDS))
  train("longer", 2, spared { "mesh=1x2", "optimizer=sgd", "steps=5" })
  train("spared graphs", 2, { "--cuda-graph", unpack(spared(SHARDS)) })
  train("replicas", 4, { "mesh=2x2", "optimizer=sgd", "steps=2" })
  train("spared replicas", 4, spared { "mesh=2x2", "optimizer=sgd", "steps=2" })
  train("no target", 2, spared(SHARDS), "MOONSHARD_EMULATE_CUBLASLT_TARGET=refuse")
  train("no algorithm", 2, spared(SHARDS), "MOONSHARD_EMULATE_CUBLASLT_TARGET=none")
  train("more blocks", 2, spared(SHARDS), "NCCL_MAX_CTAS=32")
  train("composed", 2, spared { "steps=2" })
  runs.composed[2], runs.composed[6] = composed, "mesh=1x2" -- it writes nothing
  train("all", 2, { "--sm-carveout", PROCESSORS, unpack(SHARDS) })
end
runs["on the cpu"] = { "run", PARITY, "--sm-carveout", "4" }
runs.negative = { "run", PARITY, "--device", "cuda", "--sm-carveout", "-1" }

local ended

local function told(name)
  ended = ended or program.run_all(runs)
  return ended[name]
end

local function out_of(name)
  assert.equal(0, told(name).status, name .. ": " .. told(name).err)
  return told(name).out
end

local function is_product(instruction) return instruction.kind == "kernel" and instruction.op:find("^matmul") end

-- The products of a phase that nothing orders with a collective, found with vector clocks of its own.
local function overlapped(phase)
  local clocks, recorded, at = {}, {}, {}
  for i, instruction in ipairs(phase.instructions) do
    local clock = clocks[instruction.stream] or {}
    clocks[instruction.stream] = clock
    if instruction.kind == "wait" then
      for stream, time in pairs(recorded[instruction.event]) do clock[stream] = math.max(clock[stream] or 0, time) end
    end
    at[i] = {}
    for stream, time in pairs(clock) do at[i][stream] = time end
    clock[instruction.stream] = (clock[instruction.stream] or 0) + 1
    at[i].place = clock[instruction.stream]
    if instruction.kind == "record" then
      recorded[instruction.event] = {}
      for stream, time in pairs(clock) do recorded[instruction.event][stream] = time end
    end
  end
  local function is_before(i, k)
    return (at[k][phase.instructions[i].stream] or 0) >= at[i].place
  end
  local found = {}
  for i, product in ipairs(phase.instructions) do
    for k, collective in ipairs(phase.instructions) do
      if is_product(product) and collective.kind == "collective" and not is_before(i, k) and not is_before(k, i) then
        found[i] = true
      end
    end
  end
  return found
end

-- A plan's products, and those that leave multiprocessors to a collective, by phase.
local function products_of(compiled)
  local all, marked = 0, {}
  for _, phase in ipairs(compiled.phases) do
    local expected = overlapped(phase)
    marked[phase.name] = 0
    for i, instruction in ipairs(phase.instructions) do
      if is_product(instruction) then all = all + 1 end
      assert.equal(expected[i], instruction.overlapped, phase.name .. " " .. i)
      if instruction.overlapped then marked[phase.name] = marked[phase.name] + 1 end
    end
  end
  return all, marked
end

local function sum(counts)
  local all = 0
  for _, n in pairs(counts) do all = all + n end
  return all
end

-- What the processes of a run logged: of limited products how many multiprocessors each had, of communicators how many
-- thread blocks.
local function logged(name)
  out_of(name)
  local found, pipe = { product = {}, communicator = {}, work = {} }, assert(io.popen("cat " .. folders[name] .. "/*"))
  for line in pipe:lines() do
    local what, number = line:match("^(%l+) %d+ (%S+)")
    if what ~= "work" then number = tonumber(number) end
    if found[what] and (what ~= "work" or number == "cublasLtMatmul") then table.insert(found[what], number) end
  end
  pipe:close()
  return found.product, found.communicator, found.work
end

local function result(name)
  out_of(name)
  local file = assert(io.open(outs[name]))
  local text = json.decode(file:read("*a"))
  file:close()
  return { text.losses, text.norms, text.evaluated, text.params }
end

local function notes(name)
  local text, n = told(name).err:gsub("moonshard: note: ", "%0")
  return text, n
end

describe("multiprocessors for collectives", function()
  teardown(function()
    os.remove(composed)
    for name, folder in pairs(folders) do
      os.execute("rm -rf " .. folder)
      os.remove(outs[name])
    end
  end)

  it("A1 are left by the products that no event orders with one, and by no other", function()
    for _, mesh in ipairs({ "1x1", "1x2", "2x2" }) do
      local compiled = json.decode(out_of("spared " .. mesh))
      local all, marked = products_of(compiled)
      assert.equal(CARVEOUT, compiled.sm_carveout)
      assert.equal(all, compiled.products)
      assert.equal(sum(marked), compiled.overlapped_products)
      has(out_of("told " .. mesh), ("%d of %d products | collective | %d"):format(sum(marked), all, CARVEOUT))
      if mesh == "1x1" then
        assert.equal(0, sum(marked))
      else
        assert.truthy(sum(marked) > all / 2 and sum(marked) < all, mesh)
      end
    end
  end)

  it("A1 are not left unless the option says so, and then all ranks agree", function()
    local prints = {}
    for _, mesh in ipairs({ "1x1", "1x2", "2x2" }) do
      local plain = json.decode(out_of("plain " .. mesh))
      assert.is_nil(plain.overlapped_products)
      assert.is_nil(out_of("plain " .. mesh):find("overlapped", 1, true))
      assert.are_not.equal(plain.fingerprint, json.decode(out_of("spared " .. mesh)).fingerprint)
    end
    for _, kind in ipairs({ "rank ", "part " }) do
      for rank = 0, 3 do
        local compiled = json.decode(out_of(kind .. rank))
        prints[kind] = prints[kind] or compiled.fingerprint
        assert.equal(prints[kind], compiled.fingerprint)
        assert.truthy(compiled.overlapped_products > 0)
      end
    end
    assert.equal(CARVEOUT, json.decode(out_of("described")).sm_carveout)
  end)

  it("A3 limit the products of a step on every rank, and give the same bits", function()
    if not TRAINS then return end
    local _, marked = products_of(json.decode(out_of("spared 1x2")))
    local before, after = logged("spared shards"), logged("longer")
    for _, processors in ipairs(after) do assert.equal(PROCESSORS - CARVEOUT, processors) end
    assert.equal(2 * 2 * marked.first, #after - #before) -- ranks, steps
    assert.same({}, (logged("shards")))
    assert.same({}, (logged("alone")))
    assert.same(result("shards"), result("spared shards"))
    assert.truthy(#logged("spared replicas") > 0)
    assert.same(result("replicas"), result("spared replicas"))
  end)

  it("A3 limit products with epilogues, and those of which fused losses and Muon consist", function()
    if not TRAINS then return end
    local limited, _, products = logged("composed")
    assert.truthy(#limited > 150, #limited)
    assert.equal(#products, #limited)
  end)

  it("A2 limit those of captured phases", function()
    if not TRAINS then return end
    local products = logged("spared graphs")
    local _, marked = products_of(json.decode(out_of("spared 1x2")))
    for _, processors in ipairs(products) do assert.equal(PROCESSORS - CARVEOUT, processors) end
    -- The first run of a phase, and its capture; evaluations are as many with streams.
    assert.equal(2 * 2 * marked.first, #products - (#logged("spared shards") - 3 * 2 * marked.first))
    assert.same(result("shards"), result("spared graphs"))
  end)

  it("A4 bound the thread blocks of collectives that run at once", function()
    if not TRAINS then return end
    local function blocks_of(name)
      local _, communicators = logged(name)
      assert.truthy(#communicators >= 4, name)
      for _, blocks in ipairs(communicators) do assert.equal(communicators[1], blocks) end
      return communicators[1]
    end
    assert.equal(32, blocks_of("shards"))
    assert.equal(CARVEOUT / 2, blocks_of("spared shards")) -- of weights, and of gradients
    assert.equal(math.floor(CARVEOUT / 3), blocks_of("spared replicas")) -- and over the replicas
    has((notes("more blocks")), "NCCL_MAX_CTAS is 32 | 8 | 16 | 2 communicators")
  end)

  it("A3 one note reports a cuBLASLt that cannot limit a product", function()
    if not TRAINS then return end
    for name, facts in pairs({ ["no target"] = "cuBLASLt 130100 | 116 | SM_COUNT_TARGET",
      ["no algorithm"] = "cuBLASLt 130100 | no algorithm | 116" }) do
      local text, n = notes(name)
      has(text, facts)
      assert.equal(1, n, text)
      assert.same({}, (logged(name)))
      assert.same(result("shards"), result(name))
    end
    assert.equal(0, select(2, notes("spared shards")))
  end)

  it("A3 cannot be all of a GPU's, or any of a processor's", function()
    if TRAINS then
      assert.equal(2, told("all").status)
      has(told("all").err, "sm_carveout 132 | GPU | 132 multiprocessors | 1 to 131")
    end
    assert.equal(2, told("on the cpu").status)
    has(told("on the cpu").err, "sm_carveout 4 | cpu | --device cuda | --sm-carveout")
    assert.equal(2, told("negative").status)
    has(told("negative").err, "--sm-carveout -1 | whole number")
  end)
end)
