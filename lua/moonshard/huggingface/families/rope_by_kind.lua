-- The rotary positions of families whose layers that slide have a theta of their own, and no scaling: version 5 of the
-- reference library stores those of each kind in rope_parameters.full_attention and .sliding_attention.

local errors = require("moonshard.base.error")
local rope = require("moonshard.huggingface.rope")

local rope_by_kind = {}

-- Files for both versions say it twice.
local function is_same(scaling, parameters)
  for name, value in pairs(scaling) do
    if parameters[name] ~= value then return false end
  end
  for name in pairs(parameters) do
    if name ~= "rope_theta" and scaling[name] == nil then return false end
  end
  return true
end

---Sets theta and the scaling of an options' layers, and the theta of those that slide.
---@param path string of config.json
---@param values table read with rope.KNOWN
---@param o table
---@param theta number if config.json has none
---@param window_theta number that of layers that slide, if config.json has none
function rope_by_kind.read(path, values, o, theta, window_theta)
  local both = values.rope_parameters or {}
  if values.rope_scaling and both.full_attention and not is_same(values.rope_scaling, both.full_attention) then
    errors.invalid("%s: rope_parameters and rope_scaling say the same thing, and differ: keep one of them", path)
  end
  for name in pairs(both) do
    if name ~= "full_attention" and name ~= "sliding_attention" then
      errors.raise("MS_EUNSUPPORTED", "%s: rope_parameters has %s, and must have full_attention and sliding_attention "
        .. "alone", path, tostring(name))
    end
  end
  if values.rope_parameters and not values.rope_parameters.full_attention then
    errors.raise("MS_EUNSUPPORTED", "%s: rope_parameters must have full_attention, and sliding_attention for layers "
      .. "that slide", path)
  end
  local positions = o.seq
  local full = both.full_attention or values.rope_scaling or {}
  local where = both.full_attention and "rope_parameters.full_attention" or "rope_scaling"
  rope.check_partial(path, where, full)
  rope.check_partial(path, "rope_parameters.sliding_attention", both.sliding_attention or {})
  o.rope_theta, o.rope_scaling = rope.parameters(path, where, full, values.rope_theta or theta, positions)
  local of_window, scaling = rope.parameters(path, "rope_parameters.sliding_attention", both.sliding_attention or {},
    window_theta, positions)
  if scaling then
    errors.raise("MS_EUNSUPPORTED", "%s: rope_parameters.sliding_attention: scaled frequencies of layers that slide "
      .. "are not built", path)
  end
  if o.window then o.window_rope_theta = of_window end
end

---Adds rope_parameters to the config of an options' layers, which version 5 of the reference library reads rightly;
---version 4 reads rope_theta and rope_scaling, which are there.
---@param o table
---@param config table
function rope_by_kind.write(o, config)
  local full = { rope_type = "default" }
  for name, value in pairs(config.rope_scaling or {}) do full[name] = value end
  full.rope_theta = o.rope_theta
  local of_window = { rope_type = "default", rope_theta = o.window_rope_theta or o.rope_theta }
  config.rope_parameters = { full_attention = full, sliding_attention = of_window }
end

return rope_by_kind
