-- Names that mean nothing where they are written, and what to write instead: options in the wrong place, and what PEFT,
-- bitsandbytes, torchao, Liger Kernel, transformers, Megatron and DeepSpeed call things. One table for unknown options,
-- settings, fields and methods; its texts follow "unknown option r: ", "ms.LoraConfig does not exist: " and the like.
--
-- It raises no errors and needs only names_elsewhere.lua, so that whatever reports a name can read it.

local names_elsewhere = require("moonshard.base.names.names_elsewhere")

local other_names = {}

local ADAPTERS = "ms.lora(model, { { re[[attn\\.(wq|wv)$]], { rank = 16, alpha = 32 } } })"
local FP8 = "fp8 = { { re[[\\.(fc1|fc2)\\.weight$]], \"rowwise\" } }"

local LORA = "adapters are rules over modules: " .. ADAPTERS
  .. "; ms.lora.from_config(model, fields) takes the fields of a LoraConfig"
local OF_RULE = "it is an option of a rule, as in ms.lora(model, { { re[[attn\\.wq$]], { rank = 16, %s = true } } }), "
  .. "and a field of ms.lora.from_config"
local MODEL = "a model with adapters stays the same object; ms.lora.load(model, folder) reads PEFT's folders"
local EIGHT_BITS = "it is ms.optim.adamw { moments = \"i8\" }"
local PAGED = EIGHT_BITS .. "; state is not paged, it stays on the device, sharded"
local FLOAT8 = "products in 8 bits are an option of ms.fully_shard: " .. FP8
local BLOCKWISE = FLOAT8:gsub("rowwise", "blockwise") .. ", or \"blockwise_power_2_scale\""
local FROZEN = "frozen parameters in few bits are an option of ms.fully_shard: "
local NF4 = FROZEN .. "storage = \"nf4\", whose scales are in 8 bits themselves"
local INT8 = FROZEN .. "storage = \"i8\""
local COPIES = "masters are f32, and mp_policy = { param_dtype = \"bf16\", param_copy = true } of ms.fully_shard keeps "
  .. "bf16 weights that updates write"
local MASTERS = "masters are always f32: there is nothing to set; mp_policy = { param_dtype = \"bf16\", "
  .. "param_copy = true } keeps bf16 weights next to them"
local SHARDED = "masters and optimizer state are sharded like the weights; shard_optimizer_over_replicate = true of "
  .. "ms.fully_shard also shards them over the replicas"
local WHOLE = "units that every rank has whole are an option of ms.fully_shard: shard = { { \"norm\", false } }, by "
  .. "rules over units (units = { \"norm\" } makes one of what is to be whole); to keep weights from training, "
  .. "freeze them"
local CARVEOUT = "it is an option of the command line: moonshard run RECIPE.lua --sm-carveout N"
local RELATIVE = "a step of ms.optim.adafactor is always relative to the root mean square of the weights, at least "
  .. "eps[2]: there is nothing to set"
local CLIPPED = "it is d, of ms.optim.adafactor"
local FACTORED = "ms.optim.adafactor keeps averages by row and by column of every matrix: there is nothing to set"
local SUMS = "it is a field of mp_policy: mp_policy = { reduce_dtype = \"f32\" }, which is the default"
local FUSED = "it is loss = ms.loss.cross_entropy { fused = true }, over the logits of the model's last linear layer"

local function of_fully_shard(example)
  return "it is an option of ms.fully_shard: ms.fully_shard(model, { " .. example .. " })"
end

local function of_trainer(example) return "it is an option of ms.trainer: ms.trainer { " .. example .. " }" end

local function of_mesh(name)
  local names = (name == "replicate" or name == "shard") and '"replicate", "shard"' or '"shard", "' .. name .. '"'
  return ('it is the size of the mesh dimension %s: mesh = ms.init_device_mesh("cpu", { 2, 2 }, { %s })'):format(name,
    names)
end

local CHECKPOINT = of_trainer('checkpoint = { dir = "checkpoints", every = 100, keep_last = 3 }')
local FREEZE = of_fully_shard('freeze = { "embed" }')
local RECOMPUTE = of_fully_shard("recompute = true")

