-- The parameters of a model with its adapters merged, for folders in Hugging Face's layout, which have no place for
-- adapters: W + (alpha / rank) B A, a piece at a time.

local adapter = require("moonshard.nn.adapter")
local ffi = require("ffi")

-- A parameter in full; nil on ranks that only take part in reading.
local function whole(found, count)
  local values = found.read(0, count)
  if values == nil then return nil end
  local own = ffi.new("float[?]", count)
  ffi.copy(own, values, 4 * count)
  return own
end

-- Reads a weight, and adds the product of its adapter's matrices, which are read at the first call.
local function reader(by_name, record, base)
  local down, up, known
  return function(first, count)
    if not known then
      down = whole(by_name[record.down], record.rank * record.inputs)
      up = whole(by_name[record.up], record.outputs * record.rank)
      known = true
    end
    local values = base.read(first, count)
    if values == nil then return nil end
    adapter.add_product(ffi.cast("float *", values), first, count, record.inputs, down, up, record)
    return values
  end
end

---Iterates over parameters as a model without adapters has them.
---@param parameters fun(): string?, integer[]?, function? as of moonshard.HuggingFaceSource
---@param records moonshard.AdapterRecord[]
---@return fun(): string?, integer[]?, function?
return function(parameters, records)
  if not records[1] then return parameters end
  local names, by_name, reads, hidden, i = {}, {}, {}, {}, 0
  for name, dims, read in parameters do
    names[#names + 1], by_name[name] = name, { dims = dims, read = read }
  end
  for _, record in ipairs(records) do
    hidden[record.down], hidden[record.up] = true, true
    local weight = record.layer .. ".weight"
    reads[weight] = reader(by_name, record, by_name[weight])
  end
  return function()
    repeat i = i + 1 until not hidden[names[i]]
    local name = names[i]
    if name then return name, by_name[name].dims, reads[name] or by_name[name].read end
  end
end
