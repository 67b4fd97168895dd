-- What a config.json says and how it says it: null, an absent field and a default are three things, and what is
-- unchanged is written as it was read, by a save and by the export of a checkpoint.

local cjson = require("cjson")
local huggingface = require("lua.support.huggingface")
local json = require("moonshard.base.text.json")
local message = require("lua.support.fixture").message
local ms = require("moonshard")
local program = require("lua.support.program")
local scratch = require("lua.support.scratch")
local has = require("lua.support.message").has

local NULL = cjson.null

-- The options of a fixture's model after fields of its config were changed: NULL, a value, or "absent".
local function options_of(name, changes)
  local folder = huggingface.copy_of(name, function(config)
    for field, value in pairs(changes) do config[field] = value ~= "absent" and value or nil end
  end)
  return ms.huggingface.model(folder).config
end

describe("a config.json with null, an absent field, or a value", function()
  teardown(scratch.clear)

  it("U10 G1 gives Gemma 2 no caps, those of its class, or its own", function()
    local fields = { "attn_logit_softcapping", "final_logit_softcapping" }
    for value, expected in pairs({ [NULL] = {}, absent = { 50, 30 }, [7] = { 7, 7 } }) do
      local o = options_of("gemma2", { [fields[1]] = value, [fields[2]] = value })
      assert.same({ expected[1], expected[2] }, { o.attention_softcap, o.logit_softcap })
    end
    local one = options_of("gemma2", { attn_logit_softcapping = NULL, final_logit_softcapping = 5 })
    assert.same({ nil, 5 }, { one.attention_softcap, one.logit_softcap })
  end)

  it("U10 G1 gives Mistral no window, that of its class, or its own", function()
    local windows = {}
    for i, value in ipairs({ NULL, "absent", 3 }) do
      windows[i] = options_of("mistral", { sliding_window = value }).window or false
    end
    assert.same({ false, 4096, 3 }, windows)
  end)

  it("U10 G1 gives Llama as many key heads as heads", function()
    for _, value in ipairs({ NULL, "absent" }) do
      local folder = huggingface.copy_of("llama", function(config)
        config.num_key_value_heads = value ~= "absent" and value or nil
      end)
      -- The tensors of the folder have fewer key heads, so it is refused by their shapes.
      has(message(ms.huggingface.model, folder), "k_proj")
    end
  end)

  for name, fields in pairs({
    gemma2 = { "query_pre_attn_scalar", "sliding_window", "hidden_activation", "head_dim", "num_key_value_heads" },
    gemma3 = { "sliding_window", "rms_norm_eps" }, mistral = { "num_key_value_heads", "hidden_act", "rope_theta" },
    qwen3 = { "head_dim", "use_sliding_window" }, qwen3_moe = { "norm_topk_prob", "num_experts_per_tok" },
    gpt2 = { "n_head", "activation_function" }, llama = { "vocab_size", "tie_word_embeddings" },
    bert = { "type_vocab_size", "hidden_act" },
  }) do
    for _, field in ipairs(fields) do
      it(("U10 refuses %s of %s that is null, as the reference library does"):format(field, name), function()
        local folder = huggingface.copy_of(name, huggingface.set(field, NULL))
        has(message(ms.huggingface.model, folder), field .. " | null | leave")
      end)
    end
  end

  it("U10 takes null for its absence where both mean the same", function()
    for name, fields in pairs({ qwen2 = { "layer_types", "rope_scaling" }, smollm3 = { "layer_types" },
      qwen3_moe = { "layer_types", "rope_scaling" }, gpt2 = { "n_inner" }, bert = { "classifier_dropout" } }) do
      local nulls, absent = {}, {}
      for _, field in ipairs(fields) do nulls[field], absent[field] = NULL, "absent" end
      assert.same(options_of(name, absent), options_of(name, nulls))
    end
  end)

  it("U10 takes a null num_key_value_heads for num_attention_heads in the families that do", function()
    for _, name in ipairs { "qwen2", "qwen3", "smollm3" } do
      local folder = huggingface.copy_of(name, huggingface.set("num_key_value_heads", NULL))
      has(message(ms.huggingface.model, folder), "k_proj") -- the folder's tensors have fewer
    end
  end)

  it("U10 takes GPT-2's other names of its sizes, and refuses two that differ", function()
    local others = { hidden_size = "n_embd", max_position_embeddings = "n_positions", num_attention_heads = "n_head",
      num_hidden_layers = "n_layer" }
    local plain = cjson.decode(scratch.read(huggingface.FIXTURES .. "gpt2/config.json"))
    for other, name in pairs(others) do
      assert.same(options_of("gpt2", {}), options_of("gpt2", { [name] = "absent", [other] = plain[name] }))
      assert.same(options_of("gpt2", {}), options_of("gpt2", { [other] = plain[name] }))
      local folder = huggingface.copy_of("gpt2", huggingface.set(other, plain[name] + 1))
      has(message(ms.huggingface.model, folder), name .. " | " .. other .. " | " .. plain[name] + 1)
    end
  end)

  it("U10 refuses a scaling that the reference library does not take for the family", function()
    for _, scaling in ipairs { { rope_type = "linear", factor = 2 }, { rope_type = "llama3", factor = 8,
      low_freq_factor = 1, high_freq_factor = 4, original_max_position_embeddings = 4 } } do
      local folder = huggingface.copy_of("phi3", function(c)
        scaling.rope_theta = c.rope_parameters.rope_theta
        c.rope_parameters = scaling
      end)
      has(message(ms.huggingface.model, folder), "config.json | rope_scaling | phi3 | longrope")
    end
  end)

  it("U10 refuses null inside of rope_scaling", function()
    local scaling = { rope_type = "linear", factor = NULL }
    local folder = huggingface.copy_of("llama", huggingface.set("rope_scaling", scaling))
    has(message(ms.huggingface.model, folder), "factor | null")
  end)
end)

