-- Decoders in folders of models that also read images: the text trains as the reference library trains it, other parts
-- are written back as they were, and what is refused.

local breadth = require("lua.support.breadth")
local huggingface = require("lua.support.huggingface")
local has = require("lua.support.message").has
local json = require("cjson")
local message = require("lua.support.fixture").message
local ms = require("moonshard")
local program = require("lua.support.program")
local scratch = require("lua.support.scratch")

teardown(scratch.clear)

local FIXTURES, set = huggingface.FIXTURES, huggingface.set
local MODELS = { "llava", "gemma3_images", "llama4_images", "mistral3" }

-- A change of the decoder's config.
local function inside(name, value)
  return function(config) config.text_config[name] = value end
end

local function refused(name, change, tensors)
  return message(ms.huggingface.model, huggingface.copy_of(name, change, tensors))
end

describe("a decoder among other parts", function()
  for _, name in ipairs(huggingface.tried(breadth.few(MODELS), "mistral3")) do
    it("G1 trains as the reference library trains it, on one rank and on meshes: " .. name, function()
      huggingface.assert_trains(name)
    end)
  end

  it("G1 is saved with the other parts' bytes, their names and the whole config", function()
    for _, name in ipairs(MODELS) do
      local folder = huggingface.assert_saved(name)
      local before, after, others = ms.safetensors.open(FIXTURES .. name), ms.safetensors.open(folder), 0
      for _, tensor in ipairs(before.tensors) do
        if huggingface.is_other_part(tensor.name) then
          others = others + 1
          assert.equal("BF16", after:tensor(tensor.name).dtype)
        end
      end
      assert.is_true(others > 10, name)
    end
  end)

  it("G1 is saved in several files, and with the files of images", function()
    local folder, to = huggingface.copy_of("mistral3"), scratch.path()
    scratch.write(folder .. "/preprocessor_config.json", "{}")
    local written = ms.huggingface.save(ms.huggingface.model(folder), to, { max_shard_size = 8192, dtype = "bf16" })
    assert.is_true(#written.files > 2)
    assert.equal("{}", scratch.read(to .. "/preprocessor_config.json"))
    local before, after = ms.safetensors.open(folder), ms.safetensors.open(to)
    assert.equal(#before.tensors, #after.tensors)
    local name = "vision_tower.patch_conv.weight"
    assert.equal(before:checksum(name), after:checksum(name))
    assert.equal("F32", after:tensor(name).dtype)
    assert.equal("BF16", after:tensor("language_model.lm_head.weight").dtype)
  end)

  it("G1 is exported from a checkpoint with the folder that has the other parts, and not without it", function()
    local checkpoint, out = scratch.path(), scratch.path()
    local function with_settings(name)
      local folder = huggingface.copy_of(name)
      scratch.write(folder .. "/generation_config.json", "{}")
      return folder
    end
    huggingface.train("llava", 1, "1x1", { steps = 1, checkpoint = checkpoint })
    local words = { "export", checkpoint, out, "--huggingface" }
    program.refused(2, words, "llava | vision_tower and multi_modal_projector | --tokenizer FOLDER")
    program.refused(2, { "export", checkpoint, out, "--huggingface", "--tokenizer", with_settings("mistral3") },
      'model_type is "mistral3" | llava')
    local ended = program.run { "export", checkpoint, out, "--huggingface", "--tokenizer", with_settings("llava") }
    assert.equal(0, ended.status, ended.err)
    assert.equal(#ms.safetensors.open(FIXTURES .. "llava").tensors, #ms.safetensors.open(out).tensors)
  end)

  it("G1 has a head of its own where config.json says both and the folder has one", function()
    for name, tied in pairs({ mistral3 = false, llava = true, gemma3_images = true }) do
      assert.equal(tied, ms.huggingface.model(FIXTURES .. name).config.tied, name)
      local other = huggingface.copy_of(name, set("tie_word_embeddings", not tied))
      assert.equal(tied, ms.huggingface.model(other).config.tied, name)
      local saved = scratch.path()
      ms.huggingface.save(ms.huggingface.model(other), saved)
      assert.same(huggingface.logits_of(FIXTURES .. name):tolist(), huggingface.logits_of(saved):tolist())
    end
  end)

  it("G1 says that other parts do not run, plans from config.json alone, and ignores fields inside", function()
    local folder = huggingface.copy_of("gemma3_images", inside("house_number", 7))
    local recipe = program.recipe([[
      local ms = require "moonshard"
      local cfg = ms.args { folder = "" }
      local model = ms.huggingface.model(cfg.folder, { ignore = { "house_number" } })
      ms.fully_shard(model, { mesh = ms.init_device_mesh("cpu", "1x2", { "replicate", "shard" }) })
      local train = ms.trainer { model = model, loss = ms.loss.cross_entropy, optimizer = ms.optim.sgd { lr = 0.1 } }
      local tokens = ms.tensor({ { 1, 2, 3, 4 } }, { dtype = "i32" })
      train:step { tokens = tokens, targets = tokens }
    ]])
    os.remove(folder .. "/model.safetensors")
    local ended = program.run { "plan", recipe, "-n", "2", "folder=" .. folder, "--summary" }
    assert.equal(0, ended.status, ended.err)
    has(ended.err, "note | gemma3_text | vision_tower and multi_modal_projector do not run")
    os.remove(recipe)
    has(message(ms.huggingface.model, folder), 'text_config: | house_number | ignore = { "house_number" }')
  end)

  it("G1 has adapters by the names of the reference library's modules", function()
    local model, folder = ms.huggingface.model(FIXTURES .. "mistral3"), scratch.path()
    ms.lora(model, { { ms.re [[attn\.wq$]], { rank = 2 } } })
    ms.fully_shard(model, {})
    ms.lora.save(model, folder)
    local file = ms.safetensors.open(folder .. "/adapter_model.safetensors")
    assert.equal(4, #file.tensors)
    assert.equal("base_model.model.model.language_model.layers.0.self_attn.q_proj.lora_A.weight", file.tensors[1].name)
    local again = ms.huggingface.model(FIXTURES .. "mistral3")
    ms.lora.load(again, folder)
  end)

  it("G1 is refused with what is not read", function()
    has(refused("llava", inside("model_type", "mamba")), 'config.json: text_config: | "mamba" | state space')
    has(refused("llava", set("text_config", 3)), "text_config | object | 3")
    has(refused("llava", set("house_number", 7)), "house_number | unknown")
    has(refused("llava", inside("hidden_size", "x")), "text_config: hidden_size")
    has(refused("llava", set("architectures", { "LlavaForSomethingElse" })), "LlavaForSomethingElse")
    has(refused("gemma3_images", inside("final_logit_softcapping", 30)), "gemma3_text has capped logits")
    has(refused("mistral3", nil, function(tensors) tensors[1].name = "sound_tower.weight" end),
      "missing: language_model.lm_head.weight; extra: sound_tower.weight")
  end)

  it("G1 keeps each null and number of the decoder's config where a field of it was ignored", function()
    local folder, to = huggingface.copy_of("mistral3", inside("house_number", 7)), scratch.path()
    ms.huggingface.save(ms.huggingface.model(folder, { ignore = { "house_number" } }), to)
    local function config_of(path) return json.decode(scratch.read(path .. "/config.json")) end
    local before, after = config_of(folder), config_of(to)
    before.text_config.house_number = nil
    assert.same(before.text_config, after.text_config)
  end)
end)
