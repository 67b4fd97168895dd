-- The parameters of a model with its adapters merged, for folders in Hugging Face's layout, which have no place for
-- adapters: W + (alpha / rank) B A, biases, and rows of embeddings, a piece at a time.

local adapted_weight = require("moonshard.nn.adapters.adapted_weight")
local adapter = require("moonshard.nn.adapter")
local errors = require("moonshard.base.error")
local trainable_tokens = require("moonshard.nn.adapters.trainable_tokens")
local ffi = require("ffi")

-- A parameter in full; nil on ranks that only take part in reading.
local function whole(found, count)
  local values = found.read(0, count)
  if values == nil then return nil end
  local own = ffi.new("float[?]", count)
  ffi.copy(own, values, 4 * count)
  return own
end

-- The matrices of an adapter and, for DoRA, the lengths of rows. Collective where reading is.
local function values_of(by_name, record, base)
  local outputs, of = record.outputs, { rank = record.rank, alpha = record.alpha, inputs = record.inputs,
    outputs = record.outputs }
  of.down = whole(by_name[record.down], record.rank * record.inputs)
  of.up = whole(by_name[record.up], outputs * record.rank)
  of.magnitude = record.magnitude and whole(by_name[record.magnitude], outputs)
  if record.magnitude then adapted_weight.measure(of, base.read) end
  return of
end

-- Reads a weight with its adapter, which is read at the first call.
local function weight_reader(by_name, record, base)
  local of
  return function(first, count)
    of = of or values_of(by_name, record, base)
    local values = base.read(first, count)
    if values == nil then return nil end
    adapted_weight.add(ffi.cast("float *", values), first, count, of)
    return values
  end
end

local function bias_reader(by_name, record, base)
  if not base then
    errors.raise("MS_EUNSUPPORTED", "layer %s has no bias, so that of its adapter (lora_bias) cannot be merged into "
      .. "it, as in PEFT: save the adapters (ms.lora.save)", record.layer)
  end
  local own, known
  return function(first, count)
    if not known then own, known = whole(by_name[record.bias], record.outputs), true end
    local values = base.read(first, count)
    if values == nil then return nil end
    adapted_weight.add_bias(ffi.cast("float *", values), first, count, own, record.alpha / record.rank)
    return values
  end
end

local function rows_reader(by_name, record, base)
  local delta, known
  return function(first, count)
    if not known then delta, known = whole(by_name[record.delta], #record.indices * record.dim), true end
    local values = base.read(first, count)
    if values == nil then return nil end
    trainable_tokens.put(ffi.cast("float *", values), first, count, record, delta)
    return values
  end
end

---Iterates over parameters as a model without adapters has them.
---@param parameters fun(): string?, integer[]?, function? as of moonshard.HuggingFaceSource
---@param records moonshard.AdapterRecord[]
---@param tokens moonshard.TokensRecord[]
---@return fun(): string?, integer[]?, function?
return function(parameters, records, tokens)
  if not records[1] and not tokens[1] then return parameters end
  local names, by_name, reads, hidden, i = {}, {}, {}, {}, 0
  for name, dims, read in parameters do
    names[#names + 1], by_name[name] = name, { dims = dims, read = read }
  end
  for _, record in ipairs(records) do
    for _, part in ipairs(adapter.PARTS) do hidden[record[part.record] or ""] = true end
    local weight, bias = record.layer .. ".weight", record.layer .. ".bias"
    reads[weight] = weight_reader(by_name, record, by_name[weight])
    if record.bias then reads[bias] = bias_reader(by_name, record, by_name[bias]) end
  end
  for _, record in ipairs(tokens) do
    hidden[record.delta] = true
    reads[record.weight] = rows_reader(by_name, record, by_name[record.weight])
  end
  return function()
    repeat i = i + 1 until not hidden[names[i]]
    local name = names[i]
    if name then return name, by_name[name].dims, reads[name] or by_name[name].read end
  end
end