describe("a config.json that is written again", function()
  teardown(scratch.clear)

  -- Fields without an effect here, in an order and with values that a table of Lua cannot keep.
  local ODD = {
    '"zeta_of_somebody": {"a": [], "b": {}, "c": null}', '"transformers_version": "4.57.0"',
    '"initializer_range": 2.0e-02', '"bad_words_ids": []', '"id2label": {}', '"task_specific_params": null',
    '"eos_token_id": [1, 2]', '"prefix": "Gr\\u00fc\\u00dfe"', '"temperature": 1.0',
    '"exponential_decay_length_penalty": 9007199254740993',
  }

  local function odd_folder(name)
    local folder = huggingface.copy_of(name)
    local text = scratch.read(huggingface.FIXTURES .. name .. "/config.json")
    for _, field in ipairs(ODD) do
      local key = field:match('^"([^"]+)"')
      text = text:gsub('\n%s*"' .. key .. '": [^\n]*,\n', "\n")
    end
    text = text:gsub("^%s*{", "{\n  " .. table.concat(ODD, ",\n  ") .. ",")
    scratch.write(folder .. "/config.json", text)
    return folder
  end

  local function fields_of(folder)
    local list = {}
    for i, field in ipairs(json.fields(scratch.read(folder .. "/config.json"))) do
      list[i] = { field.name, (field.text:gsub("%s+", " ")) }
    end
    return list
  end

  -- Everything but the type of the stored numbers.
  local function assert_equal_but_dtype(before, after)
    local changed = { dtype = true, torch_dtype = true }
    local function rest(list)
      local kept = {}
      for _, field in ipairs(list) do
        if not changed[field[1]] then kept[#kept + 1] = field end
      end
      return kept
    end
    assert.same(rest(fields_of(before)), rest(fields_of(after)))
  end

  for _, name in ipairs({ "llama", "qwen3_moe", "gemma2", "gpt2" }) do
    it(("U10 K6 keeps lists, nulls, digits and the order of %s"):format(name), function()
      local folder, saved, checkpoint, exported = odd_folder(name), scratch.path(), scratch.path(), scratch.path()
      local model = ms.huggingface.model(folder, { ignore = { "zeta_of_somebody" } })
      ms.huggingface.save(model, saved)
      -- A field that was ignored is not saved.
      local kept = scratch.read(folder .. "/config.json"):gsub('  "zeta_of_somebody": [^\n]*\n', "")
      scratch.write(folder .. "/config.json", kept)
      assert_equal_but_dtype(folder, saved)
      local train = ms.trainer { model = model, optimizer = ms.optim.sgd { lr = 0 }, loss = ms.loss.cross_entropy }
      local tokens = ms.tensor { { 1, 2, 3, 4 }, dtype = "i32" }
      train:step { tokens = tokens, targets = tokens }
      local path = ms.checkpoint.save(train, checkpoint)
      local ended = program.run({ "export", path, exported, "--huggingface" })
      assert.equal("", ended.err)
      assert_equal_but_dtype(folder, exported)
    end)
  end

  it("U10 K6 of our own models has lists where the reference library wants lists", function()
    local saved = scratch.path()
    ms.huggingface.save(ms.models.qwen3_moe { vocab = 40, layers = 2, dim = 8, heads = 2, ffn = 8, seq = 8, experts = 2,
      experts_per_token = 1 }, saved)
    for _, field in ipairs(json.fields(scratch.read(saved .. "/config.json"))) do
      assert.is_true(field.name ~= "mlp_only_layers" or field.text:sub(1, 1) == "[", field.text)
      if field.name == "sliding_window" then assert.equal("null", field.text) end
    end
  end)
end)
