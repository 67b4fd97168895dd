-- The fields of a cluster description: what each one is, its range, and where it goes in ms_cluster. Checks a
-- description against them and reads its constants.
--
-- A constant is { value, source }. A field's row is a group of fields, a map of groups (links, by name), a choice of
-- words, or a constant of a kind (price/quantity.lua).

local dtypes = require("moonshard.base.dtypes")
local nearest = require("moonshard.base.names.nearest")
local quantity = require("moonshard.price.quantity")
local refuse = require("moonshard.base.exit_status").refuse

local fields = {}

---@class moonshard.ConstantField
---@field kind string of quantity.read; two, joined by "|", if either will do
---@field c string? name of the member of the C struct
---@field default number? in the base unit; nil: the field is required
---@field least number?
---@field above number? the value must be greater
---@field most number?
---@field only string? of this kind of device

local function constant(kind, c, more)
  local row = { type = "constant", kind = kind, c = c }
  for key, value in pairs(more or {}) do row[key] = value end
  return row
end

local function group(rows, more)
  local row = { type = "group", rows = rows }
  for key, value in pairs(more or {}) do row[key] = value end
  return row
end

-- The slowest and fastest rates, and the longest time, that have a meaning: all sums of a step then stay finite.
local SLOWEST, FASTEST = 1, 1e18 -- bytes/s
local MAX_FLOPS = 1e24
local LONGEST = 1e3 -- seconds
local MIN_PART = 1e-6

local function rate(kind, c, more)
  local row = constant(kind, c, more)
  row.above = 0
  if kind == "rate" then row.least, row.most, row.above = SLOWEST, FASTEST, nil end -- of a part the engine checks it
  return row
end

local function time(c, more)
  local row = constant("time", c, more)
  row.least, row.most = 0, LONGEST
  return row
end

local function part(c, least, most, more)
  local row = constant("part", c, more)
  row.least, row.most = least, most
  return row
end

local peaks = {}
for _, name in ipairs(dtypes.with("product")) do
  peaks[name] = constant("flops", nil, { least = 1, most = MAX_FLOPS, default = 0 })
end

local KINDS = { cpu = "MS_DEVICE_CPU", cuda = "MS_DEVICE_CUDA" }

local LINK = group({
  algorithm = { type = "choice", words = { ring = "MS_LINK_RING", tree = "MS_LINK_TREE", hosts = "MS_LINK_HOSTS",
    switch = "MS_LINK_SWITCH" } },
  kinds = { type = "words", optional = true, words = { all_gather = "MS_LINK_ALL_GATHER",
    reduce_scatter = "MS_LINK_REDUCE_SCATTER", all_reduce = "MS_LINK_ALL_REDUCE" } },
  max_nodes = constant("count", "max_nodes", { least = 1, most = 4096, default = 0 }),
  start = time("start"), start_between = time("start_between", { default = 0 }),
  step_inside = time("step_inside"), step_between = time("step_between", { between = true }),
  hidden = part("hidden", 0, 0.95, { default = 0 }),
  inside = rate("rate", "inside"),
  inside_pair = rate("rate", "inside_pair", { default = 0 }),
  between = rate("part|rate", "between", { between = true }), -- a part: of the network's rate
  max_between = part(nil, MIN_PART, 1, { default = 1 }), -- of the network's rate, if `between` is a rate above it
  between_rank = rate("part|rate", "between_rank", { default = 0 }), -- a part: of a rail's rate
  log_between = part("log_between", 0, 10, { default = 0 }),
  processor = constant("per_byte", "processor", { least = 0, most = 1, default = 0, only = "cpu" }),
})

