-- Validates a manifest before anything relies on it, since it can have been edited or written by another program with a
-- correct checksum: every field that is read later has its type, files are in the checkpoint's own folder, and sizes
-- are exact integers.

local errors = require("moonshard.base.error")
local options = require("moonshard.base.checks.options")

local schema = {}

-- 2^53: doubles, which represent JSON's numbers here, are exact integers only below it.
local MAX_ELEMENTS = 2 ^ 53

local function natural(value)
  return type(value) == "number" and value >= 0 and value % 1 == 0 and value < MAX_ELEMENTS
end

-- A kind is { description, test }.
local KINDS = {
  count = { "a whole number of at least 0", natural },
  positive = { "a whole number of at least 1", function(value) return natural(value) and value >= 1 end },
  number = { "a number", function(value) return type(value) == "number" end },
  boolean = { "true or false", function(value) return type(value) == "boolean" end },
  string = { "a string", function(value) return type(value) == "string" end },
  any = { "a value", function(value) return value ~= nil end },
  table = { "an object", function(value) return type(value) == "table" end },
  f32 = { '"f32"', function(value) return value == "f32" end },
  file = { "the name of a file in the checkpoint's folder", function(value)
    return type(value) == "string" and value ~= "" and value ~= "." and value ~= ".." and not value:find("[/%z]")
  end },
  checksums = { "16 hexadecimal digits for each block", function(value)
    return type(value) == "string" and #value % 16 == 0 and not value:find("%X")
  end },
}

local HEAD = {
  { "step", "count" }, { "ranks", "count" }, { "mesh", "table" }, { "parameters", "table" }, { "files", "table" },
  { "updates", "count", optional = true },
  { "saved_at", "string", optional = true }, { "optimizer", "table", optional = true },
  { "ema", "table", optional = true }, { "generator", "table", optional = true }, { "line", "table", optional = true },
  { "data", "any", optional = true },
  { "generator_of_ranks", "table", optional = true }, { "data_of_ranks", "table", optional = true },
  { "schedule", "table", optional = true }, { "settings", "table", optional = true },
  { "options", "table", optional = true }, { "model", "table", optional = true },
  { "replicate_sync", "table", optional = true },
}
local MESH = { { "label", "string" }, { "shape", "table" } }
local OPTIMIZER = {
  { "kind", "string" }, { "states", "table", optional = true }, { "muon", "table", optional = true },
  { "muon_settings", "table", optional = true },
}
local EMA = { { "decay", "number" }, { "warmup", "boolean" } }
local REPLICATE_SYNC = {
  { "replicas", "positive" }, { "every", "positive" }, { "fragments", "positive" }, { "delay", "count" },
  { "alpha", "number" }, { "momentum", "number" }, { "units", "table" },
}
local GENERATOR = { { "seed", "count" }, { "eager", "table" } }
local EAGER = { { "seed", "count" }, { "draws", "count" } }
local LINE = { { "id", "count" }, { "forks", "table", optional = true } }
local FORK = { { "id", "count" }, { "step", "count" } }
local PARAMETER = {
  { "name", "string" }, { "shape", "table" }, { "dtype", "f32" }, { "frozen", "boolean" },
  { "storage", "string", optional = true }, { "momentum_from", "count", optional = true },
}
local FILE = { { "file", "file" }, { "tensors", "table" } }
local TENSOR = {
  { "name", "string" }, { "parameter", "string" }, { "kind", "string" }, { "first", "count" }, { "count", "count" },
  { "xxh3", "checksums" },
}
local ADAPTER = {
  { "layer", "string" }, { "down", "string" }, { "up", "string" }, { "rank", "positive" }, { "inputs", "positive" },
  { "outputs", "positive" }, { "alpha", "number" }, { "dropout", "number" },
  { "bias", "string", optional = true }, { "magnitude", "string", optional = true },
}
local TOKENS = {
  { "layer", "string" }, { "weight", "string" }, { "delta", "string" }, { "indices", "table" }, { "dim", "positive" },
}
local PART = { { "run", "positive" }, { "stride", "positive" }, { "origin", "count" } }