-- Options, also those that exist, for where they do not.
---@type table<string, string>
local OPTIONS = {
  reduce_dtype = "it is a field of mp_policy: mp_policy = { reduce_dtype = ... }",
  output_dtype = "it is a field of mp_policy: mp_policy = { output_dtype = ... }",
  param_copy = "it is a field of mp_policy: mp_policy = { param_dtype = \"bf16\", param_copy = true }",
  moments = 'it is an option of ms.optim.adamw, ms.optim.adam ("bf16", "i8") and of ms.optim.lion ("bf16")',
  error_feedback = "it is a field of reduce_dtype: mp_policy = { reduce_dtype = { shard = \"f32\", "
    .. "replicate = \"i8\", error_feedback = true } }",
  lora = "call ms.lora(model, rules) before ms.fully_shard",
  gather_dtype = of_fully_shard("gather_dtype = \"i8\""),
  storage = of_fully_shard("storage = \"nf4\"") .. ", for frozen parameters",
  fp8 = of_fully_shard(FP8),
  freeze = of_fully_shard("freeze = { \"embed\" }"),
  units = of_fully_shard("units = { re[[^layers\\.\\d+$]] }"),
  mp_policy = of_fully_shard("mp_policy = { param_dtype = \"bf16\" }"),
  param_dtype = "it is a field of mp_policy: ms.fully_shard(model, { mp_policy = { param_dtype = \"bf16\" } })",
  reshard_after_forward = of_fully_shard("reshard_after_forward = true"),
  fused = "it is an option of a loss: loss = ms.loss.cross_entropy { fused = true }; optimizers always update a unit "
    .. "in one pass",
  -- Of PyTorch and of the command line.
  foreach = "there is nothing to set: optimizers always update a unit in one pass",
  offload_policy = "state stays on the device", cpu_offload = "state stays on the device",
  loss_parallel = "the loss of divided logits is computed in parts: there is nothing to set",
  tensor_parallel = "give the mesh a dimension tensor, and rules of placements",
  context_parallel = "give the mesh a dimension context", context = "give the mesh a dimension context",
  hosts = "hosts are given on the command line: --hosts a:4,b:4",
  activation_checkpointing = RECOMPUTE, activation_checkpoint = RECOMPUTE, gradient_checkpointing = RECOMPUTE,
  limit_all_gathers = "prefetch of ms.fully_shard says how many units are gathered ahead, and plans have memory for no "
    .. "more: there is nothing to set",
  backward_prefetch = of_fully_shard("prefetch = 1"), forward_prefetch = of_fully_shard("prefetch = 1"),
  requires_grad = FREEZE,
  ignored_params = WHOLE, ignored_modules = WHOLE, ignored_states = WHOLE,
  stage3_param_persistence_threshold = WHOLE, param_persistence_threshold = WHOLE,
  -- Of torchtitan, Megatron and DeepSpeed for meshes and their traffic.
  tensor_parallel_degree = of_mesh("tensor"), tensor_model_parallel_size = of_mesh("tensor"),
  context_parallel_degree = of_mesh("context"), context_parallel_size = of_mesh("context"),
  cp_size = of_mesh("context"), ulysses_sequence_parallel_size = of_mesh("context"),
  data_parallel_replicate_degree = of_mesh("replicate"), data_parallel_shard_degree = of_mesh("shard"),
  expert_parallel_degree = "experts are not divided over ranks of their own; shard divides their memory, and tensor "
    .. "the work of each: mesh = ms.init_device_mesh(\"cpu\", { 2, 2 }, { \"shard\", \"tensor\" })",
  sync_steps = of_fully_shard("replicate_sync = { every = 50 }"),
  sync_every = of_fully_shard("replicate_sync = { every = 50 }"),
  zero_quantized_weights = of_fully_shard('gather_dtype = "i8"'),
  zero_quantized_gradients = 'it is a field of mp_policy: mp_policy = { reduce_dtype = { replicate = "i8" } }',
  -- Of trainers elsewhere.
  gradient_accumulation_steps = of_trainer("micro_batches = 4"),
  grad_clip = of_trainer("clip_grad_norm = 1"), max_grad_norm = of_trainer("clip_grad_norm = 1"),
  gradient_clipping = of_trainer("clip_grad_norm = 1"), gradient_clip_val = of_trainer("clip_grad_norm = 1"),
  save_total_limit = CHECKPOINT, save_freq = CHECKPOINT, save_interval = CHECKPOINT, save_steps = CHECKPOINT,
  interval = CHECKPOINT,
  learning_rate = "it is lr, of an optimizer: optimizer = ms.optim.adamw { lr = 1e-3 }",
  lr = "it is an option of an optimizer: optimizer = ms.optim.adamw { lr = 1e-3 }",
  wd = "it is weight_decay, of an optimizer: optimizer = ms.optim.adamw { lr = 1e-3, weight_decay = 0.1 }",
  weight_decay = "it is an option of an optimizer: optimizer = ms.optim.adamw { lr = 1e-3, weight_decay = 0.1 }",
  strict = "every parameter must be in the state, and nothing else; of a part, give each tensor to "
    .. "model:set_parameter(name, tensor)",
  -- Of transformers and optax for Adafactor.
  scale_parameter = RELATIVE, multiply_by_parameter_scale = RELATIVE,
  relative_step = "a step of ms.optim.adafactor is relative to the smaller of lr and 1 / sqrt(number of updates): "
    .. "there is nothing to set",
  warmup_init = "give lr a schedule with warmup: lr = ms.schedule.linear { peak = 1e-2, warmup = 1000, total = 10000 }",
  clip_threshold = CLIPPED, clipping_threshold = CLIPPED, decay_rate = "it is beta2_decay, of ms.optim.adafactor",
  factored = FACTORED, min_dim_size_to_factor = FACTORED,
  betas = "ms.optim.adamw, ms.optim.adam and ms.optim.lion have it; ms.optim.adafactor has beta2_decay instead",
  beta1 = "it is the first of betas = { beta1, beta2 }, of ms.optim.adamw, ms.optim.adam and ms.optim.lion; "
    .. "ms.optim.adafactor keeps no first moment",
  -- Of Megatron and DeepSpeed, and of libraries that leave multiprocessors to collectives.
  bf16 = "it is a field of mp_policy: mp_policy = { param_dtype = \"bf16\" }; with param_copy = true, too, updates "
    .. "write bf16 weights",
  bf16_optimizer = COPIES, master_weights = MASTERS, preserve_fp32_weights = MASTERS, main_params_dtype = MASTERS,
  bf16_master_weights_and_grads = MASTERS, use_precision_aware_optimizer = MASTERS,
  use_distributed_optimizer = SHARDED, zero_optimization = SHARDED,
  grad_reduce_in_fp32 = SUMS, accumulate_allreduce_grads_in_fp32 = SUMS,
  sm_carveout = CARVEOUT, sm_margin = CARVEOUT, num_sms = CARVEOUT,
  -- Of PEFT.
  r = "it is rank, in a rule of ms.lora: " .. ADAPTERS,
  lora_alpha = "it is alpha, in a rule of ms.lora: " .. ADAPTERS,
  lora_dropout = "it is dropout, in a rule of ms.lora: " .. ADAPTERS,
  target_modules = "rules name the modules: " .. ADAPTERS,
  modules_to_save = "it is train: ms.lora(model, rules, { train = { \"head\" } })",
  use_dora = OF_RULE:format("use_dora"), use_rslora = OF_RULE:format("use_rslora"),
  lora_bias = OF_RULE:format("lora_bias"), init_lora_weights = OF_RULE:format("init_lora_weights"),
  -- Of bitsandbytes, and of transformers for it.
  optim_bits = "it is moments = \"i8\", of ms.optim.adamw and ms.optim.adam",
  is_paged = "state is not paged: it stays on the device, sharded",
  min_8bit_size = "parameters of fewer than 4096 elements keep f32 moments: there is nothing to set",
  block_wise = "moments in 8 bits have a scale for each block of 256 elements: there is nothing to set",
  quantization_config = NF4, load_in_4bit = NF4, bnb_4bit_quant_type = NF4, bnb_4bit_use_double_quant = NF4,
  load_in_8bit = INT8,
  bnb_4bit_compute_dtype = "kernels read stored parameters in param_dtype: mp_policy = { param_dtype = \"bf16\" }",
  -- Of torchao.
  module_filter_fn = "rules choose the weights: " .. FP8,
  enable_fsdp_float8_all_gather = "weights with the recipe \"tensorwise\" are gathered as f8e4m3: "
    .. "fp8 = { { re[[\\.(fc1|fc2)\\.weight$]], \"tensorwise\" } }",
}

