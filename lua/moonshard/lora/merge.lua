-- Merges adapters into the weights of their layers: W becomes W + (alpha / rank) B A, for DoRA with the lengths of its
-- rows, rows of embeddings that train take their places, and the model has the modules and parameters that it had
-- before ms.lora.
--
-- Before ms.fully_shard the weights are still in files, so the sum becomes their origin: each rank reads its elements
-- of W and all of A and B. A sharded model is sharded again, without adapters, by the same rules, and each rank
-- computes the elements that it owns.

local adapted_weight = require("moonshard.nn.adapters.adapted_weight")
local adapter = require("moonshard.nn.adapter")
local context = require("moonshard.base.context")
local errors = require("moonshard.base.error")
local ffi = require("ffi")
local options = require("moonshard.base.checks.options")
local remove = require("moonshard.lora.remove")
local session = require("moonshard.engine.session")
local shardings = require("moonshard.shard.sharding")
local trainable_tokens = require("moonshard.nn.adapters.trainable_tokens")
local tree = require("moonshard.nn.tree")
local world = require("moonshard.distributed.world")
local engine = require("moonshard.base.ffi")
local C, check = engine.C, engine.check

---@class moonshard.Merge how a parameter changes
---@field param moonshard.Parameter
---@field name string of the layer
---@field from moonshard.Parameter[] what is read for it, besides the parameter itself
---@field decides moonshard.Parameter while it is zeros, nothing changes
---@field start fun(read: function): function reads all of the adapter, read(param, first?, count?), and returns what
---  changes elements of the parameter, apply(values, first, count)

local function weight_change(found)
  local layer, config = found.layer, found.adapter
  local weight, down, up = layer.weight, layer.lora_A, layer.lora_B -- the layer has them no more when they are read
  local magnitude = config.use_dora and layer.lora_magnitude or nil
  local function start(read)
    local of = { rank = config.rank, alpha = config.alpha, outputs = weight.shape[1], inputs = weight.shape[2],
      down = read(down), up = read(up), magnitude = magnitude and read(magnitude) }
    if magnitude then
      adapted_weight.measure(of, function(first, count) return read(weight, first, count) end)
    end
    return function(values, first, count) adapted_weight.add(values, first, count, of) end
  end
  return { param = weight, name = found.name, from = { down, up, magnitude }, decides = up, start = start }
end

local function bias_change(found)
  local layer, scale = found.layer, found.adapter.alpha / found.adapter.rank
  if not layer.bias then
    errors.raise("MS_EUNSUPPORTED", "ms.lora.merge: layer %s has no bias, so that of its adapter (lora_bias) cannot be "
      .. "merged into it, as in PEFT: save the adapters (ms.lora.save)", found.name)
  end
  local bias = layer.lora_bias
  local function start(read)
    local own = read(bias)
    return function(values, first, count) adapted_weight.add_bias(values, first, count, own, scale) end
  end
  return { param = layer.bias, name = found.name, from = { bias }, decides = bias, start = start }
end

local function rows_change(layer, record)
  local delta = layer.trainable_tokens
  local function start(read)
    local own = read(delta)
    return function(values, first, count) trainable_tokens.put(values, first, count, record, own) end
  end
  return { param = layer.weight, name = record.layer, from = { delta }, decides = delta, start = start }
end

---@param model moonshard.Module
---@return moonshard.Merge[]
local function changes_of(model)
  local list, layers = {}, {}
  for _, found in ipairs(adapter.layers(model)) do
    list[#list + 1] = weight_change(found)
    if found.adapter.lora_bias then list[#list + 1] = bias_change(found) end
  end
  for name, module in model:named_modules() do layers[name] = module end
  for _, record in ipairs(trainable_tokens.records(model)) do
    list[#list + 1] = rows_change(layers[record.layer], record)
  end
  return list
end

-- ---- before ms.fully_shard --------------------------------------------------------------------------------------

local function read_source(param, first, count)
  first, count = first or 0, count or param.numel
  local values = ffi.new("float[?]", count)
  param.source.read(first, count, values)
  return values
end

-- The origin of a merged parameter. What is read for it is read in full once.
local function merged_source(change)
  local before, start = change.param.source, change.start
  local paths, apply = { unpack(before.paths or { before.path }) }, nil
  for _, param in ipairs(change.from) do
    for _, path in ipairs(param.source.paths or { param.source.path }) do paths[#paths + 1] = path end
  end
  return {
    path = table.concat(paths, " and "), paths = paths,
    identity = function()
      local texts = { before.identity() }
      for _, param in ipairs(change.from) do texts[#texts + 1] = param.source.identity() end
      return table.concat(texts, "\n")
    end,
    read = function(first, count, out)
      apply = apply or start(function(param, from, elements)
        if param ~= change.param then return read_source(param, from, elements) end
        return read_source({ source = before, numel = param.numel }, from, elements)
      end)
      local bytes = before.read(first, count, out)
      apply(out, first, count)
      return bytes
    end,
  }
end

-- Whether all that is read for a change is from files.
local function is_read(change)
  local all = change.param.source ~= nil
  for _, param in ipairs(change.from) do all = all and param.source ~= nil end
  return all
end

local function merge_files(model, changes)
  local wanted = {}
  for _, change in ipairs(changes) do
    -- A new adapter changes nothing: B is zeros, and so is B A.
    if change.decides.source or change.decides.init.kind ~= "zeros" then wanted[#wanted + 1] = change end
  end
  for _, change in ipairs(wanted) do
    if not is_read(change) then
      errors.invalid("ms.lora.merge: the weight of %s or its adapter is not from a file, and is drawn when the model "
        .. "is first used: call ms.fully_shard first", change.name)
    end
  end
  for _, change in ipairs(wanted) do change.param.source = merged_source(change) end
  remove.all(model)
  rawset(model, "_single_rank", nil)
end

-- ---- sharded models ---------------------------------------------------------------------------------------------

-- All ranks' elements of a parameter.
local function gather(around, param, first, count)
  local values = ffi.new("float[?]", count or param.numel)
  check(C.ms_state_gather(around:ensure_state(), around.sharding.index[param], C.MS_TENSOR_PARAM, first or 0,
    count or -1, values))
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

local function merge_shards(model, changes)
  local sharding, change = model.sharding, {}
  check_storage(sharding)
  local around = not world.plan_only and session.of(model)
  if around then
    check_place(around)
    around:require_same_model("of ms.lora.merge")
    if around.retire then around.retire() end -- trainers that save do so while there are adapters
  end
  for _, found in ipairs(around and changes or {}) do
    change[found.param] = found.start(function(param, first, count) return gather(around, param, first, count) end)
  end
  remove.all(model)
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
  if not adapter.layers(model)[1] then errors.invalid("ms.lora.merge: the model has no adapters") end
  local around = shardings.around(model)
  if not around or around.single_rank then
    merge_files(model, changes_of(model))
    return model
  end
  if around.model ~= model then
    errors.invalid("ms.lora.merge: the module is a part of a sharded model (%s): merge that", around.where or "before")
  end
  merge_shards(model, changes_of(model))
  return model
end
