-- What options and functions of PyTorch, Lightning, transformers, accelerate, DeepSpeed, Megatron and torchtitan are
-- called here, grouped by the place that has the answer; and those that are not here, with what to do instead. A name
-- is answered wherever it is written: where its option exists by that option, elsewhere also by the place to give it.
--
-- Like other_names.lua, which has the names that need a sentence of their own, it raises no errors.

local names_elsewhere = {}

-- By place: each option or function, and the names that others have for it.
---@type { [1]: string, [2]: table<string, string> }[]
local PLACES = {
  { "ms.trainer", {
    micro_batches = "gradient_accumulation_steps accumulate_grad_batches grad_accum_steps num_microbatches "
      .. "num_micro_batches gradient_accumulation accumulation_steps gradient_accumulate_every",
    clip_grad_norm = "grad_clip max_grad_norm gradient_clipping gradient_clip_val clip_grad clip_gradients "
      .. "grad_clip_norm gradient_clip_norm max_norm clip_norm",
    clip_grad_value = "grad_clip_value max_grad_value clip_value gradient_clip_value",
    loss = "criterion loss_fn loss_func loss_function compute_loss forward_step_func",
    model = "net network module model_init",
    optimizer = "optim opt optimizers optimizer_cls optimizer_cls_and_kwargs configure_optimizers",
    ema = "ema_decay use_ema ema_model", teacher = "teacher_model",
  } },
  { "checkpoint of ms.trainer", {
    dir = "output_dir default_root_dir checkpoint_dir ckpt_dir save_dir dirpath save_folder folder "
      .. "checkpoint_path save_path",
    every = "save_freq save_interval save_steps every_n_train_steps checkpoint_interval ckpt_interval save_every",
    keep_last = "save_total_limit save_top_k keep_latest_k max_to_keep total_limit keep_checkpoints",
    resume = "resume_from_checkpoint ckpt_path resume_from load_checkpoint auto_resume",
    async = "async_mode async_save async_checkpoint",
  } },
  { "ms.optim.adamw", {
    lr = "learning_rate base_lr initial_lr max_lr", weight_decay = "wd decay weight_decay_rate",
    betas = "adam_beta1 adam_beta2 beta_1 beta_2", eps = "epsilon adam_epsilon adam_eps",
    groups = "param_groups no_decay_params optimizer_grouped_parameters",
  } },
  { "ms.schedule.cosine", {
    peak = "lr learning_rate base_lr initial_lr max_lr peak_lr",
    warmup = "warmup_steps num_warmup_steps lr_warmup_iters warmup_iters warmup_num_steps lr_warmup_steps",
    total = "num_training_steps lr_decay_iters lr_decay_steps total_num_steps T_max max_iters decay_steps",
    floor = "min_lr eta_min lr_min warmup_min_lr cosine_min_lr",
  } },
  { "ms.data.text", {
    seq = "block_size context_length max_seq_len max_seq_length seq_len seq_length sequence_length max_length "
      .. "context_len",
    batch = "micro_batch_size per_device_train_batch_size train_micro_batch_size_per_gpu local_batch_size "
      .. "train_batch_size batch_size per_device_batch_size",
    global_batch = "global_batch_size total_batch_size",
    files = "data_path dataset_path train_file data_files data_dir dataset_name train_dataset train_data",
    drop_last = "dataloader_drop_last", shuffle = "shuffle_data do_shuffle",
    seed = "data_seed shuffle_seed random_seed", valid_fraction = "validation_split val_split eval_split test_size",
  } },
  { "ms.fully_shard", {
    recompute = "activation_checkpointing activation_checkpoint gradient_checkpointing use_gradient_checkpointing "
      .. "recompute_granularity recompute_method recompute_activations use_reentrant selective_ac_option "
      .. "partition_activations checkpoint_activations",
    units = "auto_wrap_policy wrap_policy transformer_layer_cls_to_wrap fsdp_transformer_layer_cls_to_wrap "
      .. "transformer_auto_wrap_policy min_num_params size_based_auto_wrap_policy modules_to_wrap",
    prefetch = "forward_prefetch backward_prefetch fsdp_backward_prefetch stage3_prefetch_bucket_size "
      .. "stage3_max_live_parameters",
    mp_policy = "mixed_precision mixed_precision_policy precision precision_plugin amp_dtype params_dtype",
    mesh = "device_mesh process_group parallel_dims",
    placements = "parallelize_plan shard_placement_fn tp_plan parallel_plan layer_plan",
    freeze = "requires_grad frozen freeze_layers trainable",
    reshard_after_forward = "zero_stage sharding_strategy fsdp_reshard_after_forward zero3",
  } },
  { "mp_policy of ms.fully_shard", {
    param_dtype = "compute_dtype autocast_dtype bf16_enabled torch_dtype dtype model_dtype",
    reduce_dtype = "grad_dtype communication_data_type grad_reduce_dtype reduction_dtype",
  } },
  { "ms.generate", {
    tokens = "max_new_tokens max_tokens", top_k = "topk", top_p = "topp nucleus", prompt = "prompts input_ids",
    stop = "stop_strings eos_token_id stop_sequences",
  } },
}

