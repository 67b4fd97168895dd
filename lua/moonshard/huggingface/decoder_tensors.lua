-- The tensors of Hugging Face's decoders: their names and shapes, and which of our parameters are in them. Names are
-- Llama's, unless a family's row has others.

local decoder_tensors = {}

-- Their names, by ours. Those of norms depend on where a family has them.
local NAMES = {
  embed = "embed_tokens", embed_norm = "embed_norm", norm = "norm",
  ["attn.wq"] = "self_attn.q_proj", ["attn.wk"] = "self_attn.k_proj", ["attn.wv"] = "self_attn.v_proj",
  ["attn.wq_a"] = "self_attn.q_a_proj", ["attn.wq_b"] = "self_attn.q_b_proj",
  ["attn.wg"] = "self_attn.q_proj",
  ["attn.wkv_a"] = "self_attn.kv_a_proj_with_mqa", ["attn.wkv_b"] = "self_attn.kv_b_proj",
  ["attn.kv_norm"] = "self_attn.kv_a_layernorm",
  ["attn.wo"] = "self_attn.o_proj", ["attn.q_norm"] = "self_attn.q_norm", ["attn.k_norm"] = "self_attn.k_norm",
  ["mlp.w1"] = "mlp.gate_proj", ["mlp.w3"] = "mlp.up_proj", ["mlp.w2"] = "mlp.down_proj",
}
local NORMS = {
  before = { attn_norm = "input_layernorm", ffn_norm = "post_attention_layernorm" },
  behind = { attn_norm_behind = "post_attention_layernorm", ffn_norm_behind = "post_feedforward_layernorm" },
  around = { attn_norm = "input_layernorm", attn_norm_behind = "post_attention_layernorm",
    ffn_norm = "pre_feedforward_layernorm", ffn_norm_behind = "post_feedforward_layernorm" },
}

local function name_of(row, ours) return row.names and row.names[ours] or NAMES[ours] end

-- Those of attention with latent keys and values.
local function latent_attention_of(o)
  local queries, latent = o.heads * o.head_dim, o.kv_lora_rank
  local list = {
    { "attn.wkv_a", o.dim, latent + o.qk_rope_head_dim, o.qkv_bias },
    { "attn.wkv_b", latent, o.heads * (o.qk_nope_head_dim + o.v_head_dim) },
    { "attn.wo", o.heads * o.v_head_dim, o.dim, o.out_bias },
  }
  if not o.q_lora_rank then return { { "attn.wq", o.dim, queries }, unpack(list) } end
  return { { "attn.wq_a", o.dim, o.q_lora_rank, o.qkv_bias }, { "attn.wq_b", o.q_lora_rank, queries }, unpack(list) }
end

-- A branch's products: ours, inputs, outputs, and whether there is a bias.
local function attention_of(o)
  if o.kv_lora_rank then return latent_attention_of(o) end
  local queries, keys, bias = o.heads * o.head_dim, o.kv_heads * o.head_dim, o.qkv_bias
  local list = {
    { "attn.wq", o.dim, queries, bias }, { "attn.wk", o.dim, keys, bias }, { "attn.wv", o.dim, keys, bias },
    { "attn.wo", queries, o.dim, o.out_bias },
  }
  if o.attn_output_gate then table.insert(list, 2, { "attn.wg", o.dim, queries, bias }) end
  return list
end

local function mlp_of(o)
  local up, down = { "mlp.w1", o.dim, o.ffn, o.mlp_bias }, { "mlp.w2", o.ffn, o.dim, o.mlp_bias }
  if o.gated == false then return { up, down } end
  return { up, { "mlp.w3", o.dim, o.ffn, o.mlp_bias }, down }
end

-- The list of a model's tensors while it is made.
local List = {}
List.__index = List