---The fields of a description, as a tree.
fields.TREE = group({
  about = { type = "text", optional = true },
  -- Of ten measured steps like those that fitted the constants, but held out, nine are within this part of their price.
  accuracy = part(nil, 0, 1, { default = 0 }),
  ranks_per_node = constant("count", "ranks_per_node", { least = 1, most = 64 }),
  device = group({
    kind = { type = "choice", words = KINDS },
    cores = constant("number", "cores", { least = 1e-3, most = 1e6, only = "cpu" }),
    memory = constant("bytes", "memory", { least = 1, most = 1e18 }),
    reserved = constant("bytes", nil, { least = 0, default = 0 }),
    peak = group(peaks),
    clock = part("clock", MIN_PART, 1),
    product = group({
      efficiency = part("efficiency", MIN_PART, 1),
      tile_m = constant("count", "tile_m", { least = 0, most = 1e6, default = 0 }),
      tile_n = constant("count", "tile_n", { least = 0, most = 1e6, default = 0 }),
      units = constant("count", "units", { least = 0, most = 1e6, default = 0 }),
      half_tile = part("half_tile", MIN_PART, 1, { default = 1 }),
      k_half = constant("number", "k_half", { least = 0, most = 1e9 }),
    }, { c = "product" }),
    attention = group({
      forward = part("forward", MIN_PART, 1), backward = part("backward", MIN_PART, 1),
      keys_half = constant("number", "keys_half", { least = 0, most = 1e9 }),
      causal = part("causal", 0.5, 1),
    }, { c = "attention" }),
    memory_rate = rate("rate", "memory_rate"),
    memory_half = constant("bytes", "memory_half", { least = 0, most = 1e18 }),
    kernel_start = time("kernel_start"),
    issue = time("issue", { only = "cuda" }),
    phase_gap = time("phase_gap"), step_gap = time("step_gap"),
    overlap = part("overlap", 0, 0.9),
  }),
  network = group({
    rails = constant("count", nil, { least = 1, most = 1e6 }),
    rail = rate("rate"),
    oversubscription = constant("number", nil, { least = 1, most = 1e6, default = 1 }),
  }, { optional = true, like = '{ rails = { 8, "where it is from" }, rail = { "400 Gbit/s", "where it is from" } }' }),
  links = { type = "map", of = LINK, most = 8 },
  kernels = { type = "kernels", optional = true },
})

-- ---- reading ----------------------------------------------------------------------------------------------------

---@class moonshard.ClusterConstant
---@field path string "device.peak.bf16"
---@field text string as written, "989 TFLOP/s"
---@field value number in the base unit
---@field source string
---@field file string the description that it is from

local reader = {}
reader.__index = reader

-- Refuses with the description that has the field.
function reader:wrong(path, format, ...)
  local file, at = nil, path
  while not file and at ~= "" do
    file, at = self.files[at], at:match("^(.*)%.[^.]*$") or ""
  end
  refuse("MS_EINVAL", "cluster %s: %s: %s", file or self.name, path, format:format(...))
end

local function below(path, key) return path == "" and tostring(key) or path .. "." .. tostring(key) end

function reader:check_table(path, given, what)
  if type(given) ~= "table" then self:wrong(path, "must be a table of %s, not a %s", what, type(given)) end
end

local BASE_UNITS = { flops = " FLOP/s", bytes = " B", rate = " B/s", time = " s", per_byte = " s/B" }

-- "at least 0 % and at most 90 %" of a part; of others in the base unit.
local function range_text(row)
  local function text(number)
    return row.kind == "part" and ("%g %%"):format(100 * number) or ("%g%s"):format(number, BASE_UNITS[row.kind] or "")
  end
  local low = row.above and "above " .. text(row.above) or row.least and "at least " .. text(row.least)
  local high = row.most and "at most " .. text(row.most)
  return low and high and low .. " and " .. high or low or high
end

local function in_range(row, value)
  return not (row.least and value < row.least or row.above and value <= row.above or row.most and value > row.most)
end

local function read_of_kinds(given, kinds)
  for kind in kinds:gmatch("[^|]+") do
    if quantity.is(given, kind) then return quantity.read(given, kind), nil, kind end
  end
  local value, why = quantity.read(given, kinds:match("[^|]+$"))
  return value, why, kinds:match("[^|]+$")
end

function reader:constant(path, row, given)
  if type(given) ~= "table" then
    self:wrong(path, 'has no source: write { %s, "where it is from" }',
      type(given) == "string" and ("%q"):format(given) or tostring(given))
  end
  local text, source = given[1], given[2]
  if type(source) ~= "string" or source == "" then
    self:wrong(path, 'has no source: write { %s, "where it is from" }',
      type(text) == "string" and ("%q"):format(text) or tostring(text))
  end
  for key in pairs(given) do
    if key ~= 1 and key ~= 2 then self:wrong(path, "is { value, source } alone, without %s", tostring(key)) end
  end
  local value, why, kind = read_of_kinds(text, row.kind)
  if not value then self:wrong(path, "%s", why) end
  if not in_range(row, value) then self:wrong(path, "%s must be %s", tostring(text), range_text(row)) end
  if kind == "part" and kind ~= row.kind and value > 1 then
    self:wrong(path, "%s is more than all of the network's rate: give at most 100 %%, or a rate", tostring(text))
  end
  local read = { path = path, text = tostring(text), value = value, kind = kind, source = source,
    file = self.files[path] or self.name }
  table.insert(self.constants, read)
  return read
end

