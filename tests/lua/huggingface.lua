-- What the specs of Hugging Face folders share: the fixtures, changed copies of them, values of files.

local ffi = require("ffi")
local json = require("cjson")
local ms = require("moonshard")
local scratch = require("lua.scratch")

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

return huggingface
