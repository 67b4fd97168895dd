-- The fields of config.json: each one of a class of the reference library (tests/fixtures/huggingface/config_fields.py)
-- is read, has no effect under a condition, or is refused with a reason; what is wrong is said at once.

local config = require("moonshard.huggingface.config")
local has = require("lua.support.message").has
local json = require("moonshard.base.text.json")
local message = require("lua.support.fixture").message
local outer = require("moonshard.huggingface.folder.outer")
local scratch = require("lua.support.scratch")
local without_effect = require("moonshard.huggingface.config.without_effect")

local FIELDS = json.decode(scratch.read("tests/fixtures/huggingface/config_fields.json"), true)
local BASE = FIELDS.base
FIELDS.base = nil

-- What a class's defaults lack.
local NEEDED = { deepseek_v2 = { num_experts_per_tok = 6 }, glm4_moe = { head_dim = 128 } }

-- The config of a class with all of its defaults, changed.
local function whole(family, changes)
  local given = { model_type = family }
  for _, source in ipairs({ BASE, FIELDS[family], NEEDED[family] or {}, changes or {} }) do
    for name, value in pairs(source) do given[name] = value end
  end
  return given
end

local function options_of(given)
  local _, options = config.parse(given, "config.json")
  return json.encode(options)
end

local function refusal(family, changes) return message(config.parse, whole(family, changes), "config.json") end

-- Values of every type, of which a field that is read refuses some, or makes another model of.
local ODD = { "odd", -1.5, 3, true, json.null, { odd = 1 }, json.list({}), { "odd" } }

-- Names under which a message can speak of a field.
local function names_field(text, family, name)
  local alias = { hidden_size = "n_embd", max_position_embeddings = "n_positions", num_attention_heads = "n_head",
    num_hidden_layers = "n_layer" }
  return text:find(name, 1, true) ~= nil or family == "gpt2" and alias[name] ~= nil and text:find(alias[name], 1, true)
end

-- A field that is read where another one is not given.
local READ_WITHOUT = { sliding_window_pattern = "layer_types" }

-- "read" if some value changes the model, or is refused though no row of the others has it.
local function part_of(family, name, usual)
  local part, other = "without effect", READ_WITHOUT[name]
  local function parsed(changes)
    local given = whole(family, changes)
    if other then given[other] = nil end
    return options_of(given)
  end
  if other then usual = parsed({}) end
  for _, value in ipairs(ODD) do
    local ok, options = pcall(parsed, { [name] = value })
    if not ok then
      local text = tostring(options)
      assert.is_nil(text:find("field " .. name .. ", which", 1, true), text)
      assert.is_truthy(names_field(text, family, name), ("%s, %s: %s"):format(family, name, text))
    end
    if not ok or options ~= usual then part = "read or refused" end
  end
  return part
end

-- Families that version 4 of the reference library, which wrote the list, does not have.
local NEWER = { ministral3 = true }

