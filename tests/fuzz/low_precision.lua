-- What random cases keep, send or multiply in fewer bits: stored weights, gradients and gathers in codes with scales,
-- products in 8 bits.

local layers = require("fuzz.layers")

local low_precision = {}

-- AdamW's first steps are signs of gradients: elements that are small next to what rounding adds would move by rounding
-- alone.
local function takes_signs(self) return self.optimizer:find("adamw") ~= nil end

-- ---- storage ----------------------------------------------------------------------------------------------------

local STORAGE = { [["nf4"]], [["i8"]], [["bf16"]],
  [[{ { re"weight", "nf4", optional = true }, { re".", "bf16", optional = true } }]],
  [[{ { re"fc", "i8", optional = true }, { re"embed|bias", "nf4", optional = true } }]] }

-- A tensor dimension can cut the blocks of i8 and nf4.
local function one_storage(d, self) return self.tensor and [["bf16"]] or d:one_of(STORAGE) end

-- How weights below adapters are kept.
local function draw_storage(d, self)
  if not self.adapters or d:chance(0.4) then return nil end
  return one_storage(d, self)
end

-- The same of other weights that a case freezes. What only some models have may be in none of the frozen ones, and
-- storage is refused where all parameters train.
local function draw_frozen_storage(d, self)
  local freeze = self.sharding.freeze
  if self.sharding.storage or not freeze or not freeze:find("^embed", 1, true) then return end
  if d:chance(0.4) then return end
  self.sharding.storage, self.sharding.gather_dtype = one_storage(d, self), nil
end

-- ---- sums and gathers -------------------------------------------------------------------------------------------

-- Gradients that replicas sum in few bits.
local function draw_quantised(d, self)
  local sharding = self.sharding
  if self.replicate == 1 or sharding.shard_optimizer_over_replicate or takes_signs(self) then return end
  local bits = d:chance(0.5) and d:one_of { "i8", "i8", "i4" }
  if not bits then return end
  if not sharding.mp_policy then
    sharding.mp_policy = ('{ reduce_dtype = { replicate = "%s" } }'):format(bits)
  else
    sharding.mp_policy = sharding.mp_policy:gsub('reduce_dtype = ("%w+")',
      ('reduce_dtype = { shard = %%1, replicate = "%s" }'):format(bits))
  end
end

-- The same of shards, alone or with replicas, and what rounding leaves.
local function draw_quantised_shards(d, self)
  local sharding = self.sharding
  if self.shard == 1 or sharding.shard_optimizer_over_replicate or takes_signs(self) then return end
  local bits = d:chance(0.4) and d:one_of { "i8", "i8", "i4" }
  if not bits then return end
  local own = ('shard = "%s"%s'):format(bits, d:chance(0.5) and ", error_feedback = true" or "")
  local policy = sharding.mp_policy or '{ reduce_dtype = "f32" }'
  policy = policy:gsub('reduce_dtype = "%w+"', ("reduce_dtype = { %s }"):format(own))
  policy = policy:gsub('shard = "%l+%d+", replicate', own .. ", replicate")
  sharding.mp_policy = policy:gsub("reduce_dtype = { replicate", ("reduce_dtype = { %s, replicate"):format(own))
end

-- A step of a code moves what enters a relu across 0, and with it the gradient of all that is before it.
local function has_relu(self)
  for _, layer in ipairs(self.layers) do
    if layer.activation == "relu" then return true end
  end
  return false
end

-- Weights that are gathered in blocks of 8 bits; stored ones are gathered as they are stored.
local function draw_gather(d, self)
  if not d:chance(0.2) then return nil end
  if self.tensor and has_relu(self) then return nil end -- one rank has other blocks
  local rules = not self.sharding.storage and d:one_of {
    [[{ { re".", "i8" } }]], [[{ { re"bias$|gain", false, optional = true }, { re".", "i8", optional = true } }]],
    [[{ { re"fc|embed", "i8", optional = true } }]],
  }
  return rules or [["i8"]]
end

-- ---- products ---------------------------------------------------------------------------------------------------

local FLOAT8 = { "tensorwise", "tensorwise", "rowwise", "rowwise", "rowwise_with_gw_hp", "mxfp8" }
-- What the sizes of each rank's weight are multiples of.
local MULTIPLES = { mxfp8 = 32 }
local MULTIPLE = 16

-- Rules that multiply the layers' weights in 8 bits. The case gets sizes that this takes, on every rank.
local function draw_float8(d, self)
  if takes_signs(self) or not d:chance(0.25) then return end
  local recipe = d:one_of(FLOAT8)
  -- tensorwise has codes of its own to gather. A rank of tensor has other blocks than one rank has, and rounding to 8
  -- bits makes a step of a block's code many times larger: the gradient norm of adapters moves by a third.
  if recipe == "tensorwise" or self.tensor then self.sharding.gather_dtype = nil end
  local multiple = MULTIPLES[recipe] or MULTIPLE
  local others = d:chance(0.3) and [=[{ re[[fc2|wo]], false, optional = true }, ]=] or ""
  self.sharding.fp8 = ("{ %s{ re[[^layers.*(fc\\d|linear|w\\w)\\.weight$]], %q, optional = true } }"):format(others,
    recipe)
  local each = multiple * (self.tensor or 1)
  local function up(size) return math.ceil(size / each) * each end
  self.rows, self.width = up(self.rows), up(self.width)
  self.trainer.clip_grad_norm = self.trainer.clip_grad_norm or "0.5" -- larger sizes have larger gradients
  layers.round_up(self.layers, each)
  if self.preset then
    local o = self.preset.options
    o.dim, o.ffn = o.heads * multiple, o.ffn and up(o.ffn)
  end
end

---Draws them for a case that is complete otherwise.
---@param d table of fuzz.draw
---@param self table a case
function low_precision.draw(d, self)
  self.sharding.storage = draw_storage(d, self)
  draw_quantised(d, self)
  draw_quantised_shards(d, self)
  self.sharding.gather_dtype = draw_gather(d, self)
  draw_frozen_storage(d, self)
  draw_float8(d, self)
end

-- Parameters that are kept in bf16 next to their masters: not those that are gathered as codes, nor of units whose
-- replicas shard what has several dtypes, or masters that are frozen.
---Draws it for a case that is complete otherwise; after everything else, so that other draws stay.
---@param d table of fuzz.draw
---@param self table a case
function low_precision.draw_copy(d, self)
  local s = self.sharding
  if not d:chance(0.6) or s.gather_dtype or (s.fp8 or ""):find("tensorwise", 1, true) then return end
  if s.shard_optimizer_over_replicate and (s.param_dtype or s.freeze or self.adapters) then return end
  s.mp_policy = (s.mp_policy or '{ param_dtype = "bf16" }'):gsub('param_dtype = "bf16"', "%0, param_copy = true")
end

return low_precision
