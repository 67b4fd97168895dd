-- Adapters of linear layers by rules: which layers get them, what they change at first (nothing), what trains, what a
-- step costs, meshes, merging, and mistakes.

local breadth = require("lua.support.breadth")
local fixture = require("lua.support.fixture")
local has = require("lua.support.message").has
local json = require("cjson")
local message = fixture.message
local ms = require("moonshard")
local program = require("lua.support.program")
local scratch = require("lua.support.scratch")
local re = ms.re

local RECIPE = "tests/lua/recipes/tensor_parallel.lua"
local ALL = [[lora=\.(w\w|fc\d|up|gate|down|tokens)$|^head$]]

teardown(scratch.clear)

local function llama(changes)
  local config = { vocab = 41, layers = 2, dim = 16, heads = 4, kv_heads = 2, ffn = 24, seq = 16 }
  for name, value in pairs(changes or {}) do config[name] = value end
  return ms.models.llama(config)
end

local TOKENS = ms.tensor { { 3, 1, 40, 7 }, { 2, 0, 5, 9 }, dtype = "i32" }
local TARGETS = ms.tensor { { 1, 40, 7, 2 }, { 0, 5, 9, 1 }, dtype = "i32" }
local BATCH = { tokens = TOKENS, targets = TARGETS }

local function trainer_of(model, config)
  ms.fully_shard(model, config or { units = { re[[^layers\.\d+$]] } })
  return ms.trainer { model = model, optimizer = ms.optim.adamw { lr = 1e-2 }, loss = ms.loss.cross_entropy }
end

