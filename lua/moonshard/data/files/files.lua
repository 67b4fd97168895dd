-- Finds the files of a data source: named files, lists separated by commas, patterns ("texts/**/*.txt") and folders,
-- which are read with their sub-folders.
--
-- Folders and patterns only contribute files that `wanted` accepts, without hidden files, empty files and additional
-- names (links) of a file. A file that is named explicitly is always included. No file is in a list twice: it would be
-- trained on twice.

local errors = require "moonshard.base.error"
local file_status = require "moonshard.base.files.file_status"
local listing = require "moonshard.data.files.listing"
local text_lines = require "moonshard.base.text.text_lines"
local world = require "moonshard.distributed.world"

local look_at, REGULAR, FOLDER = file_status.of_path, file_status.REGULAR, file_status.FOLDER

local files = {
  BEGINNING = 4096, -- bytes in which text has no zero byte
}

---Whether a path exists, as any kind of file. Does not open it.
---@param path string
---@return boolean
function files.exists(path) return look_at(path) ~= nil end

---@param path string
---@return number? bytes size of a regular file; nil for other kinds
function files.bytes(path)
  local kind, bytes = look_at(path)
  return kind == REGULAR and bytes or nil
end

files.version, files.real_path = file_status.version, listing.real_path

---Opens a regular file for reading. Raises MS_EINVAL for anything else: opening a pipe without a writer would wait for
---ever, and data is read more than once.
---@param path string
---@return file*
function files.open(path)
  local kind = look_at(path)
  if kind and kind ~= REGULAR then
    errors.invalid("%s: it is not a regular file but %s", path, kind == FOLDER and "a folder" or "a pipe or a device")
  end
  local file, why = io.open(path, "rb")
  if not file then errors.raise(kind and "MS_EIO" or "MS_EINVAL", "%s", why) end
  return file
end

---The first BEGINNING bytes of a file, or all.
---@param path string
---@return string
function files.beginning(path)
  local file = files.open(path)
  local beginning = file:read(files.BEGINNING) or ""
  file:close()
  return beginning
end

-- The wanted paths of a folder or pattern, without those that another entry has.
local function add_found(list, paths, wanted, entry)
  for _, path in ipairs(paths) do
    local real, kind, bytes = files.real_path(path), look_at(path)
    if not kind then
      errors.invalid("%s: it is a link to a file that is not there: restore the file, or remove the link", path)
    end
    local known = real and list.known[real]
    if known and known ~= entry then
      list.overlaps[#list.overlaps + 1] = { path, known, entry }
    elseif real and kind == REGULAR and bytes > 0 and not known and wanted(path) then
      list.known[real] = entry
      list[#list + 1] = path
    end
  end
end

local function add_named(list, path, option)
  local real = files.real_path(path) or path
  if list.known[real] then
    errors.invalid("%s: %s is in the list already, by %s: name each file once; ms.data.mix reads one source more often "
      .. "than another", option, path, list.known[real])
  end
  list.known[real] = path
  list[#list + 1] = path
end

local function add_entry(list, entry, wanted, what, option)
  if look_at(entry) == FOLDER then
    local before = #list
    add_found(list, listing.below(entry), wanted, entry)
    if #list == before then errors.invalid("folder %s contains no %s files", entry, what) end
  elseif entry:find("[*?%[]") and not files.real_path(entry) then
    local paths = listing.match(entry)
    if #paths == 0 then errors.invalid("files %s: no file matches", entry) end
    local before = #list
    add_found(list, paths, wanted, entry)
    if #list == before then
      errors.invalid("files %s: %d match, but none is a %s file with contents that is not in the list already", entry,
        #paths, what)
    end
  else
    add_named(list, entry, option)
  end
end

local function tell_overlaps(option, overlaps)
  if not overlaps[1] or world.rank ~= 0 then return end
  local path, first, second = unpack(overlaps[1])
  io.stderr:write(("moonshard: warning: %s: %s is read once, though both %s and %s name it%s\n"):format(option,
    text_lines.escape(path), text_lines.escape(first), text_lines.escape(second),
    #overlaps > 1 and (" (and %d more)"):format(#overlaps - 1) or ""))
end

---The files of a specification, in the given order; those below a folder or of a pattern are sorted by path.
---@param spec string|string[] paths, folders or patterns; a string can list several, separated by commas or blanks
---@param wanted fun(path: string): boolean selects files of folders and patterns
---@param what string kind of the files, for messages: "text"
---@param option string? the option that has the specification, for messages; default "files"
---@return string[]
function files.find(spec, wanted, what, option)
  option = option or "files"
  local entries = {}
  if type(spec) == "string" and files.real_path(spec) then
    entries[1] = spec
  elseif type(spec) == "string" then
    for entry in spec:gmatch("[^,%s]+") do
      entries[#entries + 1] = entry
    end
  elseif type(spec) == "table" then
    entries = spec
  else
    errors.invalid("%s must be a path, a list of paths, or a pattern, not %s", option, tostring(spec))
  end
  if #entries == 0 then errors.invalid("%s is empty: name at least one file", option) end
  local list = { known = {}, overlaps = {} }
  for _, entry in ipairs(entries) do
    if type(entry) ~= "string" then
      errors.invalid("%s lists %s: every entry must be a path", option, tostring(entry))
    end
    add_entry(list, entry, wanted, what, option)
  end
  tell_overlaps(option, list.overlaps)
  list.known, list.overlaps = nil, nil
  return list
end

---A specification as a message shows it.
---@param spec string|string[]
---@return string
function files.show(spec)
  return type(spec) == "table" and table.concat(spec, ",") or spec
end

return files
