-- What those write who come from PEFT, bitsandbytes, torchao, Liger Kernel, transformers, Megatron or DeepSpeed, and
-- options of low precision in a wrong place: each message says what the name is here.

local fixture = require("lua.support.fixture")
local has = require("lua.support.message").has
local ms = require("moonshard")
local other_names = require("moonshard.base.names.other_names")
local policies = require("moonshard.shard.policies.policies")
local program = require("lua.support.program")
local scratch = require("lua.support.scratch")
local message, re = fixture.message, ms.re

after_each(scratch.clear)

local function shard(config, model) return ms.fully_shard(model or fixture.gpt2(), config) end

local function trainer(options)
  local settings = { model = shard {}, loss = ms.loss.cross_entropy, optimizer = ms.optim.adamw { lr = 0.1 } }
  for name, value in pairs(options or {}) do settings[name] = value end
  return ms.trainer(settings)
end

local function llama() return ms.models.llama { vocab = 16, layers = 1, dim = 8, heads = 2, ffn = 16, seq = 4 } end

-- A recipe of one line as a command, whose error also has what is said of calls of nil.
local function run_line(line)
  local path = program.recipe("local ms = require 'moonshard' " .. line)
  local ended = program.run({ "run", path })
  os.remove(path)
  return ended.err
end

describe("options of low precision in another place", function()
  it("Q5 are refused with the call that takes them", function()
    local optimizer = function(name, value) return message(ms.optim.adamw, { lr = 1, [name] = value }) end
    for name, value in pairs { gather_dtype = "i8", fp8 = "rowwise", storage = "nf4" } do
      has(optimizer(name, value), ("ms.optim.adamw: | %s: | ms.fully_shard(model, { %s ="):format(name, name))
      has(message(trainer, { [name] = value }), "ms.trainer | ms.fully_shard(model, { " .. name)
      has(message(shard, { mp_policy = { [name] = value } }), "mp_policy | ms.fully_shard(model, { " .. name)
      has(message(ms.models.gpt2, { [name] = value }), "ms.models.gpt2 | ms.fully_shard(model, { " .. name)
    end
    has(optimizer("param_dtype", "bf16"), "mp_policy = { param_dtype = ")
    has(optimizer("fused", true), "ms.loss.cross_entropy { fused = true }")
    has(message(trainer, { fused = true }), "ms.trainer | ms.loss.cross_entropy { fused = true }")
    has(message(shard, { fused = true }), "ms.fully_shard | ms.loss.cross_entropy { fused = true }")
    local logits, targets = ms.zeros(2, 3), ms.zeros(2, { dtype = "i32" })
    has(message(ms.loss.cross_entropy, logits, targets, { fused = true }), "ms.loss.cross_entropy { fused = true }")
    for _, name in ipairs { "sgd", "muon" } do
      has(message(ms.optim[name], { lr = 1, moments = "i8" }), "moments: | adamw | adam | lion")
    end
  end)

  it("Q5 that one run cannot change are refused with those that it can", function()
    local train = trainer()
    for _, name in ipairs { "storage", "fp8", "gather_dtype", "mp_policy", "units", "mesh" } do
      has(message(train.set_rules, train, { [name] = "i8" }),
        "ms.set_rules | " .. name .. " | reshard_after_forward | groups")
    end
  end)

  it("Q9 moments of Lion are never advised in 8 bits", function()
    for _, value in ipairs { "f8", "i8", "i4" } do
      local text = message(ms.optim.lion, { lr = 1, moments = value })
      has(text, ('moments must be "f32" or "bf16", not "%s"'):format(value))
      assert.is_nil(text:find('or "i8"', 1, true), text)
    end
    assert.equal("bf16", ms.optim.lion { lr = 1, moments = "torch.bfloat16" }.moments)
  end)
end)

