-- Files as one stream of tokens: what the engine maps, and the thread that reads batches of it ahead.

local engine = require("moonshard.base.ffi")
local errors = require("moonshard.base.error")
local hash = require("moonshard.base.hash")
local world = require("moonshard.distributed.world")
local C, ffi, check = engine.C, engine.ffi, engine.check

local READ_SECONDS = 300 -- until waiting for a disk is an error
local SLOTS = 2 -- a batch that is ready, and one that is being read

-- A stream of up to PIECES * PIECE_TOKENS tokens is hashed whole, and of a longer one so many pieces.
local PIECES, PIECE_TOKENS = 64, 4096

local stream = {}

---@class moonshard.TokenStream
---@field tokens number in all
---@field handle ffi.cdata*
local Stream = {}
Stream.__index = Stream

-- Raises the engine's error with the files as the user named them, in place of decompressed copies.
local function raise(status, paths, shown)
  local message = ffi.string(C.ms_error_message())
  for i, path in ipairs(paths) do
    local from, to = message:find(path, 1, true)
    if from then message = message:sub(1, from - 1) .. shown[i] .. message:sub(to + 1) break end
  end
  errors.raise(ffi.string(C.ms_status_name(status)), "%s", message)
end

---Opens files as one stream. MS_EINVAL names the file and the field that is wrong.
---@param paths string[]
---@param kind "MS_TOKEN_FILES"|"MS_TOKEN_BYTES"
---@param shown string[]? their names for messages; default: the paths
---@return moonshard.TokenStream
function stream.open(paths, kind, shown)
  local names, out = ffi.new("const char *[?]", #paths + 1), ffi.new("ms_tokens *[1]")
  for i, path in ipairs(paths) do names[i - 1] = path end
  local count = ffi.new("int64_t[1]")
  local status = C.ms_tokens_open(#paths, names, C[kind], out, count)
  if status ~= 0 then raise(status, paths, shown or paths) end
  local handle = ffi.gc(out[0], C.ms_free)
  return setmetatable({ handle = handle, tokens = tonumber(count[0]) }, Stream)
end

---Tokens [first, first + count) of the stream.
---@param first number
---@param count integer
---@return integer[]
function Stream:read(first, count)
  local out, list = ffi.new("int32_t[?]", count), {}
  check(C.ms_tokens_read(self.handle, first, count, out))
  for i = 1, count do list[i] = out[i - 1] end
  return list
end

---A hash of the tokens, or of pieces at equal distances, the first and the last tokens among them.
---@return number
function Stream:contents()
  if self.hashed then return self.hashed end
  local pieces = math.min(PIECES, math.ceil(self.tokens / PIECE_TOKENS))
  local last = math.max(0, self.tokens - PIECE_TOKENS)
  local count = math.min(self.tokens, PIECE_TOKENS)
  local out, hashes = ffi.new("int32_t[?]", count), {}
  for piece = 1, pieces do
    local first = pieces > 1 and math.floor((piece - 1) * last / (pieces - 1)) or 0
    check(C.ms_tokens_read(self.handle, first, count, out))
    hashes[piece] = ("%x"):format(hash.of_bytes(out, 4 * count))
  end
  self.hashed = hash.of_text(table.concat(hashes, " "))
  return self.hashed
end

-- ---- samples of several streams ---------------------------------------------------------------------------------

---@class moonshard.TokenQueue samples that are read ahead one by one
local Queue = {}
Queue.__index = Queue

---@param columns integer tokens a sample
---@param slots integer samples that can be asked for and not taken yet
---@return moonshard.TokenQueue
function Stream:queue(columns, slots)
  local out = ffi.new("ms_token_reader *[1]")
  check(C.ms_token_reader_new(self.handle, 1, columns, slots, out))
  return setmetatable({ handle = ffi.gc(out[0], C.ms_free), first = ffi.new("int64_t[1]") }, Queue)
end

---Has a sample read.
---@param first number the token at which it begins
function Queue:ask(first)
  self.first[0] = first
  check(C.ms_token_reader_request(self.handle, self.first))
end

---Copies the sample that was asked for first.
---@param tokens ffi.cdata* int32_t [columns]
---@param targets ffi.cdata* int32_t [columns]
function Queue:take(tokens, targets)
  check(C.ms_token_reader_take(self.handle, READ_SECONDS, tokens, targets))
end

---Forgets what was asked for and not taken.
function Queue:discard() check(C.ms_token_reader_discard(self.handle, READ_SECONDS)) end

-- ---- batches of one stream --------------------------------------------------------------------------------------

---@class moonshard.TokenReader batches of one shape, read ahead
---@field asked number[] positions of batches that were asked for, oldest first
local Reader = {}
Reader.__index = Reader

---@param rows integer samples a batch
---@param columns integer tokens a sample
---@return moonshard.TokenReader
function Stream:reader(rows, columns)
  local out = ffi.new("ms_token_reader *[1]")
  check(C.ms_token_reader_new(self.handle, rows, columns, SLOTS, out))
  return setmetatable({
    handle = ffi.gc(out[0], C.ms_free),
    first = ffi.new("int64_t[?]", rows),
    rows = rows,
    asked = {},
  }, Reader)
end

-- Requests the batch at a position; `place` returns where the sample of each row begins.
local function ask(self, position, place)
  for row = 0, self.rows - 1 do self.first[row] = place(position, row) end
  check(C.ms_token_reader_request(self.handle, self.first))
  self.asked[#self.asked + 1] = position
end

---Fills tokens and targets with the batch at a position, and has the next ones read.
---@param position number of the run
---@param place fun(position: number, row: integer): number the token at which a row's sample begins
---@param following fun(position: number): number the position of the next batch
---@param last number position of the last batch that will be asked for
---@param tokens ffi.cdata* int32_t [rows * columns]
---@param targets ffi.cdata* int32_t [rows * columns]
function Reader:read(position, place, following, last, tokens, targets)
  if self.asked[1] and self.asked[1] ~= position then
    check(C.ms_token_reader_discard(self.handle, READ_SECONDS))
    self.asked = {}
  end
  if not self.asked[1] then ask(self, position, place) end
  world.check_interrupt()
  local failed = C.ms_token_reader_take(self.handle, READ_SECONDS, tokens, targets)
  if failed ~= C.MS_EINTERRUPT then table.remove(self.asked, 1) end
  check(failed)
  local ahead = following(self.asked[#self.asked] or position)
  while #self.asked < SLOTS and ahead <= last do
    ask(self, ahead, place)
    ahead = following(ahead)
  end
end

return stream