local NO_BATCH_NORM = "there is no batch norm, whose statistics depend on how a batch is divided: "
  .. "ms.nn.group_norm(groups, channels)"
local FOLDER = "it is ms.huggingface.model(folder)"
local SCHEDULES = "the schedules of ms.schedule are constant, linear, cosine and wsd, each with a warmup; lr can also "
  .. "be a function of the step"
local COSINE = "it is ms.schedule.cosine { peak = 1e-3, warmup = 100, total = 1000 }"
local BCE = "it is ms.loss.binary_cross_entropy, of logits"
local F16 = "float16 is not supported, since small gradients vanish in it: use bf16"

-- Functions, classes and modules of others.
---@type table<string, string>
local NAMES = {
  -- PyTorch.
  batch_norm = NO_BATCH_NORM, batch_norm1d = NO_BATCH_NORM, batch_norm2d = NO_BATCH_NORM, BatchNorm1d = NO_BATCH_NORM,
  BatchNorm2d = NO_BATCH_NORM, SyncBatchNorm = NO_BATCH_NORM, float16 = F16, f16 = F16, fp16 = F16, half = F16,
  CosineAnnealingLR = COSINE, get_cosine_schedule_with_warmup = COSINE, cosine_with_warmup = COSINE,
  CosineAnnealingWarmRestarts = SCHEDULES, OneCycleLR = SCHEDULES, StepLR = SCHEDULES, MultiStepLR = SCHEDULES,
  ExponentialLR = SCHEDULES, LambdaLR = SCHEDULES, SequentialLR = SCHEDULES, PolynomialLR = SCHEDULES,
  ReduceLROnPlateau = SCHEDULES, polynomial = SCHEDULES, inverse_sqrt = SCHEDULES, get_scheduler = SCHEDULES,
  get_linear_schedule_with_warmup = "it is ms.schedule.linear { peak = 1e-3, warmup = 100, total = 1000 }",
  bce = BCE, bce_loss = BCE, BCELoss = BCE, binary_cross_entropy_with_logits = BCE, smooth_l1 = "it is ms.loss.huber",
  smooth_l1_loss = "it is ms.loss.huber", SmoothL1Loss = "it is ms.loss.huber",
  kl_div = "it is ms.loss.distillation, of a student's and a teacher's logits",
  nll_loss = "it is ms.loss.cross_entropy, of logits", NLLLoss = "it is ms.loss.cross_entropy, of logits",
  -- transformers and datasets.
  AutoModel = FOLDER, AutoModelForCausalLM = FOLDER, AutoModelForMaskedLM = FOLDER,
  AutoModelForImageClassification = FOLDER, LlamaForCausalLM = FOLDER, GPT2LMHeadModel = FOLDER,
  AutoTokenizer = "it is ms.huggingface.tokenizer(folder), or ms.tokenizer(path)",
  AutoConfig = "it is ms.huggingface.config(model)",
  load_dataset = "datasets are files: ms.data.text, ms.data.tokens and ms.data.chat read them",
  -- PEFT.
  LoraConfig = LORA, LoraModel = LORA, get_peft_model = LORA, prepare_model_for_kbit_training = LORA, peft = LORA,
  PeftModel = MODEL, PeftConfig = MODEL, PeftModelForCausalLM = MODEL,
  merge_and_unload = "it is ms.lora.merge(model)", merge_adapter = "it is ms.lora.merge(model)",
  unmerge_adapter = "ms.lora.merge is for good: keep what ms.lora.save wrote",
  -- bitsandbytes.
  AdamW8bit = EIGHT_BITS, Adam8bit = "it is ms.optim.adam { moments = \"i8\" }", AdamWFp8 = EIGHT_BITS,
  AdamW4bit = "moments have at least 8 bits: ms.optim.adamw { moments = \"i8\" }",
  PagedAdamW = PAGED, PagedAdamW8bit = PAGED, paged_adamw = PAGED, paged_adamw_8bit = PAGED, paged_adamw_32bit = PAGED,
  adamw_8bit = EIGHT_BITS, adamw_bnb_8bit = EIGHT_BITS, Lion8bit = "it is ms.optim.lion { moments = \"bf16\" }",
  bitsandbytes = NF4, BitsAndBytesConfig = NF4, Linear4bit = NF4, LinearNF4 = NF4, Params4bit = NF4,
  Linear8bitLt = INT8, Int8Params = INT8,
  -- Megatron, DeepSpeed, Apex, torchdistx.
  BF16_Optimizer = COPIES, Float16OptimizerWithFloat16Params = COPIES,
  DistributedOptimizer = SHARDED, DistributedFusedAdam = SHARDED, ZeroRedundancyOptimizer = SHARDED,
  FusedAdam = "it is ms.optim.adamw, or ms.optim.adam; optimizers always update a unit in one pass",
  FusedLion = "it is ms.optim.lion; optimizers always update a unit in one pass",
  DeepSpeedCPUAdam = "it is ms.optim.adamw; state stays on the device, sharded",
  AnyPrecisionAdamW = "it is ms.optim.adamw { moments = \"bf16\" }",
  -- torchao, TransformerEngine.
  Float8BlockwiseLinear = BLOCKWISE, Float8BlockwiseLinearConfig = BLOCKWISE, Float8BlockScaling = BLOCKWISE,
  torchao = FLOAT8, float8 = FLOAT8, convert_to_float8_training = FLOAT8, Float8LinearConfig = FLOAT8,
  Float8Linear = FLOAT8, MXLinearConfig = FLOAT8, swap_linear = FLOAT8, swap_linear_with_float8_linear = FLOAT8,
  quantize_ = "it is an option of ms.fully_shard: storage = \"i8\" or \"nf4\" for frozen parameters; for products in 8 "
    .. "bits " .. FP8,
  to_nf4 = NF4, int8_weight_only = INT8,
  -- Liger Kernel, Apple's cut cross-entropy, torchtune.
  fused_linear_cross_entropy = FUSED, FusedLinearCrossEntropy = FUSED, LigerFusedLinearCrossEntropy = FUSED,
  LigerFusedLinearCrossEntropyLoss = FUSED, LigerCrossEntropyLoss = FUSED, linear_cross_entropy = FUSED,
  LinearCrossEntropyLoss = FUSED, CEWithChunkedOutputLoss = FUSED,
}

