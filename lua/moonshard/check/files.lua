-- The files that each rank of a checked run leaves for the other run: its batches, in the order of its steps, and at
-- the end its losses, its full parameters and its counters.
--
--   batches-R      per step a line of JSON (names, types, shapes), then the bytes of the arrays
--   R.json         losses, norms, trainers, plans
--   R.values       the f32 values of every parameter in the order of R.json; for the run on one rank also the values
--                  before the first step, and where steps depend on rounding, their sensitivity

local batch_of = require("moonshard.engine.batch")
local dtypes = require("moonshard.base.dtypes")
local engine = require("moonshard.base.ffi")
local errors = require("moonshard.base.error")
local input_file = require("moonshard.base.files.input_file")
local json = require("moonshard.base.text.json")
local ffi = engine.ffi

local files = {}

ffi.cdef [[
char *mkdtemp(char *pattern);
int mkdir(const char *path, unsigned mode);
]]

local function fail(path, why) errors.raise("MS_EIO", "check: %s: %s", path, why or "cannot write the whole file") end

---Opens a file of a check; raises an error on failure.
---@param path string
---@param mode string as for io.open
---@return file*
function files.open(path, mode)
  local file, why = io.open(path, mode)
  if not file then errors.raise("MS_EIO", "check: %s", why) end
  return file
end

---Writes to a file; raises an error on failure.
---@param file file*
---@param path string
---@param text string
function files.write(file, path, text)
  local ok, why = file:write(text)
  if not ok then fail(path, why) end
end
local write = files.write

---Closes a file after writing and reports write errors.
---@param file file*
---@param path string
function files.close(file, path)
  local ok, why = file:close()
  if not ok then fail(path, why) end
end

---Creates a temporary folder owned by this process.
---@return string
function files.temporary_folder()
  local pattern = (os.getenv("TMPDIR") or "/tmp") .. "/moonshard-check-XXXXXX"
  local path = ffi.new("char[?]", #pattern + 1, pattern)
  if ffi.C.mkdtemp(path) == nil then
    errors.raise("MS_EIO", "check: cannot make folder %s (errno %d)", pattern, ffi.errno())
  end
  return ffi.string(path)
end

---@param path string
function files.make_folder(path)
  if ffi.C.mkdir(path, 511) ~= 0 then
    errors.raise("MS_EIO", "check: cannot make folder %s (errno %d)", path, ffi.errno())
  end
end

---Removes the files of a check on that many ranks, and its folder.
---@param folder string
---@param ranks integer
function files.remove(folder, ranks)
  local names = { "one.json", "one.values" }
  for rank = 0, ranks - 1 do
    for _, name in ipairs({ "%d.json", "%d.values", "batches-%d" }) do names[#names + 1] = name:format(rank) end
  end
  for _, name in ipairs(names) do os.remove(folder .. "/" .. name) end
  os.remove(folder)
end

-- ---- batches ----------------------------------------------------------------------------------------------------

local function bytes_of(array)
  local bytes = dtypes.sizes[array.dtype]
  for _, size in ipairs(array.shape) do bytes = bytes * size end
  return bytes
end

---Appends a batch.
---@param file file*
---@param path string the file's, for messages
---@param batch table<string, moonshard.Array>
---@param specs table[] from moonshard.batch: its arrays, as one micro-batch
function files.write_batch(file, path, batch, specs)
  local head, parts = { arrays = {}, first_row = batch.first_row, row_step = batch.row_step }, {}
  for i, spec in ipairs(specs) do
    head.arrays[i] = { name = spec.name, dtype = spec.dtype, shape = spec.shape, is_whole = spec.is_whole }
    parts[i] = ffi.string(batch_of.data(batch, spec), bytes_of(spec))
  end
  write(file, path, json.encode(head) .. "\n" .. table.concat(parts))
end

---The next batch of a file.
---@param file file*
---@param path string
---@return table? batch nil at the end; arrays have bytes instead of data
function files.read_batch(file, path)
  local line = file:read("*l")
  if not line then return nil end
  local head = json.decode(line) or fail(path, "a line is damaged")
  local batch = { first_row = head.first_row, row_step = head.row_step }
  for _, array in ipairs(head.arrays) do
    array.bytes = file:read(bytes_of(array))
    if not array.bytes or #array.bytes ~= bytes_of(array) then fail(path, "the file ends in the middle of a batch") end
    batch[array.name] = array
  end
  return batch
end

-- ---- results ----------------------------------------------------------------------------------------------------

---@class moonshard.CheckedParameter
---@field name string
---@field shape integer[]
---@field numel integer
---@field dtype string the type that kernels read
---@field frozen boolean
---@field lr_scale number
---@field optimizer string kind
---@field apart { element: number, norm: number }? on one rank: how far rounding moves what Muon trains

---@class moonshard.CheckedTrainer
---@field mesh string
---@field ranks integer[]
---@field optimizer string kind
---@field dtype string the coarsest type in which it computes, reduces or keeps moments
---@field clip_grad_value number? 0 or nil: gradients are not clipped by value
---@field params moonshard.CheckedParameter[]

---@class moonshard.CheckedRun
---@field steps { trainer: integer, loss: number, grad_norm: number, lr: number }[]
---@field trainers moonshard.CheckedTrainer[]
---@field plan { fingerprint: string, bytes: table<string, number> }? of the first step
---@field wrong string[] see plan_counters.lua
---@field ranks integer all that trained
---@field values ffi.cdata* float const[]? only when read with values

---@param path string without ".json"
---@param result moonshard.CheckedRun
---@param values string[]? bytes of arrays
function files.write_result(path, result, values)
  local file = files.open(path .. ".json", "wb")
  write(file, path .. ".json", json.encode(result))
  files.close(file, path .. ".json")
  if not values then return end
  file = files.open(path .. ".values", "wb")
  for _, bytes in ipairs(values) do write(file, path .. ".values", bytes) end
  files.close(file, path .. ".values")
end

local function read_all(path)
  local text, why = input_file.text(path)
  if not text then errors.raise("MS_EIO", "check: %s", why) end
  return text
end

---@param path string without ".json"
---@param with_values boolean
---@return moonshard.CheckedRun
function files.read_result(path, with_values)
  local result, why = json.decode(read_all(path .. ".json"))
  if not result then fail(path .. ".json", why) end
  if with_values then
    local text = read_all(path .. ".values")
    result.values = ffi.new("float[?]", math.max(1, #text / 4))
    ffi.copy(result.values, text, #text)
    result.value_count = #text / 4
  end
  return result
end

return files
