-- Families of decoders from and to Hugging Face's folders: the reference library's numbers on random small models
-- (tests/fixtures/huggingface), and what is refused.

local breadth = require("lua.support.breadth")
local huggingface = require("lua.support.huggingface")
local has = require("lua.support.message").has
local message = require("lua.support.fixture").message
local ms = require("moonshard")
local program = require("lua.support.program")
local scratch = require("lua.support.scratch")

local train, assert_reference = huggingface.train, huggingface.assert_reference

teardown(scratch.clear)

local FAMILIES = {
  "gemma", "gemma2", "gemma3", "llama_biased", "mistral", "mistral_whole", "olmo2", "phi3", "qwen2", "qwen2_window",
  "qwen3", "smollm3", "mixtral", "qwen2_moe", "qwen3_moe",
  "cohere", "cohere2", "exaone4", "glm", "glm4", "gpt_neox", "gpt_neox_sequential", "granite", "llama_dynamic",
  "llama_yarn", "olmo3", "olmoe", "phi", "phi3_long", "phi3_short", "seed_oss", "stablelm", "stablelm_parallel",
  "starcoder2", "falcon", "falcon_new", "falcon_sequential", "ministral",
  "cohere_norms", "phi_norms", "stablelm_norms", "llama4", "llama4_tied", "ministral3", "falcon_alibi", "bloom", "mpt",
}
local tried, all = huggingface.tried(FAMILIES, "gemma3")
-- Where not all cases run, one for each way in which a family's layers are divided: norms of heads and of all queries,
-- products that are one matrix, experts with a shared one; and for masks, windows, and rows of experts.
local DIVIDED = breadth.all and { "gemma2", "gemma3", "llama_biased", "olmo2", "phi3", "qwen2_window", "qwen3",
  "smollm3", "mixtral", "qwen2_moe", "qwen3_moe", "cohere2", "glm4", "gpt_neox", "granite", "olmo3", "olmoe", "phi",
  "phi3_long", "stablelm", "starcoder2", "cohere_norms", "stablelm_norms", "llama4",
  "bloom", "mpt", "falcon_alibi" }
  or { "gemma3", "olmo2", "phi3", "qwen2_moe", "glm4", "phi", "cohere_norms", "llama4", "bloom" }
local IN_CONTEXT = breadth.all and { "mistral", "gemma2", "gemma3", "qwen3", "smollm3", "qwen2_moe", "cohere2", "glm",
  "gpt_neox", "llama_yarn", "phi3_short", "llama4", "bloom", "mpt", "falcon_alibi" }
  or { "gemma3", "qwen2_moe", "glm", "llama4", "bloom" }

-- These runs compare with the reference library, too: that on one rank stands for no more where not all cases run.
local divided = {}
for _, name in ipairs(all and not breadth.all and DIVIDED or {}) do divided[name] = true end

