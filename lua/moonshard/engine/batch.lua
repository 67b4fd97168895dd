-- Reads batches: which fields are inputs, their shapes for one micro-batch, and which rows of the global batch they
-- contain. Copies micro-batches into the inputs of a plan.
--
-- Inputs are arrays and numbers. A number is an f32 of shape {}, such as the weight of a loss that changes during
-- training. It belongs to the whole batch, as an array without axes does, or one whose first size is 1 where the batch
-- has more rows: every micro-batch is given all of it.

local dtypes = require("moonshard.base.dtypes")
local engine = require("moonshard.base.ffi")
local errors = require("moonshard.base.error")
local options = require("moonshard.base.checks.options")
local ffi = engine.ffi

local batch_of = {}

-- Fields that say something about a batch, and are no inputs, with their types. As an array, such a field would be read
-- as if it said that; the texts are only read where they are texts.
local ABOUT_IT = { first_row = "number", row_step = "number", data_ms = "number", counted_rows = "number",
  sample_rows = "number", batch_number = "number", rows_of_last = "number", is_padded = "boolean",
  will_be_padded = "boolean" }
local SAID = { source = true, shared_by = true, predicts = true }

local function check_about(name, value)
  local wanted = ABOUT_IT[name]
  if type(value) == wanted and (wanted ~= "number" or value - value == 0) then return end
  errors.invalid("batch.%s says something about the batch, and must be %s, not %s: give an input of your own another "
    .. "name", name, wanted == "number" and "a finite number" or "true or false", options.describe(value))
end

local LARGEST = 3.4028234663852886e38 -- of f32

local function check_number(name, value)
  if math.abs(value) <= LARGEST or value ~= value or math.abs(value) == math.huge then return end
  errors.invalid("batch.%s is %g, which f32 cannot hold: scale it, or leave it out of the batch", name, value)
end

