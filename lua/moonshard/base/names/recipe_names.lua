-- What recipes call the engine's settings. Messages of the engine name a setting as moonshard.h does, also where models
-- or plans differ between ranks. No recipe has an option shard_over_replicate that it could leave out.

local recipe_names = {}

-- By the engine's name, without those that both call alike.
local NAMES = {
  beta1 = "betas[1]", beta2 = "betas[2]", eps1 = "eps[1]", eps2 = "eps[2]",
  ema_decay = "ema.decay", ema_warmup = "ema.warmup",
  fragment = "replicate_sync",
  max_norm = "clip_grad_norm", max_value = "clip_grad_value", norm_groups = "rules of clip_grad_norm",
  packed_moments = "moments in 8 bits",
  replicate_dtype = "reduce_dtype.replicate (mp_policy)", shard_dtype = "reduce_dtype.shard (mp_policy)",
  reshard = "reshard_after_forward", reshard_size = "reshard_after_forward, a number,",
  shard_over_replicate = "shard_optimizer_over_replicate",
  storage_dtype = "storage",
  tensor_axis = "axis of placements",
}

-- Whether a word at a place is part of a path or of a recipe's own name ("unit 'reshard': ", "runs/max_norm/1",
-- "parameter reshard.weight:").
local function is_of_a_name(before, after)
  return before:find("['./%-]$") or before:find("%f[%a]unit $") or before:find("%f[%a]parameter $")
    or after:find("^[/%-]") or after:find("^%.%a")
end

---A message with other names of settings.
---@param message string
---@param names table<string, string>
---@return string
function recipe_names.rename(message, names)
  return (message:gsub("()%f[%w_]([%w_]+%.?[%w_]*)()", function(at, name, after)
    local word = names[name] and name or name:match("^(.-)%.$") or name
    local is_part = is_of_a_name(message:sub(1, at - 1), message:sub(at + #word, after + 1))
    return names[word] and not is_part and names[word] .. name:sub(#word + 1) or nil
  end))
end

---A message of the engine with a recipe's names of settings.
---@param message string
---@return string
function recipe_names.of_engine(message) return recipe_names.rename(message, NAMES) end

return recipe_names
