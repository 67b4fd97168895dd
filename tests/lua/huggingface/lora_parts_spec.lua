-- What PEFT trains besides A and B: lengths of rows (DoRA), biases, whole modules, and rows of embeddings. The fixtures
-- of tests/fixtures/lora combine them; PEFT computed the numbers.

local assert_close = require("lua.support.fixture").assert_close
local breadth = require("lua.support.breadth")
local huggingface = require("lua.support.huggingface")
local json = require("cjson")
local lora = require("lua.support.lora")
local ms = require("moonshard")
local scratch = require("lua.support.scratch")

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

describe("what trains beside adapters", function()
  for _, name in ipairs(NAMES) do
    it("Q8 trains as PEFT trains it, in float64: " .. name, function()
      lora.assert_reference(name, lora.train(name, 1, "1x1"))
    end)
  end

  it("Q8 Q10 trains so on meshes with replicas, shards and a tensor dimension", function()
    for _, name in ipairs(breadth.few(NAMES)) do
      lora.assert_reference(name, lora.train(name, 4, "2x2", { layout = "ragged" }))
      lora.assert_reference(name, lora.train(name, 4, "1x2x2", { padding = 2, sequence_parallel = true }))
    end
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
