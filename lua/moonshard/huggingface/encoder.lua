-- Hugging Face's encoders: maps the config.json of a family to the options of its model, and its tensors to our
-- parameters. Weights are stored like ours, [out, in]. A family is a row of huggingface/encoders.lua: what comes before
-- and behind the layers that all have (models/encoder.lua), and the names of a layer's parts.

local architecture = require("moonshard.huggingface.config.architecture")
local errors = require("moonshard.base.error")
local fields = require("moonshard.huggingface.fields")
local new_problems = require("moonshard.huggingface.config.problems").new

local encoder = {}

---@class moonshard.EncoderFamily a row of encoders.lua
---@field model_type string
---@field architecture string
---@field also table<string, boolean>? other classes whose folders have its tensors
---@field base false the head is needed
---@field prefix string of names, except of tensors outside
---@field head string name of the head's weight
---@field buffers string[] patterns of names to skip
---@field renamed table<string, string>? endings of names in old files, by those of today
---@field known table<string, table> further fields, as for fields.read
---@field names table<string, string> their names of a layer's parts, by ours
---@field options fun(path: string, values: table, o: table) adds to the options what further fields say
---@field config fun(o: table, config: table) adds the further fields of an options' config
---@field around fun(o: table): moonshard.HuggingFaceTensor[], moonshard.HuggingFaceTensor[] before and behind layers

-- Fields that all families have, with the defaults that their config classes share.
local COMMON = {
  hidden_size = { "size", 768 }, num_hidden_layers = { "size", 12 }, num_attention_heads = { "size", 12 },
  intermediate_size = { "size", 3072 }, hidden_act = { "text", "gelu" }, layer_norm_eps = { "positive", 1e-12 },
  architectures = { "list", null = true },
  is_decoder = { only = false, why = "a decoder of this family is not built" },
}

local function check_heads(path, values)
  if values.hidden_size % values.num_attention_heads == 0 then return end
  errors.invalid("%s: hidden_size %d must be a multiple of num_attention_heads %d", path, values.hidden_size,
    values.num_attention_heads)
end

-- Options that are a field's value, by the fields' names.
local SAME = {
  dim = "hidden_size", layers = "num_hidden_layers", heads = "num_attention_heads", ffn = "intermediate_size",
  eps = "layer_norm_eps",
}

local function read(row, known, path, config)
  local problems, o = new_problems(path), {}
  problems:try(architecture.check, row, path, config)
  local values = fields.read(problems, config, known)
  for option, field in pairs(SAME) do o[option] = rawget(values, field) end
  problems:guard(o, SAME)
  problems:try(check_heads, path, values)
  problems:try(function()
    o.activation = fields.choose(path, "hidden_act", values.hidden_act, fields.ACTIVATIONS)
  end)
  problems:try(row.options, path, values, o)
  problems:raise()
  return setmetatable(o, nil)
end

local function write(row, o)
  local config = {
    model_type = row.model_type, hidden_size = o.dim, num_hidden_layers = o.layers, num_attention_heads = o.heads,
    intermediate_size = o.ffn, hidden_act = fields.ACTIVATION_NAMES[o.activation], layer_norm_eps = o.eps,
    hidden_dropout_prob = o.dropout, attention_probs_dropout_prob = 0,
  }
  row.config(o, config)
  return config
end

---A stored tensor that is one parameter.
---@param name string
---@param shape integer[]
---@param ours string
---@param more table? further fields
---@return moonshard.HuggingFaceTensor
function encoder.tensor(name, shape, ours, more)
  local tensor = { name = name, shape = shape, slices = { { parameter = ours } } }
  for key, value in pairs(more or {}) do tensor[key] = value end
  return tensor
end

---Weight and bias of a norm or of a linear layer.
---@param name string theirs
---@param shape integer[] of the weight
---@param ours string
---@param more table? further fields
---@return moonshard.HuggingFaceTensor weight
---@return moonshard.HuggingFaceTensor bias
function encoder.layer(name, shape, ours, more)
  return encoder.tensor(name .. ".weight", shape, ours .. ".weight", more),
    encoder.tensor(name .. ".bias", { shape[1] }, ours .. ".bias", more)
end

-- Shapes of a layer's weights, in the order of the model.
local function parts_of(o)
  local square = { o.dim, o.dim }
  return {
    { "norm1", { o.dim } }, { "attn.wq", square, o.qkv_bias }, { "attn.wk", square, o.qkv_bias },
    { "attn.wv", square, o.qkv_bias }, { "attn.wo", square }, { "norm2", { o.dim } }, { "mlp.fc1", { o.ffn, o.dim } },
    { "mlp.fc2", { o.dim, o.ffn } },
  }
end

local function tensors_of(row, o)
  local list, behind = row.around(o)
  for i = 0, o.layers - 1 do
    local theirs, ours = ("encoder.layer.%d."):format(i), ("layers.%d."):format(i)
    for _, part in ipairs(parts_of(o)) do
      local name, shape, has_bias = unpack(part)
      local weight, bias = encoder.layer(theirs .. row.names[name], shape, ours .. name)
      list[#list + 1] = weight
      if has_bias ~= false then list[#list + 1] = bias end
    end
  end
  for _, tensor in ipairs(behind) do list[#list + 1] = tensor end
  return list
end

---The family that a row describes.
---@param row moonshard.EncoderFamily
---@return moonshard.HuggingFaceFamily
function encoder.family(row)
  local known = {}
  for _, source in ipairs({ COMMON, row.known }) do
    for name, field in pairs(source) do known[name] = field end
  end
  return {
    prefix = row.prefix, architecture = row.architecture, head = row.head, buffers = row.buffers,
    renamed = row.renamed, fields = known,
    options = function(path, config) return read(row, known, path, config) end,
    config = function(o) return write(row, o) end,
    tensors = function(o) return tensors_of(row, o) end,
  }
end

return encoder
