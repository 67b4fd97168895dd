-- What PEFT trains besides A and B: lengths of rows (DoRA), biases, whole modules, and rows of embeddings. The fixtures
-- of tests/fixtures/lora combine them; PEFT computed the numbers.

local assert_close = require("lua.support.fixture").assert_close
local breadth = require("lua.support.breadth")
local ffi = require("ffi")
local huggingface = require("lua.support.huggingface")
local json = require("cjson")
local lora = require("lua.support.lora")
local has = require("lua.support.message").has
local message = require("lua.support.fixture").message
local ms = require("moonshard")
local program = require("lua.support.program")
local scratch = require("lua.support.scratch")
local re = ms.re

local FIXTURES, F32 = lora.FIXTURES, lora.F32
local NAMES = { "qwen2_tied", "gpt2_bias", "llama_rows", "gpt2_dora", "llama_dora" }

teardown(scratch.clear)

local function model_of(name) return ms.huggingface.model(huggingface.FIXTURES .. lora.base_of(name)) end

local function tokens_of(name)
  local file = ms.safetensors.open(FIXTURES .. name .. ".safetensors")
  local x = ms.zeros(file:tensor("tokens").shape, { dtype = "i32" })
  file:read("tokens", 0, 4 * x:numel(), x.data)
  return x:index(0), file
end