local in_lower_case = {}
for name, text in pairs(NAMES) do in_lower_case[name:lower()] = text end

---What to write instead of a function or a method, which recipes also have of their own. Case does not matter.
---@param name any
---@return string? text nil: the name is not known
function other_names.of_function(name) return type(name) == "string" and in_lower_case[name:lower()] or nil end

---What to write instead of an option, or of a field.
---@param name any
---@param valid table<string, any>? keys: the options where it was written
---@return string? text nil: the name is not known
function other_names.of_option(name, valid)
  return valid and names_elsewhere.called_here(name, valid) or OPTIONS[name] or other_names.of_function(name)
    or names_elsewhere.advice(name)
end

-- What the parts of names are called here, by what they are called in the models of Hugging Face's library.
local PARTS = {
  self_attn = { "attn" }, self_attention = { "attn" }, attention = { "attn" },
  q_proj = { "wq" }, k_proj = { "wk" }, v_proj = { "wv" }, o_proj = { "wo" }, out_proj = { "wo" },
  qkv_proj = { "wq", "wk", "wv" }, c_attn = { "wq", "wk", "wv" }, query = { "wq" }, key = { "wk" }, value = { "wv" },
  query_key_value = { "wq", "wk", "wv" }, q_lin = { "wq" }, k_lin = { "wk" }, v_lin = { "wv" },
  gate_proj = { "w1" }, up_proj = { "w3", "fc1" }, down_proj = { "w2", "fc2" }, gate_up_proj = { "w1", "w3" },
  c_fc = { "fc1" }, c_proj = { "wo", "fc2" }, dense_h_to_4h = { "fc1" }, dense_4h_to_h = { "fc2" },
  lm_head = { "head" }, embed_tokens = { "embed" }, wte = { "embed" }, wpe = { "pos" }, h = { "layers" },
  ln_1 = { "norm1" }, ln_2 = { "norm2" }, ln_f = { "norm" }, block_sparse_moe = { "mlp" },
  input_layernorm = { "attn_norm" }, post_attention_layernorm = { "ffn_norm" },
}

-- The first name that has a part.
local function first_with(part, names)
  for _, name in ipairs(names) do
    if ("." .. name .. "."):find("." .. part .. ".", 1, true) then return name end
  end
end

---What a pattern's name from Hugging Face's library is called in a model: "q_proj is wq in this model, as in
---layers.0.attn.wq".
---@param pattern string of a rule
---@param names string[] of the model's modules or parameters
---@return string? text nil: the pattern has no such name, or the model none for it
function other_names.in_model(pattern, names)
  local texts = {}
  for word in pattern:gsub("\\.", "."):gmatch("[%a_][%w_]*") do
    local found, example = {}, nil
    for _, part in ipairs(PARTS[word] and not first_with(word, names) and PARTS[word] or {}) do
      local name = first_with(part, names)
      if name then found[#found + 1], example = part, example or name end
    end
    if example then
      texts[#texts + 1] = ("%s is %s in this model, as in %s"):format(word, table.concat(found, " and "), example)
    end
  end
  return texts[1] and table.concat(texts, "; ") or nil
end

return other_names
