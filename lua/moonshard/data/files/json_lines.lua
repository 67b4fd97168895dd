-- Files of JSON lines, read piece by piece: an object a line, with its place for messages. zstd is decompressed, by
-- what the file contains. A line has at most MAX_LINE bytes, so a file without line ends is refused after as many, and
-- what runs out of memory names the line at which it did.

local decompressed = require("moonshard.data.files.decompressed")
local errors = require("moonshard.base.error")
local file_kind = require("moonshard.data.files.file_kind")
local files = require("moonshard.data.files.files")
local input_file = require("moonshard.base.files.input_file")
local json = require("moonshard.base.text.json")
local text_lines = require("moonshard.base.text.text_lines")
local zstd = require("moonshard.base.files.zstd")

local PIECE = 2 ^ 20 -- bytes that are read at a time
local MAX_LINE = 2 ^ 26

local json_lines = { MAX_LINE = MAX_LINE }

---@param path string
---@return boolean whether files of a folder or pattern with this name are taken
function json_lines.is_file(path)
  return file_kind.is_named_json_lines(path)
end

-- ---- lines ------------------------------------------------------------------------------------------------------

-- Joins pieces to lines, in linear time.
local Lines = {}
Lines.__index = Lines

local function give(self, line)
  self.number = self.number + 1
  if self.number == 1 then line = file_kind.without_mark(line) end
  self.visit(line, self.number)
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

local function check_kind(path)
  local beginning = decompressed.beginning(path)
  local kind = file_kind.of_no_text(beginning)
  if kind then file_kind.refuse(path, kind) end
  if not file_kind.without_mark(beginning):find("^%s*%[") then return end
  errors.invalid("%s: the file is a JSON list, not one object a line: write these with jq -c '.[]' FILE > FILE.jsonl",
    path)
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
    errors.raise("MS_ENOMEM", "%s:%d: not enough memory for the data up to this line: use fewer or shorter files",
      path, lines.number)
  end
  error(raised, 0)
end

local function object_of(line, where)
  local wrong = text_lines.not_utf8(line)
  if wrong then
    errors.invalid("%s: byte %d, 0x%02x, is not UTF-8, which JSON is: convert the file (iconv -t UTF-8), or leave the "
      .. "line out", where, wrong, line:byte(wrong))
  end
  local row, problem = json.decode_strictly(line)
  if type(row) ~= "table" then errors.invalid("%s: %s", where, problem or "a line must be an object") end
  return row
end

---Reads the objects of a file in order; lines of blanks are none.
---@param path string
---@param what string for messages: "conversations"
---@param visit fun(row: table, where: string) takes an object, and where it is: "chats.jsonl:3"
function json_lines.each(path, what, visit)
  if not files.bytes(path) then
    input_file.read(path, what .. " are read from files of JSON lines") -- says why it is none
    errors.invalid("%s: it is not a regular file", path)
  end
  check_kind(path)
  local lines = setmetatable({ path = path, number = 0, held = 0, parts = {} }, Lines)
  function lines.visit(line, number)
    if not line:find("%S") then return end
    local where = ("%s:%d"):format(path, number)
    visit(object_of(line, where), where)
  end
  read(path, lines)
end

return json_lines