local LOOP = "the recipe has the loop: for step, batch in data:batches(steps) do train:step(batch) end"
local RUN = "the command line says it: moonshard run RECIPE.lua -n RANKS --device cuda"
local LOGGED = "recipes call ms.log(step, { loss = loss }); moonshard run --metrics FILE and --tensorboard DIR keep it"
local BUCKETS = "a unit's collectives run as one, next to the work of other units: there is nothing to set"
local MEMORY = "plans give every byte its place before the first step: there is nothing to set"
local READERS = "threads of the runtime read ahead: there is nothing to set"
local STEPPED = "lr takes a schedule: lr = ms.schedule.cosine { peak = 1e-3, warmup = 100, total = 1000 }"
local PIPE = 'give the mesh a dimension pipe: mesh = ms.init_device_mesh("cpu", { 2, 2 }, { "pipe", "shard" })'
local TENSOR = 'give the mesh a dimension tensor: mesh = ms.init_device_mesh("cpu", { 2, 2 }, { "shard", "tensor" })'
local EXPERTS = "experts have no ranks of their own; shard divides their memory, and tensor the work of each"
local STARTS = "every rank fills its part of the parameters from their names and the seed: there is nothing to set"
local CASTS = "inputs of a unit are cast to param_dtype, and constants stay as they are: there is nothing to set"
local EVALUATED = "the recipe evaluates where it wants to: train:evaluate(batches)"
local ALWAYS = "plans are made from the whole traced step: there is nothing to set"
local ASCENT = "give the negative loss"
local STARTED = "`moonshard run` joins the ranks before the recipe: leave it out"
local RECURRENT = "there are no recurrent layers: a forward may loop over steps with ms.nn.linear"
local ATTENTION = "write it with ms.nn.linear and ms.nn.masked_attention, or take ms.models.llama"
local OPTIMIZERS = "it is not there; the nearest is most often ms.optim.adamw"
local OWNED = "ms.trainer gives an optimizer the parameters of its model; groups are rules over their names"
local READ = "each rank reads its own rows of the files: there is nothing to set"
local SCORES = "attention never stores its scores: there is nothing to set"
local LOCAL = "a folder is read from this machine, and code in it does not run"
local TOKENIZED = "`moonshard tokenize --tokenizer FOLDER` makes token files of texts, and ms.data.tokens reads them"
local CONFIGURED = "there is no configuration file: ms.fully_shard and ms.trainer take the options"

