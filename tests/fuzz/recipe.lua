-- A case as the text of a recipe, which needs nothing but Moonshard: it is what the ranks run, and what is printed of a
-- case that fails.

local recipe = {}

local BLOCK = [[
local Block = ms.module "Block"

function Block:init(dim, inner, activation)
  self.fc1, self.fc2 = ms.nn.linear(dim, inner), ms.nn.linear(inner, dim)
  self.gain, self.activation = ms.parameter { 1, init = "ones" }, ms.ops[activation]
end

function Block:forward(x)
  return x + (self.fc2(self.activation(self.fc1(x))) * self.gain):cast(x.dtype)
end
]]

local LAYER = [[
local Layer = ms.module "Layer"

function Layer:init(inputs, outputs, bias, activation)
  self.linear, self.activation = ms.nn.linear(inputs, outputs, { bias = bias }), ms.ops[activation]
end

function Layer:forward(x) return self.activation(self.linear(x)) end
]]

local ATTENTION = [[
local Attention = ms.module "Attention"

function Attention:init(dim)
  self.q, self.k, self.v = ms.nn.linear(dim, dim), ms.nn.linear(dim, dim), ms.nn.linear(dim, dim)
end

function Attention:forward(x)
  local rows, length, dim = unpack(x.shape)
  local function split(y) return y:reshape(rows, length, 1, dim) end
  local y = ms.ops.attention(split(self.q(x)), split(self.k(x)), split(self.v(x)), { causal = true })
  return x + y:reshape(rows, length, dim):cast(x.dtype)
end
]]

local INTEGERS = [[
local function integers(shape, below, seed)
  local count = 1
  for _, size in ipairs(shape) do count = count * size end
  local data, drawn = require("ffi").new("int32_t[?]", count), ms.rand { count, seed = seed }:tolist()
  for i = 1, count do data[i - 1] = math.floor(below * drawn[i]) end
  return { data = data, dtype = "i32", shape = shape }
end
]]

-- ---- the model --------------------------------------------------------------------------------------------------

local LEAST_NORM = 4 -- numbers: of fewer, rounding decides signs

-- What makes each layer, and which width it gives; nil where a layer of that kind cannot stand.
local MAKERS = {
  linear = function(layer, width)
    return ("Layer(%d, %d, %s, %q)"):format(width, layer.out, tostring(layer.bias), layer.activation), layer.out
  end,
  block = function(layer, width) return ("Block(%d, %d, %q)"):format(width, layer.inner, layer.activation), width end,
  norm = function(layer, width)
    return width >= LEAST_NORM and ("ms.nn.%s { %d }"):format(layer.law, width) or "ms.nn.dropout(0)", width
  end,
  attention = function(_, width, case)
    return case.seq and ("Attention(%d)"):format(width) or "ms.nn.dropout(0)", width
  end,
  dropout = function(_, width) return "ms.nn.dropout(0.25)", width end,
}

