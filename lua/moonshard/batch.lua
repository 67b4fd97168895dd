-- A batch as the engine takes it: which of its fields are arrays, their shapes for one micro-batch, and their copying.

local errors = require("moonshard.error")
local options = require("moonshard.options")

local batch_of = {}

-- Fields of a batch that are arrays, in a fixed order: what is fed to the engine.
local function arrays_of(batch)
  if type(batch) ~= "table" or rawget(batch, "data") ~= nil then
    errors.invalid("a batch is a table of arrays, { inputs = ..., targets = ... }, not %s", options.describe(batch))
  end
  local names = {}
  for name, value in pairs(batch) do
    if type(value) == "table" then
      if value.data == nil or not value.shape or not value.dtype then
        errors.invalid("batch.%s must be a tensor (ms.tensor), or a table with data, dtype and shape", tostring(name))
      end
      names[#names + 1] = name
    end
  end
  table.sort(names)
  if #names == 0 then
    errors.invalid("a batch needs arrays, e.g. tokens and targets, each { data =, dtype =, shape = }")
  end
  return names
end

---How many elements a shape has.
---@param shape integer[]
---@return integer
function batch_of.numel(shape)
  local n = 1
  for _, size in ipairs(shape) do n = n * size end
  return n
end

---One micro-batch's inputs: the first dimension divided by the number of micro-batches.
---@param batch table<string, moonshard.Array>
---@param micro_batches integer
---@return { name: string, dtype: string, shape: integer[], numel: integer }[] specs by name
function batch_of.specs(batch, micro_batches)
  local specs = {}
  for i, name in ipairs(arrays_of(batch)) do
    local array = batch[name]
    local shape = { unpack(array.shape) }
    local rows = shape[1]
    if type(rows) ~= "number" or rows < 1 or rows % 1 ~= 0 then
      errors.raise("MS_ESHAPE", "batch.%s has %s rows on this rank; it must be a whole number of at least 1", name,
        tostring(rows))
    end
    if shape[1] % micro_batches ~= 0 then
      errors.raise("MS_ESHAPE", "batch.%s has %d rows, which %d micro-batches do not divide", name, shape[1],
        micro_batches)
    end
    shape[1] = shape[1] / micro_batches
    specs[i] = { name = name, dtype = array.dtype, shape = shape, numel = batch_of.numel(shape) }
  end
  return specs
end

---Copies a micro-batch into a plan's inputs.
---@param exec moonshard.Exec
---@param specs table of the batch
---@param batch table<string, moonshard.Array>
---@param micro integer from 0
function batch_of.feed(exec, specs, batch, micro)
  for _, spec in ipairs(specs) do exec:write(spec.name, batch[spec.name], micro * spec.numel, spec.numel) end
end

return batch_of
