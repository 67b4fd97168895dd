-- Hugging Face's GPT-2: maps its config.json to our options, and its tensors to our parameters.
--
-- Its layers are "Conv1D": weights are stored as [in, out], ours as [out, in]; queries, keys and values are adjacent
-- columns of one tensor. In a folder of the base model, names have no "transformer." prefix.

local architecture = require("moonshard.huggingface.config.architecture")
local describe = require("moonshard.base.checks.options").describe
local errors = require("moonshard.base.error")
local fields = require("moonshard.huggingface.fields")
local new_problems = require("moonshard.huggingface.config.problems").new

local gpt2 = {
  model_type = "gpt2", architecture = "GPT2LMHeadModel", base = "GPT2Model", prefix = "transformer.",
  head = "lm_head.weight", transposed = true,
}

-- Masks that old versions stored with the weights.
gpt2.buffers = { "^h%.%d+%.attn%.bias$", "^h%.%d+%.attn%.masked_bias$" }

-- Types and defaults as in GPT2Config.
local KNOWN = {
  architectures = { "list", null = true },
  vocab_size = { "size", 50257 }, n_positions = { "size", 1024 }, n_embd = { "size", 768 }, n_layer = { "size", 12 },
  n_head = { "size", 12 }, n_inner = { "size", null = true }, activation_function = { "text", "gelu_new" },
  layer_norm_epsilon = { "positive", 1e-5 }, tie_word_embeddings = { "boolean", true },
  scale_attn_weights = { only = true, why = "attention without its scale is not supported" },
  scale_attn_by_inverse_layer_idx = { only = false, why = "attention scaled by layer is not supported" },
  reorder_and_upcast_attn = { only = false, why = "attention in another order and precision is not supported" },
}

gpt2.fields = KNOWN

-- Names that GPT2Config takes for others.
local ALIASES = {
  hidden_size = "n_embd", max_position_embeddings = "n_positions", num_attention_heads = "n_head",
  num_hidden_layers = "n_layer",
}

local function without_aliases(problems, config)
  local own = {}
  for name, value in pairs(config) do
    local of = ALIASES[name]
    if of and config[of] ~= nil and config[of] ~= value then
      problems:add("MS_EINVAL", of, "%s is %s, and %s, another name for it, is %s: leave one out", of,
        describe(config[of]), name, describe(value))
    end
    own[of or name] = value
  end
  return own
end

local function check_heads(path, values)
  if values.n_embd % values.n_head == 0 then return end
  errors.invalid("%s: n_embd %d must be a multiple of n_head %d", path, values.n_embd, values.n_head)
end

---Options of ms.models.gpt2.
---@param path string of config.json
---@param config table
---@return table
function gpt2.options(path, config)
  local problems, activation = new_problems(path), nil
  problems:try(architecture.check, gpt2, path, config)
  local values = fields.read(problems, without_aliases(problems, config), KNOWN)
  problems:try(check_heads, path, values)
  problems:try(function()
    activation = fields.choose(path, "activation_function", values.activation_function, fields.ACTIVATIONS)
  end)
  problems:raise()
  return {
    vocab = values.vocab_size, seq = values.n_positions, dim = values.n_embd, layers = values.n_layer,
    heads = values.n_head, ffn = values.n_inner or 4 * values.n_embd, eps = values.layer_norm_epsilon,
    activation = activation, tied = values.tie_word_embeddings,
  }
end

---The config.json for one of our models.
---@param options table of ms.models.gpt2, complete
---@return table
function gpt2.config(options)
  if not options.bias then
    errors.raise("MS_EUNSUPPORTED",
      "a GPT-2 without biases has no Hugging Face layout: create the model with bias = true")
  end
  return {
    model_type = "gpt2", vocab_size = options.vocab, n_positions = options.seq, n_embd = options.dim,
    n_layer = options.layers, n_head = options.heads, n_inner = options.ffn, layer_norm_epsilon = options.eps,
    activation_function = fields.ACTIVATION_NAMES[options.activation], tie_word_embeddings = options.tied,
    resid_pdrop = options.dropout, embd_pdrop = options.dropout, attn_pdrop = 0,
  }
end

---Every stored tensor: its name without prefix, its shape, and the parameters in it.
---@param o table options of ms.models.gpt2
---@return moonshard.HuggingFaceTensor[]
function gpt2.tensors(o)
  local list, dim, ffn = {}, o.dim, o.ffn
  local function plain(name, shape, parameter)
    list[#list + 1] = { name = name, shape = shape, slices = { { parameter = parameter } } }
  end
  local function norm(name, parameter)
    plain(name .. ".weight", { dim }, parameter .. ".weight")
    plain(name .. ".bias", { dim }, parameter .. ".bias")
  end
  -- Adjacent parameters of `outputs` columns each.
  local function conv(name, inputs, outputs, parameters)
    local weight, bias = {}, {}
    for i, parameter in ipairs(parameters) do
      weight[i] = { parameter = parameter .. ".weight", column = (i - 1) * outputs, columns = outputs,
        transposed = true }
      bias[i] = { parameter = parameter .. ".bias", column = (i - 1) * outputs, columns = outputs }
    end
    list[#list + 1] = { name = name .. ".weight", shape = { inputs, #parameters * outputs }, slices = weight }
    list[#list + 1] = { name = name .. ".bias", shape = { #parameters * outputs }, slices = bias }
  end
  plain("wte.weight", { o.vocab, dim }, "embed.weight")
  plain("wpe.weight", { o.seq, dim }, "pos.weight")
  for i = 0, o.layers - 1 do
    local theirs, ours = ("h.%d."):format(i), ("layers.%d."):format(i)
    norm(theirs .. "ln_1", ours .. "norm1")
    conv(theirs .. "attn.c_attn", dim, dim, { ours .. "attn.wq", ours .. "attn.wk", ours .. "attn.wv" })
    conv(theirs .. "attn.c_proj", dim, dim, { ours .. "attn.wo" })
    norm(theirs .. "ln_2", ours .. "norm2")
    conv(theirs .. "mlp.c_fc", dim, ffn, { ours .. "mlp.fc1" })
    conv(theirs .. "mlp.c_proj", ffn, dim, { ours .. "mlp.fc2" })
  end
  norm("ln_f", "norm")
  if not o.tied then plain(gpt2.head, { o.vocab, dim }, "head.weight") end
  return list
end

return gpt2
