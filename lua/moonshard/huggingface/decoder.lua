-- Hugging Face's decoders: maps the config.json of a family to the options of models/decoder.lua, and its tensors to
-- our parameters. Weights are stored like ours, [out, in], with the same rotary pairs. A family is a row of
-- huggingface/families.lua: what its config adds to the fields that all have.

local architecture = require("moonshard.huggingface.config.architecture")
local errors = require("moonshard.base.error")
local families = require("moonshard.models.families")
local fields = require("moonshard.huggingface.fields")
local json = require("moonshard.base.text.json")
local new_problems = require("moonshard.huggingface.config.problems").new
local rope = require("moonshard.huggingface.rope")

local decoder = {}

-- Fields that all families have; a family gives the defaults of its config class.
local COMMON = {
  vocab_size = "size", hidden_size = "size", intermediate_size = "size", num_hidden_layers = "size",
  num_attention_heads = "size", num_key_value_heads = "size", head_dim = "size", max_position_embeddings = "size",
  rms_norm_eps = "positive", tie_word_embeddings = "boolean",
}

-- Those of them that can be None where a family gives no default: they follow from others.
local OPTIONAL = { num_key_value_heads = true, head_dim = true }

-- Fields of some: those whose defaults a family gives.
local OF_SOME = { attention_bias = "boolean", mlp_bias = "boolean" }

local ACTIVATIONS = { silu = "silu", swish = "silu", gelu_pytorch_tanh = "gelu_tanh", gelu_new = "gelu_tanh",
  gelu = "gelu" }
local ACTIVATION_NAMES = { silu = "silu", gelu_tanh = "gelu_pytorch_tanh", gelu = "gelu" }

---@class moonshard.DecoderFamily a row of families.lua
---@field model_type string
---@field architecture string
---@field base string? the class without the head; default: by the name of the architecture
---@field defaults table<string, any> of fields, as in the family's config class
---@field activation string? the field that names it; default hidden_act
---@field known table? further fields, as for fields.read
---@field theta number? default of rope_theta
---@field experts table<string, string>? their names of a layer's mixture: block, w1, w3, w2
---@field fused boolean? q, k and v are one tensor, and so are gate and up
---@field limits { option: string, field: string, broken: (fun(o: table): boolean), why: string }[]? options that
---  config.json could say in that field, but with which its config class in the reference library does not take it
---@field optional table<string, true>? fields of COMMON that can be null although they have a default
---@field options (fun(path: string, values: table, o: table))? adds to the options what further fields say
---@field config (fun(o: table, config: table))? adds the further fields of an options' config

local function known_of(row)
  local known = {}
  for name, field in pairs(rope.KNOWN) do known[name] = field end
  -- A field for which the config class has no default is None there, too; some classes take None besides a default.
  for name, kind in pairs(COMMON) do
    local null = row.defaults[name] == nil and OPTIONAL[name] or row.optional and row.optional[name]
    known[name] = { kind, row.defaults[name], null = null }
  end
  known.pad_token_id, known.architectures = { "number|none" }, { "list", null = true }
  for name, kind in pairs(OF_SOME) do
    if row.defaults[name] ~= nil then known[name] = { kind, row.defaults[name] } end
  end
  local activation = row.activation or "hidden_act"
  known[activation] = { "text", row.defaults[activation] }
  for name, field in pairs(row.known or {}) do known[name] = field end
  return known
end

local function check_heads(path, values)
  local heads, kv_heads = values.num_attention_heads, values.num_key_value_heads or values.num_attention_heads
  if heads % kv_heads ~= 0 then
    errors.invalid("%s: num_attention_heads %d must be a multiple of num_key_value_heads %d", path, heads, kv_heads)
  end
  if not values.head_dim and values.hidden_size % heads ~= 0 then
    errors.invalid("%s: hidden_size %d must be a multiple of num_attention_heads %d if head_dim is not given", path,
      values.hidden_size, heads)
  end
end

-- The token whose row of the embedding lookups do not train. As in the reference library it can count from the end;
-- a family's default does not hold for a smaller vocabulary.
local function padding_of(row, path, values)
  local given, vocab = values.pad_token_id, values.vocab_size
  local token = given
  if given == nil then token = row.defaults.pad_token_id end
  if not token then return nil end
  if token < 0 then token = token + vocab end
  if token % 1 == 0 and token >= 0 and token < vocab then return token end
  if given == nil then return nil end
  errors.invalid("%s: pad_token_id %g must be a token, below vocab_size %d: correct it, or null for none", path, given,
    vocab)
end

