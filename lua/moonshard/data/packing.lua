-- Rows of equal length, filled with documents: each document goes into the first open row that has room for it. The
-- rows depend only on the documents and their order. What is left of a row is padding, which nothing is trained on.

local errors = require("moonshard.base.error")
local ffi = require("ffi")
local hash = require("moonshard.base.hash")

local OPEN_ROWS = 64 -- that later documents can fill
local IGNORED = -100
local MAX_TOKENS = 2 ^ 29 - 1 -- LuaJIT's arrays are smaller than 2 GiB, and a token has 4 bytes

---@class moonshard.Packing
---@field seq integer tokens of a row
---@field documents integer in all
---@field cut integer documents that are longer than a row, and were cut
---@field trained number tokens that are trained on
---@field rows table[] closed and open, in the order in which they were begun
local Packing = {}
Packing.__index = Packing

local packing = {}

---@param who string for messages: "ms.data.chat"
---@param seq integer tokens of a row
---@param shares boolean whether a row can have several documents
---@return moonshard.Packing
function packing.new(who, seq, shares)
  return setmetatable({
    who = who, seq = seq, shares = shares, documents = 0, cut = 0, trained = 0, rows = {}, open = {},
  }, Packing)
end

local function row_with_room(self, count)
  for i, row in ipairs(self.shares and self.open or {}) do
    if row.used + count <= self.seq then
      if row.used + count == self.seq then table.remove(self.open, i) end
      return row
    end
  end
  local row = { used = 0, tokens = ffi.new("int32_t[?]", self.seq), targets = ffi.new("int32_t[?]", self.seq) }
  self.rows[#self.rows + 1] = row
  if #self.rows * self.seq > MAX_TOKENS then
    errors.raise("MS_EUNSUPPORTED", "%s: more than %d tokens: use fewer files, or `moonshard tokenize` and "
      .. "ms.data.tokens, which do not keep data in memory", self.who, MAX_TOKENS)
  end
  if count < self.seq then self.open[#self.open + 1] = row end
  if #self.open > OPEN_ROWS then table.remove(self.open, 1) end
  return row
end

---Adds a document. Its last token has no target: what follows it in a row belongs to another.
---@param tokens integer[]
---@param trained boolean[] whether a token is a target
function Packing:add(tokens, trained)
  local count = math.min(#tokens, self.seq)
  if count == 0 then return end
  local row = row_with_room(self, count)
  for i = 1, count do
    local has_target = i < #tokens and trained[i + 1]
    row.tokens[row.used + i - 1] = tokens[i]
    row.targets[row.used + i - 1] = has_target and tokens[i + 1] or IGNORED
    if has_target then self.trained = self.trained + 1 end
  end
  row.used = row.used + count
  self.documents = self.documents + 1
  if #tokens > self.seq + 1 then self.cut = self.cut + 1 end
end

-- ---- the rows as a stream that a loader reads -------------------------------------------------------------------

---@class moonshard.PackedRows has what a loader needs of a moonshard.TokenStream
---@field tokens number in all rows
local Rows = {}
Rows.__index = Rows

---The rows as arrays.
---@param padding integer the token of what is left of a row
---@return moonshard.PackedRows
function Packing:finish(padding)
  local count = #self.rows * self.seq
  local tokens, targets = ffi.new("int32_t[?]", count), ffi.new("int32_t[?]", count)
  for r, row in ipairs(self.rows) do
    for i = row.used, self.seq - 1 do row.tokens[i], row.targets[i] = padding, IGNORED end
    ffi.copy(tokens + (r - 1) * self.seq, row.tokens, 4 * self.seq)
    ffi.copy(targets + (r - 1) * self.seq, row.targets, 4 * self.seq)
  end
  local n = #self.rows
  self.rows, self.open = {}, {}
  return setmetatable({ tokens = count, n = n, token_array = tokens, target_array = targets }, Rows)
end

---A hash of all tokens and targets.
---@return number
function Rows:contents()
  self.hashed = self.hashed or hash.of_text(("%x %x"):format(hash.of_bytes(self.token_array, 4 * self.tokens),
    hash.of_bytes(self.target_array, 4 * self.tokens)))
  return self.hashed
end

---@param rows integer samples of a batch
---@param columns integer tokens of a sample
---@return table reader as of a moonshard.TokenStream; nothing is read ahead, since all is in memory
function Rows:reader(rows, columns)
  local stream = self
  return {
    read = function(_, position, place, _, _, tokens, targets)
      for row = 0, rows - 1 do
        local first = place(position, row)
        ffi.copy(tokens + row * columns, stream.token_array + first, 4 * columns)
        ffi.copy(targets + row * columns, stream.target_array + first, 4 * columns)
      end
    end,
  }
end

---@class moonshard.RowQueue
---@field asked number[] where the samples begin that were asked for, oldest first
local Queue = {}
Queue.__index = Queue

---@param columns integer tokens of a sample
---@return moonshard.RowQueue as a moonshard.TokenQueue
function Rows:queue(columns) return setmetatable({ rows = self, columns = columns, asked = {} }, Queue) end

---@param first number
function Queue:ask(first) self.asked[#self.asked + 1] = first end

---@param tokens ffi.cdata* int32_t [columns]
---@param targets ffi.cdata* int32_t [columns]
function Queue:take(tokens, targets)
  local first = table.remove(self.asked, 1)
  ffi.copy(tokens, self.rows.token_array + first, 4 * self.columns)
  ffi.copy(targets, self.rows.target_array + first, 4 * self.columns)
end

function Queue:discard() self.asked = {} end

return packing
