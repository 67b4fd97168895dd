-- Finds the valid name that a mistyped one probably means.
--
-- Distance: Damerau-Levenshtein in its optimal string alignment form (insert, delete, replace, swap neighbours; cost 1
-- each), ignoring case. A name whose distance is two fifths of the longer name's length, or more, is not suggested.

local nearest = {}

---What other libraries call the dimensions of a mesh, with their names here.
---@type table<string, string>
local DIMENSIONS = {
  tp = "tensor", cp = "context", sp = "context", pp = "pipe", model = "tensor", seq = "context", fsdp = "shard",
  dp_shard = "shard", dp_replicate = "replicate", ddp = "replicate",
  dp = "replicate, or shard if it divides weights, too", data = "replicate, or shard if it divides weights, too",
}

-- Names of options, commands and devices in PyTorch, its launchers and Hugging Face's library, with their names here.
local CALLED_HERE = {
  T_max = "total", activation_checkpoint = "recompute", activation_checkpointing = "recompute", attn_mask = "mask",
  auto_wrap_policy = "units", backward_prefetch = "prefetch", batch_size = "batch", correction = "unbiased",
  device_mesh = "mesh", eval_interval = "every", forward_prefetch = "prefetch", grad_clip = "clip_grad_norm",
  gradient_accumulation_steps = "micro_batches", gradient_checkpointing = "recompute",
  gradient_clip_val = "clip_grad_norm", gradient_clipping = "clip_grad_norm", interval = "every",
  keep_latest_k = "keep_last", learning_rate = "lr", max_grad_norm = "clip_grad_norm", path = "files", paths = "files",
  save_freq = "every", save_interval = "every", save_steps = "every", save_total_limit = "keep_last",
  wd = "weight_decay", dim = "axis", gpu = "cuda", hidden_act = "activation", hidden_size = "dim", image_size = "size",
  intermediate_size = "ffn", is_causal = "causal", keepdims = "keepdim", lora_alpha = "alpha", lora_dropout = "dropout",
  max_length = "seq", max_new_tokens = "tokens", max_norm = "clip_grad_norm", max_position_embeddings = "seq",
  max_seq_length = "seq", mixed_precision = "mp_policy", mlm_probability = "fraction", modules_to_save = "train",
  n_heads = "heads", n_kv_heads = "kv_heads", norm_topk_prob = "renormalise", num_attention_heads = "heads",
  num_channels = "channels", num_classes = "classes", num_experts = "experts", num_heads = "heads",
  num_hidden_layers = "layers", num_key_value_heads = "kv_heads", num_kv_heads = "kv_heads", num_labels = "classes",
  n_layer = "layers", n_layers = "layers", num_layers = "layers", depth = "layers", n_embd = "dim", d_model = "dim",
  embed_dim = "dim", n_head = "heads", nhead = "heads", n_positions = "seq", n_ctx = "seq", n_inner = "ffn",
  d_ff = "ffn", intermediate_dim = "ffn", ffn_dim = "ffn", tie_word_embeddings = "tied", tie_embeddings = "tied",
  rope_base = "rope_theta", sliding_window = "window", resid_pdrop = "dropout", hidden_dropout_prob = "dropout",
  num_local_experts = "experts", num_replicas = "mesh", packing = "pack", parallelize_plan = "placements",
  patch_size = "patch", r = "rank", rms_norm_eps = "eps", layer_norm_eps = "eps", seq_len = "seq",
  sharding_strategy = "strategy", torchrun = "run", train = "run", launch = "run",
  finetune = "run", type_vocab_size = "types", vocab_size = "vocab",
}

-- Names of which two are used here, by what has them.
local CALLED_HERE_OR = { num_experts_per_tok = { "top_k", "experts_per_token" } }