describe("what trains besides adapters", function()
  for _, name in ipairs(NAMES) do
    local on_meshes = name:find("dora") and " #all" or "" -- these train below, on meshes
    it("Q8 trains as PEFT trains it, in float64: " .. name .. on_meshes, function()
      lora.assert_reference(name, lora.train(name, 1, "1x1"))
    end)
  end

  it("Q8 Q10 trains so on meshes with replicas, shards and a tensor dimension", function()
    for _, name in ipairs(breadth.few(NAMES)) do
      lora.assert_reference(name, lora.train(name, 4, "2x2", { layout = "ragged" }))
      lora.assert_reference(name, lora.train(name, 4, "1x2x2", { padding = 2, sequence_parallel = true }))
    end
  end)

  it("Q8 trains so where ranks divide the rows of a table, some of which train", function()
    lora.assert_reference("gpt2_dora", lora.train("gpt2_dora", 2, "1x1x2", { padding = 2 }))
  end)

  it("Q8 trains so on GPUs", function() -- emulated ones, with the kernels of CUDA, emulated
    local library = ("MOONSHARD_CUDA_LIBRARY=%s/tests/emulated/libmoonshard_cuda_emulated.so"):format(
      assert(os.getenv("MOONSHARD_BIN")):match("^(.*)/"))
    local environment = program.emulated_cuda(library)
    lora.assert_reference("llama_dora", lora.train("llama_dora", 1, "1x1", { device = "cuda" }, environment))
  end)

  it("Q10 is exported from a checkpoint as the run saves it, and inspected", function()
    local checkpoint, adapters, merged = scratch.path(), scratch.path(), scratch.path()
    local result = lora.train("gpt2_dora", 2, "1x2", { checkpoint = checkpoint })
    for folder, words in pairs({ [adapters] = { "--adapters" }, [merged] = { "--huggingface" } }) do
      local ended = program.run({ "export", checkpoint, folder, unpack(words) })
      assert.equal(0, ended.status, ended.err)
    end
    for _, pair in ipairs({ { adapters, "/after", "/adapter_model.safetensors" },
      { adapters, "/after", "/adapter_config.json" }, { merged, "/merged", "/model.safetensors" } }) do
      assert(scratch.read(pair[1] .. pair[3]) == scratch.read(result.out .. pair[2] .. pair[3]), pair[3])
    end
    local path = checkpoint .. "/step-00000010/manifest.json"
    local manifest = json.decode(scratch.read(path))
    for _, change in ipairs({
      { "lora", "magnitude", "pos.weight" }, { "lora", "bias", 3 }, { "tokens", "indices", { 99 } },
      { "tokens", "delta", "norm.bias" }, { "tokens", "dim", 5 },
    }) do
      local record = manifest.model[change[1]][1]
      local before = record[change[2]]
      record[change[2]] = change[3]
      has(message(require("moonshard.checkpoint.schema").check, manifest, checkpoint), "model." .. change[1] .. "[1]")
      record[change[2]] = before
    end
  end)

  it("Q10 resumes on another mesh, and not with rows of other tokens", function()
    local recipe = program.recipe([[
      local ms = require "moonshard"
      local cfg = ms.args { mesh = "1x1", steps = 4, checkpoint = "", resume = "", token = 3, batch = 4, out = "" }
      local model = ms.lora.from_config(ms.huggingface.model("tests/fixtures/huggingface/gpt2"), {
        r = 2, target_modules = { "c_attn" }, use_dora = true, bias = "all", trainable_token_indices = { cfg.token, 7 },
      })
      ms.fully_shard(model, { mesh = ms.init_device_mesh(cfg.device, cfg.mesh, { "replicate", "shard" }) })
      local function batches(first)
        local x = ms.tensor({ 3, 7, 9, 3, 1, 40, 7, 2 }, { dtype = "i32" }):reshape(2, 4)
        for step = first, cfg.steps do coroutine.yield(step, { tokens = x, targets = x }) end
      end
      local train = ms.trainer {
        model = model, optimizer = ms.optim.adamw { lr = 1e-2 }, loss = ms.loss.cross_entropy,
        checkpoint = { dir = cfg.checkpoint, every = 2, resume = cfg.resume },
      }
      for _, batch in coroutine.wrap(function() batches(train.steps_done + 1) end) do train:step(batch) end
      if cfg.out ~= "" then ms.lora.save(train, cfg.out) end
    ]])
    local whole, part, folder, again = scratch.path(), scratch.path(), scratch.path(), scratch.path()
    local function run(ranks, ...) return program.run({ "run", recipe, "-n", ranks, ... }) end
    local ended = run("1", "checkpoint=" .. whole, "out=" .. folder)
    assert.equal(0, ended.status, ended.err)
    assert.equal(0, run("2", "mesh=1x2", "checkpoint=" .. part, "steps=2").status)
    local resumed = run("1", "checkpoint=" .. part, "resume=auto", "out=" .. again)
    assert.equal(0, resumed.status, resumed.err)
    local one, two = ms.safetensors.open(folder), ms.safetensors.open(again)
    for _, tensor in ipairs(one.tensors) do
      assert_close(huggingface.values_of(one, tensor.name), huggingface.values_of(two, tensor.name), 1e-4, tensor.name)
    end
    has(run("1", "checkpoint=" .. part, "resume=auto", "token=5").err, "trainable_token_indices | 3,7 | 5,7")
    os.remove(recipe)
  end)

  it("Q8 generates the tokens of the merged model", function()
    for _, name in ipairs({ "gpt2_dora", "llama_rows" }) do
      local o = { prompt = { 3, 7, 1 }, tokens = 5, temperature = 0 }
      local function generated(model)
        ms.fully_shard(model, {})
        local train = ms.trainer { model = model, optimizer = ms.optim.sgd { lr = 1 }, loss = ms.loss.cross_entropy }
        return (select(2, ms.generate(train, o)))
      end
      assert.same(generated(ms.lora.merge(lora.loaded(name))), generated(lora.loaded(name)), name)
    end
  end)

  it("Q8 is not loaded into a model that keeps it frozen, or trains other rows", function()
    local adapters = { r = 2, lora_alpha = 3, target_modules = { "c_attn", "mlp.c_proj" }, use_dora = true }
    local function loads(more)
      for key, value in pairs(more) do adapters[key] = value end
      return message(ms.lora.load, ms.lora.from_config(model_of("gpt2"), adapters), FIXTURES .. "gpt2_dora")
    end
    has(loads { bias = "lora_only", trainable_token_indices = { 3, 40, 7 } }, "layers.0.norm1.bias | frozen")
    has(loads { bias = "all", trainable_token_indices = { 3, 7, 40 } }, "trainable_token_indices | embed")
    has(loads { use_dora = false }, "lora_magnitude_vector | has none")
  end)

  it("Q8 comes back as it was read: names, values and fields", function()
    for _, name in ipairs(NAMES) do
      local first, second = scratch.path(), scratch.path()
      ms.lora.save(lora.loaded(name), first)
      local before = ms.safetensors.open(FIXTURES .. name .. "/adapter_model.safetensors")
      local after = ms.safetensors.open(first .. "/adapter_model.safetensors")
      for _, tensor in ipairs(before.tensors) do
        assert.equal(before:checksum(tensor.name), after:checksum(tensor.name), tensor.name)
      end
      ms.lora.save(ms.lora.load(model_of(name), first), second)
      for _, file in ipairs({ "/adapter_model.safetensors", "/adapter_config.json" }) do
        assert(scratch.read(first .. file) == scratch.read(second .. file), name .. file)
      end
      local theirs = json.decode(scratch.read(FIXTURES .. name .. "/adapter_config.json"))
      local ours = json.decode(scratch.read(first .. "/adapter_config.json"))
      for _, field in ipairs({ "use_dora", "lora_bias", "bias" }) do
        assert.equal(theirs[field], ours[field], name .. " " .. field)
      end
    end
  end)

  it("Q8 merges as merge_and_unload does, before and after sharding, and in saved folders", function()
    for _, name in ipairs(NAMES) do
      local tokens, file = tokens_of(name)
      local expected, saved, again = huggingface.values_of(file, "merged"), scratch.path(), scratch.path()
      local function values(model) return model(tokens):reshape(-1):tolist() end
      local model = lora.loaded(name)
      assert_close(expected, values(model), F32, name .. " with its adapters")
      ms.huggingface.save(model, saved)
      assert_close(expected, values(ms.huggingface.model(saved)), F32, name .. " in a folder")
      local merged = ms.lora.merge(lora.loaded(name))
      assert.equal(model_of(name):num_parameters(), merged:num_parameters())
      assert_close(expected, values(merged), F32, name .. " merged in files")
      local sharded = lora.loaded(name)
      ms.fully_shard(sharded, {})
      assert_close(expected, values(ms.lora.merge(sharded)), F32, name .. " merged in shards")
      ms.huggingface.save(sharded, again)
      assert(scratch.read(saved .. "/model.safetensors") == scratch.read(again .. "/model.safetensors"), name)
    end
  end)
end)

