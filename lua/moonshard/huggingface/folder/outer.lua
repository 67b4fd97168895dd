-- Decoders in folders of models that also read images (huggingface/families/outer.lua). config.json has the decoder's
-- config in text_config, and its tensors stand among those of other parts: a vision tower, a projector. The decoder
-- alone is read, runs and trains. Where the model is saved, the other parts' tensors are copied from its folder, byte
-- for byte, and config.json is written as it was, so that the reference library loads the whole.

local architecture = require("moonshard.huggingface.config.architecture")
local errors = require("moonshard.base.error")
local families = require("moonshard.huggingface.families.outer")
local fields = require("moonshard.huggingface.fields")
local json = require("moonshard.base.text.json")
local new_problems = require("moonshard.huggingface.config.problems").new
local options = require("moonshard.base.checks.options")
local safetensors = require("moonshard.base.files.safetensors")
local weights = require("moonshard.huggingface.weights")

local outer = {}

---@class moonshard.NestedFamily: moonshard.HuggingFaceFamily a decoder among other parts
---@field text string the decoder's model_type
---@field parts string names of the other parts: "vision_tower and multi_modal_projector"
---@field is_other fun(name: string): boolean whether a tensor is of another part
---@field nested fun(file: moonshard.Safetensors): moonshard.NestedFamily as a folder's tensors are named
---@field settle fun(file: moonshard.Safetensors, o: table) sets `tied` where config.json says both

---The rows, by model_type.
outer.rows = families

-- Where images stand in texts, by the names of today, and the decoder's vocabulary, which old configs repeat: the
-- shapes of tensors are compared with text_config.
local COMMON = " boi_token_id eoi_token_id image_token_id video_token_id vocab_size"

local function known_of(row)
  local known = {
    text_config = { "object" }, vision_config = { "object" }, architectures = { "list", null = true },
    tie_word_embeddings = { "boolean" },
  }
  for name in (row.fields .. COMMON):gmatch("%S+") do known[name] = { null = true } end
  return known
end

---The decoder's own config, with its model_type.
---@param config table as returned by config.read
---@param path string for errors
---@return table
function outer.text_of(config, path)
  local row, given = families[config.model_type], config.text_config
  if type(given) ~= "table" or given == json.null then
    errors.invalid("%s: text_config must be an object, the config of the decoder, not %s", path,
      options.describe(given))
  end
  local text = {}
  for name, value in pairs(given) do text[name] = value end
  if text.model_type == nil then text.model_type = row.text end
  return text
end

