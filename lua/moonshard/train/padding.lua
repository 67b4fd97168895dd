-- Batches whose rows each rank pads to its own longest, padded further to the longest of all ranks: the ranks of a step
-- run one plan, which has one shape. The option `pad` of ms.trainer says which fields are padded, and with what.
--
-- It is an option because only the recipe knows what leaves its results unchanged. Under causal attention any token
-- does, where the targets are ignored; a model that sees all tokens needs a mask, too.

local batch_of = require("moonshard.engine.batch")
local dtypes = require("moonshard.base.dtypes")
local engine = require("moonshard.base.ffi")
local errors = require("moonshard.base.error")
local options = require("moonshard.base.checks.options")
local world = require("moonshard.distributed.world")
local ffi = engine.ffi

local padding = {}

local WHO = "ms.trainer: pad"
local EXAMPLE = "write pad = { tokens = 0, targets = -100 }"
-- Sizes that ranks exchange of each field.
local AXES = tonumber(engine.C.MS_MAX_DIMS)

---Checks the option.
---@param pad table<string, number>? the value of each padded field
---@return { name: string, value: number }[]? fields sorted by name
function padding.read(pad)
  if pad == nil then return nil end
  local fields = {}
  for name, value in pairs(pad) do
    if type(name) ~= "string" then errors.invalid("%s names the fields of batches: %s", WHO, EXAMPLE) end
    if type(value) ~= "number" or value ~= value then
      errors.invalid("%s: %s is padded with a number, not %s: %s", WHO, name, options.describe(value), EXAMPLE)
    end
    fields[#fields + 1] = { name = name, value = value }
  end
  if #fields == 0 then errors.invalid("%s is empty: %s, or leave it out", WHO, EXAMPLE) end
  table.sort(fields, function(a, b) return a.name < b.name end)
  return fields
end

-- The sizes of a batch's padded fields, AXES for each: 0 for axes that it does not have, and for no such field.
local function sizes_of(fields, batch)
  local sizes = {}
  for i, field in ipairs(fields) do
    local array = batch[field.name]
    local shape = type(array) == "table" and array.shape or {}
    for axis = 1, AXES do sizes[(i - 1) * AXES + axis] = shape[axis] or 0 end
  end
  return sizes
end

local function elements(sizes, i)
  local n = sizes[(i - 1) * AXES + 1]
  for axis = 2, AXES do n = n * math.max(1, sizes[(i - 1) * AXES + axis]) end
  return n
end

-- The largest size of every axis on any rank, the share of all elements that padding to it adds, and by field how many
-- elements the ranks gave.
local function largest_of(fields, lists)
  local most, given, total, of_field = {}, 0, 0, {}
  for k, sizes in ipairs(lists) do most[k] = math.max(unpack(sizes)) end
  for place = 1, #lists[1] do
    local sizes = {}
    for k, of_ranks in ipairs(lists) do sizes[k] = of_ranks[place] end
    for i in ipairs(fields) do
      of_field[i] = (of_field[i] or 0) + elements(sizes, i)
      given, total = given + elements(sizes, i), total + elements(most, i)
    end
  end
  return most, total > 0 and 1 - given / total or 0, of_field
end

-- ---- copying -----------------------------------------------------------------------------------------------------

local function fill(field, dtype, data, numel)
  if field.value == 0 then return ffi.fill(data, numel * dtypes.sizes[dtype]) end
  if dtypes.readable_as[dtype] ~= dtype then
    errors.raise("MS_EDTYPE", "%s: %s is %s, which is padded with 0 alone, not with %s", WHO, field.name, dtype,
      options.describe(field.value))
  end
  data[0] = field.value
  if tonumber(data[0]) ~= field.value and dtype ~= "f32" then
    errors.raise("MS_EDTYPE", "%s: %s is %s, which cannot hold %s", WHO, field.name, dtype,
      options.describe(field.value))
  end
  for i = 1, numel - 1 do data[i] = field.value end
end

-- Copies the lines of the last axis to their places among longer ones.
local function copy_lines(source, from, target, to, bytes)
  local last, lines, index = #from, 1, {}
  for axis = 1, last - 1 do lines, index[axis] = lines * from[axis], 0 end
  for line = 0, lines - 1 do
    local at = 0
    for axis = 1, last - 1 do at = at * to[axis] + index[axis] end
    ffi.copy(target + at * to[last] * bytes, source + line * from[last] * bytes, from[last] * bytes)
    local axis = last - 1
    while axis > 0 do
      index[axis] = index[axis] + 1
      if index[axis] < from[axis] then break end
      index[axis], axis = 0, axis - 1
    end
  end
end

local function padded(self, field, array, most, i)
  local shape, differs, numel = { array.shape[1] }, false, array.shape[1]
  for axis = 2, #array.shape do
    shape[axis] = most[(i - 1) * AXES + axis]
    differs, numel = differs or shape[axis] ~= array.shape[axis], numel * shape[axis]
  end
  if not differs then return array end
  local _, dtype = dtypes.id(array.dtype)
  local data = self.buffers:get("padded " .. field.name, dtype, numel)
  fill(field, dtype, data, numel)
  copy_lines(ffi.cast("const char *", array.data), array.shape, ffi.cast("char *", data), shape, dtypes.sizes[dtype])
  return { data = data, dtype = dtype, shape = shape }
end

-- The tokens of all ranks' batches before they were padded; nil if the field of the tokens is not padded. Ranks with
-- the same rows count once.
local function tokens_of(self, batch, lists, given)
  local counted = batch_of.token_array(batch)
  for i, field in ipairs(self.padded_fields) do
    if rawequal(batch[field.name], counted) then return given[i] * self.session:data_ranks() / #lists[1] end
  end
end

---The batch with the shapes that all ranks have; the batch itself for a trainer without the option. self.padding is the
---share of the padded fields' elements on all ranks that were added, and self.given_tokens counts the tokens without
---them. A field that only some ranks have is left to the comparison of what ranks run. Collective.
---@param self moonshard.Trainer
---@param batch table<string, moonshard.Array>
---@return table<string, moonshard.Array>
function padding.of_all(self, batch)
  local fields = self.padded_fields
  if not fields or world.plan_only then return batch end
  batch_of.specs(batch, 1) -- checks what is copied
  local lists = self.session:gather_lists(sizes_of(fields, batch), "of the lengths of batches, for pad")
  local copy, most, share, given = {}, largest_of(fields, lists)
  self.padding, self.given_tokens = share, tokens_of(self, batch, lists, given)
  for key, value in pairs(batch) do copy[key] = value end
  for i, field in ipairs(fields) do
    local array = batch[field.name]
    if type(array) == "table" then copy[field.name] = padded(self, field, array, most, i) end
    if most[(i - 1) * AXES + 1] == 0 then
      errors.invalid("%s names the field %s, which no batch has", WHO, field.name)
    end
  end
  return copy
end

return padding
