-- Detects the kind of a file for `moonshard inspect` by its first bytes, because names are unreliable.

local errors = require("moonshard.base.error")
local file_kind = require("moonshard.data.files.file_kind")
local files = require("moonshard.data.files.files")
local token_files = require("moonshard.data.files.token_files")

local inspect_kind = {}

-- Enough for a header, and to recognise text.
local HEAD_BYTES = 65536
local READ = "moonshard inspect reads safetensors files and folders of them, checkpoints, token files of llm.c (magic "
  .. "20240520 or 20240801) and of Megatron (.idx and .bin), tokenizer.json and UTF-8 text"

-- UTF-8 without zero bytes and control characters; the last character can be cut.
local function is_text(head)
  if head:find("[%z\1-\6\14-\26\28-\31]") then return false end
  local at = 1
  while at <= #head do
    local byte = head:byte(at)
    local more = byte < 0x80 and 0 or byte >= 0xc2 and byte < 0xe0 and 1 or byte >= 0xe0 and byte < 0xf0 and 2
      or byte >= 0xf0 and byte < 0xf5 and 3
    if not more then return false end
    local tail = head:sub(at + 1, at + more)
    if tail:find("[^\128-\191]") or (#tail < more and at + more <= #head) then return false end
    at = at + 1 + more
  end
  return true
end

-- The first bytes of a regular file; nil when it does not exist or cannot be opened.
local function read_head(path)
  local file = files.bytes(path) and io.open(path, "rb")
  if not file then return nil end
  local head = file:read(HEAD_BYTES) or ""
  file:close()
  return head
end

local function raise(path, what) errors.invalid("%s: file is %s; %s", path, what, READ) end

---How to read a path. A path named like safetensors is read as safetensors, whose reader reports any error.
---@param path string
---@return "safetensors"|"tokens"|"tokenizer"|"text"
---@return integer? bits per token
---@return moonshard.TokenPair? pair of files, one of which has the path
function inspect_kind.of(path)
  local head = read_head(path)
  if not head or path:find("%.safetensors$") or path:find("%.safetensors%.index%.json$") then return "safetensors" end
  if head == "" then raise(path, "empty") end
  local width = token_files.headed(head)
  if width then return "tokens", width end
  local index = token_files.index_of(path)
  local pair = index and token_files.header(index)
  if pair then return "tokens", pair.bits, pair end
  if token_files.begins_index(head) then return "tokens", 32 end -- the engine says what is wrong
  if file_kind.is_safetensors(head) then return "safetensors" end
  local kind = file_kind.of(head)
  if kind then raise(path, kind.name) end
  if not is_text(head) then
    raise(path, ("binary, in an unknown format (it begins with the bytes %s)"):format(
      (head:sub(1, 4):gsub(".", function(char) return ("%02x "):format(char:byte()) end):gsub(" $", ""))))
  end
  local name = path:match("[^/]*$")
  if name:find("%.json$") and head:find("^%s*{") then
    if name:find("tokenizer%.json$") or head:find('"added_tokens"', 1, true) then return "tokenizer" end
    raise(path, "JSON, but not a tokenizer.json")
  end
  return "text"
end

return inspect_kind
