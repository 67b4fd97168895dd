-- The report of `moonshard inspect` on a checkpoint.

local json = require("moonshard.base.text.json")
local progress = require("moonshard.base.text.progress")

local describe = {}

local function numel(shape)
  local n = 1
  for _, size in ipairs(shape) do n = n * size end
  return n
end

local function bytes_of(file)
  local bytes = 0
  for _, tensor in ipairs(file.tensors) do bytes = bytes + 4 * tensor.count end
  return bytes
end

---@param checkpoint moonshard.Checkpoint
---@param checked boolean whether its checksums were verified
---@return table
function describe.table(checkpoint, checked)
  local read, parameters, files, elements, frozen, bytes = checkpoint.manifest, {}, {}, 0, 0, 0
  for i, param in ipairs(read.parameters) do
    param.saved_in = checkpoint:saved_in(param.name)
    parameters[i] = param
    elements = elements + numel(param.shape)
    frozen = frozen + (param.frozen and numel(param.shape) or 0)
  end
  for i, file in ipairs(read.files) do
    files[i] = { file = file.file, tensors = #file.tensors, bytes = bytes_of(file) }
    bytes = bytes + files[i].bytes
  end
  return {
    path = checkpoint.path, step = read.step, ranks = read.ranks, mesh = read.mesh.label, saved_at = read.saved_at,
    optimizer = read.optimizer, ema = read.ema, replicate_sync = read.replicate_sync,
    data = read.data, data_of_ranks = read.data_of_ranks, schedule = read.schedule,
    generator = read.generator, generator_of_ranks = read.generator_of_ranks,
    settings = read.settings,
    missing = read.missing, adapters = read.model and read.model.lora,
    parameters = parameters, files = files, elements = elements, frozen = frozen, bytes = bytes,
    checksums_compared = checked,
  }
end

local function is_plain_list(value)
  if value[1] == nil then return false end
  for _, item in ipairs(value) do
    if type(item) ~= "number" and type(item) ~= "string" then return false end
  end
  return true
end

-- "kind adamw, betas 0.9 0.999, ...": settings sorted by name.
local function settings_text(settings)
  if type(settings) ~= "table" then return tostring(settings) end
  local names, parts = {}, {}
  for name in pairs(settings) do names[#names + 1] = name end
  table.sort(names)
  for _, name in ipairs(names) do
    local value = settings[name]
    if type(value) == "table" then value = is_plain_list(value) and table.concat(value, " ") or json.encode(value) end
    parts[#parts + 1] = ("%s %s"):format(name, tostring(value))
  end
  return table.concat(parts, ", ")
end

-- The state of the first rank that has one.
local function of_ranks_text(states, ranks)
  local first = 0
  while states[tostring(first)] == nil and first < ranks do first = first + 1 end
  return ("differs between the %d ranks (--json has all); of rank %d: %s"):format(ranks, first,
    settings_text(states[tostring(first)]))
end

-- "4 layers, rank 8, alpha 16": ranks and alphas that occur.
local function adapters_text(records)
  local texts, seen = { #records == 1 and "1 layer" or #records .. " layers" }, {}
  for _, record in ipairs(records) do
    local text = ("rank %d, alpha %g"):format(record.rank, record.alpha)
    if not seen[text] then texts[#texts + 1] = text end
    seen[text] = true
  end
  return table.concat(texts, "; ")
end

-- "[64,64] frozen, bf16"
local function parameter_text(param)
  local text = ("[%s]%s"):format(table.concat(param.shape, ","), param.frozen and " frozen" or "")
  if param.saved_in == nil or param.saved_in == "f32" then return text end
  return text .. ", " .. param.saved_in
end

---@param found table of describe.table
---@return string[][] rows of columns
---@return string head
function describe.text(found)
  local frozen = found.frozen > 0 and (" (%.0f frozen)"):format(found.frozen) or ""
  local head = ("%s: step %d, mesh %s, %d parameters, %.0f elements%s, %s in %d files, %s"):format(found.path,
    found.step, found.mesh, #found.parameters, found.elements, frozen, progress.size(found.bytes), #found.files,
    found.checksums_compared and "all checksums right" or "checksums not compared")
  local missing = found.missing or {}
  if #missing > 0 then head = ("%s; %d parts of other hosts are missing"):format(head, #missing) end
  local rows = {}
  for _, part in ipairs({ "optimizer", "ema", "replicate_sync", "data", "generator", "schedule" }) do
    if found[part] ~= nil then rows[#rows + 1] = { part, settings_text(found[part]) } end
    local of_ranks = found[part .. "_of_ranks"]
    if of_ranks then rows[#rows + 1] = { part, of_ranks_text(of_ranks, found.ranks) } end
  end
  if found.adapters then rows[#rows + 1] = { "adapters", adapters_text(found.adapters) } end
  for _, file in ipairs(found.files) do
    rows[#rows + 1] = { file.file, ("%d tensors, %s"):format(file.tensors, progress.size(file.bytes)) }
  end
  for _, part in ipairs(missing) do rows[#rows + 1] = { part.part, "missing: written on " .. part.host } end
  for _, param in ipairs(found.parameters) do rows[#rows + 1] = { param.name, parameter_text(param) } end
  return rows, head
end

return describe
