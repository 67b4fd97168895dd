-- Hugging Face folders as they are read: names, shapes and types of tensors, fields of config.json; what is refused.

local ffi = require("ffi")
local fixture = require("lua.fixture")
local huggingface = require("lua.huggingface")
local scratch = require("lua.scratch")
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
    local expected = "does not hold the tensors that config.json asks for; "
      .. "missing: model.layers.0.mlp.up_proj.weight, model.norm.weight; "
      .. "misshapen: model.layers.0.self_attn.k_proj.weight is [16,8] instead of [8,16]; extra: model.norms.weight"
    assert.truthy(text:find(expected, 1, true), text)
  end)

  it("K4 of many names some are listed, and how many more there are", function()
    local text = message(ms.huggingface.model, copy_of("gpt2", set("n_layer", 3)))
    assert.truthy(text:find("missing: transformer.h.2.attn.c_attn.bias, ", 1, true))
    assert.truthy(text:find(", and 4 more", 1, true), text)
  end)

  it("K4 more layers than there are tensors are refused before a model of them is made", function()
    for name, field in pairs({ gpt2 = "n_layer", llama = "num_hidden_layers" }) do
      local folder = copy_of(name, set(field, 1000000))
      assert.truthy(message(ms.huggingface.model, folder):find("config.json asks for 1000000 layers, and all that is "
        .. "there is %d+ tensors"))
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
    assert.truthy(message(logits_of, with_head(true)):find(
      "config.json ties lm_head.weight to model.embed_tokens.weight, but they differ at element 99: set "
      .. "tie_word_embeddings to false", 1, true))
  end)

  it("K6 a head that is not tied is needed", function()
    assert.truthy(message(ms.huggingface.model, copy_of("llama_tied", set("tie_word_embeddings", false)))
      :find("missing: lm_head.weight", 1, true))
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
    assert.truthy(message(logits_of, stored_as("I32", "int32_t[?]")):find("elements of type I32", 1, true))
  end)
end)

describe("a config.json", function()
  local function refused(name, change)
    return message(ms.huggingface.model, copy_of(name, change))
  end

  for title, case in pairs({
    ["attention biases"] = { "llama", set("attention_bias", true),
      "attention_bias is true: biases in attention are not built" },
    ["biases in the MLP"] = { "llama", set("mlp_bias", true), "mlp_bias is true" },
    ["another activation of Llama"] = { "llama", set("hidden_act", "gelu"),
      'hidden_act is "gelu": only silu is built' },
    ["another activation of GPT-2"] = { "gpt2", set("activation_function", "quick_gelu"),
      'activation_function is "quick_gelu", which is not built: there are gelu, gelu_fast, gelu_new' },
    ["a sliding window"] = { "llama", set("sliding_window", 128),
      "sliding_window is 128: attention in a sliding window" },
    ["other rope types"] = { "llama", function(c) c.rope_scaling.rope_type = "yarn" end,
      'rope_scaling: rope type "yarn" is not built: there are default and llama3' },
    ["rope on a part of a head"] = { "llama_tied", function(c) c.rope_parameters.partial_rotary_factor = 0.5 end,
      "rope_parameters: partial_rotary_factor 0.5" },
    ["two ropes"] = { "llama", function(c) c.rope_parameters = { rope_type = "default" } end, "say the same thing" },
    ["a scaling without its factor"] = { "llama", function(c) c.rope_scaling.factor = nil end,
      "rope_scaling: factor must be a number above 0, not nil" },
    ["what nobody knows of rope"] = { "llama", function(c) c.rope_scaling.beta_fast = 32 end,
      "rope_scaling: field beta_fast is not known here" },
    ["attention without its scale"] = { "gpt2", set("scale_attn_weights", false), "scale_attn_weights is false" },
    ["attention scaled by layer"] = { "gpt2", set("scale_attn_by_inverse_layer_idx", true),
      "scaled by layer is not built" },
    ["quantised weights"] = { "llama", set("quantization_config", { bits = 4 }), "quantization_config is a table" },
    ["a field that nobody knows"] = { "llama", set("house_number", 2),
      'field house_number is not known here, so what it does to the numbers is not either; if it has no part in them, '
      .. 'give ignore = { "house_number" }' },
    ["a field that is nearly known"] = { "llama", set("rms_norm_epsilon", 2),
      "is not either (the nearest that is: rms_norm_eps)" },
    ["another family"] = { "llama", set("model_type", "mistral"), 'model_type is "mistral": there are gpt2 and llama' },
    ["a size that is none"] = { "gpt2", set("n_layer", "two"),
      'n_layer must be a whole number of at least 1, not "two"' },
    ["heads that do not divide"] = { "gpt2", set("n_head", 5), "n_embd 12 must be a multiple of n_head 5" },
    ["heads without keys"] = { "llama", set("num_key_value_heads", 3),
      "num_attention_heads 4 must be a multiple of num_key_value_heads 3" },
    ["heads that no dimension has"] = { "llama", function(c) c.num_attention_heads, c.head_dim = 6, nil end,
      "hidden_size 16 must be a multiple of num_attention_heads 6 where no head_dim is given" },
    ["a theta below 0"] = { "llama_tied", function(c) c.rope_parameters.rope_theta = -1 end,
      "rope_parameters: rope_theta must be a number above 0, not -1" },
  }) do
    it("K6 is refused with " .. title, function()
      local text = refused(case[1], case[2])
      assert.truthy(text:find(case[3], 1, true), text)
      assert.truthy(text:find("/config.json: ", 1, true), text)
    end)
  end

  it("K6 that is missing or no JSON is told", function()
    assert.truthy(message(ms.huggingface.model, "/no/folder"):find("/no/folder/config.json: No such file", 1, true))
    local folder = copy_of("gpt2")
    write_file(folder .. "/config.json", "{")
    assert.truthy(message(ms.huggingface.model, folder):find("config.json: byte 2: ", 1, true))
    write_file(folder .. "/config.json", "")
    assert.truthy(message(ms.huggingface.model, folder):find("config.json: it is empty", 1, true))
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