-- The names of the inputs of a batch, sorted. Only these are passed to the engine.
local function inputs_of(batch)
  if type(batch) == "number" then
    errors.invalid("a batch is a table of arrays, not the number %g: data:batches gives the step first, for step, "
      .. "batch in data:batches(steps) do", batch)
  end
  if type(batch) ~= "table" or rawget(batch, "data") ~= nil then
    errors.invalid("a batch is a table of arrays, { inputs = ..., targets = ... }, not %s", options.describe(batch))
  end
  local names, arrays = {}, 0
  for name, value in pairs(batch) do
    if ABOUT_IT[name] then
      check_about(name, value)
    elseif type(value) == "number" and type(name) == "string" then
      check_number(name, value)
      names[#names + 1] = name
    elseif type(value) == "cdata" then
      errors.invalid("batch.%s is memory without a shape: write { data = memory, dtype = \"f32\", shape = "
        .. "{ rows, ... } }", tostring(name))
    elseif type(name) ~= "string" then
      errors.invalid("a batch has fields with names, { inputs = ..., targets = ... }, not %s",
        options.describe(name))
    elseif type(value) == "table" then
      if type(value.data) == "nil" or not value.shape or not value.dtype then
        errors.invalid("batch.%s must be a tensor (ms.tensor), or a table with data, dtype and shape", tostring(name))
      end
      names[#names + 1], arrays = name, arrays + 1
    elseif not SAID[name] then
      errors.invalid("batch.%s is %s, which forward cannot be given: write a number (1 or 0 for true or false, from "
        .. "which ms.ops.where chooses), or keep it out of the batch", tostring(name), options.describe(value))
    end
  end
  table.sort(names)
  if arrays == 0 then
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

-- The first of these fields determines the number of rows of a batch. Without them it is the first array with several
-- rows, or else the first one that has an axis.
local PRIMARY = { "tokens", "inputs", "targets" }

local function has_rows(value)
  return type(value) == "table" and type(value.shape) == "table" and value.shape[1] ~= nil
end

local function primary(batch)
  for _, name in ipairs(PRIMARY) do
    if has_rows(batch[name]) then return batch[name] end
  end
  local first
  for name, value in pairs(batch) do
    if has_rows(value) then
      local is_single = value.shape[1] == 1
      if not first or first.is_single and not is_single or first.is_single == is_single and name < first.name then
        first = { name = name, is_single = is_single }
      end
    end
  end
  if first then return batch[first.name] end
  errors.raise("MS_ESHAPE", "no array of the batch has an axis: one needs rows, { rows, ... }")
end

---The rows of a batch, or of a trace's inputs.
---@param batch table<string, moonshard.Array|moonshard.Tensor>
---@return integer
function batch_of.rows(batch) return primary(batch).shape[1] end

---The array whose elements count as the tokens of a batch: its targets, or without targets the array that has its rows.
---@param batch table<string, moonshard.Array>
---@return moonshard.Array
function batch_of.token_array(batch) return has_rows(batch.targets) and batch.targets or primary(batch) end

---Elements that count as the tokens of a batch.
---@param batch table<string, moonshard.Array>
---@return integer
function batch_of.tokens(batch) return batch_of.numel(batch_of.token_array(batch).shape) end

local IS_INTEGER = { i32 = true, i64 = true, u8 = true, u16 = true, u32 = true }

---Its samples times a factor, where what it counts is no token: tokens are whole numbers, several of a row.
---@param batch table<string, moonshard.Array>
---@param factor number
---@return number?
function batch_of.samples(batch, factor)
  local array, rows = batch_of.token_array(batch), batch_of.rows(batch)
  if IS_INTEGER[array.dtype] and batch_of.numel(array.shape) > rows then return nil end
  return rows * factor
end

-- A double represents every integer up to here.
local MAX_ELEMENTS = 2 ^ 53

local function check_shape(name, shape)
  if type(shape) ~= "table" then
    errors.raise("MS_ESHAPE", "batch.%s: its shape must be a list of sizes, not %s", name, options.describe(shape))
  end
  local rows = shape[1]
  if rows == nil and next(shape) == nil then return end
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
  if batch_of.numel(shape) > MAX_ELEMENTS then
    errors.raise("MS_ESHAPE", "batch.%s: the sizes of its shape multiply to more than 2^53", name)
  end
end

local function spec_of(name, given, rows, micro_batches, fed)
  if type(given) == "number" then return { name = name, dtype = "f32", shape = {}, numel = 1, is_whole = true } end
  local _, dtype = dtypes.id(given.dtype)
  dtypes.check_whole_bytes("batch." .. name, dtype)
  check_shape(name, given.shape)
  local shape = { unpack(given.shape) }
  if fed then dtypes.check_memory(("batch.%s.data"):format(name), given.data, dtype, batch_of.numel(shape)) end
  local is_whole = #shape == 0 or shape[1] == 1 and rows > 1
  if not is_whole and shape[1] % micro_batches ~= 0 then
    errors.raise("MS_ESHAPE", "batch.%s has %d rows, not a multiple of %d micro-batches", name, shape[1],
      micro_batches)
  end
  if not is_whole and micro_batches > 1 and shape[1] % rows ~= 0 and rows % shape[1] ~= 0 then
    errors.raise("MS_ESHAPE", "batch.%s has %d rows and the batch %d, so each of %d micro-batches would have a part of "
      .. "it that is no part of its samples: a first axis of size 1 gives all of it to each", name, shape[1], rows,
      micro_batches)
  end
  if not is_whole then shape[1] = shape[1] / micro_batches end
  return { name = name, dtype = dtype, shape = shape, numel = batch_of.numel(shape), is_whole = is_whole }
end

---@class moonshard.InputSpec an input of one micro-batch
---@field name string
---@field dtype string
---@field shape integer[]
---@field numel integer
---@field rows integer number of rows of the micro-batch if the first size is a multiple of it; 0: it is not per row
---@field is_whole boolean every micro-batch has all of it

---The inputs of one micro-batch: the first dimension is divided by the number of micro-batches, but for inputs of the
---whole batch.
---@param batch table<string, moonshard.Array|number>
---@param micro_batches integer
---@param fed boolean? false: only use the shapes, to compile a plan, and do not check the data; default true
---@return moonshard.InputSpec[] specs sorted by name
function batch_of.specs(batch, micro_batches, fed)
  local names, specs = inputs_of(batch), {}
  local all = batch_of.rows(batch)
  for i, name in ipairs(names) do specs[i] = spec_of(name, batch[name], all, micro_batches, fed ~= false) end
  local rows = all / micro_batches
  for _, spec in ipairs(specs) do
    spec.rows = not spec.is_whole and spec.shape[1] % rows == 0 and rows or 0
  end
  return specs
end

---The values of an input.
---@param batch table<string, moonshard.Array|number>
---@param spec moonshard.InputSpec
---@return ffi.cdata*
function batch_of.data(batch, spec)
  local given = batch[spec.name]
  return type(given) == "number" and ffi.new("float[1]", given) or given.data
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

---Sets which rows a micro-batch has.
---@param inputs ffi.cdata* ms_step_inputs
---@param place { first: number, step: number } of batch_of.places
function batch_of.place(inputs, place) inputs.first_row, inputs.row_step = place.first, place.step end

---Copies a micro-batch into a plan's inputs.
---@param exec moonshard.Exec
---@param specs moonshard.InputSpec[]
---@param batch table<string, moonshard.Array|number>
---@param micro integer from 0
function batch_of.feed(exec, specs, batch, micro)
  for _, spec in ipairs(specs) do
    local array = { data = batch_of.data(batch, spec), dtype = spec.dtype }
    exec:write(spec.name, array, spec.is_whole and 0 or micro * spec.numel, spec.numel)
  end
end

return batch_of