local function trainable(model)
  local names = {}
  for name, param in model:named_parameters() do
    if not param.frozen then names[#names + 1] = name end
  end
  table.sort(names)
  return names
end

-- ---- rules ------------------------------------------------------------------------------------------------------

describe("ms.lora", function()
  it("Q8 gives layers adapters by the first rule that matches, with PEFT's and torchtitan's initial values", function()
    local model = ms.lora(llama(), {
      { "layers.1.attn", { rank = 2, alpha = 6, dropout = 0.25 } }, { re[[attn\.(wq|wv)$]], {} },
    })
    assert.same({
      "layers.0.attn.wq.lora_A", "layers.0.attn.wq.lora_B", "layers.0.attn.wv.lora_A", "layers.0.attn.wv.lora_B",
      "layers.1.attn.wk.lora_A", "layers.1.attn.wk.lora_B", "layers.1.attn.wo.lora_A", "layers.1.attn.wo.lora_B",
      "layers.1.attn.wq.lora_A", "layers.1.attn.wq.lora_B", "layers.1.attn.wv.lora_A", "layers.1.attn.wv.lora_B",
    }, trainable(model))
    local text = tostring(model)
    has(text, "Linear(16 -> 16, no bias, LoRA of rank 8, alpha 16)  512 parameters (256 trainable, 256 frozen)")
    has(text, "Linear(16 -> 8, no bias, LoRA of rank 2, alpha 6, dropout 0.25)")
    local attn = model.layers[1].attn
    assert.same({ 8, 16 }, attn.wv.lora_A.shape)
    assert.same({ 8, 8 }, attn.wv.lora_B.shape)
    assert.equal("uniform(-0.25, 0.25)", tostring(attn.wv.lora_A.init)) -- 1 / sqrt(16)
    assert.equal("zeros", tostring(attn.wv.lora_B.init))
  end)

  it("Q8 trains what the recipe names besides, and adds to earlier calls", function()
    local model = ms.lora(llama(), { { re"wq", {} } }, { train = { re"norm", "head" } })
    ms.lora(model, { { re"wk", {} } })
    local names = trainable(model)
    assert.equal(4 + 4 + 5 + 1, #names) -- A and B of wq and wk in two layers, five norms, the head
    trainer_of(model):step(BATCH)
    assert.same(names, trainable(model))
  end)

  it("Q8 keeps ranks, units and rules of parameters apart from the layer's own weight", function()
    local model = ms.lora(llama(), { { re"wq", { rank = 3 } } })
    ms.fully_shard(model, { units = { re[[^layers\.\d+$]] }, mp_policy = { param_dtype = "bf16" },
      param_dtype = { { re[[\.lora_]], "f32" } } })
    has(tostring(model.sharding:marks()[model.layers[1].attn.wq.lora_A]), "f32")
    local train = ms.trainer { model = model, optimizer = ms.optim.adamw { lr = 1e-2 }, loss = ms.loss.cross_entropy }
    local first = train:step(BATCH).loss
    for _ = 1, 20 do train:step(BATCH) end
    assert(train:step(BATCH).loss < first)
  end)
end)

-- ---- the first step ---------------------------------------------------------------------------------------------

-- Trains a model with and without adapters in one run, and prints whether the first losses and logits have the same
-- bits, and whether the later ones do.
local FIRST = [[
  local ms = require "moonshard"
  local re = ms.re
  local cfg = ms.args { model = "llama", mesh = "1x1x1", dtype = "f32", rules = "\\.w\\w$" }
  local mesh = ms.init_device_mesh(cfg.device, cfg.mesh, { "replicate", "shard", "tensor" })
  local data = ms.data.text { files = "tests/lua/recipes/text.txt", seq = 16, batch = 2, mesh = mesh }
  local function trainer(adapted)
    local model = ms.models[cfg.model] { vocab = 256, layers = 2, dim = 16, heads = 4, seq = 16,
      ffn = cfg.model == "llama" and 24 or nil }
    if adapted then ms.lora(model, { { re(cfg.rules), { rank = 2 } } }) end
    ms.fully_shard(model, {
      mesh = mesh, units = { re"^layers\\.\\d+$" }, placements = ms.rules.tensor_parallel(model),
      sequence_parallel = mesh:size "tensor" > 1, mp_policy = { param_dtype = cfg.dtype },
    })
    return ms.trainer { model = model, optimizer = ms.optim.adamw { lr = 1e-2 }, loss = ms.loss.cross_entropy }
  end
  local base, adapted, line = trainer(false), trainer(true), {}
  local tokens = ms.tensor({ 1, 2, 3, 4 }, { dtype = "i32" }):reshape(1, 4)
  local same = true
  local a, b = base.model(tokens):reshape(-1):tolist(), adapted.model(tokens):reshape(-1):tolist()
  for i = 1, #a do same = same and a[i] == b[i] end
  for step, batch in data:batches(2) do
    line[step] = tostring(base:step(batch).loss == adapted:step(batch).loss)
  end
  if ms.world().rank == 0 then print(tostring(same), line[1], line[2]) end
]]

describe("a model with new adapters", function()
  it("Q8 computes the bits of the base model, on any mesh, in f32 and bf16 #release", function()
    local recipe, runs = program.recipe(FIRST), {}
    for _, model in ipairs({ "llama", "gpt2" }) do
      for _, dtype in ipairs({ "f32", "bf16" }) do
        for ranks, mesh in pairs(breadth.few({ { "1", "1x1x1" }, { "4", "2x2x1" }, { "4", "1x2x2" } })) do
          runs[model .. dtype .. ranks] = { "run", recipe, "-n", mesh[1], "mesh=" .. mesh[2], "model=" .. model,
            "dtype=" .. dtype }
        end
      end
    end
    -- Where a product and gelu are one kernel in evaluation, the adapter comes between: training has two kernels.
    runs.fc1 = { "run", recipe, "model=gpt2", [[rules=\.fc\d$|^head$]] }
    local results = program.run_all(runs)
    os.remove(recipe)
    for name, ended in pairs(results) do
      assert.equal(0, ended.status, ended.err)
      local logits, first, second = ended.out:match("(%w+)%s(%w+)%s(%w+)\n$")
      assert.equal(name == "fc1" and logits or "true", logits, name)
      assert.equal("true", first, name)
      assert.equal("false", second, name)
    end
  end)

  it("Q8 has gradients and state of adapters alone, and leaves the base as it was, bit for bit", function()
    local model = ms.lora(llama(), { { re"wq|w2", { rank = 2 } } })
    local train, before = trainer_of(model), {}
    for name in model:named_parameters() do before[name] = model:parameter(name):reshape(-1):tolist() end
    for _ = 1, 3 do train:step(BATCH) end
    for name, param in model:named_parameters() do
      local after, changed = model:parameter(name):reshape(-1):tolist(), false
      for i, value in ipairs(after) do changed = changed or value ~= before[name][i] end
      assert.equal(param.factor ~= nil, changed, name)
      local has_gradient = pcall(train.gradient, train, name)
      assert.equal(param.factor ~= nil, has_gradient, name)
    end
  end)

  it("Q8 reduces the bytes of adapters alone, and keeps their moments alone #release", function()
    local runs = {}
    for _, rank in ipairs({ 4, 8 }) do
      runs[rank] = { "plan", RECIPE, "-n", "2", "mesh=1x2x1", "model=llama", "rank=" .. rank, "--json",
        [[lora=attn\.(wq|wv)$]] }
    end
    runs.base = { "plan", RECIPE, "-n", "2", "mesh=1x2x1", "model=llama", "--json" }
    local results, plans, reduced = program.run_all(runs), {}, {}
    for name, ended in pairs(results) do
      assert.equal(0, ended.status, ended.err)
      plans[name], reduced[name] = json.decode(ended.out), 0
      for _, phase in ipairs(plans[name].phases) do
        for _, instruction in ipairs(phase.instructions) do
          if instruction.op == "reduce_scatter" then reduced[name] = reduced[name] + instruction.bytes end
        end
      end
    end
    -- wq [32,32] and wv [16,32] in two layers; a rank of two sends the half that it does not own, in f32.
    for _, rank in ipairs({ 4, 8 }) do
      local elements = 2 * (rank * (32 + 32) + rank * (32 + 16))
      assert.equal(4 * elements / 2, reduced[rank])
      assert.equal(4 * elements / 2, plans[rank].bytes.gradients)
      assert.equal(2 * 4 * elements / 2, plans[rank].bytes.optimizer)
    end
    assert(reduced.base > 20 * reduced[4])
  end)
end)

-- ---- meshes -----------------------------------------------------------------------------------------------------

local function check(ranks, ...) return { "check", RECIPE, "-n", ranks, ALL, ... } end

-- Emulated GPUs, with the kernels of CUDA, emulated.
local function check_cuda(...)
  local words = check(...)
  words[#words + 1] = "device=cuda"
  words.environment = program.emulated_cuda(("MOONSHARD_CUDA_LIBRARY=%s/tests/emulated/libmoonshard_cuda_emulated.so")
    :format(assert(os.getenv("MOONSHARD_BIN")):match("^(.*)/")))
  return words
end

local of, equals_one_rank = program.checks({
  ["cuda"] = check_cuda("2", "mesh=1x1x2", "sequence_parallel=true", "adapter_dropout=0.2", "steps=2"),
  ["cuda, bf16"] = check_cuda("2", "mesh=1x2x1", "model=llama", "dtype=bf16", "adapter_dtype=f32", "steps=2"),
  ["shards"] = check("4", "mesh=2x2x1", "layout=ragged", "micro_batches=2"),
  ["tensor"] = check("2", "mesh=1x1x2"),
  ["tensor over four"] = check("4", "mesh=1x1x4", "sequence_parallel=true"),
  ["dropout"] = check("4", "mesh=1x2x2", "sequence_parallel=true", "dropout=0.2", "adapter_dropout=0.1",
    "recompute=true"),
  ["all dimensions"] = check("8", "mesh=2x2x2", "batch=1", "layout=ragged"),
  ["f32 beside bf16"] = check("4", "mesh=1x2x2", "model=llama", "sequence_parallel=true", "dtype=bf16",
    "adapter_dtype=f32"),
  ["shared heads"] = check("4", "mesh=1x1x4", "model=llama", "kv_heads=2"),
  ["context"] = check("4", "mesh=1x1x2x2", "model=llama", "sequence_parallel=true"),
  ["no preset"] = check("2", "mesh=1x1x2", "model=mixer"),
  ["padded classes"] = check("4", "mesh=1x1x4", "vocab=257", "pad=64"),
  ["averages"] = check("4", "mesh=2x1x2", "ema=true", "averaged=true", "sliced=true"),
  ["explain"] = { "explain", RECIPE, "-n", "2", "mesh=1x1x2", ALL, "--all" },
})

describe("adapters on a mesh", function()
  it("Q8 train as on one rank: replicas, shards, micro-batches, dropout, averages", function()
    equals_one_rank("shards", "dropout", "averages")
  end)

  it("Q8 train as on one rank along tensor and context, by the layer's placements", function()
    equals_one_rank("tensor", "tensor over four", "all dimensions", "shared heads", "context", "no preset",
      "padded classes")
    local out = of("explain").out
    assert.equal(0, of("explain").status, of("explain").err)
    for name, placed in pairs({
      ["attn.wq.lora_A"] = "colwise: whole", ["attn.wq.lora_B"] = "colwise: axis 0",
      ["attn.wo.lora_A"] = "rowwise: axis 1", ["attn.wo.lora_B"] = "rowwise: whole",
    }) do
      local line = out:match("tensor dimension.*") or out
      assert(line:match("layers%.0%." .. name:gsub("%.", "%%.") .. "[^\n]*tensor " .. placed), name)
    end
    has(out, "head.lora_B | vocab | axis 0")
  end)

  it("Q8 train in f32 beside a base in bf16", function() equals_one_rank("f32 beside bf16") end)

  it("Q8 train as on one rank on GPUs", function() equals_one_rank("cuda", "cuda, bf16") end)
end)

-- ---- merging ----------------------------------------------------------------------------------------------------

describe("ms.lora.merge", function()
  it("Q8 gives the model that the adapters made, within rounding, with its parameters and what trained", function()
    local model = llama()
    model.layers[1].attn.wq.weight.frozen = true
    local names = trainable(model)
    ms.lora(model, { { re"w[qv2]", { rank = 2 } } })
    local train = trainer_of(model, { units = { re[[^layers\.\d+$]] }, freeze = { { re"lora_A$", false } },
      placements = { { re[[\.lora_A]], { tensor = "replicate" } } } })
    for _ = 1, 5 do train:step(BATCH) end
    local before = model(TOKENS):reshape(-1):tolist()
    assert.equal(model, ms.lora.merge(train))
    fixture.assert_close(before, model(TOKENS):reshape(-1):tolist(), 1e-5, "logits")
    assert.same(names, trainable(model))
    assert.equal(llama():num_parameters(), model:num_parameters())
    has(message(train.step, train, BATCH), "ms.lora.merge")
    local again = ms.trainer { model = model, optimizer = ms.optim.adamw { lr = 1e-3 }, loss = ms.loss.cross_entropy }
    assert(again:step(BATCH).loss > again:step(BATCH).loss)
  end)

  it("Q8 gives the same bits on every mesh, and those of a merged folder", function()
    local recipe = program.recipe([[
      local ms = require "moonshard"
      local re = ms.re
      local cfg = ms.args { mesh = "1x1x1", layout = "rows", out = "", values = "", merge = true }
      local mesh = ms.init_device_mesh(cfg.device, cfg.mesh, { "replicate", "shard", "tensor" })
      local model = ms.lora(ms.models.gpt2 { vocab = 40, layers = 2, dim = 16, heads = 4, seq = 8 },
        { { re"w[qv]$", { rank = 3 } }, { re"fc2", { rank = 2, alpha = 5 } } })
      ms.fully_shard(model, { mesh = mesh, units = { re"^layers\\.\\d+$" }, layout = cfg.layout,
        placements = ms.rules.tensor_parallel(model) })
      for name, param in model:named_parameters() do -- the same on every mesh, as what was trained is not
        if param.factor == "B" then model:set_parameter(name, ms.rand(param.shape)) end
      end
      if cfg.merge then ms.lora.merge(model) end
      ms.huggingface.save(model, cfg.out)
    ]])
    local folders, runs = {}, {}
    for name, words in pairs({ folder = { "-n", "1", "merge=false" }, alone = { "-n", "1" },
      shards = { "-n", "4", "mesh=2x2x1", "layout=ragged" }, tensor = { "-n", "4", "mesh=1x2x2" } }) do
      folders[name] = scratch.path()
      runs[name] = { "run", recipe, "out=" .. folders[name], unpack(words) }
    end
    for _, ended in pairs(program.run_all(runs)) do assert.equal(0, ended.status, ended.err) end
    os.remove(recipe)
    for name, folder in pairs(folders) do
      assert(scratch.read(folders.folder .. "/model.safetensors") == scratch.read(folder .. "/model.safetensors"), name)
    end
  end)

  it("Q8 is refused where the weights are not there to merge into #release", function()
    has(message(ms.lora.merge, llama()), "no adapters")
    has(message(ms.lora.merge, 3), "model | 3")
    local sharded = ms.lora(llama(), { { re"wq", {} } })
    local train = trainer_of(sharded)
    train:step(BATCH)
    has(message(ms.lora.merge, sharded.layers[1]), "part | sharded")
    has(message(ms.with_full_params, sharded, function() ms.lora.merge(sharded) end), "ms.with_full_params")
    local inside = ms.module { layer = ms.nn.linear(2, 2), forward = function(self, x)
      ms.lora.merge(self)
      return self.layer(x)
    end }
    has(message(ms.lora(inside, { { "layer", { rank = 1 } } }), ms.ones(1, 2)), "forward")
    assert.equal(8, #trainable(sharded) * 2)
    train:step(BATCH)
  end)
end)

-- ---- mistakes ---------------------------------------------------------------------------------------------------

local function refused(list, ...)
  local text = message(ms.lora, llama(), list)
  for _, facts in ipairs({ ... }) do has(text, facts) end
end

describe("a mistake in ms.lora", function()
  it("Q8 is named: ranks, alphas, dropouts, and options that do not exist #release", function()
    refused({ { re"wq", { rank = 0 } } }, "rank | 0")
    refused({ { re"wq", { rank = 2.5 } } }, "rank | 2.5")
    refused({ { re"wv", { rank = 9 } } }, "rank 9 | layers.0.attn.wv | [8,16] | at most rank 8")
    refused({ { re"wq", { alpha = 0 } } }, "alpha | 0")
    refused({ { re"wq", { alpha = math.huge } } }, "alpha | inf")
    refused({ { re"wq", { dropout = 1 } } }, "dropout | 1")
    refused({ { re"wq", { r = 4 } } }, "r | rank")
    refused({ { re"wq", 8 } }, "rank = 16 | 8")
    refused({ re"wq" }, "value")
    refused({}, "no rule")
    has(message(ms.lora, llama(), re"wq"), "rules over modules")
    has(message(ms.lora, llama(), { { re"wq", {} } }, { trian = {} }), "trian | train")
  end)

  it("Q8 is named: rules that match nothing, or what is not a linear layer, with the nearest layers", function()
    refused({ { re"wqq$", {} } }, "/wqq$/ | layers.0.attn.wq")
    refused({ { re"norm", {} } }, "/norm/ | layers.0.attn_norm | RMSNorm | layers.0.attn.wo")
    refused({ { "embed", {} } }, "embed | Embedding | head")
    refused({ { re"attn$", {} } }, "/attn$/ | layers.0.attn | Attention | layers.0.attn.wq")
    has(message(ms.lora, llama(), { { re"wq", {} } }, { train = { "hed" } }), "train | hed | head")
    has(message(ms.lora, ms.nn.sequential { ms.nn.layer_norm(4) }, { { re".", {} } }), "no linear layer")
  end)

  it("Q8 is named: twice, tied, too late, or no model #release", function()
    local model = ms.lora(llama(), { { re"wq", { rank = 4 } } })
    has(message(ms.lora, model, { { "layers.0.attn", {} } }), "layers.0.attn.wq | already | rank 4")
    assert.equal(4, #trainable(model)) -- and wk was not given one either
    has(message(ms.lora, llama { tied = true }, { { "head", {} } }), "head.weight | embed.weight")
    local twins = ms.nn.sequential { ms.nn.linear(4, 4), ms.nn.linear(4, 4) }
    twins[2].weight = twins[1].weight
    has(message(ms.lora, twins, { { "0", { rank = 2 } } }), "0.weight is tied to 1.weight")
    ms.fully_shard(model)
    has(message(ms.lora, model, { { "head", {} } }), "already sharded | before ms.fully_shard")
    has(message(ms.lora.load, model, "tests/fixtures/lora/llama"), "already sharded")
    has(message(ms.lora, 3, { { "head", {} } }), "module | 3")
    has(message(function() return ms.lora.merg end), "merg | merge")
  end)
end)
