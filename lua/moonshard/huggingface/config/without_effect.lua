-- Fields of a config.json that have no effect on a model's results, and with which values they have none. With any
-- other value a field asks for what is not built, and is refused for the reason that its row gives. The fields that a
-- family reads are not here but in its row (families.lua, encoders.lua, gpt2.lua), which comes first.

local json = require("moonshard.base.text.json")

local without_effect = {}

---@class moonshard.FieldWithoutEffect
---@field fields string names, separated by blanks
---@field any boolean? whatever its value
---@field off any[]? the values without an effect
---@field fits (fun(value: any, config: table): boolean)? whether a value has none
---@field why string? what other values ask for
---@field families string? model_types, separated by blanks; nil: all
---@field note string? of any value that is there

-- Lists and objects without content.
local function is_empty(value) return type(value) == "table" and next(value) == nil end

-- A window that the config says not to use.
local function is_unused_window(_, config) return config.use_sliding_window == false end

-- Another name of the window, which the class does not read.
local function is_same_window(value, config) return value == config.sliding_window end

-- Other names of the class for the same.
local function is_same_theta(value, config) return value == (config.rotary_emb_base or 10000) end
local function is_same_share(value, config) return value == (config.rotary_pct or 0.25) end

local function all_attend_fully(value)
  for _, kind in ipairs(type(value) == "table" and value or { value }) do
    if kind ~= "full_attention" then return false end
  end
  return true
end

local QUANTISED = "the weights are quantised, which Moonshard does not read: load the folder with the reference "
  .. "library, model.dequantize(), model.save_pretrained(FOLDER), and read that; or take the weights it was made from"
local WINDOW = "attention in a sliding window is not built for this family"

---@type moonshard.FieldWithoutEffect[]
local ROWS = {
  -- Who wrote the file, for what, and with which program.
  { any = true, fields = [[
    _commit_hash _name_or_path base_model finetuning_task internal_version is_llama_config language license
    model_name model_type name name_or_path task_specific_params transformers.js_config transformers_version
    unsloth_fixed unsloth_version _num_labels for_llm_compressor problem_type
  ]] },
  -- Code of the folder's own, for the reference library alone.
  { any = true, fields = "auto_map",
    note = "names code for the reference library, which Moonshard does not run: the model is that of its model_type" },
  -- Tokens and texts; pad_token_id is read where a family has it.
  { any = true, fields = [[
    bos_token bos_token_id decoder_start_token_id eos_token eos_token_id max_sequence_length model_max_length n_ctx
    n_special pad_token pad_token_id predict_special_tokens prefix sep_token_id tokenizer_class
    tokenizer_model_max_length tokenizer_padding_side unk_token_id
  ]] },
  -- How texts are generated, which generation_config.json and the caller say.
  { any = true, fields = [[
    bad_words_ids begin_suppress_tokens cache_implementation diversity_penalty do_sample early_stopping
    encoder_no_repeat_ngram_size exponential_decay_length_penalty forced_bos_token_id forced_eos_token_id length_penalty
    max_length max_new_tokens min_length no_repeat_ngram_size num_beam_groups num_beams num_return_sequences
    remove_invalid_values repetition_penalty suppress_tokens temperature top_k top_p typical_p use_cache
  ]] },
  -- How much at once other programs compute and keep.
  { any = true, fields = "context_window_size max_cache_length prefill_chunk_size" },
  -- What a call of the reference library returns, and how it computes.
  { any = true, fields = [[
    _attn_implementation _attn_implementation_autoset _attn_implementation_internal _flash_attn_2_enabled
    attn_implementation chunk_size_feed_forward dtype output_attentions output_hidden_states output_past output_scores
    return_dict return_dict_in_generate tf_legacy_loss torch_dtype torchscript use_bfloat16 use_flash_attn
    use_flash_attn_2 use_return_dict xla_device
  ]] },
  -- Training: initial values, and dropout, which a recipe sets.
  { any = true, fields = [[
    attention_dropout attention_probs_dropout_prob attn_pdrop classifier_dropout embd_pdrop embedding_dropout
    gradient_checkpointing gradient_checkpointing_kwargs hidden_dropout hidden_dropout_prob initializer_factor
    initializer_range neftune_noise_alpha residual_dropout resid_pdrop
  ]] },
  -- Products that an old version of the reference library cut into parts, with the same sums.
  { any = true, fields = "pretraining_tp" },
  -- Of encoders and decoders in one model, and of tasks that the class does not have.
  { any = true, fields = [[
    cross_attention_hidden_size id2label is_decoder label2id num_labels summary_activation summary_first_dropout
    summary_last_dropout summary_proj_to_labels summary_type summary_use_proj tie_encoder_decoder
  ]] },
  { off = { false }, fields = "is_encoder_decoder", why = "models of an encoder and a decoder are not built" },
  { off = { false }, fields = "add_cross_attention", why = "attention to another model's states is not built" },
  { fits = is_empty, fields = "pruned_heads", why = "layers from which heads were removed are not built" },
  { off = {}, fields = "quantization_config quantization compression_config", why = QUANTISED },

  -- Features of other families, which some configs name to say that they lack them.
  { off = { false }, fields = "sliding_window", fits = is_unused_window, why = WINDOW },
  { off = { false }, fields = "use_sliding_window", why = WINDOW },
  { any = true, fields = "max_window_layers" }, -- without a window
  { fits = all_attend_fully, fields = "layer_types", why = "layers of several kinds are not built for this family" },
  { off = { false }, fields = "attention_bias attention_out_bias qkv_bias",
    why = "biases of attention are not built for this family" },
  { off = { false }, fields = "mlp_bias", why = "biases of MLPs are not built for this family" },
  { off = { false }, fields = "lm_head_bias", why = "a bias of the head is not built" },
  { off = { false }, fields = "use_mrope", why = "rotary positions along several axes are not built" },
  { off = { false }, fields = "rope_interleaved", why = "rotary pairs of neighbouring elements are not built" },
  { off = { false }, fields = "use_bidirectional_attention", why = "attention to later tokens is not built" },
  { off = { false }, fields = "output_router_logits", why = "a mixture of experts is not built for this family" },
  { off = { 0 }, fields = "num_experts num_local_experts n_routed_experts",
    why = "a mixture of experts is not built for this family" },
  { off = {}, fields = "clip_qkv", why = "queries, keys and values within limits are not built" },
  { off = {}, fields = "dual_chunk_attention_config", why = "attention in chunks is not built" },
  { off = { 1 }, fields = "embedding_multiplier logits_scaling residual_multiplier",
    why = "Granite's factors are not built for this family" },

  -- Of single families: what their classes do not read, or what all of their models have.
  { any = true, families = "gemma gemma2 gemma3_text", fields = "hidden_act" },
  { fits = is_same_window, families = "gemma2", fields = "sliding_window_size",
    why = "the class reads sliding_window instead, which differs: correct one of them" },
  { fits = is_same_theta, families = "gpt_neox", fields = "rope_theta",
    why = "the class names it rotary_emb_base, which differs: correct one of them" },
  { fits = is_same_share, families = "gpt_neox", fields = "partial_rotary_factor",
    why = "the class names it rotary_pct, which differs: correct one of them" },
  { any = true, families = "qwen2", fields = "attention_bias" }, -- of queries, keys and values, in all of its models
  { off = { true }, families = "qwen3 qwen3_moe", fields = "use_qk_norm", why = "the family always has these norms" },
  { off = { false }, fields = "qk_norm use_qk_norm", why = "norms of queries and keys are not built for this family" },
  { off = { 0 }, families = "qwen3_moe", fields = "shared_expert_intermediate_size",
    why = "experts that all tokens share are not built for this family" },
  { off = { 1 }, families = "phi3", fields = "full_attn_mod interpolate_factor",
    why = "attention that only some layers have is not built" },
  -- How the original training balanced experts and divided them, and layers that the class does not have.
  { any = true, families = "deepseek_v2 deepseek_v3 glm4_moe kimi_k2", fields = [[
    aux_loss_alpha ep_size num_mtp_layers num_nextn_predict_layers output_router_logits seq_aux
  ]] },
  { any = true, families = "gpt_oss", fields = "initial_context_length" },
  -- How the original training computed, and positions that the classes do not have.
  { any = true, families = "bloom", fields = [[
    attention_softmax_in_fp32 bias_dropout_fusion masked_softmax_fusion offset_alibi skip_bias_add skip_bias_add_qkv
    slow_but_exact
  ]] },
  { any = true, families = "mpt", fields = [[
    emb_pdrop embedding_fraction init_config init_device learned_pos_emb verbose
  ]] },
  -- Its class has no auxiliary loss and no noise.
  { any = true, families = "llama4_text", fields = "output_router_logits router_aux_loss_coef router_jitter_noise" },
  { any = true, families = "bert", fields = [[
    directionality pooler_fc_size pooler_num_attention_heads pooler_num_fc_layers pooler_size_per_head pooler_type
  ]] },
  { any = true, families = "vit", fields = "encoder_stride pooler_act pooler_output_size tie_word_embeddings" },
}

