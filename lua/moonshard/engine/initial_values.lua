-- Reads initial values of parameters from files. A parameter with a `source` is read when the model's state is created:
-- each rank reads only the elements that it owns, in pieces, so no rank ever holds more of the model.

local clock = require("moonshard.base.clock")
local division = require("moonshard.shard.division")
local engine = require("moonshard.base.ffi")
local hash = require("moonshard.base.hash")
local same_run = require("moonshard.engine.agreement.same_run")
local world = require("moonshard.distributed.world")
local C, ffi, check = engine.C, engine.ffi, engine.check

local initial_values = {}

local PIECE = 2 ^ 20 -- elements per read

---@class moonshard.ValueSource
---@field read fun(first: number, count: number, out: ffi.cdata*): number reads elements of the flattened parameter as
---  f32; returns the number of bytes read from the file
---@field path string of the file, for messages
---@field identity fun(): string equal for equal contents (Safetensors:sample)

local function sorted_text(set, separator)
  local texts = {}
  for text in pairs(set) do texts[#texts + 1] = text end
  table.sort(texts)
  return table.concat(texts, separator)
end

-- Which parameters are read, and the contents of the files. Ranks that read others, or draw what others read, would
-- train a mixture of two models.
local function compare(session)
  if #session:ranks() == 1 then return end
  local paths, lines = {}, {}
  for _, param in ipairs(session.sharding.params) do
    local source = param.parameter.source
    if source then
      paths[source.path] = true
      lines[#lines + 1] = param.fqn .. " " .. source.identity()
    end
  end
  local advice = "give all ranks the same folder, or copies of one"
  local count, whence = #lines, #lines > 0 and sorted_text(paths, ", ") or nil
  local contents = count == 0 and "none" or ("%.0f"):format(hash.of_text(table.concat(lines, "\n")))
  same_run.new("the first use of the model", {
    { "the number of parameters read from files", count, advice, whence },
    { "the hash of the contents of the files", contents, advice, whence },
  }, {}):require(session, "of the files that values were read from")
end

local function fill(session, index, source, scratch)
  local owned, bytes = division.owned(session.sharding:handle(), index), 0
  local part, begin, stop = owned.part, owned.first, owned.first + owned.count
  while begin < stop do
    world.check_interrupt()
    local at, run = division.index(part, begin)
    local n = math.min(PIECE, stop - begin, run)
    bytes = bytes + source.read(at, n, scratch)
    check(C.ms_state_write(session.state, index, C.MS_TENSOR_PARAM, begin, n, scratch))
    begin = begin + n
  end
  return bytes
end

---Reads the values of every parameter with a source into a new state. Collective.
---@param session moonshard.Session
---@return { bytes: number, seconds: number }? read by this rank; nil if there are no sources
function initial_values.read(session)
  local scratch, bytes, began = nil, 0, clock.now()
  for i, param in ipairs(session.sharding.params) do
    local source = param.parameter.source
    if source then
      scratch = scratch or ffi.new("float[?]", PIECE)
      bytes = bytes + fill(session, i - 1, source, scratch)
    end
  end
  if scratch then check(C.ms_state_finish_writes(session.state)) end
  compare(session)
  if not scratch then return nil end
  return { bytes = bytes, seconds = clock.now() - began }
end

return initial_values
