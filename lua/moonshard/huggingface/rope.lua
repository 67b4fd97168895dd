-- The rotary positions of a config.json: theta, and how frequencies are scaled. Version 5 of the reference library
-- stores both in rope_parameters, earlier versions in rope_theta and rope_scaling.

local errors = require("moonshard.base.error")
local json = require("moonshard.base.text.json")
local options = require("moonshard.base.checks.options")

local rope = {}

-- Types of the fields, for huggingface/fields.lua.
rope.KNOWN = {
  rope_theta = { "positive" }, rope_scaling = { "object", null = true }, rope_parameters = { "object", null = true },
  partial_rotary_factor = { only = 1, null = true, why = "rotary positions in a part of a head are not built" },
}

local LLAMA3 = { "factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings" }
local FIELDS = {
  default = {}, linear = { "factor" }, llama3 = LLAMA3,
}
local COMMON = { rope_theta = true, rope_type = true, type = true, partial_rotary_factor = true }

-- A field that does not change anything may be there with any type: those of llama3 are known for all.
local function check_names(path, where, given)
  local known = {}
  for _, name in ipairs(LLAMA3) do known[name] = true end
  for name in pairs(given) do
    if not (COMMON[name] or known[name]) then
      errors.raise("MS_EUNSUPPORTED", "%s: %s: field %s is unknown, and so is its effect on positions", path, where,
        name)
    end
  end
end

-- The type of rope; the default's, if the object has none and nothing that another type reads.
local function kind_of(path, where, given)
  local kind = given.rope_type or given.type
  for _, name in ipairs(kind == nil and LLAMA3 or {}) do
    if given[name] ~= nil then
      errors.invalid("%s: %s has %s, but no rope_type: give it one, \"linear\", \"llama3\" or \"default\"", path, where,
        name)
    end
  end
  return kind or "default"
end

local function check_kind(path, where, kind)
  if FIELDS[kind] then return end
  errors.raise("MS_EUNSUPPORTED", "%s: %s: rope type %s is not supported; supported: default, linear and llama3", path,
    where, options.describe(kind))
end

local function check_partial(path, where, given)
  local factor = given.partial_rotary_factor
  if factor == nil or factor == json.null or factor == 1 then return end
  errors.raise("MS_EUNSUPPORTED", "%s: %s: partial_rotary_factor %s: rotary positions in a part of a head are not "
    .. "built", path, where, options.describe(factor))
end

---Theta and the scaling of one object of parameters.
---@param path string of config.json
---@param where string the object, for messages: "rope_scaling"
---@param given table
---@param theta number if the object has none
---@param positions integer max_position_embeddings
---@return number theta
---@return moonshard.RopeScaling|false
function rope.parameters(path, where, given, theta, positions)
  theta = given.rope_theta or theta
  if type(theta) ~= "number" or theta <= 0 then
    errors.invalid("%s: %s: rope_theta must be a number above 0, not %s", path, where, options.describe(theta))
  end
  local kind = kind_of(path, where, given)
  check_kind(path, where, kind)
  check_partial(path, where, given)
  check_names(path, where, given)
  if kind == "default" then return theta, false end
  local scaling = { type = kind == "linear" and kind or nil }
  for _, name in ipairs(FIELDS[kind]) do
    scaling[name] = given[name]
    if name == "original_max_position_embeddings" then scaling[name] = scaling[name] or positions end
    if type(scaling[name]) ~= "number" or scaling[name] <= 0 then
      errors.invalid("%s: %s: %s must be a number above 0, not %s", path, where, name, options.describe(scaling[name]))
    end
  end
  return theta, scaling
end

---Theta and the scaling of a model whose layers all have the same.
---@param path string of config.json
---@param values table read with rope.KNOWN
---@param theta number default
---@return number theta
---@return moonshard.RopeScaling|false
function rope.read(path, values, theta)
  if values.rope_parameters and values.rope_scaling then
    errors.invalid("%s: rope_parameters and rope_scaling say the same thing: keep one of them", path)
  end
  local where = values.rope_parameters and "rope_parameters" or "rope_scaling"
  return rope.parameters(path, where, values[where] or {}, values.rope_theta or theta, values.max_position_embeddings)
end

---The object rope_scaling for one of our models; nil without a scaling.
---@param scaling moonshard.RopeScaling|false
---@return table?
function rope.config(scaling)
  if not scaling then return nil end
  local object = { rope_type = scaling.type or "llama3" }
  for _, name in ipairs(FIELDS[object.rope_type]) do object[name] = scaling[name] end
  return object
end

return rope
