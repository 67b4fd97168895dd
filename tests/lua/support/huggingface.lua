-- What the specs of Hugging Face folders share: the fixtures, changed copies of them, values of files.

local ffi = require("ffi")
local json = require("cjson")
local assert = require("luassert")
local breadth = require("lua.support.breadth")
local assert_close = require("lua.support.fixture").assert_close
local compare = require("moonshard.check.tolerance")
local ms = require("moonshard")
local program = require("lua.support.program")
local scratch = require("lua.support.scratch")

local huggingface = { FIXTURES = "tests/fixtures/huggingface/" }

---The values of a tensor as numbers.
---@param file moonshard.Safetensors
---@param name string
---@return number[]
function huggingface.values_of(file, name)
  local n = file:tensor(name).elements
  local data, list = ffi.new("float[?]", math.max(1, n)), {}
  file:read_f32(name, nil, 0, n, data)
  for i = 1, n do list[i] = data[i - 1] end
  return list
end

---A copy of a fixture: its config, and its list of { name, shape, values }, changed.
---@param name string
---@param change_config fun(config: table)?
---@param change_tensors fun(tensors: table[])?
---@return string folder
function huggingface.copy_of(name, change_config, change_tensors)
  local folder = scratch.path()
  os.execute(("mkdir '%s'"):format(folder))
  local config = json.decode(scratch.read(huggingface.FIXTURES .. name .. "/config.json"))
  if change_config then change_config(config) end
  scratch.write(folder .. "/config.json", json.encode(config))
  local file, tensors, declared = ms.safetensors.open(huggingface.FIXTURES .. name), {}, {}
  for i, tensor in ipairs(file.tensors) do
    tensors[i] = { name = tensor.name, shape = tensor.shape, values = huggingface.values_of(file, tensor.name) }
  end
  if change_tensors then change_tensors(tensors) end
  for i, tensor in ipairs(tensors) do declared[i] = { name = tensor.name, dtype = "F32", shape = tensor.shape } end
  local writer = ms.safetensors.create(folder .. "/model.safetensors", declared)
  for _, tensor in ipairs(tensors) do
    writer:put_f32(tensor.name, nil, 0, #tensor.values, ffi.new("float[?]", #tensor.values, tensor.values))
  end
  writer:finish()
  return folder
end

---Logits of a folder's model for four tokens.
---@param folder string
---@param options table?
---@return moonshard.Tensor
function huggingface.logits_of(folder, options)
  local model = ms.huggingface.model(folder, options)
  return model(ms.tensor { { 3, 1, 40, 7 }, dtype = "i32" })
end

---A change of one field of a config.
---@param name string
---@param value any
---@return fun(config: table)
function huggingface.set(name, value)
  return function(config) config[name] = value end
end

---Saves a fixture's model and compares the folder with the fixture: names, shapes, values and config.
---@param name string
---@return string folder
function huggingface.assert_saved(name)
  local folder, saved = huggingface.FIXTURES .. name, scratch.path()
  ms.huggingface.save(ms.huggingface.model(folder), saved)
  local before, after = ms.safetensors.open(folder), ms.safetensors.open(saved)
  assert.equal(#before.tensors, #after.tensors)
  for _, tensor in ipairs(before.tensors) do
    assert.same(tensor.shape, after:tensor(tensor.name).shape, tensor.name)
    assert.equal(before:checksum(tensor.name), after:checksum(tensor.name), tensor.name)
  end
  local decode = require("moonshard.base.text.json").decode
  local whole = decode(scratch.read(saved .. "/config.json"))
  whole.torch_dtype = nil
  assert.same(decode(scratch.read(folder .. "/config.json")), whole)
  return saved
end

-- ---- the reference library's numbers ----------------------------------------------------------------------------

local F32 = 1e-5

---Trains a fixture as its reference was trained.
---@param name string
---@param ranks integer
---@param mesh string
---@param more table<string, any>? options of the recipe
---@param environment string? assignments, for the emulated device cuda
---@return table result of the recipe, and its folder `out`
function huggingface.train(name, ranks, mesh, more, environment)
  local out = scratch.path()
  os.execute(("mkdir '%s'"):format(out))
  local words = {
    "run", "tests/lua/huggingface/recipes/huggingface.lua", "-n", tostring(ranks), "mesh=" .. mesh, "out=" .. out,
    "folder=" .. huggingface.FIXTURES .. name, "reference=" .. huggingface.FIXTURES .. name .. ".safetensors",
  }
  for key, value in pairs(more or {}) do words[#words + 1] = ("%s=%s"):format(key, tostring(value)) end
  local ended = program.run(words, environment)
  assert(ended.status == 0, ended.err)
  local result = json.decode(scratch.read(out .. "/result.json"))
  result.out = out
  return result
end

-- Softmax does not see a key's bias: its gradient is rounding alone, here and in the reference.
local function assert_zero(values, name)
  for _, value in ipairs(values) do assert(math.abs(value) < 1e-7, ("%s: %g is not 0"):format(name, value)) end
end

-- AdamW makes steps of rounding where gradients of key biases are 0: of all elements, or of those that are not rotated.
local KEY_BIASES = { "key.bias", "k_proj.bias", "query_key_value.bias" }

local function has_key_bias(name)
  for _, ending in ipairs(KEY_BIASES) do
    if name:find(ending, 1, true) then return true end
  end
  return false
end

---Whether a tensor is of a part that does not run, next to a decoder.
---@param name string
---@return boolean
function huggingface.is_other_part(name)
  return name:find("vision_", 1, true) ~= nil or name:find("multi_modal_projector", 1, true) ~= nil
end

-- Compares a folder that was written with the tensors of the reference whose names begin with `kind`. What does not run
-- has no gradients; their folder has copies of its weights.
local function assert_tensors(reference, folder, kind, tolerance)
  local file, count, others = ms.safetensors.open(folder), 0, 0
  for _, tensor in ipairs(file.tensors) do
    if kind == "gradient" and huggingface.is_other_part(tensor.name) then
      others = others + 1
      goto next
    end
    local theirs = reference:tensor(kind .. "." .. tensor.name)
    assert.same(theirs.shape, tensor.shape, tensor.name)
    local expected, found = huggingface.values_of(reference, theirs.name), huggingface.values_of(file, tensor.name)
    if kind == "gradient" and tensor.name:find("key.bias", 1, true) then
      assert_zero(found, theirs.name)
    elseif kind == "after" and has_key_bias(tensor.name) then
      assert_close(expected, found, 10 * tolerance, theirs.name)
    else
      assert_close(expected, found, tolerance, theirs.name)
    end
    ::next::
  end
  for _, tensor in ipairs(reference.tensors) do
    if tensor.name:sub(1, #kind + 1) == kind .. "." then count = count + 1 end
  end
  assert.equal(count, #file.tensors - others)
end

---Compares what huggingface.train returned with the reference.
---@param name string
---@param result table
function huggingface.assert_reference(name, result)
  local reference = ms.safetensors.open(huggingface.FIXTURES .. name .. ".safetensors")
  assert.same(reference:tensor("logits").shape, result.shape)
  assert_close(huggingface.values_of(reference, "logits"), result.logits, F32, "logits")
  assert_close(huggingface.values_of(reference, "losses"), result.losses, F32, "losses")
  assert_tensors(reference, result.out .. "/gradient", "gradient", F32)
  assert_tensors(reference, result.out .. "/after", "after", compare.PARAMETERS * F32)
end

---What a spec of families trains: all of them, but for the thread sanitizer, which makes a run ten times slower, the
---richest one, which then stands for all.
---@param families string[]
---@param richest string
---@return string[] those to train
---@return boolean all of them are
function huggingface.tried(families, richest)
  local all = os.getenv("MOONSHARD_CONFIG") ~= "thread"
  return all and families or { richest }, all
end

---Trains a fixture on one rank and on meshes, or on one mesh that stands for them, as the reference library trained it.
---@param name string
---@param few { [1]: integer, [2]: string }? that mesh; one rank by default: assert_trains_divided has meshes of some
function huggingface.assert_trains(name, few)
  for _, of in ipairs(breadth.all and { { 1, "1x1" }, { 4, "2x2" }, { 2, "1x2" } } or { few or { 1, "1x1" } }) do
    huggingface.assert_reference(name, huggingface.train(name, of[1], of[2]))
  end
end

---Trains it over a tensor dimension, and in ragged chunks with micro-batches; the vocabulary is padded.
---@param name string
---@param place integer? in a list of which every second is trained one way, and the others the other way
function huggingface.assert_trains_divided(name, place)
  local ways = { { "1x1x2", { padding = 2 } }, { "1x2", { padding = 16, layout = "ragged", micro = 2 } } }
  for _, way in ipairs(place and { ways[place % 2 + 1] } or ways) do
    huggingface.assert_reference(name, huggingface.train(name, 2, way[1], way[2]))
  end
end

return huggingface