function List:add(name, shape, parameter)
  self[#self + 1] = { name = name, shape = shape, slices = { { parameter = parameter } } }
end

-- Number `part`, from 0, of as many tensors that make up a parameter.
function List:add_part(name, shape, parameter, part, parts)
  local slice = { parameter = parameter, first = part * shape[1] * (shape[2] or 1), parts = parts }
  self[#self + 1] = { name = name, shape = shape, slices = { slice } }
end

-- All experts' matrices as one tensor [E,inputs,outputs], each transposed: those of the parameters, side by side; and
-- their biases [E,outputs].
function List:add_stack(name, o, inputs, outputs, parameters)
  local tensor = { name = name, shape = { o.experts, inputs, #parameters * outputs }, slices = {} }
  for i, parameter in ipairs(parameters) do
    for e = 0, o.experts - 1 do
      table.insert(tensor.slices, { parameter = parameter, matrix = e, column = (i - 1) * outputs, columns = outputs,
        first = e * inputs * outputs, parts = o.experts })
    end
  end
  self[#self + 1] = tensor
  if o.expert_bias then self:add(name .. "_bias", { o.experts, outputs }, parameters[1] .. "_bias") end
end

function List:add_stacks(theirs, ours, o)
  self:add(theirs .. "router.weight", { o.experts, o.dim }, ours .. "router.weight")
  if o.expert_bias then self:add(theirs .. "router.bias", { o.experts }, ours .. "router.bias") end
  local experts = ours .. "experts."
  if o.expert_fused then
    self:add_stack(theirs .. "experts.gate_up_proj", o, o.dim, 2 * o.expert_ffn, { experts .. "w13" })
  else
    self:add_stack(theirs .. "experts.gate_up_proj", o, o.dim, o.expert_ffn, { experts .. "w1", experts .. "w3" })
  end
  self:add_stack(theirs .. "experts.down_proj", o, o.expert_ffn, o.dim, { experts .. "w2" })
end

-- A tensor for each expert's matrix.
function List:add_each_expert(names, theirs, ours, o)
  self:add(theirs .. "gate.weight", { o.experts, o.dim }, ours .. "router.weight")
  if names.bias then
    self:add(theirs .. names.bias, { o.experts }, ours .. "router_bias")
    self[#self].exact = true
  end
  for e = 0, o.experts - 1 do
    for _, w in ipairs({ "w1", "w2", "w3" }) do
      local shape = w == "w2" and { o.dim, o.expert_ffn } or { o.expert_ffn, o.dim }
      local name = ("%sexperts.%d.%s.weight"):format(theirs, e, names[w])
      self:add_part(name, shape, ours .. "experts." .. w, e, o.experts)
    end
  end
end

function List:add_experts(row, layer, o)
  local names, ours = row.experts, layer .. "mlp."
  local theirs = layer .. names.block .. "."
  if o.expert_fused or names.stacked then
    self:add_stacks(theirs, ours, o)
  else
    self:add_each_expert(names, theirs, ours, o)
  end
  if not o.shared_ffn then return end
  local shared = theirs .. (names.shared or "shared_expert") .. "."
  for _, w in ipairs({ "w1", "w3", "w2" }) do
    self:add(shared .. names[w] .. ".weight", w == "w2" and { o.dim, o.shared_ffn } or { o.shared_ffn, o.dim },
      ours .. "shared." .. w .. ".weight")
  end
  if o.shared_gate == false then return end
  self:add(theirs .. "shared_expert_gate.weight", { 1, o.dim }, ours .. "shared_gate.weight")
end

-- Appends rows to a tensor of several products: rows below those of the others, or, where a family has them by head,
-- in each of its blocks. inputs: nil for a bias.
function List:add_rows(fused, name, inputs, outputs, parameter)
  local tensor = self[#self]
  if tensor.name ~= name then
    tensor = { name = name, shape = { 0, inputs }, slices = {} }
    self[#self + 1] = tensor
  end
  local blocks = fused.blocks or 1
  local column, columns = tensor.shape[1] / blocks, outputs / blocks
  table.insert(tensor.slices, { parameter = parameter, column = column, columns = columns,
    blocks = fused.blocks })
  tensor.shape[1] = tensor.shape[1] + outputs
end

-- Which tensor has the product: nil: one of its own. A head's gate comes right after its queries.
local function fused_of(row, o, ours)
  if o.attn_output_gate and (ours == "attn.wq" or ours == "attn.wg") then
    return { name = NAMES[ours], blocks = o.heads }
  end
  local fused = row.fused
  if fused and fused.qkv and (ours == "attn.wq" or ours == "attn.wk" or ours == "attn.wv") then
    return { name = fused.qkv, blocks = fused.by_head and o.kv_heads or nil }
  elseif fused and fused.gate_up and (ours == "mlp.w1" or ours == "mlp.w3") then
    return { name = fused.gate_up }
  end
end

-- layer: what their names in a layer begin with; own: what ours do.
function List:add_products(row, layer, own, products, o)
  local biases = {} -- of fused products: behind all of their weights
  for _, product in ipairs(products) do
    local ours, inputs, outputs, has_bias = unpack(product)
    local fused, theirs = fused_of(row, o, ours), layer .. name_of(row, ours)
    if fused then
      self:add_rows(fused, layer .. fused.name .. ".weight", inputs, outputs, own .. ours .. ".weight")
      if has_bias then biases[#biases + 1] = product end
    else
      self:add(theirs .. ".weight", { outputs, inputs }, own .. ours .. ".weight")
      if has_bias then self:add(theirs .. ".bias", { outputs }, own .. ours .. ".bias") end
    end
  end
  for _, product in ipairs(biases) do
    local ours, _, outputs = unpack(product)
    local fused = fused_of(row, o, ours)
    self:add_rows(fused, layer .. fused.name .. ".bias", nil, outputs, own .. ours .. ".bias")
  end
end

function List:add_norm(theirs, o, ours, width)
  self:add(theirs .. ".weight", { width or o.dim }, ours .. ".weight")
  if o.layer_norm and o.norm_bias ~= false then self:add(theirs .. ".bias", { width or o.dim }, ours .. ".bias") end
end

-- Norms with weights of each head are one tensor, or, where its name has a place for a number, one for each head.
function List:add_head_norms(theirs, o, ours, heads)
  if not theirs:find("%d", 1, true) then return self:add(theirs .. ".weight", { heads, o.head_dim }, ours) end
  for h = 0, heads - 1 do self:add_part(theirs:format(h) .. ".weight", { o.head_dim }, ours, h, heads) end
end

function List:add_qk_norms(row, layer, own, o)
  local function add(name, heads)
    local theirs, ours = layer .. name_of(row, name), own .. name
    if o.qk_norm == "each" then return self:add_head_norms(theirs, o, ours .. ".weight", heads) end
    self:add_norm(theirs, o, ours, o.qk_norm == "all" and heads * o.head_dim or o.head_dim)
  end
  add("attn.q_norm", o.heads)
  add("attn.k_norm", o.kv_heads)
end

function List:add_latent_norms(row, layer, o)
  local function add(ours, width)
    if width then self:add(layer .. name_of(row, ours) .. ".weight", { width }, layer .. ours .. ".weight") end
  end
  add("attn.q_norm", o.q_lora_rank)
  add("attn.kv_norm", o.kv_lora_rank)
end

-- Linear attention: queries, keys, values and gates of each key head together, as are the numbers of its value heads;
-- the channels of the three convolutions below one another.
function List:add_linear_attention(layer, own, o)
  local theirs, ours, blocks = layer .. "linear_attn.", own .. "linear_attn.", { blocks = o.linear_num_key_heads }
  local heads, size = o.linear_num_value_heads, o.linear_conv_kernel_dim
  local keys, values = o.linear_num_key_heads * o.linear_key_head_dim, heads * o.linear_value_head_dim
  for _, product in ipairs({ { "wq", keys }, { "wk", keys }, { "wv", values }, { "wz", values } }) do
    self:add_rows(blocks, theirs .. "in_proj_qkvz.weight", o.dim, product[2], ours .. product[1] .. ".weight")
  end
  for _, name in ipairs({ "wb", "wa" }) do
    self:add_rows(blocks, theirs .. "in_proj_ba.weight", o.dim, heads, ours .. name .. ".weight")
  end
  for _, part in ipairs({ { "conv_q", keys }, { "conv_k", keys }, { "conv_v", values } }) do
    self:add_rows({}, theirs .. "conv1d.weight", 1, part[2], ours .. part[1])
  end
  self[#self].shape[3] = size
  self:add(theirs .. "dt_bias", { heads }, ours .. "dt_bias")
  self:add(theirs .. "A_log", { heads }, ours .. "a_log")
  self:add(theirs .. "norm.weight", { o.linear_value_head_dim }, ours .. "norm.weight")
  self:add(theirs .. "out_proj.weight", { o.dim, values }, ours .. "wo.weight")
end

function List:add_attention(row, layer, own, o)
  self:add_products(row, layer, own, attention_of(o), o)
  if o.sinks then self:add(layer .. "self_attn.sinks", { o.heads }, own .. "attn.sinks") end
  if o.qk_norm and o.qk_norm ~= "l2" then self:add_qk_norms(row, layer, own, o) end
  if o.kv_lora_rank then self:add_latent_norms(row, layer, o) end
end

function List:add_layer(row, o, i)
  local layer, ours = (row.layer or "layers.%d."):format(i), ("layers.%d."):format(i)
  local norms = row.norms or NORMS[o.norms or "before"]
  if type(norms) == "function" then norms = norms(o) end
  local function add_norm(name)
    local absent = name == "ffn_norm" and o.parallel == "one"
    if norms[name] and not absent then self:add_norm(layer .. norms[name], o, ours .. name) end
  end
  add_norm("attn_norm")
  if o.linear_num_value_heads and (not o.linear_attention or o.linear_attention[i + 1]) then
    self:add_linear_attention(layer, ours, o)
  else
    self:add_attention(row, layer, ours, o)
  end
  add_norm("attn_norm_behind")
  add_norm("ffn_norm")
  if o.experts and (not o.sparse or o.sparse[i + 1]) then
    self:add_experts(row, layer, o)
  else
    self:add_products(row, layer, ours, mlp_of(o), o)
  end
  add_norm("ffn_norm_behind")
end

---@param row moonshard.DecoderFamily
---@param o table options of the model
---@return moonshard.HuggingFaceTensor[]
function decoder_tensors.list(row, o)
  local list = setmetatable({}, List)
  list:add(name_of(row, "embed") .. ".weight", { o.vocab, o.dim }, "embed.weight")
  if o.embedding_norm then list:add_norm(name_of(row, "embed_norm"), o, "embed_norm") end
  for i = 0, o.layers - 1 do list:add_layer(row, o, i) end
  list:add_norm(name_of(row, "norm"), o, "norm")
  if not o.tied then list:add(decoder_tensors.head(row), { o.vocab, o.dim }, "head.weight") end
  if o.head_bias then
    list[#list + 1] = { name = (decoder_tensors.head(row):gsub("weight$", "bias")), shape = { o.vocab }, outside = true,
      vocabulary = true, slices = { { parameter = "head.bias" } } }
  end
  return list
end

---The full name of the head's weight.
---@param row moonshard.DecoderFamily
---@return string
function decoder_tensors.head(row) return row.head or "lm_head.weight" end

return decoder_tensors