---@param a string
---@param b string
---@return integer edits
local function distance(a, b)
  local before, last, row = {}, {}, {}
  for j = 0, #b do
    last[j] = j
  end
  for i = 1, #a do
    row[0] = i
    for j = 1, #b do
      local same = a:byte(i) == b:byte(j)
      row[j] = math.min(last[j] + 1, row[j - 1] + 1, last[j - 1] + (same and 0 or 1))
      if i > 1 and j > 1 and a:byte(i) == b:byte(j - 1) and a:byte(i - 1) == b:byte(j) then
        row[j] = math.min(row[j], before[j - 2] + 1)
      end
    end
    before, last, row = last, row, before
  end
  return last[#b]
end

-- Edit distance between two names; 1 if one starts with the other.
local function edits_between(name, candidate)
  if #name >= 2 and candidate:sub(1, #name) == name then return math.min(distance(name, candidate), 1) end
  return distance(name:lower(), candidate:lower())
end

-- The dashes of an option of the command line make no two of them alike.
local function without_dashes(name) return (name:gsub("^%-+", "")) end

---The valid name nearest to `name`, or nil if none is near. Ties go to the first in sorted order.
---@param name string
---@param names string[]
---@param limit integer? maximum distance; default: less than two fifths of the longer name, or 1
---@return string?
function nearest.name(name, names, limit)
  local best, best_edits
  table.sort(names)
  name = without_dashes(name)
  for _, candidate in ipairs(names) do
    local bare = without_dashes(candidate)
    local edits = edits_between(name, bare)
    local far = limit or math.max(1, math.ceil(math.max(#name, #bare) * 2 / 5) - 1)
    if edits <= far and (not best or edits < best_edits) then
      best, best_edits = candidate, edits
    end
  end
  return best
end

---The names nearest to `name`, however far, as "a, b or c".
---@param name string
---@param valid table<string, any> keys: the valid names
---@param count integer number of names to list
---@return string
function nearest.several(name, valid, count)
  local names, edits = {}, {}
  for candidate in pairs(valid) do
    names[#names + 1], edits[candidate] = candidate, edits_between(name, candidate)
  end
  table.sort(names, function(a, b)
    if edits[a] ~= edits[b] then return edits[a] < edits[b] end
    return a < b
  end)
  local last = math.min(count, #names)
  return table.concat(names, ", ", 1, last - 1) .. " or " .. names[last]
end

-- Past a metatable, which can make reading what is not there an error.
local function has(valid, name) return name ~= nil and rawget(valid, name) ~= nil end

---What a name of another library is called here; nil if that is none of the valid names.
---@param name any
---@param valid table<string, any> keys: the valid names
---@return string?
function nearest.name_called_here(name, valid)
  local here = CALLED_HERE[name]
  for _, either in ipairs(CALLED_HERE_OR[name] or {}) do
    if has(valid, either) then here = either end
  end
  if not has(valid, here) then here = DIMENSIONS[name] end
  return has(valid, here) and here or nil
end

---The same as "did you mean layers?".
---@param name any
---@param valid table<string, any> keys: the valid names
---@return string?
function nearest.called_here(name, valid)
  local here = nearest.name_called_here(name, valid)
  return here and ("did you mean %s?"):format(here)
end

---The valid name that differs by one letter, as "did you mean param_dtype?": a slip, whatever the name means elsewhere.
---@param name any
---@param valid table<string, any> keys: the valid names
---@return string?
function nearest.slip(name, valid)
  if type(name) ~= "string" or #name < 6 then return nil end
  local names = {}
  for key in pairs(valid) do names[#names + 1] = key end
  local near = nearest.name(name, names, 1)
  return near and ("did you mean %s?"):format(near)
end

---What to write instead: "did you mean layers?", using PyTorch's name or the nearest one, or all valid names if
---none is near.
---@param name any the name that was written
---@param valid table<string, any> keys: the valid names
---@return string
function nearest.advice(name, valid)
  local names = {}
  for key in pairs(valid) do
    names[#names + 1] = key
  end
  local here = nearest.called_here(name, valid)
  if here then return here end
  local candidate = nearest.name(tostring(name), names)
  if candidate then
    return ("did you mean %s?"):format(candidate)
  elseif #names == 0 then
    return "it takes none"
  end
  return "valid are " .. table.concat(names, ", ")
end

---The same as a sentence that others can follow.
---@param name any
---@param valid table<string, any>
---@return string
function nearest.sentence(name, valid)
  return (nearest.advice(name, valid):gsub("[^?]$", "%0."))
end

return nearest
