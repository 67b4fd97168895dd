-- Samples whose positions the ranks of a mesh dimension divide: `moonshard check` compares each run with one rank,
-- which has whole samples.

local cjson = require("cjson")
local has = require("lua.support.message").has
local program = require("lua.support.program")

local RECIPE = "tests/lua/recipes/tensor_parallel.lua"

local CONSTANTS = "tests/lua/sharding/recipes/constants.lua"

local function check(ranks, ...) return { "check", RECIPE, "-n", ranks, ... } end
local function constants(ranks, ...) return { "check", CONSTANTS, "-n", ranks, ... } end

-- Sizes of replicate, shard, context and tensor.
local cases = {
  ["gpt2"] = check("2", "mesh=1x1x2x1", "tied=true", "dropout=0.2"),
  ["gpt2 over four"] = check("4", "mesh=1x1x4x1", "recompute=true"),
  ["gpt2 over context alone"] = check("2", "mesh=2", "names=context"),
  ["gpt2 over context and tensor alone"] = check("4", "mesh=2x2", "names=context,tensor", "sequence_parallel=true"),
  ["gpt2 with shards"] = check("4", "mesh=1x2x2x1", "dropout=0.2", "layout=ragged"),
  ["gpt2 with replicas"] = check("4", "mesh=2x1x2x1", "micro_batches=2", "freeze=embed|fc1"),
  ["llama"] = check("2", "mesh=1x1x2x1", "model=llama"),
  ["llama over four with shards"] = check("8", "mesh=1x2x4x1", "model=llama", "batch=1", "kv_heads=1"),
  ["bf16"] = check("2", "mesh=1x1x2x1", "model=llama", "dtype=bf16"),
  ["by hand"] = check("2", "mesh=1x1x2x1", "model=by_hand"),
  ["mixer"] = check("2", "mesh=1x1x2x1", "model=mixer"),
  ["documents"] = check("2", "mesh=1x1x2x1", "documents=true"),
  ["documents with shards"] = check("8", "mesh=1x2x4x1", "documents=true", "seq=64"),
  ["uneven targets"] = check("4", "mesh=1x1x4x1", "ignored=true"),
  ["tensor"] = check("4", "mesh=1x1x2x2", "sequence_parallel=true", "dropout=0.2", "steps=1"),
  ["llama on four dimensions"] = check("16", "mesh=2x2x2x2", "model=llama", "sequence_parallel=true", "batch=1"),
  ["documents with tensor"] = check("4", "mesh=1x1x2x2", "documents=true", "sequence_parallel=true", "tied=true"),
  ["constants"] = constants("2", "mesh=1x1x2x1"),
  ["weights and constants"] = { "explain", CONSTANTS, "-n", "2", "mesh=1x1x2x1", "only=weight", "--json" },
  ["constants with shards"] = constants("8", "mesh=1x2x4x1", "micro_batches=2", "recompute=true"),
  ["constants with tensor"] = constants("4", "mesh=1x1x2x2", "sequence_parallel=true"),
  ["constants with replicas and tensor"] = constants("4", "mesh=2x1x1x2", "sequence_parallel=true"),
  ["explain"] = { "explain", RECIPE, "-n", "4", "mesh=1x2x2x1", "model=llama", "--json" },
  ["one host"] = { "run", RECIPE, "-n", "2", "--timeout", "60", "mesh=1x1x2x1", "steps=2" },
  ["two hosts"] = {
    "run", RECIPE, "--hosts", "a:1,b:1", "--agent", "tests/fuzz/agent.sh", "--rendezvous", "tcp://127.0.0.1",
    "--timeout", "60", "mesh=1x1x2x1", "steps=2",
  },
  ["plan"] = { "plan", RECIPE, "-n", "4", "mesh=1x2x2x1", "--json" },
  ["plan of shards"] = { "plan", RECIPE, "-n", "4", "mesh=1x4x1x1", "batch=1", "--json" },
  ["gathered again"] = check("4", "mesh=1x2x2x1", "model=llama", "regather=always", "documents=true"),
  ["over hosts"] = { "explain", RECIPE, "-n", "2", "mesh=1x1x2x1", "model=llama", "--json", "--ranks-per-node", "1" },
  ["summary"] = { "plan", RECIPE, "-n", "8", "mesh=2x1x2x2", "--summary" },
  ["summary without shards"] = { "plan", RECIPE, "-n", "4", "mesh=2x2", "names=replicate,context", "--summary" },
  ["part"] = { "run", RECIPE, "-n", "4", "--timeout", "60", "mesh=1x2x2x1", "steps=1", "full=layers.0.mlp.fc2.weight" },
  ["generate"] = { "run", RECIPE, "-n", "2", "--timeout", "60", "mesh=1x1x2x1", "steps=1", "forward=5" },
  ["uneven"] = { "run", RECIPE, "-n", "2", "--timeout", "60", "mesh=1x1x2x1", "seq=18" },
  ["order"] = { "run", RECIPE, "-n", "4", "--timeout", "60", "mesh=1x2x2x1", "names=replicate,context,shard,tensor" },
  ["data"] = { "run", RECIPE, "-n", "2", "--timeout", "60", "mesh=1x1x2x1", "shared=false" },
}

