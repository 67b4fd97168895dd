-- Random meshes whose ranks divide layers and samples, and random ways in which they do: styles by parameter, hints,
-- and the rules of the presets.

local layers = require("fuzz.layers")

local placements = {}

-- Copies, shards, ranks of context and of tensor; 0: the mesh has no such dimension.
local MESHES = {
  { 1, 1, 0, 2 }, { 1, 1, 0, 2 }, { 1, 1, 0, 3 }, { 1, 1, 0, 4 }, { 1, 2, 0, 2 }, { 1, 2, 0, 2 }, { 2, 1, 0, 2 },
  { 1, 1, 2, 0 }, { 1, 2, 2, 0 }, { 2, 1, 2, 0 }, { 1, 1, 3, 0 }, { 1, 1, 4, 0 }, { 1, 3, 0, 2 }, { 1, 1, 2, 1 },
  { 1, 1, 2, 2 }, { 1, 1, 2, 2 }, { 1, 1, 2, 3 }, { 1, 2, 2, 2 }, { 2, 2, 0, 2 }, { 2, 1, 2, 2 }, { 1, 2, 1, 2 },
}

---Gives a case a mesh with a dimension of context, tensor, or both.
function placements.draw_mesh(d, self)
  local mesh = d:one_of(MESHES)
  self.replicate, self.shard = mesh[1], mesh[2]
  self.context, self.tensor = mesh[3] > 0 and mesh[3] or nil, mesh[4] > 0 and mesh[4] or nil
end

-- ---- positions --------------------------------------------------------------------------------------------------

---The positions of samples: the ranks of context divide them in pairs of parts.
function placements.draw_positions(d, self)
  if self.context then
    if d:chance(0.05) then return d:chance(0.5) and d:integer(1, 8) or nil end
    return 2 * self.context * d:integer(1, 2)
  end
  if d:chance(self.tensor and 0.7 or 0.35) then return d:integer(1, self.tensor and 8 or 4) end
end

-- ---- styles -----------------------------------------------------------------------------------------------------

local STYLES = { "colwise", "rowwise", "vocab", "sequence", "replicate", "Shard(0)", "Shard(1)" }

-- An axis is one of the weight: a bias may have fewer.
local function add(self, name, style, more)
  local axis = style:find("^Shard")
  self.placements[#self.placements + 1] = { name = axis and name .. ".weight" or name,
    style = (axis and "ms." .. style or ("%q"):format(style)) .. (more or "") }
end