describe("a name of another library", function()
  local LORA = "ms.lora(model, | rank"

  it("Q8 of PEFT is refused with ours", function()
    local function of_rule(config) return message(ms.lora, fixture.gpt2(), { { "layers.0.attn.wq", config } }) end
    has(of_rule { r = 4 }, "unknown option r: | rank?")
    has(of_rule { lora_alpha = 4 }, "lora_alpha | alpha?")
    has(of_rule { lora_dropout = 0.1 }, "lora_dropout | dropout?")
    has(of_rule { target_modules = { "q_proj" } }, "target_modules | rules | " .. LORA)
    has(message(ms.lora, fixture.gpt2(), { r = 8 }), "ms.lora: unknown option r: | " .. LORA)
    has(message(ms.lora, fixture.gpt2(), { { "layers.0.attn.wq", {} } }, { modules_to_save = { "head" } }), "train?")
    for _, name in ipairs { "LoraConfig", "get_peft_model", "peft" } do
      has(message(function() return ms[name] end), ("ms.%s does not exist | %s"):format(name, LORA))
      has(message(function() return ms.lora[name] end), ("ms.lora.%s | %s"):format(name, LORA))
    end
    has(message(function() return ms.PeftModel end), "ms.lora.load")
    has(message(function() return ms.lora.merge_and_unload end), "ms.lora.merge(model)")
    has(run_line("ms.nn.linear(2, 2):merge_and_unload()"), "method 'merge_and_unload' | ms.lora.merge(model)")
    has(run_line("get_peft_model(1)"), "global 'get_peft_model' | ms.lora(model,")
    assert.is_nil(run_line("local r r(1)"):find("rank", 1, true))
  end)

  it("Q7 Q9 Q4 of bitsandbytes, torchao and Liger Kernel is refused with ours", function()
    local function of(holder, name) return message(function() return holder[name] end) end
    for _, name in ipairs { "AdamW8bit", "PagedAdamW8bit", "paged_adamw_8bit" } do
      has(of(ms.optim, name), name .. ' | ms.optim.adamw { moments = "i8" }')
    end
    has(of(ms.optim, "Adam8bit"), 'ms.optim.adam { moments = "i8" }')
    has(of(ms.optim, "adamw8bit"), 'adamw8bit | ms.optim.adamw { moments = "i8" }')
    has(message(trainer, { optimizer = "paged_adamw_8bit" }), 'optimizer | "paged_adamw_8bit" | moments = "i8"')
    has(message(ms.optim.adamw, { lr = 1, optim_bits = 8 }), 'optim_bits | moments = "i8"')
    for name, kept in pairs { load_in_4bit = "nf4", load_in_8bit = "i8", bnb_4bit_quant_type = "nf4",
      quantization_config = "nf4" } do
      has(message(ms.huggingface.model, "folder", { [name] = true }), ('%s | storage = "%s"'):format(name, kept))
    end
    has(of(ms.nn, "Linear4bit"), 'storage = "nf4"')
    has(of(ms.nn, "Linear8bitLt"), 'storage = "i8"')
    for _, name in ipairs { "convert_to_float8_training", "Float8LinearConfig", "swap_linear", "quantize_" } do
      has(of(ms, name), name .. " | fp8 = {")
    end
    for _, name in ipairs { "Float8BlockScaling", "Float8BlockwiseLinear" } do
      has(of(ms, name), name .. " | fp8 | blockwise | blockwise_power_2_scale")
    end
    for _, name in ipairs { "fused_linear_cross_entropy", "LigerFusedLinearCrossEntropy" } do
      has(of(ms.loss, name), name .. " | ms.loss.cross_entropy { fused = true }")
    end
  end)

  it("S13 of transformers' and optax's Adafactor is refused with ours", function()
    for name, ours in pairs { scale_parameter = "root mean square | nothing to set", relative_step = "lr | sqrt",
      warmup_init = "warmup", clip_threshold = "it is d", decay_rate = "beta2_decay", beta1 = "no first moment",
      min_dim_size_to_factor = "every matrix" } do
      has(message(ms.optim.adafactor, { [name] = 1 }), ("ms.optim.adafactor: | option %s: | %s"):format(name, ours))
    end
  end)

  it("S7 H11 of Megatron's and DeepSpeed's optimizers is refused with ours", function()
    for name, ours in pairs { bf16_optimizer = "param_copy = true", master_weights = "f32 | param_copy = true",
      use_distributed_optimizer = "shard_optimizer_over_replicate = true", bf16 = 'param_dtype = "bf16"' } do
      has(message(shard, { [name] = true }), ("ms.fully_shard: | option %s: | %s"):format(name, ours))
      has(message(ms.optim.adamw, { lr = 1, [name] = true }), ("ms.optim.adamw: | option %s: | %s"):format(name, ours))
    end
    has(message(shard, { mp_policy = { grad_reduce_in_fp32 = true } }), 'reduce_dtype = "f32"')
    for name, ours in pairs { BF16_Optimizer = "param_copy = true", FusedAdam = "ms.optim.adamw",
      DistributedFusedAdam = "shard_optimizer_over_replicate = true" } do
      has(message(function() return ms.optim[name] end), name .. " | " .. ours)
    end
  end)

  it("A3 of what leaves multiprocessors to collectives is refused with the option, also as a setting", function()
    for _, name in ipairs { "sm_carveout", "sm_margin" } do
      has(message(shard, { [name] = 16 }), name .. " | command line | --sm-carveout N")
    end
    local path = program.recipe("require('moonshard').args { steps = 1 }")
    local ended = program.run({ "run", path, "sm_carveout=16" })
    os.remove(path)
    assert.equal(2, ended.status)
    has(ended.err, "no setting sm_carveout: | --sm-carveout N | valid are | steps")
  end)

  it("R2 in a rule is refused with what the model calls it", function()
    local function lora(model, pattern) return message(ms.lora, model, { { pattern, { rank = 2 } } }) end
    has(lora(fixture.gpt2(), "q_proj"), "q_proj is wq | layers.0.attn.wq")
    has(lora(fixture.gpt2(), re[[c_attn$]]), "c_attn is wq and wk and wv | layers.0.attn.wq")
    has(lora(fixture.gpt2(), re[[up_proj$]]), "up_proj is fc1 | layers.0.mlp.fc1")
    has(lora(llama(), re[[self_attn\.(q_proj|v_proj)$]]), "self_attn is attn | q_proj is wq | v_proj is wv")
    for theirs, ours in pairs { gate_proj = "w1", up_proj = "w3", down_proj = "w2", o_proj = "wo", k_proj = "wk" } do
      has(lora(llama(), re([[\.]] .. theirs .. "$")), ("%s is %s in this model"):format(theirs, ours))
    end
    has(message(shard, { units = { re[[^model\.h\.\d+$]] } }), "units | h is layers | layers.0")
    has(message(shard, { freeze = { re[[embed_tokens]] } }, llama()), "embed_tokens is embed | embed.weight")
    has(lora(fixture.gpt2(), "wz"), "wz | nearest: | optional") -- no other library's name
  end)

  it("Q5 is known for every option of ms.fully_shard that users of other libraries have asked for", function()
    for _, name in ipairs { "fp8", "gather_dtype", "storage", "mp_policy", "units", "freeze" } do
      local is_option = false
      for _, row in ipairs(policies.options) do is_option = is_option or row.name == name end
      assert.is_true(is_option, name)
      has(other_names.of_option(name), "ms.fully_shard")
    end
  end)
end)

