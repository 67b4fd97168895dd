-- Which layers of a decoder attend in a sliding window, as config.json says: layer_types, or a pattern by number.

local errors = require("moonshard.base.error")
local options = require("moonshard.base.checks.options")

local layer_kinds = {}

local KINDS = { full_attention = false, sliding_attention = true }

---Which layers slide: as layer_types says, or by number.
---@param path string of config.json
---@param values table with layer_types or nil
---@param layers integer
---@param by_number fun(i: integer): boolean
---@return boolean[]
function layer_kinds.slides(path, values, layers, by_number)
  local types, slides = values.layer_types, {}
  for i = 1, layers do
    if types and KINDS[types[i]] == nil then
      errors.raise("MS_EUNSUPPORTED", "%s: layer_types of layer %d is %s; supported: full_attention and "
        .. "sliding_attention, for each of the %d layers", path, i, options.describe(types[i]), layers)
    end
    if types then slides[i] = KINDS[types[i]] else slides[i] = by_number(i) end
  end
  return slides
end

---@param list boolean[]
---@return boolean
function layer_kinds.any(list)
  for _, value in ipairs(list) do
    if value then return true end
  end
  return false
end

---Sets the window of an options' layers. One that no layer has is none.
---@param o table
---@param window integer|false|nil
---@param slides boolean[]
function layer_kinds.set_window(o, window, slides)
  if window and layer_kinds.any(slides) then o.window, o.slides = window, slides end
end

---The list layer_types of an options' layers.
---@param o table
---@return string[]
function layer_kinds.types(o)
  local list = {}
  for i = 1, o.layers do
    local slides = o.window and (not o.slides or o.slides[i])
    list[i] = slides and "sliding_attention" or "full_attention"
  end
  return list
end

return layer_kinds
