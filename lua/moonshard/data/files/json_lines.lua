-- Files of JSON objects, read piece by piece: one a line, or those of one list, which the first character says. Each
-- comes with its place for messages; a null in it is json.null. zstd is decompressed, by what the file contains. An
-- object has at most MAX_LINE bytes, so a file without line ends is refused after as many, and what runs out of memory
-- names the object at which it did. No more than a piece and one object are in memory.

local decompressed = require("moonshard.data.files.decompressed")
local errors = require("moonshard.base.error")
local file_kind = require("moonshard.data.files.file_kind")
local files = require("moonshard.data.files.files")
local input_file = require("moonshard.base.files.input_file")
local json = require("moonshard.base.text.json")
local json_list = require("moonshard.data.files.json_list")
local text_lines = require("moonshard.base.text.text_lines")
local zstd = require("moonshard.base.files.zstd")

local PIECE = 2 ^ 20 -- bytes that are read at a time
local MAX_LINE = 2 ^ 26

local json_lines = { MAX_LINE = MAX_LINE }

---Whether a file of a folder or pattern is taken: one that is named .jsonl or .ndjson, or a .json with such contents.
---@param path string
---@return boolean
function json_lines.is_file(path)
  if file_kind.is_named_json_lines(path) then return true end
  return file_kind.is_named_json(path) and file_kind.json(path, decompressed.beginning(path)) ~= nil
end

-- ---- lines ------------------------------------------------------------------------------------------------------

-- Joins pieces to lines, in linear time.
local Lines = {}
Lines.__index = Lines

function Lines:place() return ("%s:%d"):format(self.path, self.number) end

local function give(self, line)
  self.number = self.number + 1
  if self.number == 1 then line = file_kind.without_mark(line) end
  if line:find("%S") then self.visit(line, self:place()) end
end

local function keep(self, text)
  self.held = self.held + #text
  self.parts[#self.parts + 1] = text
  if self.held <= MAX_LINE then return end
  errors.invalid("%s:%d: the line has more than %d MiB: a file of JSON lines has one object a line, each of at most as "
    .. "much", self.path, self.number + 1, MAX_LINE / 2 ^ 20)
end

function Lines:add(text)
  local at = 1
  while true do
    local stop = text:find("\n", at, true)
    if not stop then break end
    keep(self, text:sub(at, stop - 1))
    local line = table.concat(self.parts)
    self.parts, self.held = {}, 0
    give(self, line)
    at = stop + 1
  end
  if at <= #text then keep(self, text:sub(at)) end
end

function Lines:finish()
  if self.held > 0 then give(self, table.concat(self.parts)) end
end

-- ---- files ------------------------------------------------------------------------------------------------------

-- What finds the objects of a file.
local function finder(path, visit)
  local beginning = decompressed.beginning(path)
  local kind = file_kind.of_no_text(beginning)
  if kind then file_kind.refuse(path, kind) end
  beginning = file_kind.without_mark(beginning)
  if beginning:find("^%s*%[") then return json_list.new(path, MAX_LINE, visit) end
  if beginning:find("^%s*{[ \t]*\r?\n") then
    errors.invalid("%s: the file has one JSON object on several lines, and a file of data has one object a line, or a "
      .. "list of them: write them with jq -c . FILE > FILE.jsonl, or jq -c '.FIELD[]' if they are in a list in it",
      path)
  end
  return setmetatable({ path = path, number = 0, held = 0, parts = {}, visit = visit }, Lines)
end

local function read(path, lines)
  local source = files.open(path)
  local function piece() return source:read(PIECE) end
  local ok, raised = pcall(function()
    if decompressed.is_compressed(path) then
      zstd.stream(path, piece, function(text) lines:add(text) end)
    else
      for text in piece do lines:add(text) end
    end
    lines:finish()
  end)
  source:close()
  if ok then return end
  if raised == "not enough memory" then
    errors.raise("MS_ENOMEM", "%s: not enough memory for the data up to here: use fewer or shorter files",
      lines:place())
  end
  error(raised, 0)
end

local function object_of(line, where)
  local wrong = text_lines.not_utf8(line)
  if wrong then
    errors.invalid("%s: byte %d, 0x%02x, is not UTF-8, which JSON is: convert the file (iconv -t UTF-8), or leave the "
      .. "line out", where, wrong, line:byte(wrong))
  end
  if not line:find("^%s*{") then
    errors.invalid("%s: it must be a JSON object, { ... }, and it begins with %s", where,
      text_lines.quoted(line:match("^%s*(.*)")))
  end
  local row, problem = json.decode(line, true)
  if not row then errors.invalid("%s: %s", where, problem) end
  return row
end

---Reads the objects of a file in order; lines of blanks are none.
---@param path string
---@param what string for messages: "conversations"
---@param visit fun(row: table, where: string) takes an object, and where it is: "chats.jsonl:3", or
---  "chats.json:7: item 3" of a list
function json_lines.each(path, what, visit)
  if not files.bytes(path) then
    input_file.read(path, what .. " are read from files of JSON lines") -- says why it is none
    errors.invalid("%s: it is not a regular file", path)
  end
  read(path, finder(path, function(text, where) visit(object_of(text, where), where) end))
end

return json_lines
