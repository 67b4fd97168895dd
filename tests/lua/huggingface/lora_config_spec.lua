-- Adapters by the fields of PEFT's LoraConfig: which modules get them, which rank and alpha, how they begin and what
-- trains besides. PEFT's own answers are in tests/fixtures/lora/targets.json.

local adapter = require("moonshard.nn.adapter")
local ffi = require("ffi")
local fixture = require("lua.support.fixture")
local has = require("lua.support.message").has
local huggingface = require("lua.support.huggingface")
local json = require("cjson")
local ms = require("moonshard")
local peft_fields = require("moonshard.huggingface.peft.fields")
local scratch = require("lua.support.scratch")
local re = ms.re

local message = fixture.message

teardown(scratch.clear)

local function model_of(name) return ms.huggingface.model(huggingface.FIXTURES .. name) end
local function made(fields, name) return ms.lora.from_config(model_of(name or "llama"), fields) end

local function trainable(model)
  local names = {}
  for name, param in model:named_parameters() do
    if not param.frozen and not param.factor then names[#names + 1] = name end
  end
  table.sort(names)
  return names
end

describe("ms.lora.from_config", function()
  it("Q8 chooses the modules, ranks and alphas that PEFT chooses", function()
    for i, case in ipairs(json.decode(scratch.read("tests/fixtures/lora/targets.json"))) do
      local ok, model = pcall(made, case.fields, case.model)
      assert.equal(case.chosen ~= nil, ok, i .. ": " .. tostring(model))
      local found = {}
      if ok then
        local folder = scratch.path()
        ms.lora.save(model, folder)
        local file = ms.safetensors.open(folder .. "/adapter_model.safetensors")
        local config = require("moonshard.huggingface.adapter_config").read(folder)
        local names = {}
        for _, tensor in ipairs(file.tensors) do
          names[#names + 1] = tensor.name:match("^base_model%.model%.(.*)%.lora_A%.weight$")
        end
        local of = require("moonshard.huggingface.adapter_config").of_modules(config, names)
        for name, one in pairs(of) do found[name] = { one.rank, one.alpha / one.rank } end
        for name, wanted in pairs(case.chosen) do
          assert.truthy(found[name], i .. ": " .. name)
          assert.equal(wanted[1], found[name][1], i .. ": " .. name)
          fixture.assert_close({ wanted[2] }, { found[name][2] }, 1e-6, i .. ": " .. name)
          found[name] = nil
        end
        assert.equal(nil, (next(found)), i)
      end
    end
  end)

  it("Q8 takes of a pattern's overlapping keys the first, in a list of pairs", function()
    local function ranks(pattern)
      local found = {}
      for _, record in ipairs(adapter.records(made { r = 2, target_modules = { "q_proj" }, rank_pattern = pattern })) do
        found[#found + 1] = record.rank
      end
      return found
    end
    assert.same({ 4, 3 }, ranks { { "layers.1.self_attn.q_proj", 3 }, { "q_proj", 4 } })
    assert.same({ 4, 4 }, ranks { { "q_proj", 4 }, { "layers.1.self_attn.q_proj", 3 } })
  end)

  it("Q8 begins adapters as PEFT does, by init_lora_weights", function()
    local function initial(value)
      local layer = made({ r = 4, target_modules = { "q_proj" }, init_lora_weights = value }).layers[1].attn.wq
      return { tostring(layer.lora_A.init), tostring(layer.lora_B.init) }
    end
    assert.same({ "uniform(-0.25, 0.25)", "zeros" }, initial(true)) -- 1 / sqrt(16)
    assert.same({ "uniform(-0.25, 0.25)", "uniform(-0.5, 0.5)" }, initial(false)) -- 1 / sqrt(4)
    assert.same({ "normal(0, 0.25)", "zeros" }, initial("gaussian"))
    for _, value in ipairs({ "eva", "orthogonal", "pissa", "olora", "loftq", "corda", "lora_ga", "mica" }) do
      has(message(initial, value), "init_lora_weights | " .. value)
    end
  end)

  it("Q8 changes nothing at first: lengths of DoRA and rows of tokens begin as the weight's", function()
    local function logits(model)
      return model(ms.tensor { { 3, 1, 40, 7 }, dtype = "i32" }):reshape(-1):tolist()
    end
    for _, name in ipairs({ "llama", "gpt2" }) do
      local target = name == "gpt2" and { "c_attn" } or { "q_proj", "lm_head" }
      local model = made({ target_modules = target, use_dora = true, trainable_token_indices = { 1, 3 } }, name)
      fixture.assert_close(logits(model_of(name)), logits(model), 1e-5, name)
    end
  end)

  it("Q8 trains biases, whole modules and rows of embeddings", function()
    assert.same({ "layers.0.attn.wo.bias", "layers.1.attn.wo.bias" },
      trainable(made({ target_modules = { "attn.c_proj" }, bias = "lora_only" }, "gpt2")))
    local all = trainable(made({ target_modules = { "attn.c_proj" }, bias = "all" }, "gpt2"))
    assert.equal(2 * 8 + 1, #all) -- of two layers 6 products and 2 norms, and the last norm
    assert.same({ "head.weight", "layers.0.attn_norm.weight", "norm.weight" },
      trainable(made { target_modules = { "q_proj" }, modules_to_save = { "lm_head", "model.norm",
        "layers.0.input_layernorm" } }))
    local rows = made { target_modules = { "q_proj" },
      trainable_token_indices = { lm_head = { 1, 2 }, embed_tokens = { 9 } } }
    assert.same({ 2, 16 }, rows.head.trainable_tokens.shape)
    assert.same({ 1, 16 }, rows.embed.trainable_tokens.shape)
    assert.same({}, trainable(rows))
  end)

  it("Q8 is refused where PEFT would do something else, by field", function()
    local function refused(fields, facts, name) has(message(made, fields, name), "ms.lora.from_config | " .. facts) end
    refused({}, "target_modules")
    refused(3, "table | 3")
    refused({ target_modules = { "nosuch" } }, "no linear layer")
    refused({ target_modules = { "q_proj" }, exclude_modules = { "q_proj" } }, "left out by")
    refused({ target_modules = ".*proj", layers_to_transform = 0 }, "target_modules | layers_to_transform")
    refused({ target_modules = { "q_proj" }, layers_pattern = "layers" }, "layers_pattern | layers_to_transform")
    refused({ target_modules = { "q_proj" }, lora_bias = true, use_dora = true }, "lora_bias | use_dora")
    refused({ target_modules = { "q_proj" }, use_dora = true, init_lora_weights = false },
      "use_dora | init_lora_weights")
    refused({ target_modules = { "q_proj" }, modules_to_save = { "nosuch" } }, "modules_to_save | nosuch")
    refused({ target_modules = { "q_proj" }, modules_to_save = { "embed_tokens" } }, "embed_tokens | lm_head | "
      .. "ensure_weight_tying", "qwen2")
    refused({ target_modules = { "c_attn" }, modules_to_save = { "wte" }, ensure_weight_tying = true },
      "wte | trainable_token_indices", "gpt2")
    refused({ target_modules = { "q_proj" }, modules_to_save = { "embed_tokens" }, trainable_token_indices = { 1 } },
      "embed.weight | trainable_token_indices")
    refused({ target_modules = { "q_proj" }, trainable_token_indices = { nosuch = { 1 } } }, "nosuch | embedding")
    refused({ target_modules = { "lm_head" }, trainable_token_indices = { lm_head = { 1 } } }, "head | an adapter")
    refused({ target_modules = { "q_proj" }, rank_pattern = { 3 } }, "rank_pattern")
    refused({ target_modules = "all-linear" }, "experts.0.w1 | exclude_modules", "mixtral")
    assert.equal("layers.0.mlp.router", adapter.records(made({ target_modules = "all-linear",
      exclude_modules = ".*(experts|self_attn).*" }, "mixtral"))[1].layer)
    local own = ms.models.llama { vocab = 8, layers = 1, dim = 8, heads = 2, ffn = 8, seq = 4 }
    for _, fields in ipairs({ { use_dora = true }, { trainable_token_indices = { 1 } } }) do
      fields.target_modules = { "q_proj" }
      has(message(ms.lora.from_config, own, fields), "from no file | ms.huggingface.model")
      assert.equal(nil, adapter.layers(own)[1])
    end
  end)

  it("Q8 knows every field that PEFT 0.18 writes", function()
    for _, name in ipairs({ "gpt2_dora", "llama_rows" }) do
      local given = json.decode(scratch.read("tests/fixtures/lora/" .. name .. "/adapter_config.json"))
      for field in pairs(given) do assert.truthy(peft_fields.ROWS[field], field) end
    end
    local guide = scratch.read("lua/guides/adapters.md")
    for field in pairs(peft_fields.ROWS) do
      assert(guide:find("`" .. field .. "`", 1, true), field .. " is not in the guide")
    end
  end)
end)

describe("rules of ms.lora", function()
  it("Q8 give lengths of rows, biases and scales as LoraConfig's fields do", function()
    local model = ms.lora(model_of("gpt2"), {
      { re[[wo$]], { rank = 4, alpha = 8, use_rslora = true, lora_bias = true } },
    }, { bias = "lora_only", trainable_token_indices = { 3 } })
    local record = adapter.records(model)[1]
    assert.equal(16, record.alpha)
    assert.equal("layers.0.attn.wo.lora_bias", record.bias)
    assert.same({ "layers.0.attn.wo.bias", "layers.1.attn.wo.bias" }, trainable(model))
    assert.equal(model.embed.trainable_tokens, model.head.trainable_tokens) -- the head is tied
    local again = model_of("gpt2")
    has(message(ms.lora, again, { { re[[wo$]], { lora_bias = true, use_dora = true } } }), "lora_bias | use_dora")
    has(message(ms.lora, again, { { re[[wo$]], { init_lora_weights = "pissa" } } }), "init_lora_weights | pissa")
    has(message(ms.lora, again, { { re[[wo$]], {} } }, { bias = "some" }), "bias | some")
  end)

  it("Q8 that give layers different kinds cannot be saved as one folder", function()
    local model = ms.lora(model_of("llama"), {
      { re[[wq$]], { rank = 2, use_dora = true } }, { re[[wk$]], { rank = 2 } },
    })
    has(message(ms.lora.save, model, scratch.path()), "use_dora | wk")
    local part = ms.lora(model_of("gpt2"), { { re[[wq$]], { rank = 2, use_dora = true } } })
    has(message(ms.lora.save, part, scratch.path()), "wq | use_dora | c_attn")
  end)

  it("Q8 put lengths and rows into weights alike, however they are read", function()
    local weight = require("moonshard.nn.adapters.adapted_weight")
    local values, whole = ffi.new("float[6]", { 1, 2, 3, 4, 5, 6 }), ffi.new("float[6]", { 1, 2, 3, 4, 5, 6 })
    local of = { inputs = 3, outputs = 2, rank = 1, alpha = 2, down = ffi.new("float[3]", { 1, 0, 1 }),
      up = ffi.new("float[2]", { 1, -1 }), magnitude = ffi.new("float[2]", { 2, 3 }) }
    weight.measure(of, function(first) return values + first end)
    weight.add(whole, 0, 6, of)
    for first = 0, 5 do weight.add(values + first, first, 1, of) end
    for row = 0, 1 do
      local sum = 0
      for i = 3 * row, 3 * row + 2 do
        assert.equal(whole[i], values[i])
        sum = sum + whole[i] ^ 2
      end
      fixture.assert_close({ row + 2 }, { math.sqrt(sum) }, 1e-6, "length")
    end
  end)
end)
