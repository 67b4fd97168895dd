-- Adapters in files: PEFT's numbers (tests/fixtures/lora) on several meshes, folders that come back as they were, and
-- what checkpoints make of adapters. lora_folders_spec.lua has what is refused.

local json = require("cjson")
local lora = require("lua.support.lora")
local assert_close = require("lua.support.fixture").assert_close
local has = require("lua.support.message").has
local huggingface = require("lua.support.huggingface")
local message = require("lua.support.fixture").message
local ms = require("moonshard")
local program = require("lua.support.program")
local scratch = require("lua.support.scratch")
local re = ms.re

local FIXTURES, F32, values_of = lora.FIXTURES, lora.F32, huggingface.values_of
local train, assert_reference = lora.train, lora.assert_reference

teardown(scratch.clear)

local function save(model, folder) return ms.lora.save(model, folder) end
local function model_of(name) return ms.huggingface.model(huggingface.FIXTURES .. name) end
local function loaded(name) return ms.lora.load(model_of(name), FIXTURES .. name) end
local function logits_of(model) return model(ms.tensor { { 3, 1, 40, 7 }, dtype = "i32" }) end
local function values(model) return logits_of(model):reshape(-1):tolist() end

local function assert_same_file(a, b, name)
  assert(scratch.read(a .. "/" .. name) == scratch.read(b .. "/" .. name), a .. " and " .. b .. " differ in " .. name)
end

-- ---- PEFT's numbers ---------------------------------------------------------------------------------------------

local trained = {} -- of one rank, by model

describe("adapters of PEFT", function()
  for _, name in ipairs({ "gpt2", "llama" }) do
    it("Q8 train as PEFT trains them, in float64: " .. name, function()
      trained[name] = train(name, 1, "1x1")
      assert_reference(name, trained[name])
    end)

    it("Q8 Q10 train so on meshes with replicas, shards and a tensor dimension: " .. name, function()
      assert_reference(name, train(name, 4, "2x2"))
      assert_reference(name, train(name, 4, "1x2x2", { padding = 2, sequence_parallel = true }))
    end)
  end

  it("Q8 come back as they were read: names, values and what their config multiplies them by", function()
    for _, name in ipairs({ "gpt2", "llama" }) do
      local first, second = scratch.path(), scratch.path()
      local model = loaded(name)
      save(model, first)
      assert_same_file(FIXTURES .. name, first, "adapter_model.safetensors")
      assert.same(values(model), values(ms.lora.load(model_of(name), first)))
      save(ms.lora.load(model_of(name), first), second)
      assert_same_file(first, second, "adapter_model.safetensors")
      assert_same_file(first, second, "adapter_config.json")
    end
    local config = json.decode(scratch.read(trained.gpt2.out .. "/after/adapter_config.json"))
    assert.equal("LORA", config.peft_type)
    assert.equal(true, config.fan_in_fan_out)
    assert.same({ "c_attn", "h.0.mlp.c_proj", "h.1.mlp.c_proj" }, config.target_modules)
    assert.same({ ["h\\.0\\.mlp\\.c_proj"] = 3, ["h\\.1\\.mlp\\.c_proj"] = 3 }, config.rank_pattern)
    assert.equal(8, config.alpha_pattern["h\\.1\\.attn\\.c_attn"])
  end)

  it("Q8 of layers that are one module of GPT-2 are blocks of its matrices", function()
    local rules = { { re[[attn\.(wq|wv)$]], { rank = 2, alpha = 3 } }, { re[[fc1$]], { rank = 3 } } }
    local model = ms.lora(model_of("gpt2"), rules)
    ms.fully_shard(model)
    for name, param in model:named_parameters() do
      if param.factor == "B" then model:set_parameter(name, ms.randn(param.shape)) end
    end
    local folder, again = scratch.path(), scratch.path()
    save(model, folder)
    local file = ms.safetensors.open(folder .. "/adapter_model.safetensors")
    assert.same({ 36, 4 }, file:tensor("base_model.model.transformer.h.0.attn.c_attn.lora_B.weight").shape)
    -- Into the same layers, bit for bit; into a model without adapters, as one A for queries, keys and values.
    local same = ms.lora.load(ms.lora(model_of("gpt2"), rules), folder)
    assert.same(values(model), values(same))
    save(same, again)
    assert_same_file(folder, again, "adapter_model.safetensors")
    local other = ms.lora.load(model_of("gpt2"), folder)
    assert_close(values(model), values(other), F32, "logits")
    assert.equal(other.layers[1].attn.wq.lora_A, other.layers[1].attn.wk.lora_A)
  end)

  it("Q8 merge into the weights: a folder without adapters, before and after sharding", function()
    for _, name in ipairs({ "gpt2", "llama" }) do
      local result, merged = trained[name], scratch.path()
      local adapted = ms.lora.load(model_of(name), result.out .. "/after")
      local expected = values(adapted)
      assert_close(expected, values(ms.huggingface.model(result.out .. "/merged")), F32, "logits of the folder")
      local model = ms.lora.merge(adapted)
      assert_close(expected, values(model), F32, "logits")
      ms.huggingface.save(model, merged)
      assert_same_file(result.out .. "/merged", merged, "model.safetensors")
      assert.equal(model_of(name):num_parameters(), model:num_parameters())
    end
  end)

  it("Q8 of a model without a layout keep its own names", function()
    local function make() return ms.nn.sequential { ms.nn.linear(3, 4), ms.ops.relu, ms.nn.linear(4, 2) } end
    local model, folder = ms.lora(make(), { { "2", { rank = 1, alpha = 5 } } }), scratch.path()
    save(model, folder)
    local file = ms.safetensors.open(folder .. "/adapter_model.safetensors")
    assert.same({ 1, 4 }, file:tensor("base_model.model.2.lora_A.weight").shape)
    assert.same({ rank = 1, alpha = 5, dropout = 0 }, ms.lora.load(make(), folder)[3]._adapter)
    assert.falsy(scratch.read(folder .. "/adapter_config.json"):find("CAUSAL_LM")) -- of no model that generates
  end)

  it("Q8 of different dropouts are saved with the largest, and a warning", function()
    local ended = program.run { "run", program.recipe([[
      local ms = require "moonshard"
      local model = ms.lora(ms.models.llama { vocab = 8, layers = 1, dim = 8, heads = 2, ffn = 8, seq = 4 },
        { { ms.re"wq|wv", { rank = 1 } }, { ms.re"mlp", { rank = 1, dropout = 0.5 } } })
      ms.lora.save(model, ms.args { folder = "" }.folder)
    ]]), "folder=" .. scratch.path() }
    assert.equal(0, ended.status, ended.err)
    has(ended.err, "warning | lora_dropout | 0.5")
  end)
end)

