-- Small random models, and random ways to shard, divide and train them. A case is plain data: shapes and layers, and
-- options of ms.fully_shard and ms.trainer as Lua text. A default is left out, so a case without an entry is a simpler
-- case.

local draw = require("fuzz.draw")
local layers = require("fuzz.layers")
local low_precision = require("fuzz.low_precision")
local placements = require("fuzz.placements")
local updates = require("fuzz.updates")

local case = {}

-- By ranks: copies and shards.
local MESHES = {
  { 1, 1 }, { 1, 2 }, { 1, 2 }, { 2, 1 }, { 1, 3 }, { 3, 1 },
  { 1, 4 }, { 1, 4 }, { 2, 2 }, { 2, 2 }, { 2, 2 }, { 4, 1 },
}
-- Two blocks that share a weight.
local function draw_tie(d, list)
  local blocks = {}
  for i, layer in ipairs(list) do
    if layer.kind == "block" then blocks[#blocks + 1] = i end
  end
  if #blocks < 2 or not d:chance(0.35) then return nil end
  list[blocks[2]].inner = list[blocks[1]].inner
  return { blocks[1], blocks[2] }
end

-- ---- units ------------------------------------------------------------------------------------------------------

-- Names of units, as the options below may speak of them, and the option's text. What shares a weight is one unit or
-- none.
local function draw_units(d, self)
  local how = d:integer(1, 10)
  if how <= 2 then return {}, nil end
  local names, groups, grouped = {}, {}, {}
  if self.tie then
    local a, b = ("layers.%d"):format(self.tie[1] - 1), ("layers.%d"):format(self.tie[2] - 1)
    grouped[a], grouped[b] = true, true
    if d:chance(0.7) then groups[1], names[1] = ("{ %q, %q }"):format(a, b), a end
  elseif how <= 5 then
    for i = 1, #self.layers do names[i] = ("layers.%d"):format(i - 1) end
    local inner = d:chance(0.2) and [=[, { re[[^layers\.\d+\.fc2$]], true, optional = true }]=] or ""
    return names, [=[{ re[[^layers\.\d+$]]]=] .. inner .. " }"
  end
  for i = 1, #self.layers do
    local name = ("layers.%d"):format(i - 1)
    if not grouped[name] and d:chance(0.6) then groups[#groups + 1], names[#names + 1] = ("%q"):format(name), name end
  end
  if self.tied_head then
    if d:chance(0.5) then groups[#groups + 1], names[#names + 1] = [[{ "embed", "head" }]], "embed" end
  else
    local tied = self.preset and self.preset.options.tied -- then the head has nothing of its own
    for _, name in ipairs({ "embed", not tied and "head" or nil }) do
      if d:chance(0.2) then groups[#groups + 1], names[#names + 1] = ("%q"):format(name), name end
    end
  end
  return names, #groups > 0 and "{ " .. table.concat(groups, ", ") .. " }" or nil
end

-- ---- rules ------------------------------------------------------------------------------------------------------

-- One value for all units, or rules that give some units a value of their own.
local function by_rule(d, names, values)
  if #names == 0 or d:chance(0.4) then return d:one_of(values) end
  local rules = {}
  for _, name in ipairs(names) do
    if d:chance(0.5) then rules[#rules + 1] = ("{ %q, %s, optional = true }"):format(name, d:one_of(values)) end
  end
  rules[#rules + 1] = ("{ re%q, %s, optional = true }"):format(".", d:one_of(values))
  return "{ " .. table.concat(rules, ", ") .. " }"
end

local function draw_reshard(d, self, names)
  local values = { "true", "true", "false", [["default"]], [["always"]], [["never"]] }
  local shards = self.shard * (self.context or 1)
  for size = 1, shards do
    if shards % size == 0 then values[#values + 1] = tostring(size) end
  end
  return by_rule(d, names, values)
end

local function draw_precision(d, names)
  local bf16 = {
    [[{ param_dtype = "bf16", reduce_dtype = "f32" }]], [[{ param_dtype = "bf16", reduce_dtype = "bf16" }]],
  }
  if #names == 0 or d:chance(0.5) then return d:one_of(bf16) end
  return by_rule(d, names, { bf16[1], bf16[2], [[{ param_dtype = "f32" }]] })
end

-- Layers of some kinds may be without parameters where they stand, and then no unit bears their name.
local function has_parameters(self, name)
  local layer = self.layers[(tonumber(name:match("^layers%.(%d+)$")) or -1) + 1]
  return not layer or self.preset or layers.has_parameters(layer)
end

local function draw_prefetch(d, self, names)
  if #names == 0 or d:chance(0.6) then return by_rule(d, names, { "0", "1", "2", "3" }) end
  local function list()
    local listed = {}
    for _, name in ipairs(names) do
      local place = d:integer(1, #listed + 1)
      if has_parameters(self, name) and d:chance(0.4) then table.insert(listed, place, ("%q"):format(name)) end
    end
    return "{ " .. table.concat(listed, ", ") .. " }"
  end
  return ("{ { re%q, { forward = %s, backward = %s } } }"):format(".", list(), list())
end

local FREEZE = { [[{ re"bias$", optional = true }]], [[{ re"^embed", optional = true }]],
  [=[{ re[[^layers\.0\.]], optional = true }]=], [[{ re"fc1|gain", optional = true }]],
  [[{ re"^layers", optional = true }]] }
local RECOMPUTE = { "true", [[{ "gelu", "add" }]], [=[{ { re[[^layers\.\d+$]], true, optional = true } }]=],
  [=[{ { "layers.0.fc2", false, optional = true }, { re[[^layers\.\d+$]], { "gelu", "matmul" }, optional = true } }]=],
  [[{ { "layers.0", true, optional = true } }]] }
local PARAM_DTYPE = {
  [[{ { re"fc.*bias|linear.bias|gain", "f32", optional = true } }]], [[{ { re"fc1", "bf16", optional = true } }]],
}

local function draw_sharding(d, self)
  local names, units = draw_units(d, self)
  self.sharding = { units = units }
  local function maybe(probability, option, text)
    if d:chance(probability) then self.sharding[option] = text end
  end
  maybe(0.75, "reshard_after_forward", draw_reshard(d, self, names))
  maybe(0.5, "layout", by_rule(d, names, { [["ragged"]], [["rows"]] }))
  maybe(0.3, "mp_policy", draw_precision(d, names))
  maybe(0.12, "param_dtype", d:one_of(PARAM_DTYPE))
  maybe(0.3, "prefetch", draw_prefetch(d, self, names))
  maybe(0.3, "freeze", "{ " .. d:one_of(FREEZE) .. " }")
  maybe(0.3, "recompute", d:one_of(RECOMPUTE))
  maybe(0.3, "shared_masters", "false")
  maybe(0.2, "seed", tostring(d:integer(1, 99)))
  -- It shards something only where replicas have a copy of the state each.
  if self.replicate > 1 and d:chance(0.5) then
    self.sharding.shard_optimizer_over_replicate = by_rule(d, names, { "true", "true", "false" })
    maybe(0.8, "shared_masters", "false")
  end
  return names
end

-- ---- training ---------------------------------------------------------------------------------------------------

local GROUPS = [[groups = { { re"bias|norm", { weight_decay = 0, lr_scale = 0.5 }, optional = true } }]]

-- Whether ranks sum activations that each has rounded to bf16.
local function sums_rounded(self)
  local rounds = (self.sharding.mp_policy or ""):find("bf16") or (self.sharding.param_dtype or ""):find("bf16")
  return rounds and (self.context or self.tensor)
end

-- Gradients of any size must not make training diverge: then rounding would decide everything. The weights of presets
-- are small, so steps of AdamW are, too. AdamW's first steps are signs of gradients, which rounding decides where ranks
-- sum what they have rounded.
local function draw_optimizer(d, self)
  local clipped, preset = self.trainer.clip_grad_norm, self.preset
  local groups = d:chance(0.3) and ", " .. GROUPS or ""
  if d:chance(0.5) and not sums_rounded(self) then
    local moments = d:chance(0.2) and ', moments = "bf16"' or ""
    return ("ms.optim.adamw { lr = %s, weight_decay = 0.1%s%s }"):format(preset and "1e-3" or "1e-2", groups, moments)
  end
  local lr, momentum = clipped and "5e-2" or "1e-3", d:one_of { "0", "0.9", "0.9, nesterov = true" }
  return ("ms.optim.sgd { lr = %s, momentum = %s, weight_decay = %s%s }"):format(lr, momentum, d:one_of { "0", "0.1" },
    groups)
end

-- What is done to the weights between two steps: lines of a recipe.
local EDITS = {
  [[ms.with_full_params(model, function(params)
      for name in pairs(params) do params[name] = params[name] * 0.5 end
    end)]],
  [[ms.with_full_params(model, function(params, grads)
      for name, grad in pairs(grads) do params[name] = params[name] - grad * 0.01 end
    end, { with_grads = true })]],
  [[local held = model:unshard()
    for name in model:named_parameters() do model:set_parameter(name, held[name] * 0.5) end]],
}

local function draw_training(d, self, names)
  self.micro = d:chance(0.45) and d:integer(2, 3) or nil
  self.trainer = {}
  if d:chance(0.5) then self.trainer.clip_grad_norm = d:one_of { "0.5", "0.01" } end
  self.optimizer = draw_optimizer(d, self)
  if d:chance(0.4) then self.trainer.prefetch = d:one_of { "0", "2", "4" } end
  if self.micro and d:chance(0.6) then self.trainer.gradient_sync = d:one_of { [["last"]], [["shard"]] } end
  if self.micro and d:chance(0.4) then self.trainer.reshard_after_backward = "false" end
  if d:chance(0.12) then self.evaluate = true end
  if d:chance(0.12) then self.edit = d:one_of(EDITS) end
  if d:chance(0.12) then
    self.new_rules = ("{ reshard_after_forward = %s, prefetch = %d }"):format(draw_reshard(d, self, names),
      d:integer(0, 2))
  end
  if d:chance(0.12) then self.trainer.ema = "0.5" end
end

-- Copies and shards alone, or dimensions that divide layers and samples, too.
local function draw_mesh(d, self)
  if d:chance(0.6) then return placements.draw_mesh(d, self) end
  local mesh = d:one_of(MESHES)
  self.replicate, self.shard = mesh[1], mesh[2]
end

local function draw_model(d, self)
  local divisor = self.tensor or 1
  self.layers = layers.draw(d, divisor)
  self.inputs, self.width = layers.width(d, divisor), layers.width(d, divisor)
  self.targets = divisor * d:integer(divisor > 1 and 1 or 2, divisor > 1 and 3 or 7)
  self.seq = placements.draw_positions(d, self)
  if self.seq and divisor == 1 then self.inputs = d:integer(3, 11) end
  self.classes = d:chance(0.5) or nil
  if self.seq and d:chance(divisor > 1 and 0.3 or 0.1) then
    self.classes, self.inputs = true, math.max(3, self.inputs)
    return placements.draw_preset(d, self)
  end
  if self.seq then self.tied_head = d:chance(0.5) or nil end
  self.tie = draw_tie(d, self.layers)
end

local OTHERS = [=[, { re[[(fc\d|linear|tokens|w\w)$]], { rank = 1, alpha = %g }, optional = true }]=]

-- Adapters of the head and perhaps of others; layers with a tied weight take none. Sizes can be as small as 1, and so
-- the rank is.
local function draw_adapters(d, self)
  if self.tie or self.tied_head or self.preset and self.preset.options.tied then return nil end
  local others = d:chance(0.7) and OTHERS:format(d:integer(1, 4)) or ""
  local train = d:chance(0.3) and [[, { train = { { re"bias$|norm", optional = true } } }]] or ""
  return ('ms.lora(model, { { "head", { rank = 1, alpha = %g } }%s }%s)\n'):format(d:integer(1, 4), others, train)
end

-- Muon for the matrices between layers, which there may be none of; the case's optimizer trains the rest. Like AdamW's
-- signs, its steps along small directions are rounding where ranks sum what they have rounded.
local function draw_muon(d, self)
  if not d:chance(0.3) or sums_rounded(self) then return nil end
  local options = { ("lr = %s"):format(self.preset and "1e-3" or "1e-2") }
  local function maybe(probability, option)
    if d:chance(probability) then options[#options + 1] = option end
  end
  maybe(0.5, "momentum = " .. d:one_of { "0.5", "0" })
  maybe(0.3, "nesterov = false")
  maybe(0.3, "weight_decay = 0")
  maybe(0.3, "steps = " .. d:one_of { "1", "3" })
  maybe(0.3, [[adjust = "match_rms_adamw"]])
  maybe(0.2, [[dtype = "bf16"]])
  return "ms.optim.muon { " .. table.concat(options, ", ") .. " }"
end

-- Without one, a head that has the weight of a frozen embedding leaves nothing to train.
local function any_layer_trains(self)
  for _, layer in ipairs(self.layers) do
    if layers.has_parameters(layer) then return true end
  end
  return false
end

---The case of a seed.
---@param seed integer
---@return table
function case.of(seed)
  local d = draw.new(seed)
  local self = { seed = seed, rows = d:integer(1, 5), steps = 3 }
  draw_mesh(d, self)
  draw_model(d, self)
  if self.classes and d:chance(0.2) then self.ignored = true end
  -- A slice of so many copies, of which the first is compared.
  if case.ranks(self) <= 2 and d:chance(0.15) then self.stages = 2 end
  draw_training(d, self, draw_sharding(d, self))
  if self.context or self.tensor then placements.draw(d, self) end
  if self.classes and d:chance(0.4) then self.chunk = d:integer(1, 9) end -- rows of a fused loss
  if d:chance(0.15) then self.adapters = draw_adapters(d, self) end -- last: other draws are those of earlier versions
  if self.adapters then self.chunk = nil end -- an adapter of the head adds to its product, which a fused loss refuses
  low_precision.draw(d, self)
  self.muon = draw_muon(d, self)
  updates.draw(d, self)
  low_precision.draw_copy(d, self)
  if not self.preset and d:chance(0.3) then placements.draw_shaped(d, self) end
  if self.tied_head and not any_layer_trains(self) then self.sharding.freeze, self.sharding.storage = nil, nil end
  return self
end

---@param self table
---@return integer
function case.ranks(self)
  return (self.stages or 1) * self.replicate * self.shard * (self.context or 1) * (self.tensor or 1)
end

return case