function reader:words(path, row, given)
  self:check_table(path, given, 'words, like { "all_gather", "reduce_scatter" }')
  local seen = {}
  for key, word in pairs(given) do
    if type(key) ~= "number" then self:wrong(path, "is a list of words, without %s = ...", tostring(key)) end
    if not row.words[word] then self:wrong(path, "%s: %s", tostring(word), nearest.advice(word, row.words)) end
    seen[word] = true
  end
  if not next(seen) then self:wrong(path, "names no word: %s", nearest.advice("", row.words)) end
  return seen
end

function reader:choice(path, row, given)
  if type(given) ~= "string" then self:wrong(path, "must be a word, not a %s", type(given)) end
  if not row.words[given] then self:wrong(path, "%s: %s", given, nearest.advice(given, row.words)) end
  return given
end

function reader:map(path, row, given)
  self:check_table(path, given, "named groups of fields")
  local result, names = {}, {}
  for name in pairs(given) do
    if type(name) ~= "string" then self:wrong(path, "each entry needs a name: write name = { ... }") end
    names[#names + 1] = name
  end
  table.sort(names)
  if #names == 0 then self:wrong(path, "is empty: without links ranks cannot communicate") end
  if #names > row.most then self:wrong(path, "has %d entries, at most %d are possible", #names, row.most) end
  for i, name in ipairs(names) do
    local others = { unpack(names) }
    table.remove(others, i)
    result[i] = { name = name, fields = self:group(below(path, name), row.of, given[name], others) }
  end
  return result
end

function reader:text(path, _, given)
  if type(given) ~= "string" then self:wrong(path, "must be text, not a %s", type(given)) end
  return given
end

-- Whether a group's field can be missing: it has a default, or it is of another device, or between nodes, for a link
-- that stays inside one.
local function may_miss(row, group_given, reading)
  if row.optional or row.default then return true end
  if row.only and row.only ~= reading.device_kind then return true end
  local most = group_given.max_nodes
  return row.between and (not reading.has_network or type(most) == "table" and most[1] == 1) or false
end

-- Sorted, so that of several mistakes the same one is reported each time.
local function sorted_keys(list)
  local keys = {}
  for key in pairs(list) do keys[#keys + 1] = key end
  table.sort(keys, function(a, b) return tostring(a) < tostring(b) end)
  return keys
end

-- others: the names of the other entries, if this is one of a map: a mistyped name is a new entry.
local function how_to_give(row, others)
  return (row.like and ", as in " .. row.like or "") .. ", or extend a description that has it"
    .. (others and #others > 0 and "; others are called " .. table.concat(others, ", ") or "")
end

function reader:check_whole(path, row, given, others)
  local missing = {}
  for _, key in ipairs(sorted_keys(row.rows)) do
    if given[key] == nil and not may_miss(row.rows[key], given, self) then missing[#missing + 1] = below(path, key) end
  end
  if #missing == 0 then return end
  refuse("MS_EINVAL", "cluster %s: %s %s missing: give %s%s", self.name, table.concat(missing, ", "),
    #missing == 1 and "is" or "are", #missing == 1 and "it" or "them", how_to_give(row, others))
end

function reader:group(path, row, given, others)
  self:check_table(path, given, "fields" .. (row.like and ", like " .. row.like or ""))
  for _, key in ipairs(sorted_keys(given)) do
    if not row.rows[key] then
      self:wrong(below(path, key), "unknown field: %s", row.like
        and nearest.sentence(key, row.rows) .. " It must be like " .. row.like or nearest.advice(key, row.rows))
    end
  end
  local result = {}
  for _, key in ipairs(sorted_keys(given)) do
    local field, at = row.rows[key], below(path, key)
    if field.only and KINDS[self.device_kind] and self.device_kind ~= field.only then -- else the kind is the mistake
      self:wrong(at, "is a field of devices of the kind %s", field.only)
    end
    result[key] = self[field.type](self, at, field, given[key])
  end
  self:check_whole(path, row, given, others)
  return result
end

function reader:kernels(path, _, given)
  return require("moonshard.price.kernel_points").read(given, function(place, ...)
    self:wrong(place and below(path, place) or path, ...)
  end)
end

---Reads a description by the fields above. Raises at the first field that is wrong.
---@param description moonshard.ClusterDescription
---@return table tree as fields.TREE: { value, ... } for constants, text for choices
---@return moonshard.ClusterConstant[] constants sorted by path
function fields.read(description)
  local tree = description.tree
  local device = type(tree.device) == "table" and tree.device.kind
  local reading = setmetatable({ name = description.name, files = description.files, constants = {},
    device_kind = device, has_network = tree.network ~= nil }, reader)
  local result = reading:group("", fields.TREE, tree)
  table.sort(reading.constants, function(a, b) return a.path < b.path end)
  return result, reading.constants
end

return fields