-- ---- checkpoints ------------------------------------------------------------------------------------------------

describe("a checkpoint of adapters", function()
  it("Q10 is exported as adapters and as a merged folder, as the run saves them, from any mesh", function()
    for ranks, mesh in pairs({ [1] = "1x1", [4] = "1x2x2" }) do
      local checkpoint, adapters, merged = scratch.path(), scratch.path(), scratch.path()
      local result = train("llama", ranks, mesh, { checkpoint = checkpoint, padding = 2 })
      local function export(...)
        local ended = program.run({ "export", checkpoint, ... })
        assert.equal(0, ended.status, ended.err)
        return ended.out
      end
      has(export(adapters, "--adapters"), "12 tensors | step 5")
      assert_same_file(result.out .. "/after", adapters, "adapter_model.safetensors")
      assert_same_file(result.out .. "/after", adapters, "adapter_config.json")
      export(merged, "--huggingface")
      assert_same_file(result.out .. "/merged", merged, "model.safetensors")
      local ended = program.run({ "inspect", checkpoint })
      assert.equal(0, ended.status, ended.err)
      has(ended.out, "6 layers | rank 4 | alpha 4 | frozen")
    end
  end)

  it("Q10 resumes on another mesh, and is refused by a model whose adapters have another scale", function()
    local recipe = program.recipe([[
      local ms = require "moonshard"
      local re = ms.re
      local cfg = ms.args { mesh = "1x1", steps = 4, checkpoint = "", resume = "", alpha = 8, batch = 4, out = "" }
      local model = ms.models.llama { vocab = 256, layers = 2, dim = 16, heads = 4, kv_heads = 2, ffn = 24, seq = 16 }
      ms.lora(model, { { re"attn\\.w", { rank = 4, alpha = cfg.alpha } }, { re"w2", { rank = 2, dropout = 0.1 } } })
      local mesh = ms.init_device_mesh(cfg.device, cfg.mesh, { "replicate", "shard" })
      ms.fully_shard(model, { mesh = mesh, units = { re"^layers\\.\\d+$" } })
      local data = ms.data.text { files = "tests/lua/recipes/text.txt", seq = 16, batch = cfg.batch }
      local train = ms.trainer {
        model = model, optimizer = ms.optim.adamw { lr = 1e-2 }, loss = ms.loss.cross_entropy,
        checkpoint = { dir = cfg.checkpoint, every = 2, resume = cfg.resume, data = data },
      }
      for step, batch in data:batches(cfg.steps) do ms.log(step, train:step(batch)) end
      if cfg.out ~= "" then ms.lora.save(train, cfg.out) end
    ]])
    local whole, part, folder = scratch.path(), scratch.path(), scratch.path()
    local function run(ranks, ...)
      local ended = program.run({ "run", recipe, "-n", ranks, ... })
      return ended.status, ended.out .. ended.err
    end
    assert.equal(0, run("1", "out=" .. whole))
    assert.equal(0, run("4", "mesh=2x2", "batch=1", "steps=2", "checkpoint=" .. folder))
    assert.equal(0, run("2", "mesh=1x2", "batch=2", "checkpoint=" .. folder, "resume=auto", "out=" .. part))
    local a, b = ms.safetensors.open(whole .. "/adapter_model.safetensors"),
      ms.safetensors.open(part .. "/adapter_model.safetensors")
    for _, tensor in ipairs(a.tensors) do
      assert_close(values_of(a, tensor.name), values_of(b, tensor.name), 10 * F32, tensor.name)
    end
    local status, text = run("1", "alpha=16", "checkpoint=" .. folder, "resume=auto")
    assert.equal(2, status)
    has(text, "layers.0.attn.wq | alpha | 8 | 16")
    os.remove(recipe)
  end)
end)

