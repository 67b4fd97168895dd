-- Folders whose weights are quantised, as fp8 with a factor for each block and as mxfp4, read as the values that they
-- mean; other quantised folders are refused.

local ffi = require("ffi")
local json = require("cjson")
local has = require("lua.support.message").has
local huggingface = require("lua.support.huggingface")
local message = require("lua.support.fixture").message
local ms = require("moonshard")
local quantised = require("moonshard.huggingface.quantised")
local scratch = require("lua.support.scratch")

teardown(scratch.clear)

local FIXTURES, values_of = huggingface.FIXTURES, huggingface.values_of

-- A folder with a config and tensors { name, dtype, shape, values or bytes }.
local function folder_of(config, tensors)
  local folder, declared = scratch.path(), {}
  os.execute(("mkdir '%s'"):format(folder))
  scratch.write(folder .. "/config.json", json.encode(config))
  for i, tensor in ipairs(tensors) do
    declared[i] = { name = tensor.name, dtype = tensor.dtype, shape = tensor.shape }
  end
  local writer = ms.safetensors.create(folder .. "/model.safetensors", declared)
  for _, tensor in ipairs(tensors) do
    local list = tensor.values or tensor.bytes
    local data = ffi.new(tensor.values and "float[?]" or "uint8_t[?]", #list, list)
    if tensor.values then writer:put_f32(tensor.name, nil, 0, #list, data) else writer:put(tensor.name, data, #list) end
  end
  writer:finish()
  return folder
end

local function config_of(folder, change)
  local config = json.decode(scratch.read(folder .. "/config.json"))
  if change then change(config) end
  return config
end

-- The values of all parameters of a folder's model.
local function parameters_of(folder)
  local model, values = ms.huggingface.model(folder), {}
  for name in model:named_parameters() do values[name] = model:parameter(name):reshape(-1):tolist() end
  return values, model
end

local ROWS, COLUMNS = 5, 7 -- of a block

-- A fixture's folder with its matrices in fp8, and the folder of the values that they mean.
local function in_fp8(name, change_scale)
  local file, stored, meant = ms.safetensors.open(FIXTURES .. name), {}, {}
  for _, tensor in ipairs(file.tensors) do
    local shape, values = tensor.shape, values_of(file, tensor.name)
    local is_matrix = tensor.name:find("_proj", 1, true) and #shape == 2
    if is_matrix then
      local wide, scales = math.ceil(shape[2] / COLUMNS), {}
      for i = 1, math.ceil(shape[1] / ROWS) * wide do scales[i] = 0.25 * (i % 5 + 1) end
      local codes = {}
      for i, value in ipairs(values) do codes[i] = math.floor(value * 8 + 0.5) / 8 end -- exact in f8
      for i, code in ipairs(codes) do
        local row, column = math.floor((i - 1) / shape[2]), (i - 1) % shape[2]
        values[i] = code * scales[math.floor(row / ROWS) * wide + math.floor(column / COLUMNS) + 1]
      end
      stored[#stored + 1] = { name = tensor.name, dtype = "F8_E4M3", shape = shape, values = codes }
      stored[#stored + 1] = { name = tensor.name .. "_scale_inv", dtype = "F32",
        shape = { math.ceil(shape[1] / ROWS), wide }, values = scales }
    else
      stored[#stored + 1] = { name = tensor.name, dtype = "F32", shape = shape, values = values }
    end
    meant[#meant + 1] = { name = tensor.name, dtype = "F32", shape = shape, values = values }
  end
  if change_scale then change_scale(stored) end
  local function quantise(config)
    config.quantization_config = { quant_method = "fp8", fmt = "e4m3", activation_scheme = "dynamic",
      weight_block_size = { ROWS, COLUMNS } }
  end
  return folder_of(config_of(FIXTURES .. name, quantise), stored), folder_of(config_of(FIXTURES .. name), meant)
end

describe("a quantised folder", function()
  it("K6 in fp8 is read as its values times the factors of their blocks", function()
    for _, name in ipairs({ "deepseek_v3", "qwen3", "phi3" }) do -- experts, single products, several in one tensor
      local stored, meant = in_fp8(name)
      assert.same((parameters_of(meant)), (parameters_of(stored)), name)
    end
  end)

  it("K6 in fp8 is refused where factors do not fit", function()
    local stored = in_fp8("qwen3", function(tensors)
      for _, tensor in ipairs(tensors) do
        if tensor.name:find("q_proj.weight_scale_inv", 1, true) then
          tensor.shape, tensor.values = { 1, 1 }, { 1 }
        end
      end
    end)
    has(message(ms.huggingface.model, stored), "q_proj.weight_scale_inv is [1,1] | 5 x 7 | q_proj.weight")
    local lacking = in_fp8("qwen3", function(tensors)
      for i = #tensors, 1, -1 do
        if tensors[i].name:find("layers.0.mlp.up_proj.weight_scale_inv", 1, true) then table.remove(tensors, i) end
      end
    end)
    has(message(ms.huggingface.model, lacking), "up_proj.weight | F8_E4M3 | no factors | weight_scale_inv")
    local whole = in_fp8("qwen3", function(tensors)
      for _, tensor in ipairs(tensors) do
        if tensor.name:find("layers.0.mlp.up_proj.weight$") then tensor.dtype = "BF16" end
      end
    end)
    has(message(ms.huggingface.model, whole), "up_proj.weight | BF16 | factors | quantization_config")
  end)

  it("K6 in mxfp4 is read as the numbers of its bytes times powers of two", function()
    local VALUES = { [0] = 0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6 }
    local source = scratch.path()
    ms.huggingface.save(ms.models.gpt_oss { vocab = 17, layers = 1, dim = 64, heads = 2, ffn = 32, seq = 8, experts = 2,
      experts_per_token = 1 }, source)
    local file, stored, meant = ms.safetensors.open(source), {}, {}
    for _, tensor in ipairs(file.tensors) do
      local shape, values = tensor.shape, values_of(file, tensor.name)
      if #shape == 3 then
        local experts, inputs, outputs = unpack(shape)
        local bytes, scales, seed = {}, {}, #tensor.name
        for i = 1, #values / 2 do
          seed = (seed * 109 + 89) % 256
          bytes[i] = seed
        end
        for i = 1, #values / 32 do scales[i] = 120 + i % 11 end
        for e = 0, experts - 1 do
          for n = 0, outputs - 1 do
            for k = 0, inputs - 1 do
              local at = (e * outputs + n) * inputs + k
              local byte = bytes[math.floor(at / 2) + 1]
              local code = at % 2 == 0 and byte % 16 or math.floor(byte / 16)
              values[(e * inputs + k) * outputs + n + 1] = VALUES[code] * 2 ^ (scales[math.floor(at / 32) + 1] - 127)
            end
          end
        end
        local groups = inputs / 32
        stored[#stored + 1] = { name = tensor.name .. "_blocks", dtype = "U8", shape = { experts, outputs, groups, 16 },
          bytes = bytes }
        stored[#stored + 1] = { name = tensor.name .. "_scales", dtype = "U8", shape = { experts, outputs, groups },
          bytes = scales }
      else
        stored[#stored + 1] = { name = tensor.name, dtype = "F32", shape = shape, values = values }
      end
      meant[#meant + 1] = { name = tensor.name, dtype = "F32", shape = shape, values = values }
    end
    local folder = folder_of(config_of(source, function(config)
      config.quantization_config = { quant_method = "mxfp4", modules_to_not_convert = { "lm_head" } }
    end), stored)
    local expected = parameters_of(folder_of(config_of(source), meant))
    local found, model = parameters_of(folder)
    assert.same(expected, found)
    local part, down = ffi.new("float[70]"), "model.layers.0.mlp.experts.down_proj" -- 32 inputs, 64 outputs
    quantised.file(ms.safetensors.open(folder), { name = "mxfp4" }):read_f32(down, { rows = 64, columns = 32,
      first = 0, row_stride = 1, column_stride = 64 }, 37, 70, part)
    for i = 0, 69 do assert.equal(expected["layers.0.mlp.experts.w2"][38 + i], part[i]) end
    local saved = scratch.path()
    ms.huggingface.save(model, saved)
    assert.is_nil(config_of(saved).quantization_config)
    assert.same(expected, (parameters_of(saved)))
  end)

  it("K6 of another kind is refused with what to do", function()
    local function refused(config)
      return message(ms.huggingface.model, huggingface.copy_of("qwen3", huggingface.set("quantization_config", config)))
    end
    has(refused { quant_method = "gptq", bits = 4 }, "quantization_config | dequantize")
    has(refused { quant_method = "fp8", activation_scheme = "static" }, "quantization_config | dequantize")
    has(refused { quant_method = "fp8", fmt = "e5m2", weight_block_size = { 128, 128 } },
      "quantization_config | dequantize")
  end)
end)