-- Rows by field, those of single families first.
local by_field = {}
for _, row in ipairs(ROWS) do
  local names = nil
  for name in (row.families or ""):gmatch("%S+") do
    names = names or {}
    names[name] = true
  end
  for field in row.fields:gmatch("%S+") do
    by_field[field] = by_field[field] or {}
    table.insert(by_field[field], names and 1 or #by_field[field] + 1, { row = row, families = names })
  end
end

---The row of a field.
---@param model_type string
---@param field string
---@return moonshard.FieldWithoutEffect? nil for a field that has none
function without_effect.row(model_type, field)
  for _, entry in ipairs(by_field[field] or {}) do
    if not entry.families or entry.families[model_type] then return entry.row end
  end
  return nil
end

---Whether a value of a field has no effect.
---@param row moonshard.FieldWithoutEffect the field's
---@param value any a null is json.null
---@param config table the whole config
---@return boolean
function without_effect.fits(row, value, config)
  if row.any or value == json.null then return true end
  for _, off in ipairs(row.off or {}) do
    if value == off then return true end
  end
  return row.fits ~= nil and row.fits(value, config)
end

---The fields that have a row.
---@param model_type string
---@return table<string, true>
function without_effect.names(model_type)
  local names = {}
  for field in pairs(by_field) do names[field] = without_effect.row(model_type, field) and true end
  return names
end

---What to say of a config's fields, "auto_map names code ...", sorted.
---@param config table
---@return string[]
function without_effect.notes(config)
  local list = {}
  for field, value in pairs(config) do
    local row = without_effect.row(config.model_type, field)
    if row and row.note and value ~= json.null then list[#list + 1] = ("%s %s"):format(field, row.note) end
  end
  table.sort(list)
  return list
end

return without_effect