local function sorted_names(styles)
  local names = {}
  for name in pairs(styles) do names[#names + 1] = name end
  table.sort(names)
  return names
end

-- The style that a parameter usually has; keys whose heads the ranks cannot divide stay whole.
local function usual(d, layer, name, styles, ranks)
  if (name == "wk" or name == "wv") and layer.keys % ranks > 0 and d:chance(0.5) then return "replicate" end
  return d:one_of(styles)
end

local HEADS = { wq = "heads", wk = "kv_heads", wv = "kv_heads" }

-- How many heads a parameter has, where its rule is to say so.
local function heads_of(layer, name)
  local key = HEADS[name]
  return key and (", %s = %d"):format(key, key == "heads" and layer.heads or layer.keys) or ""
end

local function draw_styles(d, self)
  for i, layer in ipairs(self.layers) do
    local how, styles = d:integer(1, 20), layers.styles(layer)
    for _, name in ipairs(how > 4 and sorted_names(styles) or {}) do
      local style = how > 7 and usual(d, layer, name, styles[name], self.tensor) or d:one_of(STYLES)
      local fits = name ~= "" or style ~= "Shard(1)" -- a norm has one axis
      if fits and (how > 7 or d:chance(0.5)) then
        add(self, ("layers.%d%s%s"):format(i - 1, name == "" and "" or ".", name), style,
          style == "colwise" and heads_of(layer, name) or nil)
      end
    end
  end
  local embed = self.seq and { "vocab", "vocab", "Shard(1)", "replicate" } or { "colwise", "rowwise", "replicate" }
  if d:chance(0.7) then add(self, "embed", d:one_of(embed)) end
  if d:chance(0.7) then add(self, "head", d:one_of { "vocab", "colwise", "rowwise", "replicate" }) end
end

local HINTS = { [["replicate"]], "ms.Shard(0)", "ms.Shard(1)", "ms.Shard(2)" }

-- Axes that the ranks do not divide are among them, but for the batch, which they seldom do.
local function draw_hints(d, self)
  for _, layer in ipairs(self.layers) do
    if d:chance(0.1) then
      local dimension = d:one_of { "tensor", "tensor", "context" }
      local divides_rows = self.rows % ((self[dimension] or 1) * (dimension == "context" and 2 or 1)) == 0
      local least = divides_rows and 2 or 3
      layer.hint = ("{ %s = %s }"):format(dimension, d:chance(0.5) and HINTS[1]
        or HINTS[d:integer(least, self.seq and 4 or 3)])
    end
  end
end

---Gives a case with a dimension of context or tensor its hints, and one of tensor its styles.
function placements.draw(d, self)
  draw_hints(d, self)
  if not self.tensor then return end
  if d:chance(0.5) then self.sharding.sequence_parallel = "true" end
  self.placements = {}
  if self.preset then
    if d:chance(0.9) then self.sharding.placements = "ms.rules.tensor_parallel(model)" end
  else
    draw_styles(d, self)
  end
end

---Ends a case with a layer whose parameter has many axes, any of which a tensor dimension divides.
function placements.draw_shaped(d, self)
  local layer, axis = layers.shaped(d, self.tensor or 1)
  self.layers[#self.layers + 1] = layer
  if not self.placements or self.sharding.placements or d:chance(0.1) then return end
  add(self, ("layers.%d.p"):format(#self.layers - 1), ("Shard(%d)"):format(axis))
  local rule = self.placements[#self.placements]
  rule.name = rule.name:gsub("%.weight$", "")
end

---The rules of a case, as a recipe has them; nil: none.
---@return string?
function placements.text(self)
  local rules = {}
  for i, rule in ipairs(self.placements or {}) do
    rules[i] = ("    { %q, { tensor = %s }, optional = true },"):format(rule.name, rule.style)
  end
  return #rules > 0 and "{\n" .. table.concat(rules, "\n") .. "\n  }" or nil
end

-- ---- presets ----------------------------------------------------------------------------------------------------

local PRESETS = {
  gpt2 = function(d, o)
    o.heads = o.divisor * d:integer(1, 2)
    if d:chance(0.3) then o.dropout = 0.2 end
  end,
  llama = function(d, o)
    o.heads = o.divisor * d:integer(1, 2)
    o.kv_heads = d:one_of { o.heads, o.divisor, 1 }
    o.ffn = layers.width(d, o.divisor)
  end,
}

---Makes the model of a case a GPT-2 or a Llama.
function placements.draw_preset(d, self)
  local kind = d:one_of { "gpt2", "llama" }
  local o = { divisor = self.tensor or 1 }
  PRESETS[kind](d, o)
  o.divisor, o.dim, o.layers, o.vocab, o.seq = nil, o.heads * 4, #self.layers, self.inputs, self.seq
  if d:chance(0.3) then o.tied = true end
  if d:chance(0.3) then o.pad_vocab_to_multiple_of = d:one_of { 4, 6, 8 } end
  if d:chance(0.2) then o.document_start = 1 end
  self.preset = { kind = kind, options = o }
end

---What makes the model of such a case.
---@return string
function placements.preset_text(self)
  local names, parts = sorted_names(self.preset.options), {}
  for i, name in ipairs(names) do
    local value = self.preset.options[name]
    if name == "layers" then value = #self.layers elseif name == "seq" then value = self.seq end
    parts[i] = ("%s = %s"):format(name, tostring(value))
  end
  return ("ms.models.%s { %s }"):format(self.preset.kind, table.concat(parts, ", "))
end

return placements
