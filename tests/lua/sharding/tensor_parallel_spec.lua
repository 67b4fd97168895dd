-- Layers divided over a mesh dimension by rules: `moonshard check` compares each run with one rank, which knows nothing
-- of placements.

local has = require("lua.support.message").has
local program = require("lua.support.program")

local RECIPE = "tests/lua/recipes/tensor_parallel.lua"

local function check(ranks, ...) return { "check", RECIPE, "-n", ranks, ... } end
local function run(ranks, ...) return { "run", RECIPE, "-n", ranks, "--timeout", "60", ... } end

-- A row of a batch alone: the parts of its columns that ranks gather lie after one another, as rows would.
local ONE_ROW = program.recipe([==[
  local ms = require "moonshard"
  local Net = ms.module "Net"
  function Net:init() self.up, self.head = ms.nn.linear(4, 8), ms.nn.linear(8, 6) end
  function Net:forward(x) return self.head(self.up(x):sigmoid()) end
  local model = Net()
  ms.fully_shard(model, {
    mesh = ms.init_device_mesh("cpu", { 1, 1, 2 }, { "replicate", "shard", "tensor" }),
    placements = { { "up", { tensor = "colwise" } }, { "head", { tensor = "vocab" } } },
  })
  local train = ms.trainer { model = model, loss = ms.loss.mse, optimizer = ms.optim.adamw { lr = 1e-2 } }
  for step = 1, 2 do
    train:step { inputs = ms.randn { 1, 4, seed = step }, targets = ms.randn { 1, 6, seed = step + 7 } }
  end
]==])

local cases = {
  ["one row"] = { "check", ONE_ROW, "-n", "2" },
  ["gpt2"] = check("2", "mesh=1x1x2"),
  ["gpt2 over four"] = check("4", "mesh=1x1x4", "tied=true", "sequence_parallel=true"),
  ["padded classes"] = check("4", "mesh=1x1x4", "vocab=257", "pad=64", "dtype=bf16"),
  ["a part of padding"] = check("4", "mesh=1x1x4", "vocab=257", "pad=512", "tied=true"),
  ["gpt2 with shards"] = check("4", "mesh=1x2x2", "sequence_parallel=true", "dropout=0.2", "recompute=true"),
  ["gpt2 with replicas and shards"] = check("8", "mesh=2x2x2", "batch=1", "layout=ragged"),
  ["gpt2 in parts"] = check("4", "mesh=2x1x2", "micro_batches=2", "freeze=embed|fc1"),
  ["gpt2 in bf16"] = check("2", "mesh=1x1x2", "dtype=bf16", "sequence_parallel=true"),
  ["llama"] = check("2", "mesh=1x1x2", "model=llama"),
  ["one head of keys"] = check("2", "mesh=1x1x2", "model=llama", "kv_heads=1"),
  ["llama with shards"] = check("4", "mesh=1x2x2", "model=llama", "sequence_parallel=true", "tied=true"),
  ["fewer keys"] = check("4", "mesh=1x1x4", "model=llama", "kv_heads=2"),
  ["one key"] = check("2", "mesh=1x1x2", "model=llama", "kv_heads=1", "sequence_parallel=true"),
  ["explain keys"] = { "explain", RECIPE, "-n", "4", "mesh=1x1x4", "model=llama", "kv_heads=2" },
  ["averages of slices"] = check("4", "mesh=2x1x2", "ema=true", "averaged=true", "sliced=true"),
  ["mixer"] = check("4", "mesh=1x2x2", "model=mixer"),
  ["mixer sequence"] = check("2", "mesh=1x1x2", "model=mixer", "sequence_parallel=true"),
  ["hint"] = check("2", "mesh=1x1x2", "model=mixer", "hint=tensor"),
  ["explain hint"] = { "explain", RECIPE, "-n", "2", "mesh=1x1x2", "model=mixer", "hint=tensor", "--json" },
  ["other hint"] = check("2", "mesh=1x2x1", "model=mixer", "hint=tensor"),
  ["no dimension"] = run("2", "mesh=1x1x2", "model=mixer", "hint=tensr"),
  ["shared"] = check("4", "mesh=1x1x4", "model=shared"),
  ["by hand"] = check("2", "mesh=1x1x2", "model=by_hand"),
  ["by hand with shards"] = check("4", "mesh=1x2x2", "model=by_hand", "sequence_parallel=true"),
  ["gathered again"] = check("4", "mesh=1x2x2", "sequence_parallel=true", "dropout=0.2", "regather=always"),
  ["explain again"] = { "explain", RECIPE, "-n", "2", "mesh=1x1x2", "sequence_parallel=true", "regather=always",
    "--json" },
  ["over hosts"] = { "plan", RECIPE, "-n", "2", "--ranks-per-node", "1", "mesh=1x1x2", "sequence_parallel=true",
    "--json" },
  ["kept over hosts"] = { "plan", RECIPE, "-n", "2", "--ranks-per-node", "1", "mesh=1x1x2", "sequence_parallel=true",
    "regather=never", "--json" },
  ["regather"] = run("2", "mesh=1x1x2", "regather=often"),
  ["part"] = run("4", "mesh=1x2x2", "steps=1", "full=layers.0.mlp.fc2.weight"),
  ["heads"] = run("4", "mesh=1x1x4", "model=by_hand", "heads=2"),
  ["preset heads"] = run("4", "mesh=1x1x4", "heads=2"),
  ["preset keys"] = run("2", "mesh=1x1x2", "model=llama", "dim=48", "heads=6", "kv_heads=3"),
  ["uneven"] = run("2", "mesh=1x1x2", "model=mixer", "hidden=47"),
  ["style"] = run("2", "mesh=1x1x2", "model=mixer", "style=colwize"),
  ["dimension"] = run("2", "mesh=1x1x2", "model=mixer", "dimension=tensr"),
  ["data"] = run("2", "mesh=1x1x2", "shared=false"),
  ["explain json"] = { "explain", RECIPE, "-n", "2", "mesh=1x1x2", "sequence_parallel=true", "--json" },
  ["explain shards"] = { "explain", RECIPE, "-n", "4", "mesh=1x2x2", "dtype=bf16", "--json" },
  ["explain llama"] = { "explain", RECIPE, "-n", "2", "mesh=1x1x2", "model=llama" },
  ["explain"] = { "explain", RECIPE, "-n", "4", "mesh=1x2x2" },
}