local function check_layer_types(path, values, o)
  local kinds = values.layer_types
  if kinds and #kinds ~= o.layers then
    errors.invalid("%s: layer_types has %d items, but num_hidden_layers is %d: give the kind of each layer", path,
      #kinds, o.layers)
  end
end

-- Options that are a field's value, by the fields' names.
local SAME = {
  vocab = "vocab_size", dim = "hidden_size", layers = "num_hidden_layers", heads = "num_attention_heads",
  kv_heads = "num_key_value_heads", head_dim = "head_dim", ffn = "intermediate_size", seq = "max_position_embeddings",
  eps = "rms_norm_eps", tied = "tie_word_embeddings", qkv_bias = "attention_bias", out_bias = "attention_bias",
  mlp_bias = "mlp_bias",
}

-- The options that are fields' values, or follow from them where these are not given.
local function options_of(problems, values)
  local o = {}
  for option, field in pairs(SAME) do o[option] = rawget(values, field) end
  o.kv_heads, o.head_dim = o.kv_heads or o.heads, o.head_dim or o.heads and o.dim and o.dim / o.heads
  o.qkv_bias, o.out_bias, o.mlp_bias = o.qkv_bias or false, o.out_bias or false, o.mlp_bias or false
  return problems:guard(o, SAME)
end

local function read(row, known, path, config)
  local problems = new_problems(path)
  problems:try(architecture.check, row, path, config)
  local values = fields.read(problems, config, known)
  local o, activation = options_of(problems, values), row.activation or "hidden_act"
  problems:try(check_heads, path, values)
  problems:try(function() o.padding = padding_of(row, path, values) end)
  for name, value in pairs(families.traits(row.model_type)) do o[name] = value end
  problems:try(function() o.activation = fields.choose(path, activation, values[activation], ACTIVATIONS) end)
  if row.options then problems:try(row.options, path, values, o) end
  problems:try(check_layer_types, path, values, o)
  if not o.rope_theta then
    problems:try(function() o.rope_theta, o.rope_scaling = rope.read(path, values, row.theta or 10000) end)
  end
  problems:raise()
  -- A folder says all of its model: what it lacks, the family's usual models may have.
  for name in pairs(families.usual(row.model_type)) do
    if o[name] == nil then o[name] = false end
  end
  return setmetatable(o, nil)
end

---The config.json for one of our models, valid for versions 4 and 5 of the reference library.
local function write(row, o)
  local config = {
    model_type = row.model_type, vocab_size = o.vocab, hidden_size = o.dim, intermediate_size = o.ffn,
    num_hidden_layers = o.layers, num_attention_heads = o.heads, num_key_value_heads = o.kv_heads,
    head_dim = o.head_dim, max_position_embeddings = o.seq, rms_norm_eps = o.eps, rope_theta = o.rope_theta,
    rope_scaling = rope.config(o.rope_scaling), tie_word_embeddings = o.tied,
    [row.activation or "hidden_act"] = ACTIVATION_NAMES[o.activation],
    -- null: a family's defaults can be tokens that a small vocabulary lacks
    bos_token_id = json.null, eos_token_id = json.null, pad_token_id = o.padding or json.null,
  }
  if row.defaults.attention_bias ~= nil then config.attention_bias = o.qkv_bias end
  if row.defaults.mlp_bias ~= nil then config.mlp_bias = o.mlp_bias end
  if row.config then row.config(o, config) end
  return config
end

-- Options of which neither shapes nor names tell that they are lost, and what they are if they are not given. The first
-- that is lost is named: experts before what only models with experts have.
local CHECKED = {
  { "activation", "silu" }, { "qkv_bias", false }, { "out_bias", false }, { "mlp_bias", false }, { "qk_norm", false },
  { "norms", "before" }, { "norm_from_one", false }, { "embedding_scale", 1 }, { "attention_softcap", false },
  { "logit_softcap", false }, { "window", false }, { "experts", false }, { "experts_per_token", false },
  { "bias_rate", 0 }, { "aux_loss", 0 }, { "expert_ffn", false }, { "expert_score", "softmax" },
  { "renormalise", true }, { "shared_ffn", false },
}

local function is_near(a, b)
  if type(a) == "number" and type(b) == "number" then return math.abs(a - b) <= 1e-6 * math.abs(a) end
  return a == b
end

local function refuse_lost(row, name)
  errors.raise("MS_EUNSUPPORTED", "config.json of %s cannot express %s of this model: leave it at the family's "
    .. "value, or save a checkpoint", row.model_type, name)
end

-- What the reference library would refuse to load: of a folder, or in one.
local function check_limits(row, o, path)
  for _, limit in ipairs(row.limits or {}) do
    if limit.broken(o) and path then
      errors.raise("MS_EUNSUPPORTED", "%s: %s: Hugging Face's library does not take this for %s: it takes %s", path,
        limit.field, row.model_type, limit.why)
    elseif limit.broken(o) then
      errors.raise("MS_EUNSUPPORTED", "config.json of %s cannot have %s of this model: Hugging Face's library takes "
        .. "%s: change it, make the model of another family, or save a checkpoint", row.model_type, limit.option,
        limit.why)
    end
  end
end

-- The options without a window that no layer has: a config.json without it is the same model.
local function without_idle_window(o)
  for i = 1, o.window and o.layers or 0 do
    if not o.slides or o.slides[i] then return o end
  end
  local rest = {}
  for name, value in pairs(o) do rest[name] = value end
  rest.window, rest.slides, rest.window_rope_theta = nil, nil, nil
  return rest
end

local function theta_of_window(o) return o.window_rope_theta or not o.rope_scaling and o.rope_theta end

-- Reads what was written: an option that a family's config.json cannot say would be lost.
local function check_written(row, known, o, config)
  local again = read(row, known, "config.json", config)
  local function value_of(from, name, default)
    if from[name] == nil then return default end
    return from[name]
  end
  for _, checked in ipairs(CHECKED) do
    local name, default = unpack(checked)
    if not is_near(value_of(o, name, default), value_of(again, name, default)) then refuse_lost(row, name) end
  end
  local scale, theirs = o.attention_scale or o.head_dim ^ -0.5, again.attention_scale or o.head_dim ^ -0.5
  if not is_near(scale, theirs) then refuse_lost(row, "attention_scale") end
  for i = 1, o.window and o.layers or 0 do
    local slides = not o.slides or o.slides[i]
    if slides ~= (not again.slides or again.slides[i]) then refuse_lost(row, "slides") end
  end
  for i = 1, o.layers do
    local rotates, sparse = not o.rotates or o.rotates[i], not o.sparse or o.sparse[i]
    if rotates ~= (not again.rotates or again.rotates[i]) then refuse_lost(row, "rotates") end
    if sparse ~= (not again.sparse or again.sparse[i]) then refuse_lost(row, "sparse") end
  end
  if o.window and not is_near(theta_of_window(o), theta_of_window(again)) then refuse_lost(row, "window_rope_theta") end
end

-- ---- tensors ----------------------------------------------------------------------------------------------------

-- Their names of a layer's norms, by where a family has them.
local NORMS = {
  before = { attn_norm = "input_layernorm", ffn_norm = "post_attention_layernorm" },
  behind = { attn_norm_behind = "post_attention_layernorm", ffn_norm_behind = "post_feedforward_layernorm" },
  around = { attn_norm = "input_layernorm", attn_norm_behind = "post_attention_layernorm",
    ffn_norm = "pre_feedforward_layernorm", ffn_norm_behind = "post_feedforward_layernorm" },
}

-- A branch's products: their name, ours, inputs, outputs, and whether there is a bias.
local function products_of(o)
  local queries, keys, bias = o.heads * o.head_dim, o.kv_heads * o.head_dim, o.qkv_bias
  return {
    { "self_attn.q_proj", "attn.wq", o.dim, queries, bias }, { "self_attn.k_proj", "attn.wk", o.dim, keys, bias },
    { "self_attn.v_proj", "attn.wv", o.dim, keys, bias }, { "self_attn.o_proj", "attn.wo", queries, o.dim, o.out_bias },
  }, {
    { "mlp.gate_proj", "mlp.w1", o.dim, o.ffn, o.mlp_bias }, { "mlp.up_proj", "mlp.w3", o.dim, o.ffn, o.mlp_bias },
    { "mlp.down_proj", "mlp.w2", o.ffn, o.dim, o.mlp_bias },
  }
end

-- Products that families with fused tensors store below one another.
local FUSED = {
  ["self_attn.q_proj"] = "self_attn.qkv_proj", ["self_attn.k_proj"] = "self_attn.qkv_proj",
  ["self_attn.v_proj"] = "self_attn.qkv_proj", ["mlp.gate_proj"] = "mlp.gate_up_proj",
  ["mlp.up_proj"] = "mlp.gate_up_proj",
}

-- The list of a model's tensors while it is made.
local List = {}
List.__index = List

function List:add(name, shape, parameter)
  self[#self + 1] = { name = name, shape = shape, slices = { { parameter = parameter } } }
end

-- Number `part`, from 0, of as many tensors that make up a parameter.
function List:add_part(name, shape, parameter, part, parts)
  local slice = { parameter = parameter, first = part * shape[1] * shape[2], parts = parts }
  self[#self + 1] = { name = name, shape = shape, slices = { slice } }
end

function List:add_experts(row, layer, o)
  local names, ours = row.experts, layer .. "mlp."
  local theirs = layer .. names.block .. "."
  self:add(theirs .. "gate.weight", { o.experts, o.dim }, ours .. "router.weight")
  for e = 0, o.experts - 1 do
    for _, w in ipairs({ "w1", "w2", "w3" }) do
      local shape = w == "w2" and { o.dim, o.expert_ffn } or { o.expert_ffn, o.dim }
      local name = ("%sexperts.%d.%s.weight"):format(theirs, e, names[w])
      self:add_part(name, shape, ours .. "experts." .. w, e, o.experts)
    end
  end
  if not o.shared_ffn then return end
  for _, w in ipairs({ "w1", "w3", "w2" }) do
    self:add(theirs .. "shared_expert." .. names[w] .. ".weight",
      w == "w2" and { o.dim, o.shared_ffn } or { o.shared_ffn, o.dim }, ours .. "shared." .. w .. ".weight")
  end
  self:add(theirs .. "shared_expert_gate.weight", { 1, o.dim }, ours .. "shared_gate.weight")
end

-- Appends rows to a tensor of several products.
function List:add_rows(name, inputs, outputs, parameter)
  local tensor = self[#self]
  if tensor.name ~= name then
    tensor = { name = name, shape = { 0, inputs }, slices = {} }
    self[#self + 1] = tensor
  end
  table.insert(tensor.slices, { parameter = parameter, column = tensor.shape[1], columns = outputs })
  tensor.shape[1] = tensor.shape[1] + outputs
end

function List:add_products(row, layer, products)
  for _, product in ipairs(products) do
    local theirs, ours, inputs, outputs, has_bias = unpack(product)
    local fused = row.fused and FUSED[theirs]
    if fused then
      self:add_rows(layer .. fused .. ".weight", inputs, outputs, layer .. ours .. ".weight")
    else
      self:add(layer .. theirs .. ".weight", { outputs, inputs }, layer .. ours .. ".weight")
    end
    if has_bias then self:add(layer .. theirs .. ".bias", { outputs }, layer .. ours .. ".bias") end
  end
end

function List:add_qk_norms(layer, o)
  local all = o.qk_norm == "all"
  self:add(layer .. "self_attn.q_norm.weight", { all and o.heads * o.head_dim or o.head_dim },
    layer .. "attn.q_norm.weight")
  self:add(layer .. "self_attn.k_norm.weight", { all and o.kv_heads * o.head_dim or o.head_dim },
    layer .. "attn.k_norm.weight")
end

local function tensors_of(row, o)
  local list, attention, mlp = setmetatable({}, List), products_of(o)
  local norms = NORMS[o.norms or "before"]
  list:add("embed_tokens.weight", { o.vocab, o.dim }, "embed.weight")
  for i = 0, o.layers - 1 do
    local layer = ("layers.%d."):format(i)
    local function add_norm(ours)
      if norms[ours] then list:add(layer .. norms[ours] .. ".weight", { o.dim }, layer .. ours .. ".weight") end
    end
    add_norm("attn_norm")
    list:add_products(row, layer, attention)
    if o.qk_norm then list:add_qk_norms(layer, o) end
    add_norm("attn_norm_behind")
    add_norm("ffn_norm")
    if o.experts and (not o.sparse or o.sparse[i + 1]) then
      list:add_experts(row, layer, o)
    else
      list:add_products(row, layer, mlp)
    end
    add_norm("ffn_norm_behind")
  end
  list:add("norm.weight", { o.dim }, "norm.weight")
  if not o.tied then list:add("lm_head.weight", { o.vocab, o.dim }, "head.weight") end
  return list
end

---The family that a row describes.
---@param row moonshard.DecoderFamily
---@return moonshard.HuggingFaceFamily
function decoder.family(row)
  local known = known_of(row)
  return {
    prefix = "model.", architecture = row.architecture, head = "lm_head.weight", fields = known,
    buffers = { "^layers%.%d+%.self_attn%.rotary_emb%.inv_freq$" }, -- old versions stored them with the weights
    options = function(path, config)
      local o = read(row, known, path, config)
      check_limits(row, o, path)
      return o
    end,
    config = function(o)
      o = without_idle_window(o)
      check_limits(row, o)
      local config = write(row, o)
      check_written(row, known, o, config)
      return config
    end,
    tensors = function(o) return tensors_of(row, o) end,
  }
end

return decoder
