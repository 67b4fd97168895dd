-- What a checkpoint and a folder of adapters say of a model in Hugging Face's layout, and how its weights are read from
-- the ranks that have it.

local adapter = require("moonshard.nn.adapter")
local config = require("moonshard.huggingface.config")
local engine = require("moonshard.base.ffi")
local errors = require("moonshard.base.error")
local json = require("moonshard.base.text.json")
local trainable_tokens = require("moonshard.nn.adapters.trainable_tokens")
local world = require("moonshard.distributed.world")
local C, ffi, check = engine.C, engine.ffi, engine.check

local layout = {}

---A model's config.json: the one it was read from, or one made from its options. Raises MS_EUNSUPPORTED for a model
---without a layout in Hugging Face's library.
---@param model moonshard.Module
---@return table
function layout.config(model)
  local read = rawget(model, "_huggingface")
  if read then return read end
  local family = model.family and config.family(model.family)
  if not family then
    errors.raise("MS_EUNSUPPORTED", "a %s has no Hugging Face layout: it is of none of the families %s",
      getmetatable(model).name, config.supported())
  end
  return family.config(model.config)
end

---@class moonshard.ModelLayout
---@field options table<string, table<string, any>>? of its models of ms.models (checkpoint/model_options.lua)
---@field huggingface string? text of config.json, for a model that has a layout; older checkpoints have a table
---@field lora moonshard.AdapterRecord[]? for a model with adapters
---@field tokens moonshard.TokensRecord[]? for one with rows of embeddings that train

---Layout metadata for a checkpoint, so that it can be exported as a folder later; nil for a model without any.
---@param model moonshard.Module
---@return moonshard.ModelLayout?
function layout.of(model)
  local has_one, whole = pcall(layout.config, model)
  local records, tokens = adapter.records(model), trainable_tokens.records(model)
  if not has_one and not records[1] then return nil end
  return {
    huggingface = has_one and config.text(whole) or nil, lora = records[1] and records or nil,
    tokens = tokens[1] and tokens or nil,
  }
end

-- Options that must match the saved weights, but that shapes do not reveal, for older checkpoints without options of
-- their own (checkpoint/model_options.lua).
local KEPT = { "heads", "kv_heads", "activation", "norm_from_one", "experts_per_token", "renormalise" }

local function check_adapters(path, saved, here)
  local by_layer = {}
  for _, record in ipairs(saved or {}) do by_layer[record.layer] = record end
  for _, record in ipairs(here or {}) do
    local other = by_layer[record.layer]
    if other and other.alpha / other.rank ~= record.alpha / record.rank then
      errors.raise("MS_EMISMATCH", "checkpoint %s has adapters of another scale: alpha of %s is %s with rank %d, here "
        .. "%s with rank %d", path, record.layer, json.encode(other.alpha), other.rank, json.encode(record.alpha),
        record.rank)
    end
  end
end

---Raises MS_EMISMATCH when saved weights would have a different meaning in this model.
---@param path string of the checkpoint, for messages
---@param noted moonshard.ModelLayout? layout metadata of the saved model
---@param model moonshard.Module
function layout.check(path, noted, model)
  local mine = layout.of(model)
  check_adapters(path, noted and noted.lora, mine and mine.lora)
  if not (noted and noted.huggingface and mine and mine.huggingface) or noted.options then return end
  local _, saved = config.parse(config.noted(noted.huggingface), path)
  local _, here = config.parse(config.noted(mine.huggingface), path)
  for _, key in ipairs(KEPT) do
    if saved[key] ~= here[key] then
      errors.raise("MS_EMISMATCH", "checkpoint %s belongs to a different model: %s=%s, here %s", path, key, saved[key],
        here[key])
    end
  end
end

---Reads elements of parameters of a model that is divided over ranks. Reading is collective.
---@param around moonshard.Session
---@param writes boolean whether this rank needs the values
---@return fun(param: moonshard.Parameter, first: number, count: number): ffi.cdata*? values valid until the next read
function layout.reader(around, writes)
  around:require_same_model("of a saved model")
  local state, buffer, room = around:ensure_state(), nil, 0
  return function(param, first, count)
    if writes and count > room then buffer, room = ffi.new("float[?]", count), count end
    check(C.ms_state_gather(state, around.sharding.index[param], C.MS_TENSOR_PARAM, first, count, buffer))
    return buffer
  end
end

---Refuses to save a model that several ranks have undivided: each would write the folder.
---@param who string for messages
---@param around moonshard.Session
function layout.check_writers(who, around)
  if not around.sharding.single_rank or world.size == 1 then return end
  errors.invalid("%s: the model is not divided, so each of %d ranks would write the folder: call ms.fully_shard(model, "
    .. "...) before, or run on one rank", who, world.size)
end

return layout