-- Shapes that a reshape cannot have, and such as its message advises.
local RESHAPES = {
  ["pairs of blocks cut at the first axis"] = { { a = 8, b = 8 }, "[4,16,4] | [8,8,4] | axis 0 | 16",
    { a = 16, b = 4 } },
  ["a run that is no multiple"] = { { a = 12, b = 8, t = 24 }, "[12,8,4] | axis 0 | 16", { a = 16, b = 6, t = 24 } },
  ["pairs of blocks cut at the second axis"] = { { a = 4, b = 2, c = 8 }, "[4,2,8,4] | axis 1 | 4",
    { a = 4, b = 4, c = 4 } },
  ["a second axis that is no multiple"] = { { a = 4, b = 6, c = 4, t = 24 }, "axis 1 | 4 and 8",
    { a = 4, b = 4, c = 6, t = 24 }, { a = 4, b = 8, c = 3, t = 24 } },
  ["of more ranks"] = { { ranks = 4, a = 8, b = 8 }, "axis 0 | 32", { ranks = 4, a = 32, b = 2 } },
}

local function reshape(shape)
  local words = { "run", "tests/lua/sharding/recipes/context_reshape.lua", "-n", tostring(shape.ranks or 2) }
  for name, value in pairs(shape) do words[#words + 1] = name .. "=" .. value end
  return words
end

for name, case in pairs(RESHAPES) do
  cases[name] = reshape(case[1])
  for i = 3, #case do cases[name .. ", as advised " .. i] = reshape(case[i]) end
end

-- Batches with fields whose second size is 1, of which nothing is divided.
local WHOLE = { "mask", "position", "class", "scale", "both", "counted" }
for i, what in ipairs(WHOLE) do
  cases["whole " .. what] = { "check", "tests/lua/sharding/recipes/whole_fields.lua", "-n", i % 2 == 1 and "2" or "4",
    i % 2 == 1 and "mesh=1x2" or "mesh=1x4", "what=" .. what, "micro=" .. 1 + i % 2 }
end

local of, equals_one_rank = program.checks(cases)

local function refused(name, status, facts)
  assert.equal(status, of(name).status, of(name).err)
  has(of(name).err, facts)
end

describe("a context dimension", function()
  it("C1 trains GPT-2 and Llama as one rank does, with grouped queries, dropout, recomputation and bf16", function()
    equals_one_rank("gpt2", "gpt2 over four", "llama", "llama over four with shards", "bf16")
  end)

  it("C1 trains on meshes that begin with context", function()
    equals_one_rank("gpt2 over context alone", "gpt2 over context and tensor alone")
  end)

  it("C1 trains modules that no preset knows, also one that mixes positions", function()
    equals_one_rank("by hand", "mixer")
  end)

  it("C1 keeps fields whole that have one position, such as a mask for all heads", function()
    for _, what in ipairs(WHOLE) do equals_one_rank("whole " .. what) end
  end)

  it("C1 keeps constants of a forward whole on every rank, and divides them where they meet what is divided", function()
    equals_one_rank("constants", "constants with shards", "constants with tensor", "constants with replicas and tensor")
  end)

  it("C3 moves nothing for what is made of weights and constants #release", function()
    assert.equal(0, of("weights and constants").status, of("weights and constants").err)
    local changes = cjson.decode(of("weights and constants").out).placement_changes
    for _, change in ipairs(changes) do assert.equal(0, change.forward_bytes + change.backward_bytes) end
    assert.is_true(#changes > 0)
  end)

  it("C4 trains with documents that begin anywhere", function()
    equals_one_rank("documents", "documents with shards")
  end)

  it("C5 shards weights over both dimensions, and counts every target once, wherever it is", function()
    equals_one_rank("gpt2 with shards", "gpt2 with replicas", "uneven targets")
    assert.equal(0, of("part").status, of("part").err)
    has(of("part").out, "[32,128] | shard 0 of 4 | rows 0 to 7")
  end)

  it("C6 composes with a tensor dimension and sequence parallelism", function()
    equals_one_rank("tensor", "llama on four dimensions", "documents with tensor")
  end)

  it("C1 trains over hosts as on one, where collectives overwrite what they send", function()
    local function losses(name)
      assert.equal(0, of(name).status, of(name).err)
      local list = {}
      for loss in of(name).out:gmatch("loss ([%d.]+)") do list[#list + 1] = loss end
      return list
    end
    assert.equal(2, #losses("one host"))
    assert.same(losses("one host"), losses("two hosts"))
  end)

  it("C3 gathers keys and values, scatters their gradients, and moves nothing else but counts #release", function()
    assert.equal(0, of("explain").status, of("explain").err)
    local bytes, layers = 2 * 16 * 2 * 8 * 4 / 2, 0 -- of batch 2, 16 positions, 2 heads of 8: the other rank's half
    for _, change in ipairs(cjson.decode(of("explain").out).placement_changes) do
      assert.equal("context", change.dim)
      if change.forward == "all_gather" then
        layers = layers + 1
        assert.same({ bytes, bytes, "reduce_scatter" },
          { change.forward_bytes, change.backward_bytes, change.backward })
      elseif change.forward == "all_reduce" then
        assert.same({}, change.shape)
      else
        assert.equal(0, change.forward_bytes + change.backward_bytes)
      end
    end
    assert.equal(2 * 2, layers)
  end)

  it("C3 gathers keys and values again for backward where each rank would keep a copy", function()
    equals_one_rank("gathered again")
    assert.equal(0, of("over hosts").status, of("over hosts").err)
    local bytes, again = 2 * 16 * 2 * 8 * 4 / 2, 0
    for _, change in ipairs(cjson.decode(of("over hosts").out).placement_changes) do
      if change.regathered then
        again = again + 1
        assert.same({ "all_gather", bytes, 2 * bytes },
          { change.forward, change.forward_bytes, change.backward_bytes })
      end
    end
    assert.equal(2 * 2, again)
  end)

  it("C5 is planned: FSDP's collectives are those of as many ranks of shard #release", function()
    assert.equal(0, of("plan").status, of("plan").err)
    local function moved(name)
      for _, row in ipairs(cjson.decode(of(name).out).traffic) do
        if row.dim == "shard" then return row.ranks, assert(row.inside_bytes) end
      end
    end
    assert.same({ moved("plan of shards") }, { moved("plan") })
  end)

  it("C5 is planned in the order of the mesh, with weights over both dimensions #release", function()
    local function dimensions(name)
      assert.equal(0, of(name).status, of(name).err)
      local list = {}
      for dimension in of(name).out:gmatch("a step over ([%l ]+):") do list[#list + 1] = dimension end
      return list
    end
    assert.same({ "replicate", "shard and context", "context", "tensor" }, dimensions("summary"))
    assert.same({ "replicate", "context" }, dimensions("summary without shards"))
  end)

  it("C1 computes whole samples where there is no loss, so any length can be generated", function()
    assert.equal(0, of("generate").status, of("generate").err)
    has(of("generate").out, "[1,5,256]")
  end)

  it("T13 refuses reshapes that part what belongs together, and its advice holds #release", function()
    for name, case in pairs(RESHAPES) do
      refused(name, 2, "context_reshape.lua:12 | reshape | context | " .. case[2])
      for i = 3, #case do
        local advised = of(name .. ", as advised " .. i)
        assert.equal(0, advised.status, advised.err)
        has(advised.out, "loss")
      end
    end
  end)

  it("T13 refuses lengths that cannot be folded, data that is not shared, another order of dimensions", function()
    refused("uneven", 2, "input targets | context | axis 1 | 18 | 20")
    refused("data", 2, "context | 1x1x2x1 | mesh = mesh")
    refused("order", 2, "context | right after | shard")
  end)
end)
