-- The rotary positions of a config.json: theta, and how frequencies are scaled. Version 5 of the reference library
-- stores both in rope_parameters, earlier versions in rope_theta and rope_scaling.

local errors = require("moonshard.base.error")
local json = require("moonshard.base.text.json")
local options = require("moonshard.base.checks.options")

local rope = {}

-- Types of the fields, for huggingface/fields.lua.
rope.KNOWN = {
  rope_theta = { "positive" }, rope_scaling = { "object", null = true }, rope_parameters = { "object", null = true },
  partial_rotary_factor = { only = 1, null = true,
    why = "rotary positions in a part of a head are not built for this family" },
}

-- The fields of each type: true: it must be there, or follows from others.
local FIELDS = {
  default = {},
  linear = { factor = true },
  dynamic = { factor = true },
  llama3 = { factor = true, low_freq_factor = true, high_freq_factor = true, original_max_position_embeddings = true },
  yarn = {
    factor = true, original_max_position_embeddings = true, attention_factor = false, beta_fast = false,
    beta_slow = false, mscale = false, mscale_all_dim = false, truncate = false,
  },
  longrope = {
    short_factor = true, long_factor = true, original_max_position_embeddings = true, factor = false,
    attention_factor = false,
  },
}
local COMMON = { rope_theta = true, rope_type = true, type = true, partial_rotary_factor = true }

local TYPES = { truncate = "boolean", short_factor = "table", long_factor = "table" }
-- Fields whose 0 is their absence, as the reference library reads them.
local ZERO_IS_NONE = { mscale = true, mscale_all_dim = true }
local WORDS = { number = "a number above 0", boolean = "true or false", table = "a list of numbers" }

-- Fields that any type reads, and their names sorted.
local OF_ANY, NAMES = {}, {}
for _, known in pairs(FIELDS) do
  for name in pairs(known) do
    if not OF_ANY[name] then NAMES[#NAMES + 1], OF_ANY[name] = name, true end
  end
end
table.sort(NAMES)

-- A field that does not change anything may be there with any type: those of other types are known.
local function check_names(path, where, given)
  for name in pairs(given) do
    if not (COMMON[name] or OF_ANY[name]) then
      errors.raise("MS_EUNSUPPORTED", "%s: %s: field %s is unknown, and so is its effect on positions", path, where,
        name)
    end
  end
end

-- The type of rope; the default's, if the object has none and nothing that another type reads. Old configs of longrope
-- call it su.
local function kind_of(path, where, given)
  local kind = given.rope_type
  if kind == nil or kind == json.null then kind = given.type end
  for _, name in ipairs(kind == nil and NAMES or {}) do
    if given[name] ~= nil then
      errors.invalid("%s: %s has %s, but no rope_type: give it one, such as \"linear\", \"llama3\", \"yarn\" or "
        .. "\"default\"", path, where, name)
    end
  end
  if kind == "su" then return "longrope" end
  return kind or "default"
end

local function check_kind(path, where, kind)
  if FIELDS[kind] then return end
  errors.raise("MS_EUNSUPPORTED", "%s: %s: rope type %s is not supported; supported: default, linear, llama3, yarn, "
    .. "longrope and dynamic", path, where, options.describe(kind))
end

---Raises for an object of parameters of heads that are rotated in part, in a family that does not.
---@param path string of config.json
---@param where string the object, for messages
---@param given table
function rope.check_partial(path, where, given)
  local factor = given.partial_rotary_factor
  if factor == nil or factor == json.null or factor == 1 then return end
  errors.raise("MS_EUNSUPPORTED", "%s: %s: partial_rotary_factor %s: rotary positions in a part of a head are not "
    .. "built for this family", path, where, options.describe(factor))
end

local function value_of(path, where, name, value, required)
  if not required and (value == nil or value == json.null or value == 0 and ZERO_IS_NONE[name]) then return nil end
  local wanted = TYPES[name] or "number"
  if type(value) ~= wanted or wanted == "number" and value <= 0 then
    errors.invalid("%s: %s: %s must be %s, not %s", path, where, name, WORDS[wanted], options.describe(value))
  end
  return value
end

---Theta and the scaling of one object of parameters.
---@param path string of config.json
---@param where string the object, for messages: "rope_scaling"
---@param given table
---@param theta number if the object has none
---@param positions integer the original length, if nothing says it
---@param original integer? original_max_position_embeddings outside of the object
---@return number theta
---@return moonshard.RopeScaling|false
function rope.parameters(path, where, given, theta, positions, original)
  theta = given.rope_theta or theta
  if type(theta) ~= "number" or theta <= 0 then
    errors.invalid("%s: %s: rope_theta must be a number above 0, not %s", path, where, options.describe(theta))
  end
  local kind = kind_of(path, where, given)
  check_kind(path, where, kind)
  check_names(path, where, given)
  if kind == "default" then return theta, false end
  local inside = given.original_max_position_embeddings
  original = kind == "longrope" and original or nil -- other types do not read it outside
  if original and type(inside) == "number" and inside ~= original then
    errors.invalid("%s: original_max_position_embeddings is %d, and %s in %s: keep one of them", path, original,
      options.describe(inside), where)
  end
  local scaling = { type = kind ~= "llama3" and kind or nil }
  for _, name in ipairs(NAMES) do
    local required, value = FIELDS[kind][name], given[name]
    if name == "original_max_position_embeddings" and (value == nil or value == json.null) then
      value = original or positions
    end
    if required ~= nil then scaling[name] = value_of(path, where, name, value, required) end
  end
  return theta, scaling
end

---Theta, the scaling, and what share of a head is rotated, of a model whose layers all have the same.
---@param path string of config.json
---@param values table read with rope.KNOWN
---@param row moonshard.DecoderFamily
---@return number theta
---@return moonshard.RopeScaling|false
---@return number share
function rope.read(path, values, row)
  if values.rope_parameters and values.rope_scaling then
    errors.invalid("%s: rope_parameters and rope_scaling say the same thing: keep one of them", path)
  end
  local where = values.rope_parameters and "rope_parameters" or "rope_scaling"
  local given = values[where] or {}
  if not row.partial then rope.check_partial(path, where, given) end
  local theta, scaling = rope.parameters(path, where, given, values[row.theta_field or "rope_theta"] or row.theta
    or 10000, row.original or values.max_position_embeddings, values.original_max_position_embeddings)
  local share = given.partial_rotary_factor
  if share == nil or share == json.null then share = row.partial and values[row.partial] or 1 end
  if type(share) ~= "number" or share <= 0 or share > 1 then
    errors.invalid("%s: %s: %s must be a number above 0 and at most 1, not %s", path, where,
      row.partial or "partial_rotary_factor", options.describe(share))
  end
  return theta, scaling, share
end

---The object rope_scaling for one of our models; nil without a scaling.
---@param scaling moonshard.RopeScaling|false
---@return table?
function rope.config(scaling)
  if not scaling then return nil end
  local object = { rope_type = scaling.type or "llama3" }
  for name in pairs(FIELDS[object.rope_type]) do object[name] = scaling[name] end
  return object
end

return rope
