-- The config of a model: the options that its layers were made with, which `model.config` shows and checkpoints keep.

local json = require("moonshard.base.text.json")
local sealed = require("moonshard.base.checks.sealed")

local Config = { __name = "a model's config" }

sealed.class(Config, {
  what = Config.__name, answers = {}, depth = 1,
  otherwise = "layers are made with it: give it to the function of ms.models that makes the model",
})

local config = {}

local with_lists = setmetatable({}, { __mode = "k" }) -- configs of this process with options that are tables

---@param given table options with defaults; the model keeps it
---@return table config the same table; assigning to its fields is an error from here on
function config.new(given)
  for _, value in pairs(given) do
    if type(value) == "table" then with_lists[given] = true end
  end
  return sealed.seal(setmetatable(given, Config))
end

---Raises if an option of a model that is a list has changed from within since its layers were made.
---@param who string "train:step"
function config.check_all(who)
  for each in pairs(with_lists) do sealed.check(who, each) end
end

---The options of a model of ms.models.
---@param module moonshard.Module
---@return table<string, any>? nil for other modules
function config.options(module)
  local of = rawget(module, "config")
  if type(of) ~= "table" or getmetatable(of) ~= Config then return nil end
  local options = {}
  for name, value in pairs(sealed.fields(of)) do
    if type(name) == "string" then options[name] = value end -- the name of a published size is filled in
  end
  return options
end

-- ---- two runs of a model ----------------------------------------------------------------------------------------
--
-- What another value of an option means for weights that were trained with one. An option that is in neither list makes
-- other weights of them, such as heads, activation and norm_from_one.

local function set_of(names)
  local set = {}
  for name in names:gmatch("%S+") do set[name] = true end
  return set
end

-- Weights go on to train: people change these on purpose.
local TOLD = set_of([[
  attention_scale attention_softcap aux_loss bias_rate document_start dropout embedding_scale eps logit_softcap padding
  logit_scale residual_scale rope_scaling rope_theta slides vocab window window_rope_theta
  attention_chunk_size attn_scale attn_scale_layers chunked floor_scale
]])

-- Names and shapes of parameters say so, or nothing that is computed depends on it.
local WITHOUT_PART = set_of([[
  bias channels classes deviation dim expert_bias expert_ffn expert_fused experts ffn gated head_bias head_dim
  kv_lora_rank layers mlp_bias mlp_ratio norm_bias out_bias pad_vocab_to_multiple_of patch q_lora_rank qkv_bias
  route_bias seq shared_ffn shared_gate sinks size sparse tied types v_head_dim
]])

-- Values that mean the same: an option that is off, a list for layers that holds for all of them, and a size that is
-- the same along every axis.
local function plain(value)
  if value == false then return nil end
  local first = type(value) == "table" and value[1]
  if not first then return value end
  for _, one in ipairs(value) do
    if one ~= first then return value end
  end
  return first ~= true and first or nil
end

local function show(value)
  if value == nil then return "none" end
  return type(value) == "table" and json.encode(value) or tostring(value)
end

-- What another value of a model's option means.
local function of_models(name) return WITHOUT_PART[name] and "free" or TOLD[name] and "told" or "refused" end

---Compares the options of two runs of a model, or of one of its layers.
---@param saved table<string, any> of the one whose weights are there
---@param here table<string, any>
---@param resume? fun(name: string): "refused"|"told"|"free" what another value means; default: as for ms.models
---@return { name: string, saved: string, here: string, told: boolean }[] differing sorted; told: the weights go on to
---  train, else they mean something else
function config.differing(saved, here, resume)
  local names, differing = {}, {}
  resume = resume or of_models
  for _, options in ipairs({ saved, here }) do
    for name in pairs(options) do
      if resume(name) ~= "free" then names[name] = true end
    end
  end
  for name in pairs(names) do
    local before, now = saved[name], here[name]
    if show(plain(before)) ~= show(plain(now)) then
      differing[#differing + 1] = { name = name, saved = show(before), here = show(now), told = resume(name) == "told" }
    end
  end
  table.sort(differing, function(a, b) return a.name < b.name end)
  return differing
end

return config