-- ---- embeddings and heads as PEFT saves them --------------------------------------------------------------------

local function whole_model(name) return ms.huggingface.model(huggingface.FIXTURES .. name) end

-- A folder with adapters of a model, and what trains besides; nothing has trained yet.
local function saved(name, options)
  local folder = scratch.path()
  ms.lora.save(ms.lora(whole_model(name), { { re[[attn\.wq$]], { rank = 2 } } }, options), folder)
  return folder
end

-- Copies a folder, with further tensors: name -> the tensor whose values it has; `change` is their first byte.
local function with_copies(from, copies, change)
  local folder, file = scratch.folder(), ms.safetensors.open(from .. "/adapter_model.safetensors")
  local declared, bytes = {}, {}
  local function add(name, original, first)
    local tensor = file:tensor("base_model.model." .. original)
    declared[#declared + 1] = { name = "base_model.model." .. name, dtype = tensor.dtype, shape = tensor.shape }
    local values = ffi.string(file:data(tensor.name), tensor.bytes)
    bytes[#declared] = first and first .. values:sub(2) or values
  end
  for _, tensor in ipairs(file.tensors) do
    local name = tensor.name:gsub("^base_model%.model%.", "")
    add(name, name)
  end
  for name, original in pairs(copies) do add(name, original, change) end
  local writer = ms.safetensors.create(folder .. "/adapter_model.safetensors", declared)
  for i, tensor in ipairs(declared) do writer:put(tensor.name, bytes[i]) end
  writer:finish()
  scratch.write(folder .. "/adapter_config.json", scratch.read(from .. "/adapter_config.json"))
  return folder
end

local function check(base, from, name, original)
  assert.truthy(ms.lora.load(whole_model(base), with_copies(from, { [name] = original })))
  has(message(ms.lora.load, whole_model(base), with_copies(from, { [name] = original }, "\1")), name .. " | differs")
end

describe("embeddings and heads in a folder of adapters", function()
  it("Q8 can repeat whole modules that were trained, and those as they were", function()
    local folder = saved("llama", { train = { re"^head", re"^embed" } })
    for _, module in ipairs({ "lm_head", "model.embed_tokens" }) do
      check("llama", folder, module .. ".modules_to_save.weight", module .. ".weight")
      check("llama", folder, module .. ".original_module.weight", module .. ".weight")
    end
    local other = with_copies(folder, { ["model.norm.modules_to_save.weight"] = "lm_head.weight" })
    has(message(ms.lora.load, whole_model("llama"), other), "model.norm.modules_to_save.weight | lora_A")
  end)

  it("Q8 can repeat the rows that were trained of a tied head, and have its biases", function()
    local tied = saved("llama_tied", { trainable_token_indices = { 1, 3 } })
    local delta = "%s.token_adapter.trainable_tokens_delta"
    check("llama_tied", tied, delta:format("lm_head"), delta:format("model.embed_tokens"))
    local biased = saved("phi", { train = { re[[^head\.bias$]] }, bias = "all" })
    check("phi", biased, "lm_head.base_layer.bias", "lm_head.bias")
  end)

  it("Q8 can repeat the biases of whole modules that were trained with all biases", function()
    local folder = saved("phi", { train = { re[[norm]] }, bias = "all" })
    local norm = "model.layers.0.input_layernorm"
    check("phi", folder, norm .. ".modules_to_save.bias", norm .. ".bias")
    check("phi", folder, norm .. ".original_module.bias", norm .. ".bias")
    local other = with_copies(folder, { ["model.norm.modules_to_save.bias"] = norm .. ".bias" })
    has(message(ms.lora.load, whole_model("phi"), other), "model.norm.modules_to_save.bias | lora_A")
  end)
end)
