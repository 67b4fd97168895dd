-- The policy `placements`: how the ranks of a dimension of the mesh divide a parameter, and with it the work of the
-- layer that reads it. Rules give a style for each dimension, or the axis in plain words:
--
--   placements = {
--     { re[[\.fc1\.]], { tensor = "colwise" } },
--     { re[[\.wk\.]], { tensor = "colwise", kv_heads = 2 } },
--     { re[[\.(wo|fc2)\.]], { tensor = "rowwise" } },
--     { "embed", { tensor = ms.Shard(0) } },
--   }
--
-- From these the engine finds where every other value lies (runtime/graph/partition/partition.h).

local errors = require("moonshard.base.error")
local nearest = require("moonshard.base.names.nearest")
local options = require("moonshard.base.checks.options")
local re = require("moonshard.base.re")
local roles = require("moonshard.shard.roles")

local placements = {}

---@class moonshard.Placement
---@field axis integer? the axis of the parameter that the ranks divide, from 0; nil: each has all of it
---@field splits boolean? whether, with sequence_parallel, what meets the parameter is divided
---@field style string as written
---@field shared integer? number of heads of keys, if ranks share them, so that each rank has all of the parameter

---@class moonshard.PlacementStyle
---@field weight integer? the divided axis of a parameter of two or more axes
---@field bias integer? that of a parameter of one axis
---@field splits boolean?

-- Weights are [outputs, inputs], as in PyTorch. A bias that is added to a sum stays whole: it counts once.
---@type table<string, moonshard.PlacementStyle>
local STYLES = {
  colwise = { weight = 0, bias = 0 },
  rowwise = { weight = 1 },
  vocab = { weight = 0, bias = 0 },
  sequence = { splits = true },
  replicate = {},
}

-- ms.Shard(0) and ms.Replicate()
local Plain = {}
Plain.__index = Plain
function Plain:__tostring() return self.axis and ("Shard(%d)"):format(self.axis) or "Replicate()" end

---Divides a parameter along an axis, in rules of `placements`; in x:redistribute, x:to_local and x:from_local, a value.
---@param axis integer from 0, or from the end if negative
---@return table
function placements.Shard(axis)
  if type(axis) ~= "number" or axis % 1 ~= 0 then
    errors.invalid("ms.Shard: the axis must be a whole number, not %s", options.describe(axis))
  end
  return setmetatable({ axis = axis }, Plain)
end

---Leaves a parameter whole, in rules of `placements`.
---@return table
function placements.Replicate() return setmetatable({}, Plain) end

-- The dimensions that can divide parameters.
local DIMENSIONS = { tensor = true }

local function read_style(rule, dimension, value)
  if getmetatable(value) == Plain then return { axis = value.axis, style = tostring(value) } end
  local style = type(value) == "string" and STYLES[value]
  if not style then
    local short = type(value) == "string" and value:lower():gsub("_?parallel$", "") -- ColwiseParallel
    errors.invalid("placements: %s: %s must be %s, ms.Shard(axis) or ms.Replicate(), not %s%s", rule, dimension,
      '"colwise", "rowwise", "vocab", "sequence", "replicate"', options.describe(value),
      short and ": " .. nearest.advice(short, STYLES) or "")
  end
  return { weight = style.weight, bias = style.bias, splits = style.splits, style = value }
end

-- The number of heads along the divided axis, which are not cut; kv_heads: ranks can share them.
local HEADS = { heads = true, kv_heads = true }
local KEYS = { tensor = true, heads = true, kv_heads = true }

-- What to write instead of a key that a rule's value cannot have.
local function key_advice(rule, name)
  if rule == "the value" then return 'rules are a list, as in { { "fc1", { tensor = "colwise" } } }' end
  if type(name) == "number" then return 'name the dimension, as in { tensor = "colwise" }' end
  return nearest.advice(name, KEYS)
end

-- Other dimensions divide nothing; of what others build, say what there is instead.
local function refuse_dimension(rule, name)
  if name == "expert" or name == "ep" then
    errors.raise("MS_EUNSUPPORTED", "placements: %s: %s: ranks with experts of their own (expert parallelism) are not "
      .. "built: `shard` divides the memory of experts, and tensor the work of each, with ms.Shard(1) of experts.w1 "
      .. "and w3 and ms.Shard(2) of experts.w2", rule, options.describe(name))
  end
  errors.raise("MS_ENAME", "placements: %s: %s divides no parameters: only the mesh dimension tensor does; %s", rule,
    options.describe(name), key_advice(rule, name))
end

local function read_heads(rule, name, value)
  if type(value) ~= "number" or value < 1 or value % 1 ~= 0 then
    errors.invalid("placements: %s: %s must be a whole number of at least 1, not %s", rule, name,
      options.describe(value))
  end
  return value
end