describe("the fields of a class of the reference library", function()
  it("K6 are listed for all families", function()
    local lacking = {}
    for name in config.supported():gmatch("[%w_]+") do
      if name ~= "and" and not FIELDS[name] and not NEWER[name] then lacking[#lacking + 1] = name end
    end
    assert.same({}, lacking, "run tests/fixtures/huggingface/config_fields.py for these")
  end)

  it("K6 are known, and without effect on the decoder inside", function()
    for family, row in pairs(outer.rows) do
      local inside = { model_type = row.text }
      local _, usual = config.parse(inside, "config.json")
      local repeated = { text_config = inside, vision_config = {}, vocab_size = 99 } -- as old files do
      local _, options = config.parse(whole(family, repeated), "config.json")
      usual.tied, options.tied = nil, nil -- which the folder's tensors say
      assert.same(usual, options, family)
    end
  end)

  local function check_fields(family, own)
    local usual = options_of(whole(family))
    for _, source in ipairs({ BASE, own }) do
      for name in pairs(source) do
        local row = not config.family(family).fields[name] and without_effect.row(family, name)
        local expected = row and row.any and "without effect" or "read or refused"
        assert.equal(expected, part_of(family, name, usual), family .. ", " .. name)
      end
    end
  end

  for family, own in pairs(FIELDS) do
    if not outer.rows[family] then
      it("K6 are read, without effect, or refused, one by one: " .. family, function() check_fields(family, own) end)
    end
  end
end)

describe("a field without an effect", function()
  local NULL = json.null
  -- family, fields that are taken together, and what a message says of other values.
  local CASES = {
    { "llama", { pretraining_tp = 2 } }, { "smollm3", { pretraining_tp = 2 } },
    { "gpt2", { pruned_heads = {} }, { pruned_heads = { ["1"] = { 0 } } }, "pruned_heads | {\"1\":[0]} | removed" },
    { "llama", { quantization_config = NULL }, { quantization_config = { quant_method = "bitsandbytes" } },
      "quantization_config | bitsandbytes | dequantize | save_pretrained" },
    { "qwen2", { quantization = NULL }, { quantization = { bits = 4, group_size = 64 } }, "bits | dequantize" },
    { "llama", { use_sliding_window = false, sliding_window = 4096, max_window_layers = 28 },
      { sliding_window = 4096 }, "sliding_window | 4096 | window" },
    { "llama", { layer_types = { "full_attention", "full_attention" } },
      { layer_types = { "full_attention", "chunked_attention" } }, "layer_types | chunked_attention" },
    { "llama", { rope_interleaved = false, is_llama_config = true }, { rope_interleaved = true }, "rope_interleaved" },
    { "qwen3_moe", { use_qk_norm = true, qkv_bias = false, shared_expert_intermediate_size = 0 },
      { shared_expert_intermediate_size = 512 }, "shared_expert_intermediate_size | 512 | share" },
    { "phi3", { full_attn_mod = 1, interpolate_factor = 1, lm_head_bias = false, mlp_bias = false },
      { lm_head_bias = true }, "lm_head_bias | true | bias" },
    { "qwen2", { use_mrope = false }, { use_mrope = true }, "use_mrope | axes" },
    { "mistral", { attention_bias = false, unsloth_version = "2025.1", unsloth_fixed = true },
      { attention_bias = true }, "attention_bias | biases" },
    { "gemma2", { cache_implementation = "hybrid", hidden_act = "gelu", sliding_window_size = 4096 },
      { sliding_window_size = 512 }, "sliding_window_size | 512 | sliding_window" },
    { "qwen2", { attention_bias = true, tokenizer_padding_side = "right", prefill_chunk_size = 128 } },
    { "bert", { gradient_checkpointing = true, directionality = "bidi", pooler_type = "first_token_transform" },
      { is_encoder_decoder = true }, "is_encoder_decoder" },
    { "vit", { encoder_stride = 16, pooler_act = "tanh" }, { add_cross_attention = true }, "add_cross_attention" },
  }
  for _, case in ipairs(CASES) do
    local family, taken, refused, facts = unpack(case)
    it(("K6 of %s does not change the model, and other values are refused with the reason"):format(family), function()
      assert.equal(options_of(whole(family)), options_of(whole(family, taken)))
      if refused then has(refusal(family, refused), "config.json | " .. facts) end
    end)
  end
end)

describe("the scaling of rotary positions", function()
  it("K6 has no type where rope_type is null, and no mscale where it is 0", function()
    local function scaled(more)
      local scaling = { factor = 4, original_max_position_embeddings = 8 }
      for name, value in pairs(more) do scaling[name] = value end
      return options_of(whole("deepseek_v3", { rope_scaling = scaling }))
    end
    local usual = scaled { rope_type = "yarn" }
    assert.equal(usual, scaled { rope_type = json.null, type = "yarn" })
    assert.equal(usual, scaled { type = "yarn", mscale = 0, mscale_all_dim = 0 })
    assert.are_not.equal(usual, scaled { type = "yarn", mscale = 0.7, mscale_all_dim = 0 })
  end)
end)

describe("the class that wrote a folder", function()
  local TAKEN = {
    { "llama", { "LlamaForCausalLM" } }, { "llama", { "LLaMAForCausalLM" } }, { "llama", { "LlamaModel" } },
    { "llama", { "OddModel", "LlamaForCausalLM" } }, { "gpt2", { "GPT2LMHeadModel" } }, { "gpt2", { "GPT2Model" } },
    { "bert", { "BertForPreTraining" } }, { "qwen3", json.list({}) }, { "phi3", json.null },
  }
  for _, case in ipairs(TAKEN) do
    it(("K6 can be %s of %s"):format(json.encode(case[2]), case[1]), function()
      assert.equal(options_of(whole(case[1])), options_of(whole(case[1], { architectures = case[2] })))
    end)
  end

  it("K4 says which model_type is missing", function()
    local given = whole("llama", { architectures = { "Olmo2ForCausalLM" } })
    given.model_type = nil
    has(message(config.parse, given, "config.json"), "model_type | missing | architectures | \"olmo2\"")
    given.architectures = nil
    has(message(config.parse, given, "config.json"), "model_type | missing | olmo2, olmo3")
  end)

  it("K4 is named where it has another head, or reads the tensors in another way", function()
    for family, name in pairs({ llama = "LlamaForSequenceClassification", qwen2 = "Qwen2ForRewardModel",
      mistral = "BidirectionalMistralModel", gpt2 = "GPT2ForTokenClassification", bert = "BertModel", vit = "ViTModel",
    }) do
      has(refusal(family, { architectures = { name } }), name .. " | " .. config.family(family).architecture)
    end
  end)
end)

describe("several faults of a config.json", function()
  it("K4 are one error, with values, reasons, near names, and how to load without them", function()
    local text = refusal("llama", { zeta = 3, hiden_size = 4096, rope_interleaved = true, rms_norm_eps = "small" })
    has(text, "config.json: | 4 | zeta | 3 | hiden_size | 4096 | did you mean hidden_size | rope_interleaved | true")
    has(text, 'rms_norm_eps | above 0 | "small" | ignore = { "hiden_size", "zeta" }')
    has(text, "ignore=hiden_size,zeta")
    assert.equal(5, select(2, text:gsub("\n  ", "")))
  end)

  it("K4 of different checks are one error", function()
    local text = refusal("llama", { num_attention_heads = 7, hidden_act = "tanh", pad_token_id = 99999,
      rope_scaling = { rope_type = "odd" }, zeta = json.null })
    has(text, "num_attention_heads 7 | hidden_act | tanh | pad_token_id 99999 | rope_scaling | odd | zeta | null")
    text = refusal("qwen2_moe", { num_experts_per_tok = 100, num_hidden_layers = 0, zeta = 1 })
    has(text, "num_experts_per_tok | 100 | num_hidden_layers must be | 0 | zeta")
    text = refusal("bert", { architectures = { "BertModel" }, hidden_act = "tanh", zeta = 1 })
    has(text, "BertModel | tanh | zeta")
    text = refusal("gpt2", { n_head = 7, hidden_size = 3, zeta = 1, activation_function = "tanh" })
    has(text, "n_embd | hidden_size | 3 | zeta | tanh")
  end)

  it("K4 do not include what follows from another fault", function()
    local text = refusal("llama", { num_attention_heads = "many" })
    has(text, "num_attention_heads must be | many")
    assert.is_nil(text:find("\n", 1, true), text)
    text = refusal("qwen3", { num_hidden_layers = json.null, layer_types = { "full_attention" } })
    has(text, "num_hidden_layers | null")
    assert.is_nil(text:find("\n", 1, true), text)
  end)

  it("K4 have the status of the worst: invalid before not supported", function()
    local function status(changes)
      local _, raised = pcall(config.parse, whole("llama", changes), "config.json")
      return raised.status
    end
    assert.equal("MS_EUNSUPPORTED", status({ zeta = 1, use_mrope = true }))
    assert.equal("MS_EINVAL", status({ zeta = 1, vocab_size = 0 }))
  end)

  it("K4 are listed up to a hundred", function()
    local many = {}
    for i = 1, 10000 do many["odd_" .. i] = i end
    local text = refusal("llama", many)
    has(text, "10000 | and 9900 more | ignore")
    assert.equal(102, select(2, text:gsub("\n  ", "")))
  end)

  it("K4 a long value is not printed", function()
    local long = {}
    for i = 1, 500 do long[i] = i end
    local text = refusal("llama", { zeta = long, eta = ("x"):rep(2000) })
    has(text, "zeta | a list | eta")
    assert.is_true(#text < 1200, text)
  end)
end)