---@class moonshard.ManifestCheck
---@field path string of the checkpoint

local function refuse(check, where, must, value)
  errors.invalid("%s/manifest.json: %s must be %s, not %s", check.path, where, must, options.describe(value))
end

local function expect(check, value, where, kind)
  local row = KINDS[kind]
  if not row[2](value) then refuse(check, where, row[1], value) end
end

local function check_fields(check, object, where, fields)
  expect(check, object, where, "table")
  for _, field in ipairs(fields) do
    local value = object[field[1]]
    if value ~= nil or not field.optional then
      expect(check, value, where == "it" and field[1] or where .. "." .. field[1], field[2])
    end
  end
end

-- Iterates over a list, and refuses a table with other keys.
local function each(check, list, where, visit)
  local count = 0
  for _ in pairs(list) do count = count + 1 end
  if count ~= #list then refuse(check, where, "a list", list) end
  for i, entry in ipairs(list) do visit(entry, ("%s[%d]"):format(where, i)) end
end

local function check_shape(check, shape, where)
  local elements = 1
  each(check, shape, where, function(size, place)
    expect(check, size, place, "count")
    elements = elements * size
  end)
  if elements >= MAX_ELEMENTS then
    errors.invalid("%s/manifest.json: %s [%s] has too many elements (2^53 or more)", check.path, where,
      table.concat(shape, ","))
  end
end

-- Refuses duplicates.
local function once(check, seen, name, where)
  if seen[name] then errors.invalid("%s/manifest.json: %s is %s, as %s is", check.path, where, name, seen[name]) end
  seen[name] = where
end

local function check_parameters(check, parameters)
  local seen = {}
  each(check, parameters, "parameters", function(param, where)
    check_fields(check, param, where, PARAMETER)
    check_shape(check, param.shape, where .. ".shape")
    once(check, seen, param.name, where .. ".name")
  end)
end

local function shapes_of(parameters)
  local shapes = {}
  for _, param in ipairs(parameters) do shapes[param.name] = table.concat(param.shape, ",") end
  return shapes
end

-- of: a parameter's name and the sizes that it must have
local function check_of(check, shapes, where, of)
  local wanted = {}
  for i = 2, #of do wanted[i - 1] = ("%.0f"):format(of[i]) end
  wanted = table.concat(wanted, ",")
  if shapes[of[1]] ~= wanted then
    refuse(check, where, ("of parameter %s [%s]"):format(of[1], wanted), shapes[of[1]])
  end
end

-- Adapters and the parameters that they are made of.
local function check_adapters(check, adapters, parameters)
  local shapes = shapes_of(parameters)
  each(check, adapters, "model.lora", function(adapter, where)
    check_fields(check, adapter, where, ADAPTER)
    for _, of in ipairs({
      { adapter.down, adapter.rank, adapter.inputs }, { adapter.up, adapter.outputs, adapter.rank },
      { adapter.layer .. ".weight", adapter.outputs, adapter.inputs }, { adapter.bias, adapter.outputs },
      { adapter.magnitude, adapter.outputs },
    }) do
      if of[1] then check_of(check, shapes, where, of) end
    end
  end)
end