---Checks the value of a rule.
---@param value any { tensor = style, heads = number or kv_heads = number }
---@param rule string for messages
---@return table
function placements.read(value, rule)
  if type(value) ~= "table" or getmetatable(value) == Plain then
    errors.invalid("placements: %s must have a table of styles by dimension, as in { tensor = \"colwise\" }, not %s",
      rule, type(value) == "table" and tostring(value) or options.describe(value))
  end
  local read, heads = {}, {}
  for name, given in pairs(value) do
    if HEADS[name] then
      heads[name] = read_heads(rule, name, given)
    elseif DIMENSIONS[name] then
      read[name] = read_style(rule, name, given)
    else
      refuse_dimension(rule, name)
    end
  end
  for _, style in pairs(read) do style.heads, style.kv_heads = heads.heads, heads.kv_heads end
  return read
end

-- Whether the ranks divide the heads along an axis of a parameter; if not, they share them.
local function divides_heads(param, axis, given, ranks)
  local heads, size = given.kv_heads or given.heads, param.shape[axis + 1]
  if heads and size % heads ~= 0 then
    errors.raise("MS_ESHAPE", "placements: %s has %d elements along axis %d, which cannot be %.0f heads of equal size",
      param.fqn, size, axis, heads)
  end
  if not heads or heads % ranks == 0 then return true end
  if given.kv_heads and ranks % heads == 0 then return false end
  local counts = {}
  for n = 1, heads do
    if heads % n == 0 then counts[#counts + 1] = n end
  end
  local last = table.remove(counts)
  errors.raise("MS_ESHAPE", "placements: %s: its %d heads%s cannot be divided over tensor (%d ranks): %s%s can%s",
    param.fqn, heads, given.kv_heads and " of keys or values" or "", ranks,
    #counts > 0 and table.concat(counts, ", ") .. " or " or "", last == 1 and "1 rank" or last .. " ranks",
    given.kv_heads and (", and so can multiples of %d"):format(heads) or "")
end

-- The axis along which a style divides a parameter. For an adapter a style means what it means for the layer: the
-- outputs of a layer that is divided by columns are those of B, and the inputs of one divided by rows those of A. The
-- other factor is whole: it is small, and its other axis is the adapter's rank. A scalar is whole, too.
-- Rows that train in place of some of a table's are whole, too: they are a few, and not those of a rank's part.
local DIVIDED = { A = 1, B = 0, tokens = 1 } -- the only axis that is divided, by factor

local function axis_of_style(param, given)
  local only = DIVIDED[param.parameter.factor]
  if given.axis and param.parameter.factor ~= "tokens" then return given.axis end
  if #param.shape == 0 then return nil end
  local axis = given.axis or given.weight
  if #param.shape == 1 then axis = given.bias end
  if only and axis ~= only then return nil end
  return axis
end

local function check_size(param, axis, ranks, style)
  local size = param.shape[axis + 1]
  if size % ranks == 0 then return end
  local below = size - size % ranks
  errors.raise("MS_ESHAPE", "placements: parameter '%s' [%s]: axis %d cannot be divided over tensor (%d ranks): its "
    .. 'size must be a multiple of %d, such as %s%d: change it%s, or put { "%s", { tensor = "replicate" } } before the '
    .. "other rules", param.fqn, table.concat(param.shape, ","), axis, ranks, ranks,
    below > 0 and ("%d and "):format(below) or "", below + ranks,
    style == "vocab" and (", that of a vocabulary by pad_vocab_to_multiple_of = %d"):format(ranks) or "",
    param.fqn:match("^(.*)%.[^.]+$") or param.fqn)
end

local function ranks_of(sharding) return roles.ranks(sharding, "tensor") end

---Stores the decision for a parameter.
---@param param moonshard.ShardedParameter
---@param value table? of placements.read
---@param sharding moonshard.Sharding
function placements.store(param, value, sharding)
  local given = value and value.tensor
  param.placement = nil
  if not given then return end
  local axis = axis_of_style(param, given)
  if axis and (axis >= #param.shape or axis < -#param.shape) then
    errors.invalid("placements: %s: %s has shape [%s] and no axis %d", given.style, param.fqn,
      table.concat(param.shape, ","), axis)
  end
  axis = axis and axis % #param.shape
  local shared = axis and not divides_heads(param, axis, given, ranks_of(sharding)) and given.kv_heads or nil
  if shared then axis = nil end
  if axis then check_size(param, axis, ranks_of(sharding), given.style) end
  param.placement = { axis = axis, splits = given.splits, style = given.style, shared = shared }
end

---A warning if the mesh has a tensor dimension, and no rule divides anything over it.
---@param sharding moonshard.Sharding
---@return string?
function placements.unused(sharding)
  local ranks = ranks_of(sharding)
  if ranks == 1 then return nil end
  for _, param in ipairs(sharding.params) do
    if placements.divides(sharding, param) then return nil end
  end
  return ("placements: no parameter is divided, so the %d ranks along tensor of mesh %s compute the same: "
    .. "ms.rules.tensor_parallel(model) has rules for the models of ms.models"):format(ranks, sharding.mesh:label())
end

---Whether the ranks of the tensor dimension of a mesh divide a parameter.
---@param sharding moonshard.Sharding
---@param param moonshard.ShardedParameter
---@return boolean
function placements.divides(sharding, param)
  return ranks_of(sharding) > 1 and param.placement ~= nil and param.placement.axis ~= nil
end

---The shape of a rank's part of a parameter, and what it is a part of, for people; nil if it has the whole.
---@param sharding moonshard.Sharding
---@param param moonshard.ShardedParameter
---@return integer[] shape
---@return string? part "part 1 of 2 along axis 0"
function placements.part(sharding, param)
  local shape = { unpack(param.shape) }
  if not placements.divides(sharding, param) then return shape end
  local axis, ranks = param.placement.axis, ranks_of(sharding)
  shape[axis + 1] = shape[axis + 1] / ranks
  return shape, ("part %d of %d along axis %d"):format(sharding.mesh:get_local_rank(sharding.tensor_dim), ranks, axis)
end

---For people: "tensor: colwise, axis 0".
---@param param moonshard.ShardedParameter
---@return string
function placements.text(_, param)
  local placement = param.placement
  if not placement then return "default: whole" end
  if placement.axis then return ("tensor %s: axis %d"):format(placement.style, placement.axis) end
  if placement.shared then
    return ("tensor %s: whole, ranks share each of %d heads"):format(placement.style, placement.shared)
  end
  return ("tensor %s: whole"):format(placement.style)
end

---In JSON: { tensor = { style, axis } }.
---@param param moonshard.ShardedParameter
---@return table?
function placements.json(_, param)
  local placement = param.placement
  return placement and { tensor = { style = placement.style, axis = placement.axis } } or nil
end

-- ---- presets ----------------------------------------------------------------------------------------------------

---@param model moonshard.Module
---@return table rules of `placements` for a model of ms.models: column-wise into each branch, row-wise out of
---  it, the table of tokens and the head by vocabulary
function placements.tensor_parallel(model)
  if not (type(model) == "table" and rawget(model, "config") and rawget(model, "layers")) then
    errors.invalid("ms.rules.tensor_parallel: give a model of ms.models, not %s; for a module of your own, "
      .. "write rules of placements", options.describe(model))
  end
  local heads, mixed, latent = model.config.heads, model.config.experts ~= nil, model.config.kv_lora_rank ~= nil
  local expert_rules = { -- `sparse` may leave no layer with experts
    { re[[experts\.(w1|w3)(_bias)?$]], { tensor = placements.Shard(1) }, optional = true },
    { re[[experts\.w13(_bias)?$]], { tensor = placements.Shard(1), heads = model.config.expert_ffn }, optional = true },
    { re[[experts\.w2_bias$]], { tensor = "replicate" }, optional = true },
    { re[[experts\.w2$]], { tensor = placements.Shard(2) }, optional = true },
    { re[[\.(router|shared_gate)\.|router_bias$]], { tensor = "replicate" }, optional = true },
  }
  local latent_rules = { -- latent vectors, which all heads read, are whole
    { re[[\.(wq_b|wkv_b)\.]], { tensor = "colwise", heads = heads } },
    { re[[\.(wq_a|wkv_a|kv_norm)\.]], { tensor = "replicate" } },
  }
  local linear = model.config.linear_num_value_heads ~= nil
  local linear_rules = { -- heads of linear attention, in the layers that have it
    { re[[linear_attn\.(wq\.|wk\.|conv_q|conv_k)]], { tensor = "colwise", heads = model.config.linear_num_key_heads },
      optional = true },
    { re[[linear_attn\.(wv\.|wz\.|wb\.|wa\.|conv_v|a_log|dt_bias)]],
      { tensor = "colwise", heads = model.config.linear_num_value_heads }, optional = true },
    { re[[linear_attn\.norm\.]], { tensor = "replicate" }, optional = true },
  }
  local rules = {
    { re[[\.attn\.wq\.]], { tensor = "colwise", heads = heads }, optional = latent or linear },
    { re[[\.attn\.(wk|wv)\.]], { tensor = "colwise", kv_heads = model.config.kv_heads or heads },
      optional = latent or linear },
    { re[[\.wg\.]], { tensor = "colwise", heads = heads }, optional = true },
    { re[[\.sinks$]], { tensor = "colwise", heads = heads }, optional = true },
    { re[[\.(fc1|w1|w3)\.]], { tensor = "colwise" }, optional = mixed },
    { re[[\.(wo|fc2|w2)\.]], { tensor = "rowwise" } },
    { re[[^(embed|head)\.]], { tensor = "vocab" } },
    { re[[\.(q_norm|k_norm)\.]], { tensor = "replicate" }, optional = true },
    { re[[norm]], { tensor = "sequence" } },
  }
  for _, rule in ipairs(mixed and expert_rules or {}) do rules[#rules + 1] = rule end
  for i, rule in ipairs(latent and latent_rules or {}) do table.insert(rules, i, rule) end
  for i, rule in ipairs(linear and linear_rules or {}) do table.insert(rules, i, rule) end
  return rules
end

return placements
