-- The table that `require "moonshard"` returns. Every part is loaded on first use, so recipes load only what they need.

if not jit then
  error("moonshard needs LuaJIT, and this is " .. _VERSION .. ": run the program with luajit, or as a recipe with "
    .. "`moonshard run`", 0)
end

---@class moonshard
---@field version string
---@field re fun(pattern: string): moonshard.Pattern a regular expression over names
---@field rules moonshard.rule_presets join, load, tensor_parallel
---@field Shard fun(axis: integer): table in rules of `placements`
---@field Replicate fun(): table in rules of `placements`
---@field ops moonshard.ops
---@field nn moonshard.nn
---@field models moonshard.models
---@field module fun(what: string|table, base: moonshard.Module?): moonshard.Module a class of modules, or one module
---@field parameter fun(given: table): moonshard.Parameter
---@field init moonshard.initializers initializers of initial weights
---@field init_device_mesh fun(device: string?, shape: integer|integer[]|string, names: string[]?): moonshard.Mesh
---@field mesh_from_groups fun(groups: table, names: string|string[]): moonshard.Mesh
---@field new_group fun(ranks: integer[]?): moonshard.Group
---@field fully_shard fun(model: moonshard.Module, config: moonshard.ShardOptions?): moonshard.Module
---@field world fun(): moonshard.World
---@field trace moonshard.trace graph(model, config)
---@field args moonshard.args
---@field data moonshard.data
---@field log moonshard.log
---@field optim moonshard.optim
---@field schedule moonshard.schedule
---@field loss moonshard.loss
---@field trainer fun(o: moonshard.TrainerOptions): moonshard.Trainer
---@field generate fun(trainer: moonshard.Trainer, o: moonshard.GenerateOptions?): string, integer[]
---@field evaluate moonshard.evaluate
---@field huggingface moonshard.huggingface
---@field lora moonshard.lora
---@field safetensors moonshard.safetensors
---@field tokenizer fun(path: string): moonshard.Tokenizer
---@field checkpoint moonshard.checkpoint
---@field sweep fun(options: moonshard.SweepOptions): moonshard.SweepReport
---@field scaling fun(options: moonshard.ScalingOptions): moonshard.Scaling
---@field find_lr fun(options: moonshard.FindLrOptions): number?
---@field tensor fun(given: number|table, options: table?): moonshard.Tensor
---@field zeros fun(...): moonshard.Tensor
---@field ones fun(...): moonshard.Tensor
---@field full fun(shape: integer[], value: number, options: table?): moonshard.Tensor
---@field arange fun(...): moonshard.Tensor
---@field rand fun(...): moonshard.Tensor
---@field randn fun(...): moonshard.Tensor
---@field manual_seed fun(seed: integer)
---@field set_rules fun(model: moonshard.Module, rules: moonshard.NewRules): moonshard.Plan?
---@field with_full_params fun(model: moonshard.Module, block: function, o: moonshard.FullParamsOptions?): ...
---@field show fun(value: any) prints a tensor with its values, a batch with its fields
---@field plot fun(values: moonshard.Tensor|table, o: moonshard.PlotOptions?) draws curves in the terminal
---@field histogram fun(values: moonshard.Tensor|number[], o: moonshard.HistogramOptions?) draws a distribution there
require("moonshard.base.luajit_defects") -- replaces pairs and next, before any loop is compiled
require("moonshard.base.checks.strict") -- replaces ipairs in recipes
local arguments = require("moonshard.base.checks.arguments")
local advice = require("moonshard.base.names.advice")
local context = require("moonshard.base.context")

local ms = {}

function advice.ops() return require("moonshard.tensor.ops").rows end

function advice.methods()
  return { advice.ops(), require("moonshard.tensor").methods, require("moonshard.engine.module_methods").base }
end

function context.auto_policies() return require("moonshard.tune.policies").by_name end

function context.printed(value)
  local is_plain = type(value) == "string" or type(value) == "number" -- needs no display
  return is_plain and tostring(value) or require("moonshard.display.values").printed(value)
end

function context.decide_auto(trainer, batch) require("moonshard.tune.auto")(trainer, batch) end

-- Parts that construct modules; module methods that need the engine are loaded with them.
local MAKES_MODULES = { nn = true, models = true, huggingface = true }