local function is_other(row, name)
  for _, part in ipairs(row.parts) do
    if name:sub(1, #part) == part or name:sub(1, #part + 6) == "model." .. part then return true end
  end
  return false
end

-- "vision_tower and multi_modal_projector"
local function names_of(parts)
  local names = {}
  for i, part in ipairs(parts) do names[i] = part:gsub("%.$", "") end
  return table.concat(names, ", ", 1, #names - 1) .. " and " .. names[#names]
end

-- The classes around a decoder have heads of their own, which multiply by weights alone.
local function check_head(path, text_type, o)
  for option, what in pairs({ logit_scale = "a factor of logits", logit_softcap = "capped logits" }) do
    if o[option] and o[option] ~= 1 then
      errors.raise("MS_EUNSUPPORTED", "%s: text_config: %s has %s, which the reference library computes for a decoder "
        .. "alone and not inside of this model: which of them the weights were trained for is not said", path,
        text_type, what)
    end
  end
end

-- The family with the names of one nesting. tied: what config.json's text_config says, and what it itself does, once
-- they are read: version 4 of the reference library believes the first, and version 5 the second, which it also writes
-- as true for models that have a head of their own. Where they differ, the head is tied if the folder has none.
local function nest(row, inner, text_type, nesting, tied)
  local known, outside = known_of(row), nesting.outside or ""
  local family = {
    architecture = row.architecture, text = text_type, parts = names_of(row.parts), fields = known,
    prefix = nesting.prefix, head = outside .. inner.head, buffers = inner.buffers, renamed = inner.renamed,
    is_other = function(name) return is_other(row, name) end,
  }
  function family.options(path, config)
    local problems, own = new_problems(path), {}
    for name, value in pairs(config) do own[name] = value end
    problems:try(architecture.check, row, path, config)
    fields.read(problems, own, known)
    problems:raise()
    local o = inner.options(path .. ": text_config", outer.text_of(config, path))
    tied.inside, tied.here = o.tied, config.tie_word_embeddings
    o.tied = o.tied and tied.here ~= false
    check_head(path, text_type, o)
    return o
  end
  function family.tensors(o)
    local list = inner.tensors(o)
    for _, tensor in ipairs(list) do
      if tensor.outside or tensor.name == inner.head then tensor.name, tensor.outside = outside .. tensor.name, true end
    end
    return list
  end
  function family.nested(file)
    for _, other in ipairs(row.nestings) do
      if weights.has_prefix(file, other.prefix) then return nest(row, inner, text_type, other, tied) end
    end
    return family
  end
  function family.settle(file, o)
    o.tied = o.tied or not file.by_name[family.head] and (tied.inside or tied.here) == true
  end
  return family
end

---The family of a config with a decoder inside.
---@param config table as returned by config.read
---@param path string for errors
---@param family_of fun(model_type: string): moonshard.HuggingFaceFamily?
---@param refuse fun(path: string, model_type: any) raises for a model_type that is not read
---@return moonshard.NestedFamily
function outer.family(config, path, family_of, refuse)
  local row, text = families[config.model_type], outer.text_of(config, path)
  local inner = type(text.model_type) == "string" and family_of(text.model_type)
  if not inner then refuse(path .. ": text_config", text.model_type) end
  return nest(row, inner, text.model_type, row.nestings[1], {})
end

---What a user has to know of a model whose other parts do not run.
---@param family moonshard.NestedFamily
---@return string
function outer.note(family)
  return ("the text is read and trained alone, as a model of %s: %s do not run; where the model is saved, their "
    .. "tensors are copied from this folder"):format(family.text, family.parts)
end

-- ---- the other parts of a saved model ---------------------------------------------------------------------------

local AT_ONCE = 2 ^ 22 -- bytes

---Opens the folder that has the other parts of a model that is saved.
---@param family moonshard.NestedFamily
---@param model_type string the model's
---@param folder string?
---@param read fun(folder: string): table, string config.read
---@return moonshard.Safetensors
function outer.open(family, model_type, folder, read)
  if not folder then
    errors.raise("MS_EUNSUPPORTED", "a model of %s is saved with its other parts, %s, which are copied from the folder "
      .. "that the model was read from: give that folder (moonshard export --huggingface --tokenizer FOLDER)",
      model_type, family.parts)
  end
  local config, path = read(folder)
  if config.model_type ~= model_type then
    errors.raise("MS_EMISMATCH", "%s: its model_type is %s, and %s of the model that is saved, a %s, are copied from "
      .. "there: give the folder that the model was read from", path, options.describe(config.model_type),
      family.parts, model_type)
  end
  return safetensors.open(folder)
end

---The tensors of a folder's other parts, in the order of their places.
---@param family moonshard.NestedFamily
---@param file moonshard.Safetensors
---@return { stored_as: string, shape: integer[], stored: moonshard.StoredTensor }[]
function outer.others(family, file)
  local list = {}
  for _, tensor in ipairs(file.tensors) do
    if family.is_other(tensor.name) then
      list[#list + 1] = { stored_as = tensor.name, shape = tensor.shape, stored = tensor }
    end
  end
  return list
end

---Copies the bytes of a tensor.
---@param file moonshard.Safetensors
---@param writer moonshard.SafetensorsWriter
---@param tensor moonshard.StoredTensor
function outer.copy(file, writer, tensor)
  local data = file:data(tensor.name)
  for first = 0, tensor.bytes - 1, AT_ONCE do
    writer:put(tensor.name, data + first, math.min(AT_ONCE, tensor.bytes - first), first)
  end
end

return outer
