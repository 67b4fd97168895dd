-- Hugging Face folders as they are read: names, shapes and types of tensors, fields of config.json; what is refused.

local cjson = require("cjson")
local ffi = require("ffi")
local fixture = require("lua.support.fixture")
local huggingface = require("lua.support.huggingface")
local has = require("lua.support.message").has
local scratch = require("lua.support.scratch")
local ms = require("moonshard")

local FIXTURES = huggingface.FIXTURES
local write_file = scratch.write
local values_of = huggingface.values_of
local copy_of = huggingface.copy_of
local logits_of = huggingface.logits_of
local set = huggingface.set
local message = fixture.message

teardown(scratch.clear)

local function find(tensors, name)
  for i, tensor in ipairs(tensors) do
    if tensor.name == name then return tensor, i end
  end
  error("no tensor " .. name)
end

describe("names and shapes", function()
  it("K6 are read with and without the prefix, without the masks and frequencies of old files", function()
    local plain = copy_of("gpt2", nil, function(tensors)
      for _, tensor in ipairs(tensors) do tensor.name = tensor.name:gsub("^transformer%.", "") end
      tensors[#tensors + 1] = { name = "h.1.attn.bias", shape = { 1, 1, 2, 2 }, values = { 1, 0, 1, 1 } }
      tensors[#tensors + 1] = { name = "h.0.attn.masked_bias", shape = {}, values = { -1e4 } }
    end)
    assert.same(logits_of(FIXTURES .. "gpt2"):tolist(), logits_of(plain):tolist())
  end)

  it("K4 a missing, an extra and a misshapen tensor are listed, each kind with its names", function()
    local folder = copy_of("llama_tied", nil, function(tensors)
      find(tensors, "model.norm.weight").name = "model.norms.weight"
      local _, i = find(tensors, "model.layers.0.mlp.up_proj.weight")
      table.remove(tensors, i)
      local k = find(tensors, "model.layers.0.self_attn.k_proj.weight")
      k.shape = { k.shape[2], k.shape[1] }
    end)
    local text = message(ms.huggingface.model, folder)
    local expected = "does not contain the tensors that config.json requires; "
      .. "missing: model.layers.0.mlp.up_proj.weight, model.norm.weight; "
      .. "misshapen: model.layers.0.self_attn.k_proj.weight is [16,8] instead of [8,16]; extra: model.norms.weight"
    has(text, expected)
  end)

  it("K4 of many names some are listed, and how many more there are", function()
    local text = message(ms.huggingface.model, copy_of("gpt2", set("n_layer", 3)))
    has(text, "missing | transformer.h.2.attn.c_attn.bias")
    has(text, "4 more")
  end)

  it("K4 more layers than there are tensors are refused before a model of them is made", function()
    for name, field in pairs({ gpt2 = "n_layer", llama = "num_hidden_layers" }) do
      local folder = copy_of(name, set(field, 1000000))
      has(message(ms.huggingface.model, folder), "config.json | 1000000 layers | tensors")
    end
  end)

  it("K6 a tied head may be stored too, if it is the embedding", function()
    local function with_head(change)
      return copy_of("llama_tied", nil, function(tensors)
        local embed = find(tensors, "model.embed_tokens.weight")
        local head = { name = "lm_head.weight", shape = embed.shape, values = { unpack(embed.values) } }
        if change then head.values[100] = head.values[100] + 1 end
        tensors[#tensors + 1] = head
      end)
    end
    assert.same(logits_of(FIXTURES .. "llama_tied"):tolist(), logits_of(with_head()):tolist())
    has(message(logits_of, with_head(true)),
      "config.json | lm_head.weight | model.embed_tokens.weight | element 99 | tie_word_embeddings")
  end)

  it("K6 a head that is not tied is needed", function()
    has(message(ms.huggingface.model, copy_of("llama_tied", set("tie_word_embeddings", false)))
      , "missing: | lm_head.weight")
  end)

  it("K6 are read from f64 too, and integers are refused", function()
    local function stored_as(dtype, ctype)
      local folder = copy_of("gpt2_base")
      local file, declared = ms.safetensors.open(folder), {}
      for i, tensor in ipairs(file.tensors) do
        declared[i] = { name = tensor.name, dtype = dtype, shape = tensor.shape }
      end
      local writer = ms.safetensors.create(folder .. "/other.safetensors", declared)
      for _, tensor in ipairs(file.tensors) do
        local values = values_of(file, tensor.name)
        local data = ffi.new(ctype, #values, values)
        writer:put(tensor.name, data, ffi.sizeof(data))
      end
      writer:finish()
      os.remove(folder .. "/model.safetensors")
      return folder
    end
    assert.same(logits_of(FIXTURES .. "gpt2_base"):tolist(), logits_of(stored_as("F64", "double[?]")):tolist())
    has(message(logits_of, stored_as("I32", "int32_t[?]")), "I32")
  end)
end)

describe("a config.json", function()
  local function refused(name, change)
    return message(ms.huggingface.model, copy_of(name, change))
  end

  for title, case in pairs({
    ["a field of another family"] = { "qwen2", set("final_logit_softcapping", 30),
      "final_logit_softcapping | unknown" },
    ["another activation of Llama"] = { "llama", set("hidden_act", "relu2"),
      'hidden_act | "relu2" | silu' },
    ["a layer of another kind"] = { "gemma2", set("layer_types", { "full_attention", "chunked_attention" }),
      'layer_types | layer 2 | "chunked_attention" | full_attention' },
    ["layers without a kind"] = { "gemma2", set("layer_types", { "full_attention" }), "layer_types | layer 2 | nil" },
    ["layers without a kind, of which none slides"] = { "qwen3", set("layer_types", { "full_attention" }),
      "layer_types | layer 2 | nil" },
    ["a layer of another kind, with windows off"] = { "qwen3",
      set("layer_types", { "full_attention", "linear_attention" }), 'layer_types | layer 2 | "linear_attention"' },
    ["layers without a kind, with experts"] = { "qwen3_moe", set("layer_types", { "full_attention" }),
      "layer_types has 1 items | num_hidden_layers is" },
    ["capped scores of Gemma 3"] = { "gemma3", set("attn_logit_softcapping", 50), "attn_logit_softcapping is 50" },
    ["attention to later tokens"] = { "gemma3", set("use_bidirectional_attention", true),
      "use_bidirectional_attention is true" },
    ["one rope for two kinds of layers"] = { "gemma3",
      set("rope_parameters", { rope_type = "linear", factor = 8, rope_theta = 1000 }),
      "rope_parameters | full_attention" },
    ["rope of long sequences without its lists"] = { "phi3", function(c)
      c.rope_parameters.rope_type = "longrope"
    end, "rope_parameters | long_factor | list" },
    ["rope of long sequences with a list of another length"] = { "phi3_long", function(c)
      c.rope_parameters.short_factor = { 1, 2 }
    end, "short_factor | 3 pairs" },
    ["two lengths of the original training"] = { "phi3_long", function(c)
      c.original_max_position_embeddings = 9
    end, "original_max_position_embeddings is 9 | 8 | rope_parameters" },
    ["key heads of another architecture"] = { "falcon_sequential", set("num_kv_heads", 2), "num_kv_heads is 2 | 4" },
    ["state spaces"] = { "llama", set("model_type", "mamba"), 'model_type "mamba" | state space | supported' },
    ["images, and no text next to them"] = { "llama", set("model_type", "gemma3"), "text_config | object | nil" },
    ["rope of two types"] = { "phi3", function(c) c.rope_parameters.rope_type = "yarn" end,
      "rope_parameters: factor | nil" },
    ["an odd number of rotated elements"] = { "glm", function(c)
      c.rope_parameters.partial_rotary_factor = 0.4
    end, "partial_rotary_factor 0.4 | 3 rotated" },
    ["more than all elements rotated"] = { "glm", function(c) c.rope_parameters.partial_rotary_factor = 1.5 end,
      "partial_rotary_factor | at most 1 | 1.5" },
    ["queries cut to a range"] = { "olmoe", set("clip_qkv", 8), "clip_qkv is 8 | not built" },
    ["queries that grow by an unknown factor"] = { "ministral3", function(c)
      c.rope_parameters.llama_4_scaling_beta = nil
    end, "llama_4_scaling_beta | nil" },
    ["a layer of Llama 4 that slides"] = { "llama4", set("layer_types", { "chunked_attention", "sliding_attention" }),
      'layer_types of layer 2 | "sliding_attention"' },
    ["chunks without a length"] = { "llama4", set("attention_chunk_size", cjson.null), "attention_chunk_size is null" },
    ["a layer with experts that is not there"] = { "llama4", set("moe_layers", { 2 }),
      "moe_layers has 2 | layer is 1" },
    ["positions in a layer by another number"] = { "llama4", set("no_rope_layers", { 1, 2 }),
      "no_rope_layers of layer 2 is 2" },
    ["another pattern of layers"] = { "exaone4", function(c)
      c.layer_types, c.sliding_window_pattern = nil, "LLXG"
    end, 'sliding_window_pattern | "LLLG" | "LLXG"' },
    ["another activation of GPT-2"] = { "gpt2", set("activation_function", "quick_gelu"),
      'activation_function | "quick_gelu" | gelu, gelu_fast, gelu_new' },
    ["a sliding window"] = { "llama", set("sliding_window", 128),
      "sliding_window | 128" },
    ["other rope types"] = { "llama", function(c) c.rope_scaling.rope_type = "proportional" end,
      'rope_scaling | "proportional" | default | llama3 | yarn | longrope | dynamic' },
    ["rope on a part of a head"] = { "llama_tied", function(c) c.rope_parameters.partial_rotary_factor = 0.5 end,
      "rope_parameters: partial_rotary_factor 0.5" },
    ["two ropes"] = { "llama", function(c) c.rope_parameters = { rope_type = "default" } end, "same" },
    ["two ropes of Gemma 3"] = { "gemma3", function(c)
      c.rope_parameters = { full_attention = { rope_type = "default" }, sliding_attention = { rope_type = "default" } }
      c.rope_scaling = { rope_type = "linear", factor = 8 }
    end, "rope_parameters | rope_scaling | same" },
    ["a rope of no kind of layer"] = { "gemma3", function(c)
      c.rope_scaling = nil
      c.rope_parameters = { full_attention = { rope_type = "default" }, sliding_atention = { rope_type = "default" } }
    end, "rope_parameters has sliding_atention" },
    ["a scaling without its factor"] = { "llama", function(c) c.rope_scaling.factor = nil end,
      "rope_scaling | factor | 0 | nil" },
    ["a scaling without its type"] = { "llama", function(c) c.rope_scaling.rope_type = nil end,
      'rope_scaling | factor | rope_type | "linear" | "llama3" | "default"' },
    ["biases that a family lacks"] = { "mistral", set("attention_bias", true), "attention_bias is true | family" },
    ["positions along several axes"] = { "qwen3", set("use_mrope", true), "use_mrope is true" },
    ["neighbours that rotate"] = { "llama", set("rope_interleaved", true), "rope_interleaved is true" },
    ["an unknown field of rope"] = { "llama", function(c) c.rope_scaling.beta_quick = 32 end,
      "rope_scaling | beta_quick" },
    ["attention without its scale"] = { "gpt2", set("scale_attn_weights", false), "scale_attn_weights is false" },
    ["attention scaled by layer"] = { "gpt2", set("scale_attn_by_inverse_layer_idx", true),
      "scaled by layer" },
    ["quantised weights"] = { "llama", set("quantization_config", { bits = 4 }),
      "quantization_config | bits | 4 | dequantize" },
    ["a field that nobody knows"] = { "llama", set("house_number", 2),
      'house_number | ignore = { "house_number" }' },
    ["a field that is nearly known"] = { "llama", set("rms_norm_epsilon", 2),
      "rms_norm_eps" },
    ["another family"] = { "llama", set("model_type", "mamba"), 'model_type | "mamba" | gpt2 | llama' },
    ["a size that is none"] = { "gpt2", set("n_layer", "two"),
      'n_layer | 1 | "two"' },
    ["heads that do not divide"] = { "gpt2", set("n_head", 5), "n_embd 12 | n_head 5" },
    ["heads without keys"] = { "llama", set("num_key_value_heads", 3),
      "num_attention_heads 4 | num_key_value_heads 3" },
    ["heads that no dimension has"] = { "llama", function(c) c.num_attention_heads, c.head_dim = 6, nil end,
      "hidden_size 16 | num_attention_heads 6 | head_dim" },
    ["a folder of no family"] = { "llama", set("model_type", nil), "model_type is missing | llama" },
    ["more choices than experts"] = { "mixtral", set("num_experts_per_tok", 99),
      "num_experts_per_tok is 99 | experts" },
    ["an auxiliary loss that pushes loads apart"] = { "mixtral", set("router_aux_loss_coef", -0.5),
      "router_aux_loss_coef | at least 0 | -0.5" },
    ["two numbers of experts"] = { "qwen3_moe", function(c) c.num_experts, c.num_local_experts = 3, 4 end,
      "num_experts is 3 | num_local_experts 4 | same" },
    ["a layer without experts that is no number"] = { "qwen2_moe", set("mlp_only_layers", { "a" }),
      "mlp_only_layers | list | whole numbers" },
    ["layers without experts that are no list"] = { "qwen2_moe", set("mlp_only_layers", { a = 1 }),
      "mlp_only_layers | list" },
    ["a theta below 0"] = { "llama_tied", function(c) c.rope_parameters.rope_theta = -1 end,
      "rope_parameters | rope_theta | 0 | -1" },
  }) do
    it("K6 is refused with " .. title, function()
      local text = refused(case[1], case[2])
      has(text, case[3])
      has(text, "/config.json: ")
    end)
  end

  it("K6 that is missing or no JSON is reported", function()
    has(message(ms.huggingface.model, "/no/folder"), "/no/folder/config.json: No such file")
    has(message(ms.huggingface.model, "Qwen/Q-1.5B"), "Qwen/Q-1.5B/config.json | Hub | hf download Qwen/Q-1.5B")
    local folder = copy_of("gpt2")
    write_file(folder .. "/config.json", "{")
    has(message(ms.huggingface.model, folder), "config.json: byte 2: ")
    write_file(folder .. "/config.json", "")
    has(message(ms.huggingface.model, folder), "config.json: | empty")
  end)

  it("K6 a file that Git LFS has not fetched is named, with what to do", function()
    local POINTER = ("version https://git-lfs.github.com/spec/v1\noid sha256:%s\nsize 12345\n"):format(("0"):rep(64))
    for name, open in pairs({
      ["config.json"] = ms.huggingface.model, ["model.safetensors"] = ms.huggingface.model,
      ["tokenizer.json"] = ms.huggingface.tokenizer, ["model.safetensors.index.json"] = function(folder)
        os.remove(folder .. "/model.safetensors")
        ms.huggingface.model(folder)
      end, ["train.bin"] = function(folder)
        ms.data.tokens { files = folder .. "/train.bin", seq = 4, batch = 1 }
      end,
    }) do
      local folder = copy_of("gpt2")
      write_file(folder .. "/" .. name, POINTER)
      has(message(open, folder), folder .. "/" .. name .. " | Git LFS | git lfs pull")
    end
  end)

  it("K6 refuses sequences that are longer than a folder's positions, and says what to do there", function()
    local function too_long(model, length)
      local row = {}
      for i = 1, length do row[i] = i % 7 end
      return message(model, ms.tensor({ row }, { dtype = "i32" }))
    end
    for name, seq in pairs({ llama = 256, qwen3 = 64 }) do
      local folder = copy_of(name)
      local said = too_long(ms.huggingface.model(folder), seq + 1)
      has(said, ("%d tokens | seq=%d | max_position_embeddings in %s/config.json"):format(seq + 1, seq, folder))
      assert.is_nil(said:find("raise seq", 1, true))
    end
    for name, seq in pairs({ gpt2 = 12, bert = 12 }) do
      local said = too_long(ms.huggingface.model(FIXTURES .. name), seq + 1)
      has(said, ("%s: | %d tokens | at most %d | learned"):format(name, seq + 1, seq))
      assert.is_nil(said:find("raise", 1, true))
    end
    local sizes = { vocab = 8, layers = 1, dim = 8, heads = 2, ffn = 8, seq = 4 }
    for _, name in ipairs({ "llama", "gpt2", "bert" }) do
      has(too_long(ms.models[name](sizes), 5), name .. ": | 5 tokens | seq=4 | raise seq")
    end
  end)

  -- As published folders have them: Qwen 2.5, SmolLM, Phi 3, GPT-2 medium, DistilGPT-2, Vicuna, and those of Unsloth.
  it("K6 fields of published folders that have no part are accepted", function()
    for field, value in pairs({ use_mrope = false, is_llama_config = true, rope_interleaved = false,
      ["transformers.js_config"] = { kv_cache_dtype = "float16" }, unsloth_fixed = true, unsloth_version = "2025.1",
      max_sequence_length = 2048, partial_rotary_factor = cjson.null }) do
      local folder = copy_of("llama_tied", set(field, value))
      assert.same(logits_of(FIXTURES .. "llama_tied"):tolist(), logits_of(folder):tolist())
    end
    for field, value in pairs({ n_special = 0, predict_special_tokens = true, _num_labels = 1 }) do
      assert.same(logits_of(FIXTURES .. "gpt2"):tolist(), logits_of(copy_of("gpt2", set(field, value))):tolist())
    end
    for _, family in ipairs { "phi3", "mistral", "qwen3" } do
      ms.huggingface.model(copy_of(family, set("attention_bias", false)))
    end
  end)

  it("K6 a field that has no part is ignored when it is named", function()
    local folder = copy_of("llama_tied", set("house_number", 7))
    local logits = logits_of(folder, { ignore = { "house_number" } })
    assert.same(logits_of(FIXTURES .. "llama_tied"):tolist(), logits:tolist())
  end)

  it("K6 says theta and scaling in the old way and in the new, alike", function()
    local old = copy_of("llama_tied", function(c)
      c.rope_theta, c.rope_scaling, c.rope_parameters = c.rope_parameters.rope_theta, c.rope_parameters, nil
      c.rope_scaling.rope_theta, c.rope_scaling.type, c.rope_scaling.rope_type = nil, "llama3", nil
    end)
    assert.same(logits_of(FIXTURES .. "llama_tied"):tolist(), logits_of(old):tolist())
    local without = logits_of(copy_of("llama_tied", function(c) c.rope_parameters.rope_type = "default" end))
    assert.is_not.same(logits_of(FIXTURES .. "llama_tied"):tolist(), without:tolist())
  end)
end)