-- Where each name is defined: a Lua module, or a field of one.
local PARTS = {
  re = { "moonshard.base.re" },
  rules = { "moonshard.shard.rule_presets" },
  ops = { "moonshard.tensor.ops" },
  nn = { "moonshard.nn" },
  models = { "moonshard.models" },
  module = { "moonshard.engine.module_methods" },
  parameter = { "moonshard.tensor.parameter", "new" },
  init = { "moonshard.tensor.parameter", "initializers" },
  init_device_mesh = { "moonshard.distributed.mesh", "init_device_mesh" },
  mesh_from_groups = { "moonshard.distributed.mesh", "mesh_from_groups" },
  new_group = { "moonshard.distributed.group", "new_group" },
  fully_shard = { "moonshard.shard.sharding", "fully_shard" },
  trace = { "moonshard.engine.trace.capture" },
  args = { "moonshard.recipe.args" },
  data = { "moonshard.data" },
  log = { "moonshard.metrics.log" },
  optim = { "moonshard.train.optim" },
  schedule = { "moonshard.train.schedule" },
  loss = { "moonshard.nn.loss" },
  trainer = { "moonshard.train.trainer" },
  generate = { "moonshard.train.generate" },
  evaluate = { "moonshard.evaluate" },
  huggingface = { "moonshard.huggingface" },
  lora = { "moonshard.lora" },
  safetensors = { "moonshard.base.files.safetensors" },
  tokenizer = { "moonshard.data.tokenizer", "open" },
  checkpoint = { "moonshard.checkpoint" },
  sweep = { "moonshard.sweep", "run" },
  scaling = { "moonshard.scaling", "run" },
  find_lr = { "moonshard.sweep.find_lr" },
  tensor = { "moonshard.tensor.create", "tensor" },
  zeros = { "moonshard.tensor.create", "zeros" },
  ones = { "moonshard.tensor.create", "ones" },
  full = { "moonshard.tensor.create", "full" },
  arange = { "moonshard.tensor.create", "arange" },
  rand = { "moonshard.tensor.create", "rand" },
  randn = { "moonshard.tensor.create", "randn" },
  manual_seed = { "moonshard.tensor.create", "manual_seed" },
  set_rules = { "moonshard.train.change_rules" },
  Shard = { "moonshard.shard.policies.placements", "Shard" },
  Replicate = { "moonshard.shard.policies.placements", "Replicate" },
  with_full_params = { "moonshard.engine.unshard", "with_full_params" },
  show = { "moonshard.display.values", "print" },
  plot = { "moonshard.display.plot", "plot" },
  histogram = { "moonshard.display.plot", "histogram" },
}

---The ranks of this run: rank, size, local_rank() on this host, and nodes(), the number of hosts.
---@return moonshard.World
function ms.world()
  return require("moonshard.distributed.world")
end
ms.world = arguments.exact("ms", "world", ms.world)

---The fields of ms, loaded or not.
---@return string[]
function ms.names()
  local names = { "world", "version" }
  for name in pairs(PARTS) do names[#names + 1] = name end
  table.sort(names)
  return names
end

-- What all ranks of a model call: a failure on one of them is noted.
local COLLECTIVE = {
  checkpoint = "save load", generate = "generate", huggingface = "save", lora = "save merge", set_rules = "set_rules",
  with_full_params = "with_full_params",
}

local function load_part(name)
  local part = PARTS[name]
  if not part then
    local valid = { world = true, version = true }
    for known in pairs(PARTS) do valid[known] = true end
    require("moonshard.base.checks.strict").unknown_field("ms", name, valid)
  end
  if MAKES_MODULES[name] then require("moonshard.engine.module_methods") end
  local loaded = require(part[1])
  local value = part[2] and loaded[part[2]] or loaded
  local is_one = type(value) == "function"
  local functions = is_one and { [name] = arguments.exact("ms", name, value) }
    or arguments.exact_all("ms." .. name, value)
  if not is_one then arguments.exact_call("ms." .. name, value) end
  local collective = COLLECTIVE[name]
  if collective then
    require("moonshard.distributed.agreement").collective(functions, collective,
      is_one and "ms.%s" or "ms." .. name .. ".%s")
  end
  return is_one and functions[name] or value
end

return setmetatable(ms, {
  __index = function(self, name)
    local value
    if name == "version" then
      value = require("moonshard.base.ffi").version
    else
      value = load_part(name)
    end
    rawset(self, name, value)
    return value
  end,
})
