-- Several streams of tokens as one, for a loader whose batches have samples of each: the tokens of a stream follow
-- those of the one before. Every stream is read by a thread of its own, for this batch and the next.

local hash = require("moonshard.base.hash")
local world = require("moonshard.distributed.world")

local BATCHES = 2 -- that are asked for at a time

---@class moonshard.JoinedStream has what a loader needs of a moonshard.TokenStream
---@field tokens number of all streams
---@field streams table[]
---@field first number[] where the tokens of each stream begin
---@field order string identifies the order of samples, for ranks to compare
local Joined = {}
Joined.__index = Joined

local joined_stream = {}

---@param streams table[] each a moonshard.TokenStream or moonshard.PackedRows
---@param order string
---@return moonshard.JoinedStream
function joined_stream.new(streams, order)
  local self = setmetatable({ streams = streams, first = {}, tokens = 0, order = order }, Joined)
  for i, stream in ipairs(streams) do
    self.first[i] = self.tokens
    self.tokens = self.tokens + stream.tokens
  end
  return self
end

---A hash of the contents of all streams and of the order.
---@return number
function Joined:contents()
  if self.hashed then return self.hashed end
  local parts = { self.order }
  for _, stream in ipairs(self.streams) do
    parts[#parts + 1] = ("%d %x"):format(stream.tokens, stream:contents())
  end
  self.hashed = hash.of_text(table.concat(parts, " "))
  return self.hashed
end

---@class moonshard.JoinedReader
---@field asked { position: number, sources: integer[] }[] batches, oldest first; sources: the stream of each row
local Reader = {}
Reader.__index = Reader

---@param rows integer samples a batch
---@param columns integer tokens a sample
---@return moonshard.JoinedReader
function Joined:reader(rows, columns)
  local queues = {}
  for i, stream in ipairs(self.streams) do queues[i] = stream:queue(columns, BATCHES * rows) end
  return setmetatable({ stream = self, queues = queues, rows = rows, columns = columns, asked = {} }, Reader)
end

local function ask(self, position, place)
  local batch, first = { position = position, sources = {} }, self.stream.first
  for row = 0, self.rows - 1 do
    local at, source = place(position, row), #first
    while first[source] > at do source = source - 1 end
    self.queues[source]:ask(at - first[source])
    batch.sources[row + 1] = source
  end
  self.asked[#self.asked + 1] = batch
end

local function take(self, tokens, targets)
  world.check_interrupt()
  for row, source in ipairs(table.remove(self.asked, 1).sources) do
    local at = (row - 1) * self.columns
    self.queues[source]:take(tokens + at, targets + at)
  end
end

local function discard(self)
  for _, queue in ipairs(self.queues) do queue:discard() end
  self.asked = {}
end

---Fills tokens and targets with the batch at a position, and has the next one read; as moonshard.TokenReader.
---@param position number
---@param place fun(position: number, row: integer): number
---@param following fun(position: number): number
---@param last number
---@param tokens ffi.cdata* int32_t [rows * columns]
---@param targets ffi.cdata* int32_t [rows * columns]
function Reader:read(position, place, following, last, tokens, targets)
  if self.failed or self.asked[1] and self.asked[1].position ~= position then discard(self) end
  if not self.asked[1] then ask(self, position, place) end
  self.failed = true -- some rows of the batch may have been taken
  local ok, raised = pcall(take, self, tokens, targets)
  if not ok then error(raised, 0) end
  self.failed = nil
  local newest = self.asked[#self.asked]
  local ahead = following(newest and newest.position or position)
  while #self.asked < BATCHES and ahead <= last do
    ask(self, ahead, place)
    ahead = following(ahead)
  end
end

return joined_stream
