-- Saves the adapters of a model, which can be divided over ranks, and what was trained besides, as a folder of PEFT's.

local adapter = require("moonshard.nn.adapter")
local adapter_writer = require("moonshard.huggingface.adapter_writer")
local agreement = require("moonshard.distributed.agreement")
local errors = require("moonshard.base.error")
local layout = require("moonshard.huggingface.layout")
local options = require("moonshard.base.checks.options")
local same_run = require("moonshard.engine.agreement.same_run")
local session = require("moonshard.engine.session")
local shardings = require("moonshard.shard.sharding")
local trainable_tokens = require("moonshard.nn.adapters.trainable_tokens")
local tree = require("moonshard.nn.tree")
local world = require("moonshard.distributed.world")

local SPECS = { dtype = { "string" }, ema = { "boolean", default = false }, base = { "string" } }

local function save(model, folder, given)
  local records = adapter.records(model)
  if not records[1] then errors.invalid("ms.lora.save: the model has no adapters: call ms.lora(model, rules) first") end
  if world.plan_only then return { bytes = 0, tensors = 0 } end
  local around = session.around(model)
  layout.check_writers("ms.lora.save", around)
  same_run.of_save("ms.lora.save", around, folder, given, { "dtype", "base" })
  local writes = around.sharding.single_rank or around.sharding.mesh:get_index() == 0
  local by_name, parameters, read = {}, {}, layout.reader(around, writes)
  for name, param in model:named_parameters() do
    by_name[name] = param
    parameters[#parameters + 1] = { name = name, shape = param.shape, trained = not param.frozen }
  end
  local written, warning = adapter_writer.write(folder, {
    records = records, tokens = trainable_tokens.records(model), parameters = parameters,
    layout = layout.of(model).huggingface, writes = writes,
    read = function(name, first, count) return read(by_name[name], first, count) end,
    agree = around.sharding.mesh:size() > 1 and function(problem)
      agreement.raise_first_failure(around, "of saved adapters", problem == nil, problem)
    end or nil,
  }, given)
  shardings.report({ warning })
  return written
end

---@param model moonshard.Module|moonshard.Trainer
---@param folder string
---@param given moonshard.LoraSaveOptions?
---@return { bytes: number, tensors: integer }
return function(model, folder, given)
  given = options.parse("ms.lora.save", given, SPECS)
  local trainer = type(model) == "table" and model.with_ema and model or nil
  model = trainer and trainer.model or model
  if not tree.is_module(model) then
    errors.invalid("ms.lora.save: give a model or a trainer, not %s", options.describe(model))
  end
  options.folder("ms.lora.save", folder)
  if not given.ema then return save(model, folder, given) end
  if not trainer then errors.invalid("ms.lora.save: ema needs the trainer, which has the averages") end
  return trainer:with_ema(save, model, folder, given)
end