describe("a family", function()
  for _, name in ipairs(tried) do
    local test = "G1 trains as the reference library trains it, on one rank and on meshes: " .. name
    if not divided[name] then it(test, function() huggingface.assert_trains(name) end) end
  end

  it("G1 trains alike over a tensor dimension, with a padded vocabulary, ragged chunks and micro-batches", function()
    for i, name in ipairs(all and DIVIDED or {}) do
      huggingface.assert_trains_divided(name, not breadth.all and i or nil)
    end
  end)

  it("G1 trains on the emulated device cuda, with tables of frequencies, parts of heads and neighbours", function()
    for _, name in ipairs(all and { "phi3_long", "glm", "bloom" } or {}) do -- the thread sanitizer has none
      assert_reference(name, train(name, 1, "1x1", { device = "cuda" }, program.emulated_cuda()))
    end
  end)

  it("G1 trains with the auxiliary loss of routers if its config asks for it", function()
    if not all then return end
    assert_reference("mixtral_balanced", train("mixtral_balanced", 1, "1x1"))
    assert_reference("mixtral_balanced", train("mixtral_balanced", 2, "1x1x2", { padding = 2 }))
    assert.equal(0.05, ms.huggingface.model(huggingface.FIXTURES .. "mixtral_balanced").config.aux_loss)
    assert.equal(0.5, ms.huggingface.model(huggingface.FIXTURES .. "mixtral", { aux_loss = 0.5 }).config.aux_loss)
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
    for _, name in ipairs(all and IN_CONTEXT or {}) do
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

  it("G1 gives the row of padding no gradient by lookups, as padding_idx of the reference library", function()
    local function embedding_of(pad)
      local model = ms.huggingface.model(huggingface.copy_of("llama", huggingface.set("pad_token_id", pad)))
      local before = model:parameter("embed.weight"):tolist()
      local step = ms.trainer { model = model, optimizer = ms.optim.sgd { lr = 1 }, loss = ms.loss.cross_entropy }
      local tokens = ms.tensor({ { 3, 5, 3, 7 } }, { dtype = "i32" })
      step:step { tokens = tokens, targets = tokens }
      return model.config, before, model:parameter("embed.weight"):tolist()
    end
    local config, before, after = embedding_of(3)
    assert.equal(3, config.padding)
    assert.same(before[4], after[4])
    assert.not_same(before[6], after[6])
    config = embedding_of(-1)
    assert.equal(config.vocab - 1, config.padding)
    config, before, after = embedding_of(false)
    assert.is_nil(config.padding)
    assert.not_same(before[4], after[4])
    has(message(embedding_of, config.vocab), ("pad_token_id %d | vocab_size %d"):format(config.vocab, config.vocab))
  end)

  it("G1 is the same model by a config.json of version 4 of the reference library", function()
    local function old(name, change)
      local folder = huggingface.copy_of(name, function(c)
        local rope = c.rope_parameters
        c.rope_parameters = nil
        change(c, rope)
      end)
      local new = huggingface.logits_of(huggingface.FIXTURES .. name):tolist()
      assert.same(new, huggingface.logits_of(folder):tolist(), name)
    end
    old("gpt_neox", function(c, rope) c.rotary_pct, c.rotary_emb_base = rope.partial_rotary_factor, rope.rope_theta end)
    old("stablelm", function(c, rope) c.partial_rotary_factor, c.rope_theta = nil, rope.rope_theta end) -- its default
    old("glm", function(c, rope) c.partial_rotary_factor, c.rope_theta = 0.5, rope.rope_theta end)
    old("phi3_long", function(c, rope)
      c.partial_rotary_factor, c.rope_theta = rope.partial_rotary_factor, rope.rope_theta
      c.rope_scaling = { type = "su", short_factor = rope.short_factor, long_factor = rope.long_factor }
    end)
    old("olmo3", function(c, rope)
      local full = rope.full_attention
      c.rope_theta, full.rope_theta, c.rope_scaling = full.rope_theta, nil, full
      c.layer_types = { "sliding_attention", "full_attention" }
    end)
    old("falcon", function(c, rope) c.rope_theta, c.num_kv_heads, c.multi_query = rope.rope_theta, nil, nil end)
  end)

  it("G1 refuses what rope_parameters and rope_scaling say differently", function()
    local function with_scaling(factor)
      return huggingface.copy_of("olmo3", function(c)
        local scaling = {}
        for key, value in pairs(c.rope_parameters.full_attention) do scaling[key] = value end
        scaling.rope_theta, scaling.factor = nil, factor
        c.rope_scaling = scaling
      end)
    end
    has(message(ms.huggingface.model, with_scaling(5)), "rope_parameters and rope_scaling | differ")
    assert.equal("olmo3", ms.huggingface.model(with_scaling(4)).family)
  end)

  it("G1 refuses to save adapters of queries that share a module with keys by head", function()
    local function save(layer)
      local model, folder = ms.huggingface.model(huggingface.FIXTURES .. "gpt_neox"), scratch.path()
      ms.lora(model, { { ms.re(layer), { rank = 2 } } })
      ms.fully_shard(model, {})
      ms.lora.save(model, folder)
      return folder
    end
    has(message(save, [[attn\.wq$]]), "layers.0.attn.wq | attention.query_key_value")
    local folder = save [[attn\.wo$]]
    local model = ms.huggingface.model(huggingface.FIXTURES .. "gpt_neox")
    ms.lora.load(model, folder)
  end)

  it("G1 is saved as it was read: names, values and config", function()
    for _, name in ipairs(FAMILIES) do
      local saved = huggingface.assert_saved(name)
      local read = scratch.read(huggingface.FIXTURES .. name .. "/config.json")
      local written = scratch.read(saved .. "/config.json")
      assert.equal(read:find('"sliding_window": null', 1, true) ~= nil,
        written:find('"sliding_window": null', 1, true) ~= nil, name)
    end
  end)
end)

describe("ms.models", function()
  local sizes = { vocab = 17, layers = 2, dim = 8, heads = 2, ffn = 12, seq = 8 }
  local function with(more)
    local o = {}
    for key, value in pairs(sizes) do o[key] = value end
    for key, value in pairs(more) do o[key] = value end
    return o
  end

  it("G1 makes models of each family, whose folders are read again as the same model", function()
    local cases = {
      llama = { rope_scaling = { type = "linear", factor = 2 }, qkv_bias = true, out_bias = true, mlp_bias = true },
      mistral = { window = 4 }, qwen2 = { window = 4, slides = { false, true } }, qwen3 = { head_dim = 6 }, phi3 = {},
      smollm3 = { rotates = { false, true }, mlp_bias = true },
      mixtral = { experts = 3, aux_loss = 0.25, window = 4 },
      qwen2_moe = { experts = 5, experts_per_token = 3, expert_ffn = 7, shared_ffn = 9, qkv_bias = false },
      qwen3_moe = { experts = 4, experts_per_token = 2, expert_ffn = 17, head_dim = 6, sparse = { false, true } },
      olmo2 = {}, gemma = {}, gemma2 = { window = 4, slides = { true, false }, attention_scale = 0.5 },
      gemma3_text = { window = 4, slides = { true, false }, window_rope_theta = 100, attention_scale = 0.5 },
      starcoder2 = { window = 4, kv_heads = 1 },
      stablelm = { rotary_dim = 2, qkv_bias = true, parallel = "one", qk_norm = "each" },
      gpt_neox = { rotary_dim = 2, parallel = false, qkv_bias = false, out_bias = false },
      phi = { rotary_dim = 2, qk_norm = "head" },
      cohere = { logit_scale = 0.5, qkv_bias = true, out_bias = true, qk_norm = "each", kv_heads = 1 },
      cohere2 = { window = 4, slides = { true, false }, rotates = { true, false }, logit_scale = 2 },
      granite = { embedding_scale = 3, attention_scale = 0.3, residual_scale = 0.4, logit_scale = 0.5 },
      glm = { rotary_dim = 2 }, glm4 = { rotary_dim = 2, qkv_bias = false },
      olmo3 = { window = 4, slides = { true, false }, window_rope_theta = 10000,
        rope_scaling = { type = "yarn", factor = 4, original_max_position_embeddings = 4, attention_factor = 2 } },
      exaone4 = { window = 4, slides = { false, true }, rotates = { false, true } },
      seed_oss = { out_bias = true, mlp_bias = true }, ministral = { window = 4, slides = { false, true } },
      ministral3 = { attn_scale = 0.5, floor_scale = 3, window = 4,
        rope_scaling = { type = "yarn", factor = 4, original_max_position_embeddings = 3 } },
      falcon = { kv_heads = 1, qkv_bias = true, out_bias = true, mlp_bias = true },
      llama4_text = { experts = 3, experts_per_token = 2, expert_ffn = 7, shared_ffn = 7, sparse = { false, true },
        rotates = { false, true }, chunked = { false, true }, attention_chunk_size = 3, attn_scale = 0.5,
        floor_scale = 2 },
      olmoe = { experts = 4, experts_per_token = 3, expert_ffn = 12, aux_loss = 0.25 },
    }
    local tokens = ms.tensor({ { 3, 1, 16, 7, 2, 5, 9, 4 } }, { dtype = "i32" })
    for name, more in pairs(cases) do
      local model, folder = ms.models[name](with(more)), scratch.path()
      ms.huggingface.save(model, folder)
      local again = ms.huggingface.model(folder)
      assert.same(model.config, again.config, name)
      assert.same(model(tokens):tolist(), again(tokens):tolist(), name)
    end
  end)

  it("G1 refuses to save what a family's config.json cannot say", function()
    local function refused(name, more, option)
      has(message(ms.huggingface.save, ms.models[name](with(more)), scratch.path()),
        ("config.json of %s | %s"):format(name, option))
    end
    refused("qwen3", { attention_softcap = 5 }, "attention_softcap")
    refused("mistral", { window = 4, slides = { true, false } }, "slides")
    refused("qwen3", { rotates = { true, false } }, "rotates")
    refused("smollm3", { window = 4 }, "window")
    refused("mixtral", { shared_ffn = 8 }, "shared_ffn")
    refused("mixtral", { renormalise = false }, "renormalise")
    refused("mixtral", { sparse = { true, false } }, "sparse")
    refused("qwen3_moe", { bias_rate = 1e-3 }, "bias_rate")
    refused("qwen3_moe", { expert_score = "sigmoid" }, "expert_score")
    refused("qwen2_moe", { window = 4, shared_ffn = 8 }, "window")
    refused("qwen3", { experts = 4 }, "experts")
    refused("olmo2", { norms = "before" }, "norms")
    refused("gemma", { embedding_scale = 1 }, "embedding_scale")
    refused("llama4_text", { experts = 3 }, "shared_ffn | wide")
    refused("llama4_text", { experts = 3, expert_ffn = 8, shared_ffn = 8, expert_score = "softmax" }, "expert_score")
    refused("mixtral", { score_before_experts = true }, "score_before_experts")
    refused("qwen2_moe", { shared_ffn = 8, shared_gate = false }, "shared_gate")
    refused("llama", { attention_chunk_size = 4 }, "attention_chunk_size")
    refused("llama", { qk_norm = "l2" }, "qk_norm")
    refused("ministral3", { attn_scale = 0.5, floor_scale = 4,
      rope_scaling = { type = "yarn", factor = 4, original_max_position_embeddings = 8 } }, "floor_scale")
    refused("llama", { attn_scale = 0.1, floor_scale = 4, rotates = { true, false } }, "attn_scale")
    refused("llama", { out_bias = true }, "out_bias")
    -- What their config classes do not take.
    refused("phi3", { rope_scaling = { factor = 8, low_freq_factor = 1, high_freq_factor = 4,
      original_max_position_embeddings = 4 } }, "rope_scaling | longrope")
    refused("phi3", { rope_scaling = { type = "linear", factor = 2 } }, "rope_scaling | longrope")
    local long = { type = "longrope", short_factor = { 1, 2 }, long_factor = { 1, 3 }, attention_factor = 2,
      original_max_position_embeddings = 4 }
    refused("phi3", { rope_scaling = long }, "rope_scaling | longrope")
    -- What a family's models all have, or its config.json has no field for.
    refused("llama", { rotary_dim = 2 }, "rotary_dim")
    refused("llama", { rope_interleaved = true }, "rope_interleaved")
    refused("llama", { gated = false }, "gated")
    refused("llama", { layer_norm = true }, "layer_norm")
    refused("llama", { residual_scale = 0.5 }, "residual_scale")
    refused("llama", { logit_scale = 0.5 }, "logit_scale")
    refused("llama", { head_bias = true }, "head_bias")
    refused("llama", { parallel = "one" }, "parallel")
    refused("stablelm", { parallel = "each" }, "parallel")
    refused("falcon", { heads = 4, kv_heads = 2, parallel = false }, "parallel | key head")
    refused("falcon", { qkv_bias = true }, "out_bias")
    refused("cohere", { norm_bias = true }, "norm_bias")
    refused("cohere", { qk_norm = "head" }, "qk_norm")
    refused("phi", { qk_norm = "each" }, "qk_norm")
    refused("glm", { out_bias = true }, "out_bias")
    refused("exaone4", { window = 4, slides = { false, true } }, "rotates")
    refused("gpt_neox", { kv_heads = 1 }, "kv_heads | heads")
    refused("stablelm", { head_dim = 6 }, "head_dim | width")
    refused("llama", { heads = 3, head_dim = 4, kv_heads = 3 }, "heads | multiple")
    refused("gemma2", { heads = 3, head_dim = 4, kv_heads = 1 }, "heads | multiple")
    ms.huggingface.save(ms.models.mistral(with { heads = 3, head_dim = 4, kv_heads = 3 }), scratch.path())
    refused("gemma2", { window = 4, slides = { true, false }, window_rope_theta = 7 }, "window_rope_theta")
    local same = ms.models.gemma3_text(with { window = 4, slides = { true, false } })
    local folder = scratch.path()
    ms.huggingface.save(same, folder)
    assert.equal(1e6, ms.huggingface.model(folder).config.window_rope_theta)
    for _, name in ipairs({ "gemma3_text", "gemma2", "qwen3", "mistral" }) do -- a window that no layer has
      local model, to = ms.models[name](with { window = 4, slides = { false, false } }), scratch.path()
      ms.huggingface.save(model, to)
      local tokens = ms.tensor { { 3, 1, 4, 1, 5, 9 }, dtype = "i32" }
      assert.same(model(tokens):tolist(), ms.huggingface.model(to)(tokens):tolist(), name)
    end
  end)

  it("G1 refuses options of a decoder that make no sense", function()
    local function refused(more) return message(ms.models.decoder, with(more)) end
    has(refused { norms = "after" }, 'norms | "before" or "behind" or "around" | "after"')
    has(refused { qk_norm = true }, 'qk_norm | "head" or "each" or "all" or "l2" or false | true')
    has(refused { chunked = { true, true } }, "chunked | attention_chunk_size")
    has(refused { attention_chunk_size = 2, window = 2 }, "attention_chunk_size | window")
    has(refused { attn_scale = 0.1 }, "attn_scale | floor_scale")
    has(refused { attn_scale_layers = "some" }, 'attn_scale_layers | "nope" or "all" | "some"')
    has(refused { shared_gate = false }, "shared_gate | experts")
    has(refused { qk_norm = "each", norm_from_one = true }, "norm_from_one | qk_norm")
    has(refused { activation = "tanh" }, 'activation | "silu" or "gelu_tanh" or "gelu" or "relu" | "tanh"')
    has(refused { slides = { true, true } }, "slides | window")
    has(refused { rotates = { true } }, "rotates | layer 2 is nil")
    has(refused { window = 4, slides = { true } }, "slides | layer 2 is nil")
    has(refused { logit_softcap = -1 }, "logit_softcap | above 0 | -1")
    has(refused { rope_scaling = { type = "linear", factor = 0 } }, "rope_scaling | factor 0")
    has(refused { rope_scaling = { type = "ntk", factor = 2 } }, 'type | "yarn" | "ntk"')
    has(refused { rope_scaling = { type = "yarn", factor = 2 } }, "rope_scaling | original_max_position_embeddings")
    has(refused { rope_scaling = { type = "yarn", factor = 2, original_max_position_embeddings = 4, beta_fast = 0 } },
      "beta_fast 0 | above 0")
    has(refused { rope_scaling = { type = "longrope", short_factor = { 1, 1 }, long_factor = { 1 },
      original_max_position_embeddings = 4 } }, "long_factor | each of 2 pairs | item 2 is nil")
    has(refused { rotary_dim = 3 }, "rotary_dim 3 | even")
    has(refused { rotary_dim = 6 }, "rotary_dim 6 | head_dim 4")
    has(refused { norm_bias = true }, "norm_bias | layer_norm")
    has(refused { layer_norm = true, norm_from_one = true }, "norm_from_one | layer_norm")
    has(refused { parallel = "one", norms = "around" }, 'parallel | "before" | "around"')
    has(refused { experts = 2, gated = false }, "gated | experts")
    has(refused { residual_scale = 0 }, "residual_scale | above 0")
    has(refused { aux_loss = 0.1 }, "aux_loss | experts")
    has(refused { experts = 2, experts_per_token = 3 }, "top_k is 3 | 2 experts")
    has(refused { experts = 2, sparse = { true } }, "sparse | layer 2 is nil")
    has(refused { windows = 4 }, "unknown option windows | window")
    local function config_refused(name, value)
      return message(ms.huggingface.model, huggingface.copy_of("smollm3", huggingface.set(name, value)))
    end
    has(config_refused("no_rope_layers", { 1, 2 }), "no_rope_layers of layer 2 is 2")
    has(config_refused("no_rope_layers", { 1 }), "no_rope_layers of layer 2 is nil")
    local function experts_refused(family, name, value)
      return message(ms.huggingface.model, huggingface.copy_of(family, huggingface.set(name, value)))
    end
    has(experts_refused("mixtral", "router_jitter_noise", 0.5), "router_jitter_noise is 0.5 | not built")
    has(experts_refused("qwen3_moe", "use_sliding_window", true), "use_sliding_window | not built")
    has(experts_refused("qwen2_moe", "layer_types", { "full_attention", "sliding_attention" }),
      "layer_types of layer 2 | sliding_attention")
    has(experts_refused("qwen2_moe", "num_experts", 5), "missing: | experts.4")
    local layers = {}
    for i = 1, 8 do layers[i] = i == 2 and "sliding_attention" or "full_attention" end
    has(config_refused("layer_types", layers), "layer_types of layer 2 | sliding_attention")
    local function with_window(uses)
      return huggingface.copy_of("smollm3", function(config)
        config.use_sliding_window, config.sliding_window, config.max_window_layers = uses, 4, 28
        config.pretraining_tp = 2
      end)
    end
    has(message(ms.huggingface.model, with_window(true)), "sliding_window is 4 | not built")
    assert.equal("smollm3", ms.huggingface.model(with_window(false)).family)
    has(message(function() return ms.models.qwen9 end), "qwen9 | qwen2")
  end)
end)