local of, equals_one_rank = program.checks(cases)

local function refused(name, status, ...)
  assert.equal(status, of(name).status, of(name).err)
  for _, facts in ipairs({ ... }) do has(of(name).err, facts) end
end

local function changes(name)
  assert.equal(0, of(name).status, of(name).err)
  return require("cjson").decode(of(name).out).placement_changes
end

describe("a tensor dimension", function()
  teardown(function() os.remove(ONE_ROW) end)

  it("T1 trains GPT-2 and Llama as one rank does, with dropout, a tied head and bf16", function()
    equals_one_rank("gpt2", "gpt2 over four", "gpt2 in bf16", "llama", "one head of keys")
  end)

  it("T1 trains a Llama whose heads of keys are fewer than ranks, which then share them", function()
    equals_one_rank("fewer keys", "one key")
    assert.equal(0, of("explain keys").status, of("explain keys").err)
    has(of("explain keys").out, "layers.0.attn.wk.weight | tensor colwise | whole | 2 heads")
  end)

  it("T1 trains with padded classes, of which a rank can have nothing else", function()
    equals_one_rank("padded classes", "a part of padding")
  end)

  it("T5 trains modules that no preset knows", function()
    equals_one_rank("mixer", "mixer sequence", "shared", "by hand")
  end)

  it("T1 trains on one row, whose columns ranks gather", function() equals_one_rank("one row") end)

  it("T5 follows hints in a module, which override rules and change no number", function()
    equals_one_rank("hint", "other hint")
    local gathers = 0
    for _, change in ipairs(changes("explain hint")) do
      gathers = gathers + (change.forward == "all_gather" and change.shape[3] == 48 and 1 or 0)
    end
    assert.equal(2, gathers) -- the hidden features of each layer
    refused("no dimension", 2, "redistribute | tensr | tensor")
  end)

  it("T9 composes with shards, replicas, micro-batches, recomputation and frozen parameters", function()
    equals_one_rank("gpt2 with shards", "gpt2 with replicas and shards", "gpt2 in parts", "llama with shards",
      "by hand with shards")
  end)

  it("T9 gives every replica the averages of the weights, of which each keeps a slice", function()
    equals_one_rank("averages of slices")
  end)

  it("T1 shows the part of a parameter that a rank has, and the whole #release", function()
    assert.equal(0, of("part").status, of("part").err)
    has(of("part").out, "[32,128]")
    has(of("part").out, "rows 0 to 15 of [32,64] | part 0 of 2 | axis 1")
  end)

  it("T13 refuses heads that would be cut, and sizes that the ranks do not divide #release", function()
    refused("heads", 2, "layers.0 | reshape | tensor | 4 ranks")
    refused("preset heads", 2, "layers.0.attn.wq | 2 heads | tensor | 4 ranks | 1 or 2 ranks")
    refused("preset keys", 2, "layers.0.attn.wk | 3 heads | tensor | 2 ranks | 1 or 3 ranks | multiples of 3")
    refused("uneven", 2, "layers.0.down.weight | [32,47] | axis 1 | tensor (2 ranks) | 46 and 48")
  end)

  it("T1 names a style or a dimension that there is not, with the nearest #release", function()
    refused("style", 2, "placements | rule 1 | colwize | colwise")
    refused("dimension", 2, "placements | rule 1 | tensr | tensor")
  end)

  it("T14 refuses data that gives each rank other samples #release", function()
    refused("data", 2, "tensor | 1x1x2 | mesh = mesh")
  end)

  it("T1 is explained: the style of each parameter, its rule and its bytes #release", function()
    assert.equal(0, of("explain").status, of("explain").err)
    has(of("explain").out, "placements")
    has(of("explain").out, "layers.0.mlp.fc2.weight | tensor rowwise | axis 1")
  end)

  it("T1 is explained: layers that differ only in their index are one row #release", function()
    assert.equal(0, of("explain llama").status, of("explain llama").err)
    local rows = of("explain llama").out:match("\nplacements\n(.-)\n\n")
    has(rows, "layers.0.mlp.w2.weight, layers.1.mlp.w2.weight | rowwise")
    has(rows, "layers.0.mlp.w1.weight .. layers.1.mlp.w3.weight | colwise")
  end)

  it("T1 is explained: a divided parameter is a part of what a rank gathers, a whole one all of it #release", function()
    local gathered = {}
    for _, row in ipairs(require("cjson").decode(of("explain shards").out).decisions.placements) do
      gathered[row.name] = row.gathered_bytes
    end
    local elements = { ["embed.weight"] = 256 * 32 / 2, ["head.weight"] = 256 * 32 / 2, ["norm.weight"] = 32 }
    for name, count in pairs(elements) do assert.equal(count / 2 * 2, gathered[name], name) end -- half, of 2 bytes
  end)

  it("T1 is explained: the changes of placement, their collectives and bytes #release", function()
    has(of("explain").out, "changes of placement")
    has(of("explain").out, "layers.0.mlp.fc2, layers.1.mlp.fc2 | [2,16,32] f32 | partial | invariant | all_reduce 8.0")
    local gathers, half = 0, 2 * 16 * 32 * 4 / 2 -- of two ranks, each gets the other's half
    for _, change in ipairs(changes("explain json")) do
      if change.module:find("^layers%.%d%.mlp%.fc1$") then
        gathers = gathers + 1
        assert.equal("all_gather shard of axis 0 replicate reduce_scatter", table.concat({ change.forward, change.from,
          change.to, change.backward }, " "))
        assert.equal(half, change.forward_bytes)
        assert.equal(half, change.backward_bytes)
      end
    end
    assert.equal(2, gathers)
  end)

  it("T9 gathers again for backward what a rule does not keep, and trains as one rank does", function()
    equals_one_rank("gathered again")
    local again = 0
    for _, change in ipairs(changes("explain again")) do
      local loss = change.to == "invariant"
      assert.equal(change.forward == "all_gather" and not loss, change.regathered)
      if change.regathered then
        again = again + 1
        assert.equal(2 * change.forward_bytes, change.backward_bytes) -- and a reduce-scatter
      end
    end
    assert.equal(2 * 2 + 1, again) -- two of each layer, and the head's
    refused("regather", 2, "regather | often | true | false | default")
  end)

  it("T2 gathers two inputs of each layer and the head's again where ranks share no memory", function()
    local function plan(name)
      assert.equal(0, of(name).status, of(name).err)
      return require("cjson").decode(of(name).out)
    end
    local again, kept = plan("over hosts"), plan("kept over hosts")
    local half = 2 * 16 * 32 * 4 / 2 -- of two ranks, each gets the other's half
    local function moved(of_plan)
      for _, row in ipairs(of_plan.traffic) do
        if row.dim == "tensor" then return row.sent_bytes end
      end
    end
    assert.equal(moved(kept) + (2 * 2 + 1) * half, moved(again))
    assert.is_true(again.peak_bytes < kept.peak_bytes)
  end)

  it("T2 the loss of divided logits moves two numbers a row, and none backward #release", function()
    local rows, seen = 2 * 16, 0
    for _, change in ipairs(changes("explain json")) do
      assert.is_true(change.forward_bytes <= rows * 32 * 4, change.module .. " moves more than a row of the model")
      if change.to == "invariant" then
        seen = seen + 1
        assert.same({ "all_gather", rows * 2 * 4, 0 }, { change.forward, change.forward_bytes, change.backward_bytes })
      end
    end
    assert.equal(1, seen)
  end)
end)
