-- moonshard inspect: describes the contents of a safetensors file, an indexed folder, a checkpoint, or an input of
-- training: a token file, text, or a tokenizer.

local checkpoint = require("moonshard.checkpoint")
local command_line = require("moonshard.cli.options.command_line")
local inspect_data = require("moonshard.cli.inspect.inspect_data")
local inspect_kind = require("moonshard.cli.inspect.inspect_kind")
local json = require("moonshard.base.text.json")
local progress = require("moonshard.base.text.progress")
local safetensors = require("moonshard.base.files.safetensors")
local status = require("moonshard.base.exit_status")
local text_columns = require("moonshard.base.text.text_columns")
local text_lines = require("moonshard.base.text.text_lines")

local inspect = {}

local OPTIONS = {
  ["--json"] = { name = "json", value = "flag" },
  ["--no-checksums"] = { name = "no_checksums", value = "flag" },
  ["--end"] = { name = "finish", value = "index" },
}

local function add_totals(totals, tensor)
  totals.tensors, totals.elements = totals.tensors + 1, totals.elements + tensor.elements
  totals.bytes = totals.bytes + tensor.bytes
end

local function new_totals() return { tensors = 0, elements = 0, bytes = 0 } end

---Everything that inspect reports, as a table.
---@param path string
---@param checksums boolean reads every byte
---@return table
function inspect.read(path, checksums)
  if path:find("%.safetensors$") then require("moonshard.huggingface.folder.faults").check_safetensors(path) end
  local file = safetensors.open(path)
  local found = { path = path, files = {}, tensors = {}, totals = new_totals(), dtypes = {}, metadata = file.metadata }
  local known = {}
  for i, tensor in ipairs(file.tensors) do
    found.tensors[i] = {
      name = tensor.name, dtype = tensor.dtype, shape = tensor.shape, elements = tensor.elements, bytes = tensor.bytes,
      offset = tensor.offset, file = tensor.file, packed = tensor.packed,
      xxh3 = checksums and file:checksum(tensor.name) or nil,
    }
    found.dtypes[tensor.dtype] = found.dtypes[tensor.dtype] or new_totals()
    add_totals(found.dtypes[tensor.dtype], tensor)
    add_totals(found.totals, tensor)
    if not known[tensor.file] then
      known[tensor.file] = true
      found.files[#found.files + 1] = tensor.file
    end
  end
  table.sort(found.files)
  file:close()
  return found
end

local function count(n, what)
  return ("%d %s%s"):format(n, what, n == 1 and "" or "s")
end

local function print_text(found)
  local several = #found.files > 1
  io.write(("%s: %s, %.0f elements, %s%s\n"):format(text_lines.escape(found.path),
    count(found.totals.tensors, "tensor"), found.totals.elements, progress.size(found.totals.bytes),
    several and " in " .. count(#found.files, "file") or ""))
  local rows = {}
  for i, tensor in ipairs(found.tensors) do
    rows[i] = {
      text_lines.escape(tensor.name), tensor.packed and tensor.packed.dtype .. " in " .. tensor.dtype or tensor.dtype,
      "[" .. table.concat((tensor.packed or tensor).shape, ",") .. "]",
      progress.size(tensor.bytes),
      tensor.xxh3 or "", several and text_lines.escape(tensor.file:match("[^/]*$")) or "",
    }
  end
  io.write(text_columns.of(rows, { true, true, true, false, true, true }))
  local names, sums = {}, {}
  for name in pairs(found.dtypes) do names[#names + 1] = name end
  table.sort(names)
  for i, name in ipairs(names) do
    local totals = found.dtypes[name]
    sums[i] = { name, count(totals.tensors, "tensor"), ("%.0f elements"):format(totals.elements),
      progress.size(totals.bytes) }
  end
  if #names > 1 then
    io.write("by dtype\n")
    io.write(text_columns.of(sums, 1))
  end
  if #found.metadata == 0 then return end
  io.write("metadata\n")
  local entries = {}
  for i, entry in ipairs(found.metadata) do
    local name = several and text_lines.escape(entry.file:match("[^/]*$")) or ""
    entries[i] = { text_lines.escape(entry.key), text_lines.escape(entry.value), name }
  end
  io.write(text_columns.of(entries))
end

-- Encodes an empty list as [], where json.encode would write {}.
local function list_text(list, write)
  local parts = {}
  for i, entry in ipairs(list) do parts[i] = write(entry) end
  return "[" .. table.concat(parts, ",") .. "]"
end

local function tensor_text(t)
  local head = json.ordered(4, { "name", t.name, "dtype", t.dtype })
  local tail = json.ordered(12, { "elements", t.elements, "bytes", t.bytes, "offset", t.offset, "file", t.file, "xxh3",
    t.xxh3, "packed", t.packed })
  return head:sub(1, -2) .. ',"shape":' .. list_text(t.shape, json.encode) .. "," .. tail:sub(2)
end

local function print_json(found)
  io.write(('{"path":%s,"totals":%s,"dtypes":%s,"files":%s,"metadata":%s,"tensors":%s}\n'):format(
    json.encode(found.path), json.encode(found.totals), json.encode(found.dtypes), list_text(found.files, json.encode),
    list_text(found.metadata, json.encode), list_text(found.tensors, tensor_text)))
end

local function print_checkpoint(path, line)
  local source, describe = checkpoint.open(path), require("moonshard.cli.inspect.inspect_checkpoint")
  if not line.no_checksums then source:verify() end
  local found = describe.table(source, not line.no_checksums)
  source:close()
  if line.json then
    print(json.encode(found))
    return
  end
  local rows, head = describe.text(found)
  io.write(text_lines.escape(head), "\n")
  for _, row in ipairs(rows) do
    for c, cell in ipairs(row) do row[c] = text_lines.escape(cell) end
  end
  io.write(text_columns.of(rows))
end

local function print_data(path, line, kind, bits, pair)
  local found = inspect_data[kind](path, { all = not line.no_checksums, finish = line.finish }, bits, pair)
  if line.json then
    print(json.encode(found))
    return
  end
  local head, rows = inspect_data.rows(found)
  io.write(text_lines.escape(path), ": ", head, "\n")
  io.write(text_columns.of(rows))
end

---@param arguments string[] without "inspect"
---@return integer exit status
function inspect.main(arguments)
  local line = command_line.parse("moonshard inspect", arguments, { recipe = "FILE|DIR", options = OPTIONS })
  if line.settings[1] then
    status.refuse("MS_EINVAL", "moonshard inspect takes no settings like %s=%s", line.settings[1].key,
      line.settings[1].text)
  end
  if checkpoint.is_one(line.recipe) then
    print_checkpoint(line.recipe, line)
    return status.OK
  end
  local kind, bits, pair = inspect_kind.of(line.recipe)
  if line.finish and kind ~= "tokens" then
    status.refuse("MS_EINVAL", "moonshard inspect --end is only for token files: %s is not one", line.recipe)
  end
  if kind ~= "safetensors" then
    print_data(line.recipe, line, kind, bits, pair)
    return status.OK
  end
  local found = inspect.read(line.recipe, not line.no_checksums)
  if line.json then
    print_json(found)
  else
    print_text(found)
  end
  return status.OK
end

return inspect