local function model_of(case)
  local init, forward, late, width = {}, {}, {}, case.width
  for i, layer in ipairs(case.layers) do
    local text, after = MAKERS[layer.kind](layer, width, case)
    init[#init + 1] = ("    %s,"):format(text)
    local call = ("  x = self.layers[%d](x)"):format(i)
    local times = after == width and layer.times or 1
    for _ = 1, times do forward[#forward + 1] = call end
    if layer.late then late[#late + 1] = { call = call, from = width, to = after } end
    width = after
  end
  for _, again in ipairs(late) do
    if again.from == width and again.to == width then forward[#forward + 1] = again.call end
  end
  return init, forward, width
end

local function ties_of(case, width)
  local lines = {}
  if case.tied_head and case.seq and width == case.width then lines[1] = "  self.head.weight = self.embed.weight" end
  local a, b = unpack(case.tie or {})
  local first, second = case.layers[a], case.layers[b]
  if first and second and first.kind == "block" and second.kind == "block" and first.inner == second.inner then
    -- Widths are compared where the recipe runs: layers between may change them.
    lines[#lines + 1] = ("  local a, b = self.layers[%d].fc1, self.layers[%d].fc1"):format(a, b)
    lines[#lines + 1] = "  if a.weight.shape[2] == b.weight.shape[2] then b.weight = a.weight end"
  end
  return lines
end

local function classes_of(case)
  local used, parts = {}, {}
  for _, layer in ipairs(case.layers) do used[layer.kind] = true end
  if used.linear then parts[#parts + 1] = LAYER end
  if used.block then parts[#parts + 1] = BLOCK end
  if used.attention and case.seq then parts[#parts + 1] = ATTENTION end
  if case.seq or case.classes then parts[#parts + 1] = INTEGERS end
  return parts
end

local function net_of(case)
  local init, forward, width = model_of(case)
  local ties = ties_of(case, width)
  local targets = case.tied_head and width == case.width and case.inputs or case.targets
  local lines = { 'local Net = ms.module "Net"', "", "function Net:init()" }
  local function add(list)
    for _, line in ipairs(list) do lines[#lines + 1] = line end
  end
  add { ("  self.embed = ms.nn.%s(%d, %d)"):format(case.seq and "embedding" or "linear", case.inputs, case.width) }
  add { "  self.layers = {" }
  add(init)
  add { "  }", ("  self.head = ms.nn.linear(%d, %d)"):format(width, targets) }
  add(ties)
  add { "end", "", "function Net:forward(x)", "  x = self.embed(x)" }
  add(forward)
  add { "  return self.head(x)", "end", "" }
  return table.concat(lines, "\n"), targets
end

-- ---- how it is trained ------------------------------------------------------------------------------------------

local function entries(options)
  local names, lines = {}, {}
  for name in pairs(options) do names[#names + 1] = name end
  table.sort(names)
  for i, name in ipairs(names) do lines[i] = ("  %s = %s,"):format(name, options[name]) end
  return table.concat(lines, "\n")
end

local function batch_of(case, targets)
  local rows = case.rows * (case.micro or 1)
  local seq = case.seq and ", " .. case.seq or ""
  local inputs = case.seq and ("integers({ %d%s }, %d, seed)"):format(rows, seq, case.inputs)
    or ("ms.randn { %d, %d, seed = seed }"):format(rows, case.inputs)
  local wanted = case.classes and ("integers({ %d%s }, %d, seed + 7)"):format(rows, seq, targets)
    or ("ms.randn { %d%s, %d, seed = seed + 7 }"):format(rows, seq, targets)
  return ([[
local function batch(step)
  local seed = 1000 * step + 10 * ms.world().rank
  return { inputs = %s, targets = %s }
end
]]):format(inputs, wanted)
end

-- Weights become their averages, so that what compares weights compares those.
local AVERAGED = [[
  if step == 2 then
    local kept = {}
    train:with_ema(function()
      for name in model:named_parameters() do kept[name] = train:parameter(name) end
    end)
    for name in model:named_parameters() do train:set_parameter(name, kept[name]) end
  end]]

local function steps_of(case)
  local lines = { ("for step = 1, %d do"):format(case.steps), "  train:step(batch(step))" }
  if case.evaluate then
    lines[#lines + 1] = "  train:evaluate(coroutine.wrap(function() coroutine.yield(1, batch(step)) end))"
  end
  if case.edit then lines[#lines + 1] = ("  if step == 1 then\n    %s\n  end"):format(case.edit) end
  if case.new_rules then lines[#lines + 1] = ("  if step == 1 then train:set_rules %s end"):format(case.new_rules) end
  if case.trainer.ema then lines[#lines + 1] = AVERAGED end
  lines[#lines + 1] = "end"
  return table.concat(lines, "\n") .. "\n"
end

---The recipe of a case.
---@param case table
---@return string
function recipe.of(case)
  local net, targets = net_of(case)
  local sharding, trainer = {}, {}
  for name, text in pairs(case.sharding) do sharding[name] = text end
  for name, text in pairs(case.trainer) do trainer[name] = text end
  sharding.mesh = case.stages
    and ('ms.init_device_mesh("cpu", { %d, %d, %d }, { "pipe", "replicate", "shard" }):slice { "replicate", "shard" }')
      :format(case.stages, case.replicate, case.shard)
    or ('ms.init_device_mesh("cpu", { %d, %d }, { "replicate", "shard" })'):format(case.replicate, case.shard)
  trainer.model, trainer.optimizer = "model", case.optimizer
  trainer.loss = "ms.loss." .. (case.classes and "cross_entropy" or "mse")
  trainer.micro_batches = case.micro and tostring(case.micro) or nil
  local ranks = (case.stages or 1) * case.replicate * case.shard
  return table.concat({
    ("-- Random case %d: moonshard check FILE -n %d\n"):format(case.seed, ranks),
    'local ms = require "moonshard"\nlocal re = ms.re\n',
    table.concat(classes_of(case), "\n"),
    net,
    "local model = Net()",
    "ms.fully_shard(model, {\n" .. entries(sharding) .. "\n})",
    "local train = ms.trainer {\n" .. entries(trainer) .. "\n}\n",
    batch_of(case, targets),
    steps_of(case),
  }, "\n")
end

return recipe