-- Rows of embeddings that train, and the tables in which they stand.
local function check_tokens(check, tokens, parameters)
  local shapes, rows = shapes_of(parameters), {}
  for _, param in ipairs(parameters) do rows[param.name] = param.shape[1] end
  each(check, tokens, "model.tokens", function(record, where)
    check_fields(check, record, where, TOKENS)
    each(check, record.indices, where .. ".indices", function(token, place)
      expect(check, token, place, "count")
      if token >= (rows[record.weight] or 0) then
        refuse(check, place, "a row of parameter " .. record.weight, token)
      end
    end)
    check_of(check, shapes, where, { record.delta, #record.indices, record.dim })
    check_of(check, shapes, where, { record.weight, rows[record.weight] or 0, record.dim })
  end)
end

-- A piece can be of a part of its parameter.
local function check_part(check, tensor, where)
  if not (tensor.run or tensor.stride or tensor.origin) then return end
  check_fields(check, tensor, where, PART)
  if tensor.origin + tensor.run > tensor.stride then
    refuse(check, where .. ".origin", ("at most %.0f, the stride without the run"):format(tensor.stride - tensor.run),
      tensor.origin)
  end
end

local function check_files(check, files)
  local seen = {}
  each(check, files, "files", function(file, where)
    local names = {}
    check_fields(check, file, where, FILE)
    once(check, seen, file.file, where .. ".file")
    each(check, file.tensors, where .. ".tensors", function(tensor, place)
      check_fields(check, tensor, place, TENSOR)
      check_part(check, tensor, place)
      once(check, names, tensor.name, place .. ".name")
    end)
  end)
end

---Refuses a manifest of several folders whose hosts or save are missing or invalid: raises MS_EINVAL.
---@param read table as JSON gave it
---@param path string folder of the checkpoint
function schema.check_hosts(read, path)
  local check = { path = path }
  check_fields(check, read, "it", { { "save", "count" }, { "hosts", "table" } })
  each(check, read.hosts, "hosts", function(host, where) expect(check, host, where, "string") end)
end

---Refuses a manifest with a missing or invalid field: raises MS_EINVAL with the field's name.
---@param read table as JSON gave it
---@param path string folder of the checkpoint
function schema.check(read, path)
  local check = { path = path }
  check_fields(check, read, "it", HEAD)
  check_fields(check, read.mesh, "mesh", MESH)
  check_shape(check, read.mesh.shape, "mesh.shape")
  for _, part in ipairs({ { "optimizer", OPTIMIZER }, { "ema", EMA }, { "generator", GENERATOR },
    { "replicate_sync", REPLICATE_SYNC }, { "line", LINE } }) do
    if read[part[1]] then check_fields(check, read[part[1]], part[1], part[2]) end
  end
  if read.generator then check_fields(check, read.generator.eager, "generator.eager", EAGER) end
  each(check, read.line and read.line.forks or {}, "line.forks", function(fork, where)
    check_fields(check, fork, where, FORK)
  end)
  for place, generator in pairs(read.generator_of_ranks or {}) do
    local where = ("generator_of_ranks.%s"):format(tostring(place))
    check_fields(check, generator, where, GENERATOR)
    check_fields(check, generator.eager, where .. ".eager", EAGER)
  end
  if read.optimizer and read.optimizer.states then
    each(check, read.optimizer.states, "optimizer.states", function(state, where)
      expect(check, state, where, "string")
    end)
  end
  each(check, read.replicate_sync and read.replicate_sync.units or {}, "replicate_sync.units", function(unit, where)
    expect(check, unit, where, "string")
  end)
  for _, part in ipairs({ "settings", "options" }) do
    for key, value in pairs(read[part] or {}) do expect(check, value, part .. "." .. tostring(key), "string") end
  end
  check_parameters(check, read.parameters)
  if read.model and read.model.lora ~= nil then
    expect(check, read.model.lora, "model.lora", "table")
    check_adapters(check, read.model.lora, read.parameters)
  end
  if read.model and read.model.tokens ~= nil then
    expect(check, read.model.tokens, "model.tokens", "table")
    check_tokens(check, read.model.tokens, read.parameters)
  end
  local of_models = read.model and read.model.options
  if of_models ~= nil then
    expect(check, of_models, "model.options", "table")
    for name, of in pairs(of_models) do expect(check, of, "model.options." .. tostring(name), "table") end
  end
  check_files(check, read.files)
end

return schema