describe("a dtype", function()
  it("Q1 has PyTorch's name, with or without its module, wherever one is chosen", function()
    local frozen = { freeze = { re"." }, storage = "torch.bfloat16" }
    assert.equal("bf16", shard(frozen).sharding.params[1].storage)
    for _, name in ipairs { "bf16", "bfloat16", "torch.bfloat16" } do
      assert.equal("bf16", shard({ mp_policy = { param_dtype = name } }).sharding.units[1].param_dtype)
      assert.equal("bf16", ms.optim.muon { lr = 1, dtype = name }.dtype)
      assert.equal("bf16", ms.optim.adamw { lr = 1, moments = name }.moments)
      assert.equal("bf16", ms.zeros(2, { dtype = name }).dtype)
      local adapters = ms.lora(llama(), { { re[[wq$]], { rank = 2 } } })
      assert.equal(2 * 2 * (8 + 8), ms.lora.save(adapters, scratch.path(), { dtype = name }).bytes)
      local file = ms.huggingface.save(llama(), scratch.path(), { dtype = name })
      assert.equal(2 * llama():num_parameters(), file.bytes)
    end
    for _, name in ipairs { "f16", "float16", "torch.float16" } do
      assert.equal(2 * llama():num_parameters(), ms.huggingface.save(llama(), scratch.path(), { dtype = name }).bytes)
    end
    assert.equal("i8", shard { gather_dtype = "torch.int8" }.sharding.params[1].gather)
  end)

  it("Q1 that a place does not take is refused with those that it does", function()
    for _, half in ipairs { "float16", "torch.float16", "f16", "half" } do
      local named = half:match("%w+$") .. " is not supported | bf16"
      has(message(ms.optim.adamw, { lr = 1, moments = half }), named)
      has(message(shard, { mp_policy = { param_dtype = half } }), named)
      has(message(shard, { mp_policy = { reduce_dtype = half } }), named)
      has(message(ms.zeros, 2, { dtype = half }), named)
    end
    has(message(ms.optim.muon, { lr = 1, dtype = "int8" }), 'dtype must be "f32" or "bf16", not "int8"')
    has(message(shard, { freeze = { re"." }, storage = "uint8" }), '"f32", "bf16", "i8" or "nf4", not "uint8"')
    has(message(shard, { fp8 = { { re[[wq]], "float8_e4m3fn" } } }), "float8_e4m3fn | scale | tensorwise | rowwise")
    has(message(shard, { gather_dtype = "f8e4m3" }), 'gather_dtype | "i8" | not "f8e4m3" | fp8 | tensorwise')
    local adapters = ms.lora(llama(), { { re[[wq$]], { rank = 2 } } })
    for _, save in ipairs { function(o) ms.lora.save(adapters, scratch.path(), o) end,
      function(o) ms.huggingface.save(llama(), scratch.path(), o) end } do
      has(message(save, { dtype = "int8" }), '"f32", "bf16" or "f16", not "int8"')
    end
    has(message(ms.zeros, 2, { dtype = "half" }), "half | bf16 | PyTorch")
  end)
end)

describe("a trainer that leaves out a weight of 8-bit products", function()
  local function step_with(fp8, frozen)
    local model = ms.nn.sequential { ms.nn.linear(32, 32), ms.ops.relu, ms.nn.linear(32, 32) }
    ms.fully_shard(model, { mesh = ms.init_device_mesh("cpu", 1, { "shard" }), fp8 = fp8, freeze = frozen })
    local train = ms.trainer { model = model, optimizer = ms.optim.sgd { lr = 0.1 }, loss = ms.loss.mse,
      freeze = { "2" } }
    return train:step { inputs = ms.randn { 32, 32, seed = 1 }, targets = ms.randn { 32, 32, seed = 2 } }.loss
  end

  it("is refused, unless the weight is frozen for all trainers", function()
    local rules = { { "2.weight", "rowwise" } }
    has(message(step_with, rules), "ms.trainer: freeze | 2.weight | rowwise | freeze of ms.fully_shard")
    assert.near(step_with(nil, { "2" }), step_with(rules, { "2" }), 0.05)
  end)
end)
