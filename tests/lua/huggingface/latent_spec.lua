-- DeepSeek V2 and V3, Kimi K2, GLM 4.5 and gpt-oss from and to Hugging Face's folders: the reference library's numbers
-- on random small models (tests/fixtures/huggingface), and what is refused.

local breadth = require("lua.support.breadth")
local has = require("lua.support.message").has
local huggingface = require("lua.support.huggingface")
local json = require("cjson")
local message = require("lua.support.fixture").message
local ms = require("moonshard")
local program = require("lua.support.program")
local scratch = require("lua.support.scratch")

local assert_reference, train = huggingface.assert_reference, huggingface.train

teardown(scratch.clear)

local FAMILIES = { "deepseek_v2", "deepseek_v2_groups", "kimi_k2", "glm4_moe", "deepseek_v3", "gpt_oss" }
-- Where not all cases run, the families that are divided below stand for what they have on one rank, too.
local tried, all = huggingface.tried(breadth.all and FAMILIES or { "deepseek_v2_groups" }, "deepseek_v3")
local DIVIDED = breadth.all and FAMILIES or { "deepseek_v3", "gpt_oss" }

describe("a family", function()
  for _, name in ipairs(tried) do
    it("G1 trains as the reference library trains it, on one rank and on meshes: " .. name, function()
      huggingface.assert_trains(name)
    end)
  end

  for _, name in ipairs(all and DIVIDED or {}) do
    it("G1 trains alike over a tensor dimension, with a padded vocabulary, ragged chunks and micro-batches: " .. name,
      function() huggingface.assert_trains_divided(name) end)

    it("G1 trains on the emulated device cuda: " .. name, function()
      assert_reference(name, train(name, 1, "1x1", { device = "cuda" }, program.emulated_cuda()))
    end)
  end

  it("G1 trains with the auxiliary loss of routers if its config asks for it, and with biases of experts", function()
    if all then assert_reference("gpt_oss_balanced", train("gpt_oss_balanced", 2, "1x1x2", { padding = 2 })) end
  end)

  it("G1 trains alike over a context dimension", function()
    local recipe = program.recipe [[
      local ms = require "moonshard"
      local cfg = ms.args { mesh = "", folder = "" }
      local model = ms.huggingface.model(cfg.folder)
      ms.fully_shard(model, { mesh = ms.init_device_mesh(cfg.device, cfg.mesh, { "shard", "context" }) })
      local train = ms.trainer { model = model, loss = ms.loss.cross_entropy, optimizer = ms.optim.sgd { lr = 0.1 } }
      local tokens = ms.tensor({ { 1, 2, 30, 4, 5, 6, 7, 8 }, { 9, 3, 5, 16, 7, 1, 2, 4 } }, { dtype = "i32" })
      for _ = 1, 3 do print(("%.5f"):format(train:step({ tokens = tokens, targets = tokens }).loss)) end
    ]]
    for _, name in ipairs(all and DIVIDED or {}) do
      local function losses(ranks)
        local ended = program.run({ "run", recipe, "-n", tostring(ranks), "mesh=1x" .. ranks,
          "folder=" .. huggingface.FIXTURES .. name })
        assert.equal(0, ended.status, ended.err)
        return ended.out
      end
      assert.equal(losses(1), losses(2), name)
    end
    os.remove(recipe)
  end)

  it("G1 is saved as it was read, its routers' biases in f32 whatever the dtype", function()
    for _, name in ipairs(FAMILIES) do huggingface.assert_saved(name) end
    local folder, name = scratch.path(), "model.layers.1.mlp.gate.e_score_correction_bias"
    ms.huggingface.save(ms.huggingface.model(huggingface.FIXTURES .. "deepseek_v3"), folder, { dtype = "bf16" })
    local file = ms.safetensors.open(folder)
    assert.equal("F32", file:tensor(name).dtype)
    assert.equal("BF16", file:tensor("lm_head.weight").dtype)
    local read = ms.huggingface.model(folder):parameter("layers.1.mlp.router_bias"):tolist()
    local before = ms.safetensors.open(huggingface.FIXTURES .. "deepseek_v3")
    assert.same(huggingface.values_of(before, name), read)
  end)

  it("G1 moves the biases of routers by bias_rate, and without it leaves them", function()
    local function moved(options)
      local model = ms.huggingface.model(huggingface.FIXTURES .. "deepseek_v3", options)
      local before = model:parameter("layers.1.mlp.router_bias"):tolist()
      local step = ms.trainer { model = model, optimizer = ms.optim.adamw { lr = 1 }, loss = ms.loss.cross_entropy }
      local tokens = ms.tensor({ { 3, 5, 3, 7 } }, { dtype = "i32" })
      step:step { tokens = tokens, targets = tokens }
      local most = 0
      for i, value in ipairs(model:parameter("layers.1.mlp.router_bias"):tolist()) do
        most = math.max(most, math.abs(value - before[i]))
      end
      return most
    end
    assert.equal(0, moved {})
    assert.near(0.5, moved { bias_rate = 0.5 }, 1e-6)
    has(message(ms.huggingface.model, huggingface.FIXTURES .. "mixtral", { bias_rate = 0.5 }), "bias_rate | mixtral")
  end)

  it("G1 leaves out layers that predict further tokens, where config.json says how many there are", function()
    local function folder_of(layers)
      return huggingface.copy_of("deepseek_v3", huggingface.set("num_nextn_predict_layers", layers), function(tensors)
        tensors[#tensors + 1] = { name = "model.layers.2.eh_proj.weight", shape = { 1, 2 }, values = { 1, 2 } }
      end)
    end
    assert.same(huggingface.logits_of(huggingface.FIXTURES .. "deepseek_v3"):tolist(),
      huggingface.logits_of(folder_of(1)):tolist())
    has(message(ms.huggingface.model, folder_of(0)), "extra: model.layers.2.eh_proj.weight")
  end)

  it("G1 has experts in every so many layers after the first dense ones", function()
    local _, o = require("moonshard.huggingface.config").parse({
      model_type = "deepseek_v3", num_hidden_layers = 6, first_k_dense_replace = 1, moe_layer_freq = 2,
    }, "config.json")
    assert.same({ false, false, true, false, true, false }, o.sparse)
  end)
end)

local SIZES = { vocab = 17, layers = 2, dim = 8, heads = 2, ffn = 12, seq = 8 }
local LATENT = { kv_lora_rank = 6, qk_nope_head_dim = 4, qk_rope_head_dim = 2, v_head_dim = 3, experts = 4,
  experts_per_token = 2, expert_ffn = 6, shared_ffn = 12, sparse = { false, true } }

local function with(...)
  local o = {}
  for _, source in ipairs({ SIZES, ... }) do
    for key, value in pairs(source) do o[key] = value end
  end
  return o
end

describe("ms.models", function()
  it("G1 makes models of each family, whose folders are read again as the same model", function()
    local yarn = { type = "yarn", factor = 4, original_max_position_embeddings = 4, mscale = 0.7, mscale_all_dim = 0.9 }
    local cases = {
      deepseek_v2 = with(LATENT, { q_lora_rank = 5, rope_scaling = yarn, n_group = 2, topk_group = 1,
        route_scale = 2 }),
      deepseek_v3 = with(LATENT, { rope_scaling = yarn, n_group = 2, topk_group = 1, rope_interleaved = false,
        qkv_bias = true, out_bias = true, bias_rate = 1e-3 }),
      kimi_k2 = with(LATENT, { attention_scale = 6 ^ -0.5, renormalise = false }),
      glm4_moe = with { experts = 4, experts_per_token = 2, expert_ffn = 6, shared_ffn = 12, sparse = { false, true },
        qk_norm = "head", rotary_dim = 2, qkv_bias = true },
      gpt_oss = with { experts = 3, experts_per_token = 2, kv_heads = 1, window = 3, slides = { false, true },
        aux_loss = 0.25 },
    }
    local tokens = ms.tensor({ { 3, 1, 16, 7, 2, 5, 9, 4 } }, { dtype = "i32" })
    cases["gpt_oss without biases of attention"] = with(cases.gpt_oss, { qkv_bias = false, out_bias = false })
    for name, o in pairs(cases) do
      local model, folder = ms.models[name:match("^%S+")](o), scratch.path()
      ms.huggingface.save(model, folder)
      local again = ms.huggingface.model(folder, { bias_rate = o.bias_rate })
      assert.same(model.config, again.config, name)
      assert.same(model(tokens):tolist(), again(tokens):tolist(), name)
    end
  end)

  it("G1 refuses to save what a family's config.json cannot say", function()
    local function refused(name, more, option)
      has(message(ms.huggingface.save, ms.models[name](with(more)), scratch.path()),
        ("config.json of %s | %s"):format(name, option))
    end
    local yarn = { type = "yarn", factor = 4, original_max_position_embeddings = 4, mscale_all_dim = 0.9 }
    refused("llama", LATENT, "kv_lora_rank")
    refused("deepseek_v3", with(LATENT, { attention_scale = 6 ^ -0.5, rope_scaling = yarn }), "attention_scale")
    refused("deepseek_v3", with(LATENT, { shared_ffn = 7 }), "shared_ffn")
    refused("deepseek_v3", with(LATENT, { sparse = { true, false } }), "sparse")
    refused("deepseek_v2", with(LATENT, { renormalise = true }), "renormalise")
    refused("deepseek_v2", with(LATENT, { expert_score = "sigmoid" }), "expert_score")
    refused("qwen3_moe", { experts = 4, experts_per_token = 2, n_group = 2, topk_group = 1 }, "n_group")
    refused("qwen3_moe", { experts = 4, experts_per_token = 2, expert_bias = true }, "expert_bias")
    refused("gpt_oss", { activation = "silu" }, "activation")
    refused("llama", { sinks = true }, "sinks")
    refused("qwen2_moe", { experts = 4, shared_ffn = 8, shared_gate = false }, "shared_gate")
  end)

  it("G1 refuses options of latent vectors and of experts that make no sense", function()
    local function refused(...) return message(ms.models.decoder, with(...)) end
    has(refused { q_lora_rank = 4 }, "q_lora_rank | kv_lora_rank")
    has(refused { kv_lora_rank = 4 }, "kv_lora_rank | qk_nope_head_dim")
    has(refused(LATENT, { head_dim = 4 }), "head_dim is 4 | it is 6")
    has(refused(LATENT, { kv_heads = 1 }), "kv_heads is 1 | it is 2")
    has(refused(LATENT, { qk_norm = "head" }), 'qk_norm is "head"')
    has(refused(LATENT, { sinks = true }), "sinks is true")
    has(refused(LATENT, { qk_rope_head_dim = 3 }), "rotary_dim 3 | even")
    has(refused(LATENT, { n_group = 3 }), "n_group is 3 | 4 experts")
    has(refused(LATENT, { n_group = 2, topk_group = 3 }), "topk_group is 3 | n_group 2")
    has(refused(LATENT, { n_group = 4 }), "top_k is 2 | topk_group 1 | 1 experts")
    has(refused(LATENT, { n_group = 4, topk_group = 3, group_score = "top2" }), "top2 | a group has 1")
    has(refused(LATENT, { group_score = "mean" }), 'group_score | "max" or "top2" | "mean"')
    has(refused(LATENT, { route_bias = false, bias_rate = 1 }), "bias_rate is 1 | route_bias is false")
    has(refused { n_group = 2 }, "n_group | experts")
    has(refused { activation = "swiglu_oai", gated = false }, "swiglu_oai | gated")
  end)

  it("G1 refuses a config.json with what its class does not compute", function()
    local function refused(name, field, value)
      return message(ms.huggingface.model, huggingface.copy_of(name, huggingface.set(field, value)))
    end
    has(refused("deepseek_v3", "topk_method", "greedy"), 'topk_method is "greedy" | noaux_tc')
    has(refused("deepseek_v3", "scoring_func", "softmax"), 'scoring_func is "softmax" | sigmoid')
    has(refused("deepseek_v3", "head_dim", 8), "head_dim is 8 | qk_rope_head_dim | 4")
    has(refused("deepseek_v3", "num_key_value_heads", 2), "num_key_value_heads is 2 | num_attention_heads | 4")
    has(refused("deepseek_v2", "norm_topk_prob", true), "norm_topk_prob is true | normalise")
    has(refused("deepseek_v2", "topk_method", "noaux_tc"), "topk_method | noaux_tc | group_limited_greedy")
    has(refused("deepseek_v2", "topk_method", "group_limited_greedy"), "topk_method | n_group and topk_group")
    has(refused("deepseek_v2", "num_experts_per_tok", nil), "num_experts_per_tok | missing")
    has(refused("deepseek_v2", "num_experts_per_tok", 9), "num_experts_per_tok is 9 | 8 experts | n_routed_experts")
    has(refused("gpt_oss", "swiglu_limit", 5), "swiglu_limit is 5 | 7")
    has(refused("gpt_oss", "experts_per_token", 3), "num_experts_per_tok is 2 | experts_per_token 3")
  end)

  it("G1 takes the scaling of gpt-oss for a config.json without one, as its class", function()
    local folder = huggingface.copy_of("gpt_oss", huggingface.set("rope_parameters", nil))
    local o = ms.huggingface.model(folder).config
    assert.equal("yarn", o.rope_scaling.type)
    assert.equal(32, o.rope_scaling.factor)
    assert.equal(150000, o.rope_theta)
  end)

  it("G1 refuses a null in place of the scaling of gpt-oss, which versions of the library read in two ways", function()
    local function folder_of(parameters)
      return huggingface.copy_of("gpt_oss", function(config)
        config.rope_scaling, config.rope_parameters = json.null, parameters
      end)
    end
    has(message(ms.huggingface.model, folder_of(nil)), "rope_scaling is null | version 4 | version 5 | rope_parameters")
    local o = ms.huggingface.model(folder_of { rope_type = "default", rope_theta = 1000 }).config
    assert.is_falsy(o.rope_scaling)
    assert.equal(1000, o.rope_theta)
  end)
end)
