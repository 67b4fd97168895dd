-- Reads batches: which fields are arrays, their shapes for one micro-batch, and which rows of the global batch they
-- contain. Copies micro-batches into the inputs of a plan.

local dtypes = require("moonshard.base.dtypes")
local errors = require("moonshard.base.error")
local options = require("moonshard.base.options")

local batch_of = {}

-- The names of the array fields of a batch, sorted. Only these are passed to the engine.
local function arrays_of(batch)
  if type(batch) ~= "table" or rawget(batch, "data") ~= nil then
    errors.invalid("a batch is a table of arrays, { inputs = ..., targets = ... }, not %s", options.describe(batch))
  end
  local names = {}
  for name, value in pairs(batch) do
    if type(value) == "cdata" then
      errors.invalid("batch.%s is memory without a shape: write { data = memory, dtype = \"f32\", shape = "
        .. "{ rows, ... } }", tostring(name))
    elseif type(value) == "table" then
      if type(value.data) == "nil" or not value.shape or not value.dtype then
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

---Number of elements of a shape.
---@param shape integer[]
---@return integer
function batch_of.numel(shape)
  local n = 1
  for _, size in ipairs(shape) do n = n * size end
  return n
end

---Elements that count as the tokens of a batch: those of its targets, or without targets of its first array.
---@param batch table<string, moonshard.Array>
---@return integer
function batch_of.tokens(batch)
  return batch_of.numel((batch.targets or batch[arrays_of(batch)[1]]).shape)
end

-- A double represents every integer up to here.
local MOST_ELEMENTS = 2 ^ 53

local function check_shape(name, shape)
  if type(shape) ~= "table" then
    errors.raise("MS_ESHAPE", "batch.%s: its shape must be a list of sizes, not %s", name, options.describe(shape))
  end
  local rows = shape[1]
  if type(rows) ~= "number" or rows < 1 or rows % 1 ~= 0 then
    errors.raise("MS_ESHAPE", "batch.%s has %s rows on this rank; it must be a whole number of at least 1", name,
      tostring(rows))
  end
  for axis, size in ipairs(shape) do
    if type(size) ~= "number" or size < 1 or size % 1 ~= 0 then
      errors.raise("MS_ESHAPE", "batch.%s: size %d of its shape is %s; it must be a whole number of at least 1", name,
        axis, options.describe(size))
    end
  end
  if batch_of.numel(shape) > MOST_ELEMENTS then
    errors.raise("MS_ESHAPE", "batch.%s: the sizes of its shape multiply to more than 2^53", name)
  end
end

local function spec_of(name, array, micro_batches, fed)
  local _, dtype = dtypes.id(array.dtype)
  dtypes.check_whole_bytes("batch." .. name, dtype)
  check_shape(name, array.shape)
  local shape = { unpack(array.shape) }
  if fed then dtypes.check_memory(("batch.%s.data"):format(name), array.data, dtype, batch_of.numel(shape)) end
  if shape[1] % micro_batches ~= 0 then
    errors.raise("MS_ESHAPE", "batch.%s has %d rows, not a multiple of %d micro-batches", name, shape[1],
      micro_batches)
  end
  shape[1] = shape[1] / micro_batches
  return { name = name, dtype = dtype, shape = shape, numel = batch_of.numel(shape) }
end

-- The first of these fields, or else the first array, determines the number of rows of a batch.
local PRIMARY = { "tokens", "inputs", "targets" }

---The rows of a batch, or of a trace's inputs.
---@param batch table<string, moonshard.Array|moonshard.Tensor>
---@return integer
function batch_of.rows(batch)
  for _, name in ipairs(PRIMARY) do
    if type(batch[name]) == "table" then return batch[name].shape[1] end
  end
  local first
  for name, value in pairs(batch) do
    if type(value) == "table" and (not first or name < first) then first = name end
  end
  return batch[first].shape[1]
end

---The inputs of one micro-batch: the first dimension is divided by the number of micro-batches. `rows` is the number of
---rows of the micro-batch if the field's first dimension is a multiple of it, or else 0: the field is not per row.
---@param batch table<string, moonshard.Array>
---@param micro_batches integer
---@param fed boolean? false: only use the shapes, to compile a plan, and do not check the data; default true
---@return { name: string, dtype: string, shape: integer[], numel: integer, rows: integer }[] specs sorted by name
function batch_of.specs(batch, micro_batches, fed)
  local specs = {}
  for i, name in ipairs(arrays_of(batch)) do specs[i] = spec_of(name, batch[name], micro_batches, fed ~= false) end
  local rows = batch_of.rows(batch) / micro_batches
  for _, spec in ipairs(specs) do spec.rows = spec.shape[1] % rows == 0 and rows or 0 end
  return specs
end

---Which rows of a step's global batch each micro-batch contains: row i of the micro-batch is row first + i * step of
---the global batch. Loaders set first_row and row_step in their batches; without them the global batch is the
---concatenation of the ranks' batches in the order of the mesh.
---@param batch table<string, moonshard.Array>
---@param micro_batches integer
---@param place integer index of this rank among those that train together, from 0
---@return { first: integer, step: integer }[] by micro-batch
function batch_of.places(batch, micro_batches, place)
  local rows, places = batch_of.rows(batch), {}
  local first, step = batch.first_row or place * rows, batch.row_step or 1
  for key, value in pairs({ first_row = first, row_step = step }) do
    if type(value) ~= "number" or value % 1 ~= 0 or value < (key == "row_step" and 1 or 0) then
      errors.invalid("batch.%s must be a whole number of at least %d, not %s", key, key == "row_step" and 1 or 0,
        options.describe(value))
    end
  end
  for micro = 0, micro_batches - 1 do
    places[micro + 1] = { first = first + micro * rows / micro_batches * step, step = step }
  end
  return places
end

---Copies a micro-batch into a plan's inputs.
---@param exec moonshard.Exec
---@param specs table from batch_of.specs
---@param batch table<string, moonshard.Array>
---@param micro integer from 0
function batch_of.feed(exec, specs, batch, micro)
  for _, spec in ipairs(specs) do
    local array = { data = batch[spec.name].data, dtype = spec.dtype }
    exec:write(spec.name, array, micro * spec.numel, spec.numel)
  end
end

return batch_of
