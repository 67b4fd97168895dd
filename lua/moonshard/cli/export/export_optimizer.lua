-- moonshard export --optimizer: writes the optimizer's state of a checkpoint as one safetensors file, under the names
-- that PyTorch gives to a flattened state dict of an optimizer (torch.distributed.checkpoint.state_dict,
-- flatten_optimizer_state_dict): state.layers.0.weight.exp_avg. All state is F32: moments in 16 or 8 bits as the
-- numbers that they stand for. Hyperparameters (param_groups) are the recipe's and not in the file.

local optimizers = require("moonshard.engine.optimizers")
local safetensors = require("moonshard.base.files.safetensors")
local ffi = require("ffi")
local refuse = require("moonshard.base.exit_status").refuse

-- PyTorch's names, where they differ.
local NAMES = { momentum = "momentum_buffer" }

local export_optimizer = {}

---Refuses a checkpoint that has no such state, or whose replicas differ in it: before anything is written.
---@param source moonshard.Checkpoint
function export_optimizer.check(source)
  local saved = source.manifest.optimizer
  if not (saved and saved.states) then
    refuse("MS_EINVAL", "%s has no state of an optimizer; omit --optimizer", source.path)
  end
  if source.manifest.replicate_sync then
    refuse("MS_EUNSUPPORTED", "%s: --optimizer: with replicate_sync each replica has state of its own, and PyTorch has "
      .. "no name for that; omit --optimizer", source.path)
  end
end

-- The tensors of the file, with what each is read from: { name, dtype, shape, kind, parameter }; kind nil: the number
-- of updates.
local function tensors_of(source, shapes)
  local states, list = source.manifest.optimizer.states, {}
  for i, param in ipairs(source.manifest.parameters) do
    local kinds = {}
    for _, kind in ipairs(states) do
      if source:has(kind, param.name) then kinds[#kinds + 1] = kind end
    end
    for _, kind in ipairs(kinds) do
      list[#list + 1] = {
        name = ("state.%s.%s"):format(param.name, NAMES[kind] or kind), dtype = "F32",
        shape = (optimizers.state_shape(kind, shapes[i].shape)), kind = kind, parameter = param.name,
      }
    end
    if #kinds > 0 then
      list[#list + 1] = {
        name = ("state.%s.step"):format(param.name), dtype = "F32", shape = {},
        updates = param.updates or source.manifest.step,
      }
    end
  end
  return list
end

---Writes the state of a checkpoint that passed the check.
---@param source moonshard.Checkpoint
---@param folder string exists; receives optimizer.safetensors
---@param shapes { shape: integer[] }[] of all parameters, as exported
---@param copy fun(writer: moonshard.SafetensorsWriter, tensor: table) copies all elements of a state
---@return string path
---@return integer tensors
function export_optimizer.write(source, folder, shapes, copy)
  local list, path = tensors_of(source, shapes), folder .. "/optimizer.safetensors"
  local writer = safetensors.create(path, list, { metadata = { format = "pt" }, sync = true })
  local ok, problem = pcall(function()
    for _, one in ipairs(list) do
      if one.kind then copy(writer, one) else writer:put(one.name, ffi.new("float[1]", one.updates), 4, 0) end
    end
    writer:finish()
  end)
  if ok then return path, #list end
  writer:abort()
  error(problem, 0)
end

return export_optimizer
