-- What a file is, by its first bytes: names are unreliable. Data is read as what it contains, so a compressed file or a
-- table under the name of a text is decompressed, or refused with what to do.

local errors = require("moonshard.base.error")

local file_kind = {}

local UNPACK = "decompress it, or compress it with zstd"
local CONVERT = "write what it holds as text or as JSON lines"
local RECODE = "convert it to UTF-8 with iconv"
local FETCH = "it came in place of the data: fetch these again"

-- One line of Python with the library that reads a format.
local function python(line)
  return ("convert it, python3 -c '%s'"):format(line)
end
local function pandas(read)
  return python(('import pandas; pandas.%s("FILE").to_json("FILE.jsonl", orient="records", lines=True)'):format(read))
end
local ARROW = 'import pyarrow.ipc as i; i.open_%s("FILE").read_%s().to_pandas().to_json("FILE.jsonl", '
  .. 'orient="records", lines=True)'

---@class moonshard.FileKind
---@field name string "gzip"
---@field begins string a pattern of the first bytes; where they are letters, with some that no text has there
---@field at integer? where they are, from 1; default 1
---@field reads "zstd"? how the file is read; nil: it is not
---@field advice string? what to do with the file
---@field left_out boolean? whether it holds no text, so that folders and patterns of texts leave it out
---@field is_text boolean? whether it is text, which ms.data.text reads under a name that ends as `name_ends`
---@field name_ends string? a pattern of names that say what the file is

---@type moonshard.FileKind[]
local KINDS = {
  { name = "zstd", begins = "%(\181/\253", reads = "zstd" },
  { name = "zstd", begins = "[\80-\95]%*M\24", reads = "zstd" }, -- a frame to skip, with which pzstd begins
  { name = "gzip", begins = "\31\139\8", advice = UNPACK },
  { name = "xz", begins = "\2537zXZ%z", advice = UNPACK },
  { name = "bzip2", begins = "BZh[1-9]1AY&SY", advice = UNPACK },
  { name = "lz4", begins = "\4\34\77\24", advice = UNPACK },
  { name = "a 7z archive", begins = "7z\188\175\39\28", advice = UNPACK },
  { name = "a zip archive (torch.save makes such files)", begins = "PK\3\4", advice = UNPACK },
  { name = "a tar archive", begins = "ustar[%z ][0 ][%z0]", at = 258, advice = "unpack it" },
  { name = "a Parquet table", begins = "PAR1[%z\1-\8\14-\31]", advice = pandas("read_parquet") },
  { name = "an Arrow table", begins = "ARROW1%z%z", advice = python(ARROW:format("file", "all")) },
  { name = "an Arrow stream", begins = "\255\255\255\255..%z%z\16%z%z%z",
    advice = python(ARROW:format("stream", "all")) },
  { name = "a Feather table", begins = "FEA1%z", advice = pandas("read_feather") },
  { name = "an Avro file", begins = "Obj\1", advice = CONVERT },
  { name = "an SQLite database", begins = "SQLite format 3%z", advice = CONVERT },
  { name = "an HDF5 file", begins = "\137HDF\r\n", advice = CONVERT },
  { name = "a PDF document", begins = "%%PDF%-", advice = CONVERT },
  { name = "UTF-32 text", begins = "\255\254%z%z", advice = RECODE },
  { name = "UTF-32 text", begins = "%z%z\254\255", advice = RECODE },
  { name = "UTF-16 text", begins = "\255\254", advice = RECODE },
  { name = "UTF-16 text", begins = "\254\255", advice = RECODE },
  { name = "a pointer of Git LFS to the data", begins = "version https://git%-lfs%.github%.com/spec/v1\n",
    advice = "fetch the data with git lfs pull" },
  { name = "a pickle (older torch.save makes such files)", begins = "\128[\2-\5]",
    advice = "write what it holds as text, as JSON lines or as token files with the program that made it",
    left_out = true },
  { name = "a web page", begins = "%s*<![Dd][Oo][Cc][Tt][Yy][Pp][Ee]%s+[Hh][Tt][Mm][Ll]", advice = FETCH,
    is_text = true, name_ends = "%.x?html?$" },
  { name = "a web page", begins = "%s*<[Hh][Tt][Mm][Ll][%s>]", advice = FETCH, is_text = true,
    name_ends = "%.x?html?$" },
  { name = "a server's error", begins = "%s*<%?xml[^>]*>%s*<Error>", advice = FETCH, is_text = true,
    name_ends = "%.xml$" },
  { name = "a GGUF model", begins = "GGUF[%z\1-\8]", left_out = true },
  { name = "a NumPy array", begins = "\147NUMPY",
    advice = "write its tokens as a token file (recipes/guides/bring_your_data.md), or its texts as JSON lines",
    left_out = true },
  { name = "an executable or a library", begins = "\127ELF", left_out = true },
}