describe("a manifest", function()
  it("Q10 K4 whose adapters are not those of its parameters is refused, by field", function()
    local schema = require("moonshard.checkpoint.schema")
    local function manifest(change)
      local adapter = { layer = "0", down = "0.lora_A", up = "0.lora_B", rank = 1, inputs = 3, outputs = 4, alpha = 2,
        dropout = 0 }
      for name, value in pairs(change) do adapter[name] = value end
      local parameters = {}
      for name, shape in pairs({ ["0.weight"] = { 4, 3 }, ["0.lora_A"] = { 1, 3 }, ["0.lora_B"] = { 4, 1 } }) do
        table.insert(parameters, { name = name, shape = shape, dtype = "f32", frozen = false })
      end
      return { step = 1, ranks = 1, mesh = { label = "1", shape = { 1 } }, files = {}, parameters = parameters,
        model = { lora = { adapter } } }
    end
    schema.check(manifest({}), "here")
    for field, value in pairs({ rank = 2, inputs = 4, outputs = 2 ^ 40, down = "0.weight", up = 3, layer = "1",
      alpha = "2" }) do
      has(message(schema.check, manifest({ [field] = value }), "here"), "here/manifest.json | model.lora[1]")
    end
    has(message(schema.check, { step = 1, ranks = 1, mesh = { label = "1", shape = { 1 } }, files = {},
      parameters = {}, model = { lora = 3 } }, "here"), "model.lora | 3")
  end)
end)

describe("recipes/lora.lua", function()
  it("Q8 fine-tunes a folder, and saves adapters and a merged folder, or refuses to before it trains", function()
    local sizes = { vocab = 256, layers = 1, dim = 8, heads = 2, seq = 32, ffn = 12 }
    for name, model_of_sizes in pairs({ gpt2 = ms.models.gpt2, llama = ms.models.llama }) do
      local base, adapters, merged = scratch.path(), scratch.path(), scratch.path()
      ms.huggingface.save(model_of_sizes(sizes), base)
      local words = { "run", "recipes/lora.lua", "-n", "2", "steps=2", "seq=8", "batch=1", "rank=2", "files=recipes",
        "folder=" .. base, "adapters=" .. adapters, "save=" .. merged, "dtype=f32" }
      local ended = program.run(words)
      assert.equal(0, ended.status, ended.err)
      has(ended.out, "validation | before")
      local tuned, whole = ms.lora.load(ms.huggingface.model(base), adapters), ms.huggingface.model(merged)
      assert_close(values(tuned), values(whole), F32, name)
      assert.equal(base, json.decode(scratch.read(adapters .. "/adapter_config.json")).base_model_name_or_path)
      program.refused(2, words, adapters .. " | already")
      words[11], words[12] = "start=" .. adapters, "save="
      assert.equal(0, program.run(words).status)
    end
  end)
end)