-- What is not here, or is no option: what to do instead, and the names.
---@type table<string, string>
local ABSENT = {
  [LOOP] = "max_steps num_train_epochs max_epochs epochs num_epochs train_iters training_steps min_epochs min_steps",
  [RUN] = "accelerator devices num_nodes device device_id device_type use_cpu no_cuda use_cuda local_rank "
    .. "local_world_size ddp_backend distributed_backend num_gpus gpus",
  [LOGGED] = "logging_steps log_every_n_steps log_freq log_interval report_to logging_dir log_with enable_wandb "
    .. "enable_tensorboard logger wandb_project run_name",
  [BUCKETS] = "overlap_comm reduce_bucket_size allgather_bucket_size bucket_cap_mb overlap_grad_reduce "
    .. "allgather_partitions reduce_scatter ddp_bucket_size gradient_as_bucket_view",
  [MEMORY] = "contiguous_gradients set_to_none empty_cache use_orig_params round_robin_gradients",
  [READERS] = "num_workers pin_memory prefetch_factor persistent_workers dataloader_num_workers "
    .. "dataloader_pin_memory dataloader_prefetch_factor",
  [STEPPED] = "lr_scheduler lr_scheduler_type lr_scheduler_kwargs lr_decay_style scheduler lr_policy warmup_ratio",
  [PIPE] = "pipeline_model_parallel_size pipeline_parallel_degree pp_size pp_degree pipeline_parallel_size "
    .. "num_layers_per_virtual_pipeline_stage virtual_pipeline_model_parallel_size",
  [TENSOR] = "tensor_parallel_size tp_size tp_degree autotp_size",
  [EXPERTS] = "expert_model_parallel_size ep_size expert_parallel_size expert_tensor_parallel_size",
  [STARTS] = "param_init_fn sync_module_states init_device fsdp_sync_module_states broadcast_buffers "
    .. "fsdp_cpu_ram_efficient_loading",
  [CASTS] = "cast_forward_inputs cast_root_forward_inputs buffer_dtype",
  [EVALUATED] = "eval_steps eval_strategy evaluation_strategy eval_dataset val_check_interval eval_iters val_freq "
    .. "compute_metrics val_dataloaders limit_val_batches",
  [ALWAYS] = "find_unused_parameters static_graph torch_compile compile capturable differentiable dynamo_backend "
    .. "torch_compile_backend gradient_accumulation_fusion",
  [READ] = "device_map low_cpu_mem_usage max_memory offload_folder offload_state_dict",
  [SCORES] = "attn_implementation _attn_implementation use_flash_attention_2 use_flash_attn sdp_kernel",
  [LOCAL] = "trust_remote_code revision cache_dir token use_auth_token local_files_only force_download",
  [TOKENIZED] = "tokenizer tokenizer_name tokenizer_path processing_class",
  [ASCENT] = "maximize", [OWNED] = "params parameters",
  ["weights are divided over all of the dimension shard; a dimension replicate has them once in each of its rows"] =
    "hpz_partition_size zero_hpz_partition_size mics_shard_size",
  ["bf16 needs no scaling of the loss"] = "loss_scale initial_scale_power dynamic_loss_scale grad_scaler "
    .. "keep_low_precision_grads",
  ["it is not there: adamw keeps the averages of the squares, not their maxima"] = "amsgrad",
  ["write the calls into the recipe's loop, after train:step(batch)"] = "callbacks plugins hooks",
  ["the rows of a batch are made by the data: ms.data.random, or a Lua table { inputs = x, targets = y }"] =
    "collate_fn data_collator batch_sampler",
  [STARTED] = "init_process_group destroy_process_group init_distributed initialize initialize_megatron "
    .. "initialize_model_parallel setup_distributed",
  [CONFIGURED] = "TrainingArguments DeepSpeedConfig deepspeed deepspeed_config ds_config config_params fsdp_config "
    .. "FullyShardedDataParallelPlugin DeepSpeedPlugin JobConfig",
  [RECURRENT] = "LSTM GRU RNN LSTMCell GRUCell RNNCell",
  [ATTENTION] = "MultiheadAttention TransformerEncoderLayer TransformerDecoderLayer TransformerEncoder Transformer "
    .. "TransformerDecoder TransformerLayer",
  ["it is a method of tensors: x:reshape(...)"] = "Flatten Unflatten",
  ["a forward leaves it out"] = "Identity",
  ["a Lua table with names is a field of a module"] = "ModuleDict ParameterDict",
  [OPTIMIZERS] = "NAdam RAdam LBFGS RMSprop Adagrad Adadelta Adamax ASGD Rprop SparseAdam LAMB FusedLAMB",
}

local function add_words(into, words, entry)
  for word in words:gmatch("%S+") do
    into[word] = into[word] or {}
    table.insert(into[word], entry)
  end
end

local of_places, texts = {}, {}
for _, row in ipairs(PLACES) do
  for here, words in pairs(row[2]) do add_words(of_places, words, { here = here, place = row[1] }) end
end
for text, words in pairs(ABSENT) do add_words(texts, words, text) end

---The option that is meant, as "did you mean recompute?", where it exists.
---@param name any
---@param valid table<string, any> keys: the options where it was written
---@return string? text nil: the name is not known, or its option is none of these
function names_elsewhere.called_here(name, valid)
  for _, entry in ipairs(of_places[name] or {}) do
    if rawget(valid, entry.here) ~= nil then return ("did you mean %s?"):format(entry.here) end
  end
end

---The place that has the option, or what to do instead.
---@param name any
---@return string? text nil: the name is not known
function names_elsewhere.advice(name)
  local entry = of_places[name] and of_places[name][1]
  if entry then return ("it is %s, of %s"):format(entry.here, entry.place) end
  return texts[name] and texts[name][1] or nil
end

---Every known name with where it is answered, for checks of this table.
---@return { name: string, here: string?, place: string?, text: string? }[]
function names_elsewhere.all()
  local all = {}
  for name, entries in pairs(of_places) do
    for _, entry in ipairs(entries) do all[#all + 1] = { name = name, here = entry.here, place = entry.place } end
  end
  for name, known in pairs(texts) do all[#all + 1] = { name = name, text = known[1] } end
  return all
end

return names_elsewhere