-- Eight bytes for the length of a header in JSON, which can be the first ones of a pickle.
local SAFETENSORS = "^....%z%z%z%z{"

---Whether a file is a safetensors file.
---@param beginning string the first 9 bytes of a file, or more
---@return boolean
function file_kind.is_safetensors(beginning) return beginning:find(SAFETENSORS) ~= nil end

local BINARY = { name = "binary: it has a zero byte near its beginning", left_out = true }

---A format with a signature of its own; nil for text, for safetensors and for what is unknown.
---@param beginning string the first bytes of a file, 262 or more where it has them
---@return moonshard.FileKind?
function file_kind.of(beginning)
  if file_kind.is_safetensors(beginning) then return nil end
  for _, kind in ipairs(KINDS) do
    if beginning:find("^" .. kind.begins, kind.at or 1) then return kind end
  end
end

---The same, and a kind for other bytes that are no text.
---@param beginning string
---@return moonshard.FileKind?
function file_kind.of_no_text(beginning)
  return file_kind.of(beginning) or beginning:find("\0", 1, true) and BINARY or nil
end

---Whether a file of a kind is text all the same: a page that is named as one.
---@param path string
---@param kind moonshard.FileKind
---@return boolean
function file_kind.is_text(path, kind)
  return kind.is_text ~= nil and path:lower():gsub("%.zst$", ""):find(kind.name_ends) ~= nil
end

---Raises for a file that is not read.
---@param path string
---@param kind moonshard.FileKind
---@param more string? what else can be done: "raw = true takes its bytes"
function file_kind.refuse(path, kind, more)
  local advice = kind.advice and more and kind.advice .. "; " .. more or kind.advice or more
  errors.raise("MS_EUNSUPPORTED", "%s: the file is %s, which is not read as data%s", path, kind.name,
    advice and ": " .. advice or "")
end

-- UTF-8's byte order mark, with which some editors begin a file.
local MARK = "\239\187\191"

---The text without a byte order mark at its beginning.
---@param text string
---@return string
function file_kind.without_mark(text) return text:sub(1, #MARK) == MARK and text:sub(#MARK + 1) or text end

---Whether a file's name, but for .zst, is one of JSON lines.
---@param path string
---@return boolean
function file_kind.is_named_json_lines(path)
  local name = path:lower():gsub("%.zst$", "")
  return name:find("%.jsonl$") ~= nil or name:find("%.ndjson$") ~= nil
end

---Whether a file's name, but for .zst, ends in .json.
---@param path string
---@return boolean
function file_kind.is_named_json(path) return path:lower():gsub("%.zst$", ""):find("%.json$") ~= nil end

-- An object that begins on its first line, and a list of objects.
local LINES, LIST = '^%s*{[ \t]*"[^"\n]*"[ \t]*:', '^%s*%[%s*{%s*"'

---Whether a file has JSON objects for its samples: one a line, or in one list. Published data is also named .json;
---other files of this name have one object on several lines.
---@param path string
---@param beginning string
---@return "JSON lines"|"a JSON list"|nil
function file_kind.json(path, beginning)
  beginning = file_kind.without_mark(beginning)
  if file_kind.is_named_json_lines(path) or beginning:find(LINES) then return "JSON lines" end
  return beginning:find(LIST) and "a JSON list" or nil
end

return file_kind
