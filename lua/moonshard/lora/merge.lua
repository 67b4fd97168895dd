-- Merges adapters into the weights of their layers: W becomes W + (alpha / rank) B A, and the model has the modules and
-- parameters that it had before ms.lora.
--
-- Before ms.fully_shard the weights are still in files, so the sum becomes their origin: each rank reads its elements
-- of W and all of A and B. A sharded model is sharded again, without adapters, by the same rules, and each rank
-- computes the elements that it owns.

local adapter = require("moonshard.nn.adapter")
local context = require("moonshard.base.context")
local errors = require("moonshard.base.error")
local ffi = require("ffi")
local options = require("moonshard.base.checks.options")
local remove = require("moonshard.lora.remove")
local session = require("moonshard.engine.session")
local shardings = require("moonshard.shard.sharding")
local tree = require("moonshard.nn.tree")
local world = require("moonshard.distributed.world")
local engine = require("moonshard.base.ffi")
local C, check = engine.C, engine.check

-- ---- before ms.fully_shard --------------------------------------------------------------------------------------

local function read_all(param)
  local values = ffi.new("float[?]", param.numel)
  param.source.read(0, param.numel, values)
  return values
end

-- The origin of a merged weight. A and B are read in full once.
local function merged_source(found)
  local layer, weight = found.layer, found.layer.weight.source
  local down_param, up_param, inputs, config = layer.lora_A, layer.lora_B, layer.weight.shape[2], found.adapter
  local down, up
  return {
    path = weight.path .. " and " .. down_param.source.path, paths = { weight.path, down_param.source.path },
    identity = function()
      return table.concat({ weight.identity(), down_param.source.identity(), up_param.source.identity() }, "\n")
    end,
    read = function(first, count, out)
      down, up = down or read_all(down_param), up or read_all(up_param)
      local bytes = weight.read(first, count, out)
      adapter.add_product(out, first, count, inputs, down, up, config)
      return bytes
    end,
  }
end

local function merge_files(model, layers)
  for _, found in ipairs(layers) do
    local layer = found.layer
    if layer.lora_B.source and not layer.weight.source then
      errors.invalid("ms.lora.merge: the weight of %s is not from a file, and is drawn when the model is first used: "
        .. "call ms.fully_shard first", found.name)
    end
  end
  for _, found in ipairs(layers) do
    -- Without a file B is zeros, and so is B A.
    if found.layer.lora_B.source then found.layer.weight.source = merged_source(found) end
  end
  remove(model, layers)
  rawset(model, "_single_rank", nil)
end

-- ---- sharded models ---------------------------------------------------------------------------------------------

local function gather(around, param)
  local values = ffi.new("float[?]", param.numel)
  check(C.ms_state_gather(around:ensure_state(), around.sharding.index[param], C.MS_TENSOR_PARAM, 0, -1, values))
  return values
end

local function check_place(around)
  if around.in_full_params or around.averaged then
    errors.invalid("ms.lora.merge: not inside %s: merge after it returns", around.averaged and "train:with_ema"
      or "ms.with_full_params")
  end
  if around.sharding.local_sync then
    errors.raise("MS_EUNSUPPORTED", "ms.lora.merge: with replicate_sync replicas have weights of their own: save the "
      .. "model, and merge what was saved")
  end
end

-- Merged weights would be quantised again, which loses most of what adapters add; and without adapters weights train.
local function check_storage(sharding)
  for _, param in ipairs(sharding.params) do
    if param.storage then
      errors.raise("MS_EUNSUPPORTED", "ms.lora.merge: %s is kept in %s, in which only frozen parameters are: keep the "
        .. "adapters apart (ms.lora.save), or merge them in f32, in files (ms.huggingface.save, moonshard export "
        .. "--huggingface)", param.fqn, param.storage)
    end
  end
end

local function merge_shards(model, layers)
  local sharding, change = model.sharding, {}
  check_storage(sharding)
  local around = not world.plan_only and session.of(model)
  if around then
    check_place(around)
    around:require_same_model("of ms.lora.merge")
    if around.retire then around.retire() end -- trainers that save do so while there are adapters
  end
  for _, found in ipairs(around and layers or {}) do
    local layer, inputs, config = found.layer, found.layer.weight.shape[2], found.adapter
    local down, up = gather(around, layer.lora_A), gather(around, layer.lora_B)
    change[layer.weight] = function(values, first, count)
      adapter.add_product(values, first, count, inputs, down, up, config)
    end
  end
  remove(model, layers)
  sharding:after_removal()
  if around then session.succeed(model, around, "ms.lora.merge removed its adapters; make another trainer", change) end
end

---@param model moonshard.Module|moonshard.Trainer
---@return moonshard.Module
return function(model)
  model = type(model) == "table" and not tree.is_module(model) and model.model or model
  if not tree.is_module(model) then
    errors.invalid("ms.lora.merge: give a model or a trainer, not %s", options.describe(model))
  end
  if context.trace then errors.invalid("ms.lora.merge: not inside a forward, which is traced: merge between steps") end
  local layers = adapter.layers(model)
  if not layers[1] then errors.invalid("ms.lora.merge: the model has no adapters") end
  local around = shardings.around(model)
  if not around or around.single_rank then
    merge_files(model, layers)
    return model
  end
  if around.model ~= model then
    errors.invalid("ms.lora.merge: the module is a part of a sharded model (%s): merge that", around.where or "before")
  end
  merge_shards(model, layers)
  return model
end
