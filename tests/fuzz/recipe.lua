-- A case as the text of a recipe, which needs nothing but Moonshard: it is what the ranks run, and what is printed of a
-- case that fails.

local layers = require("fuzz.layers")
local placements = require("fuzz.placements")
local ranks_of = require("fuzz.case").ranks

local recipe = {}

local INTEGERS = [[
local function integers(shape, below, seed)
  local count = 1
  for _, size in ipairs(shape) do count = count * size end
  local data, drawn = require("ffi").new("int32_t[?]", count), ms.rand { count, seed = seed }:tolist()
  for i = 1, count do data[i - 1] = math.floor(below * drawn[i]) end
  return { data = data, dtype = "i32", shape = shape }
end
]]

-- All but the first target may not count.
local IGNORED = [[
local function ignored(targets)
  local count = 1
  for _, size in ipairs(targets.shape) do count = count * size end
  for i = 1, count - 1 do
    if (7 * i + tonumber(targets.data[i])) % 5 < 3 then targets.data[i] = -100 end
  end
  return targets
end
]]

-- ---- the model --------------------------------------------------------------------------------------------------

local function model_of(case)
  local init, forward, late, width = {}, {}, {}, case.width
  for i, layer in ipairs(case.layers) do
    local text, after = layers.made(layer, width, case)
    init[#init + 1] = ("    %s,"):format(text)
    local call = ("  x = self.layers[%d](%s)"):format(i, layers.arguments(layer, case))
    if layer.hint then call = ("%s:redistribute %s"):format(call, layer.hint) end
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

-- What the recipe begins with.
local function helpers_of(case)
  local parts = case.preset and {} or layers.classes(case)
  if case.seq or case.classes then parts[#parts + 1] = INTEGERS end
  if case.ignored and case.classes then parts[#parts + 1] = IGNORED end
  return parts
end

-- The model's text, and of how many classes or features its results are.
local function net_of(case)
  if case.preset then return ("local model = %s\n"):format(placements.preset_text(case)), case.inputs end
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
  local bias = case.classes and case.chunk and ", { bias = false }" or ""
  add { "  }", ("  self.head = ms.nn.linear(%d, %d%s)"):format(width, targets, bias) }
  add(ties)
  add { "end", "", "function Net:forward(tokens)", "  local x = self.embed(tokens)" }
  add(forward)
  add { "  return self.head(x)", "end", "", "local model = Net()\n" }
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

local MATRICES = [=[re[[^layers\..*(fc\d|linear|tokens|w\w)\.weight$]]]=]

local function optimizer_of(case)
  if not case.muon then return case.optimizer end
  return ("{\n    { %s, %s, optional = true },\n    { re%q, %s },\n  }"):format(MATRICES, case.muon, ".",
    case.optimizer)
end

-- Ranks of context and tensor train on the same samples.
local function batch_of(case, targets)
  local rows = case.rows * (case.micro or 1)
  local seq = case.seq and ", " .. case.seq or ""
  local inputs = case.seq and ("integers({ %d%s }, %d, seed)"):format(rows, seq, case.inputs)
    or ("ms.randn { %d, %d, seed = seed }"):format(rows, case.inputs)
  local wanted = case.classes and ("integers({ %d%s }, %d, seed + 7)"):format(rows, seq, targets)
    or ("ms.randn { %d%s, %d, seed = seed + 7 }"):format(rows, seq, targets)
  if case.ignored and case.classes then wanted = ("ignored(%s)"):format(wanted) end
  local alike = (case.context or 1) * (case.tensor or 1)
  local place = alike > 1 and ("math.floor(ms.world().rank / %d)"):format(alike) or "ms.world().rank"
  return ([[
local function batch(step)
  local seed = 1000 * step + 10 * %s
  return { inputs = %s, targets = %s }
end
]]):format(place, inputs, wanted)
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

-- The dimensions that a case has, in their order; those of a pipeline's stages are sliced off.
local function mesh_of(case)
  local sizes, names = {}, {}
  for _, name in ipairs({ "replicate", "shard", "context", "tensor" }) do
    if case[name] then sizes[#sizes + 1], names[#names + 1] = case[name], ("%q"):format(name) end
  end
  local listed, text = table.concat(names, ", "), 'ms.init_device_mesh("cpu", { %s }, { %s })'
  if not case.stages then return text:format(table.concat(sizes, ", "), listed) end
  return text:format(case.stages .. ", " .. table.concat(sizes, ", "), '"pipe", ' .. listed)
    .. (":slice { %s }"):format(listed)
end

---The recipe of a case.
---@param case table
---@return string
function recipe.of(case)
  local net, targets = net_of(case)
  local sharding, trainer = {}, {}
  for name, text in pairs(case.sharding) do sharding[name] = text end
  for name, text in pairs(case.trainer) do trainer[name] = text end
  sharding.mesh, sharding.placements = mesh_of(case), sharding.placements or placements.text(case)
  trainer.model, trainer.optimizer = "model", optimizer_of(case)
  trainer.loss = "ms.loss." .. (case.classes and "cross_entropy" or "mse")
  if case.classes and case.chunk then
    trainer.loss = ("%s { fused = true, chunk = %d }"):format(trainer.loss, case.chunk)
  end
  trainer.micro_batches = case.micro and tostring(case.micro) or nil
  return table.concat({
    ("-- Random case %d: moonshard check FILE -n %d\n"):format(case.seed, ranks_of(case)),
    'local ms = require "moonshard"\nlocal re = ms.re\n',
    table.concat(helpers_of(case), "\n"),
    net .. (case.adapters or ""),
    "ms.fully_shard(model, {\n" .. entries(sharding) .. "\n})",
    "local train = ms.trainer {\n" .. entries(trainer) .. "\n}\n",
    batch_of(case, targets),
    steps_of(case),
  }, "\n")
end

return recipe
