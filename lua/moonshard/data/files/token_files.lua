-- Files of tokens by their names and headers: those of llm.c, and pairs that Megatron's preprocessing writes, of which
-- NAME.bin has tokens and nothing else, and NAME.idx says what they are. Either name is one of both files, so a pattern
-- that matches both has one source of tokens. The engine reads and checks the files (runtime/io/tokens).

local decompressed = require("moonshard.data.files.decompressed")
local errors = require("moonshard.base.error")
local file_kind = require("moonshard.data.files.file_kind")
local files = require("moonshard.data.files.files")

local token_files = {}

local MAGIC = "MMIDIDX\0\0"
local HEADER = 34 -- bytes
local DTYPES = { "u8", "i8", "i16", "i32", "i64", "f64", "f32", "u16" } -- by code
local BITS = { u8 = 8, i8 = 8, i16 = 16, u16 = 16, i32 = 32, i64 = 64 }
-- Bits of a token by the first four bytes of a header of llm.c's, the numbers 20240520 and 20240801.
local HEADED = { ["\136\216\52\1"] = 16, ["\161\217\52\1"] = 32 }

---The bits of a token, by a header of llm.c's; nil where a file has none.
---@param beginning string the first bytes of a file
---@return integer?
function token_files.headed(beginning) return HEADED[beginning:sub(1, 4)] end

local function beginning_of(path) return files.bytes(path) and files.beginning(path) or "" end

---The index of a pair, by the name of either file; nil where a path names none.
---@param path string
---@return string?
function token_files.index_of(path)
  if path:find("%.idx$") then return path end
  local name = path:match("^(.*)%.bin$")
  local index = name and name .. ".idx"
  if not index or not files.bytes(index) or token_files.headed(beginning_of(path)) then return nil end
  return index
end

local function u64(text, at)
  local value = 0
  for i = at + 7, at, -1 do value = 256 * value + text:byte(i) end
  return value
end

---Whether a file begins as the index of a pair does.
---@param beginning string
---@return boolean
function token_files.begins_index(beginning) return beginning:sub(1, #MAGIC) == MAGIC end

---@class moonshard.TokenPair
---@field index string the path of the index
---@field dtype string "u16"
---@field bits integer of a token
---@field sequences number
---@field documents number

---What an index's header says; nil where it is none, which the engine refuses.
---@param index string
---@return moonshard.TokenPair?
function token_files.header(index)
  local head = beginning_of(index)
  if #head < HEADER or not token_files.begins_index(head) then return nil end
  local dtype = DTYPES[head:byte(18)]
  if not dtype or not BITS[dtype] then return nil end
  return { index = index, dtype = dtype, bits = BITS[dtype], sequences = u64(head, 19), documents = u64(head, 27) - 1 }
end

local function refuse_compressed(path)
  local name = path:match("^(.*)%.idx%.zst$") or path:match("^(.*)%.bin%.zst$")
  if not name or not (path:find("%.idx%.zst$") or files.bytes(name .. ".idx") or files.bytes(name .. ".idx.zst")) then
    return
  end
  errors.raise("MS_EUNSUPPORTED", "%s: it is one of a pair of files of tokens, %s.bin and %s.idx, which are read as "
    .. "they are: decompress both", path, name, name)
end

---The paths without the second file of a pair, of which both were found.
---@param paths string[]
---@return string[]
function token_files.once(paths)
  local known, list = {}, {}
  for _, path in ipairs(paths) do
    refuse_compressed(path)
    local index = token_files.index_of(path)
    local key = files.real_path(index or path) or path
    if not known[key] then list[#list + 1] = path end
    known[key] = true
  end
  return list
end

---Raises for a file of another format in place of one of tokens, with what it is. The tokens of a pair have no header
---and can begin in any way.
---@param path string
function token_files.check(path)
  local kind = not token_files.index_of(path) and file_kind.of(decompressed.beginning(path))
  if kind then file_kind.refuse(path, kind) end
end

---The number of documents, if all files are pairs.
---@param paths string[]
---@return number?
function token_files.documents(paths)
  local count = 0
  for _, path in ipairs(paths) do
    local index = token_files.index_of(path)
    local pair = index and token_files.header(index)
    if not pair then return nil end
    count = count + pair.documents
  end
  return count
end

return token_files
