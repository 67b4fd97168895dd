-- The files of a source of text. What they contain decides: zstd is decompressed under any name, other formats and
-- JSON are refused with what to write instead. Files without text are left out of a folder or a pattern.

local decompressed = require("moonshard.data.files.decompressed")
local errors = require("moonshard.base.error")
local file_kind = require("moonshard.data.files.file_kind")
local files = require("moonshard.data.files.files")

local text_files = {}

-- The fields under which published data has its texts; messages show the first one for others.
local FIELDS = { "text", "content", "document", "raw_content", "body" }

local function field_of(beginning)
  for _, name in ipairs(FIELDS) do
    if beginning:find('"' .. name .. '"%s*:') then return name end
  end
  return FIELDS[1]
end

-- JSON is no prose: keys and escapes would be learned, and documents would not end.
local function refuse_json(path, form, beginning, raw)
  local selects = (form == "a JSON list" and ".[]." or ".") .. field_of(beginning)
  errors.invalid("%s: the file has %s, not text: name the field with the texts where there is an option for it "
    .. "(field = %q, --field), or write the texts to a file of their own (jq -r %s FILE > FILE.txt); conversations and "
    .. "pairs of answers are read by ms.data.chat and ms.data.preferences; %s takes the bytes as they are", path, form,
    field_of(beginning), selects, raw)
end

---Raises for a file in another format than text. Zero bytes alone are none: a tokenizer knows them.
---@param path string
---@param raw string how the caller takes any bytes, for messages: "raw = true"
---@param kind_of (fun(beginning: string): moonshard.FileKind?)? default: file_kind.of
---@param reads_json (fun(path: string): boolean)? whether the caller reads texts of this file of JSON; default: of none
function text_files.check(path, raw, kind_of, reads_json)
  local beginning = decompressed.beginning(path)
  local kind = (kind_of or file_kind.of)(beginning)
  if kind and not file_kind.is_text(path, kind) then
    file_kind.refuse(path, kind, raw .. " takes its bytes as they are")
  end
  local form = file_kind.json(path, beginning)
  if form and not (reads_json and reads_json(path)) then refuse_json(path, form, beginning, raw) end
end

-- For files.find: the files of a folder or pattern that hold text.
local function holds_text(path)
  local beginning = decompressed.beginning(path)
  local kind = file_kind.of_no_text(beginning)
  return not kind or not kind.left_out or file_kind.json(path, beginning) ~= nil
end

local function any() return true end

---The files of a specification as a user named them, and where their text is, decompressed.
---@param spec string|string[] as of files.find
---@param raw boolean? take the bytes of any file, also of JSON and of other formats
---@param json { reads: (fun(path: string): boolean), path: fun(path: string): string }? which files of JSON the caller
---  reads, and where the texts of one are; default: none
---@return string[] paths of texts
---@return string[] shown their names for messages
function text_files.find(spec, raw, json)
  local shown = files.find(spec, raw and any or holds_text, "text")
  local reads_json = json and json.reads
  for _, path in ipairs(raw and {} or shown) do
    text_files.check(path, "raw = true", file_kind.of_no_text, reads_json)
  end
  local paths = {}
  for i, path in ipairs(shown) do
    paths[i] = not raw and json and json.reads(path) and json.path(path) or decompressed.paths({ path })[1]
  end
  return paths, shown
end

return text_files
