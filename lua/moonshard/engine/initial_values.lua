-- Reads initial values of parameters from files. A parameter with a `source` is read when the model's state is created:
-- each rank reads only the elements that it owns, in pieces, so no rank ever holds more of the model.

local clock = require("moonshard.base.clock")
local division = require("moonshard.shard.division")
local engine = require("moonshard.base.ffi")
local hash = require("moonshard.base.hash")
local long_wait = require("moonshard.distributed.long_wait")
local safetensors = require("moonshard.base.files.safetensors")
local same_run = require("moonshard.engine.agreement.same_run")
local world = require("moonshard.distributed.world")
local C, ffi, check = engine.C, engine.ffi, engine.check

local initial_values = {}

local PIECE = 2 ^ 20 -- elements per read
local MAX_DRAWN = 1e8 -- elements that a rank draws in a second, at best

---@class moonshard.ValueSource
---@field read fun(first: number, count: number, out: ffi.cdata*): number reads elements of the flattened parameter as
---  f32; returns the number of bytes read from the file
---@field path string of the file or folder, for messages
---@field paths string[]? where path names several
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

local function files_of(path)
  local files, known, opened = {}, {}, safetensors.open(path)
  for _, tensor in ipairs(opened.tensors) do
    if not known[tensor.file] then files[#files + 1] = tensor.file end
    known[tensor.file] = true
  end
  opened:close()
  return files
end

-- The folders that values come from: "models/llama (12.6 GiB in 2 files)".
local function sources_of(session)
  local texts, known = {}, {}
  for _, param in ipairs(session.sharding.params) do
    local source = param.parameter.source
    for _, path in ipairs(source and (source.paths or { source.path }) or {}) do
      if not known[path] then texts[#texts + 1] = long_wait.of_files(path, files_of(path)) end
      known[path] = true
    end
  end
  return table.concat(texts, ", ")
end

local function fill(session, index, source, scratch, wait)
  local owned, bytes = division.owned(session.sharding:handle(), index), 0
  local part, begin, stop = owned.part, owned.first, owned.first + owned.count
  while begin < stop do
    world.check_interrupt()
    wait:check()
    local at, run = division.index(part, begin)
    local n = math.min(PIECE, stop - begin, run)
    bytes = bytes + source.read(at, n, scratch)
    check(C.ms_state_write(session.state, index, C.MS_TENSOR_PARAM, begin, n, scratch))
    begin = begin + n
  end
  return bytes
end

---Draws the values of every parameter of a new state.
---@param session moonshard.Session
---@param state ffi.cdata* ms_state*
function initial_values.draw(session, state)
  local elements = 0
  for i in ipairs(session.sharding.params) do
    elements = elements + division.owned(session.sharding:handle(), i - 1).count
  end
  local wait = long_wait.begin("filling", function()
    return ("%.3g million parameters of each rank with initial values"):format(elements / 1e6)
  end)
  wait:check(elements / MAX_DRAWN)
  check(C.ms_state_restart(state, C.MS_TENSOR_PARAM))
  wait:finish()
end

---Reads the values of every parameter with a source into a new state. Collective.
---@param session moonshard.Session
---@return { bytes: number, seconds: number }? read by this rank; nil if there are no sources
function initial_values.read(session)
  local scratch, bytes, began = nil, 0, clock.now()
  local wait = long_wait.begin("loading", function() return sources_of(session) end)
  for i, param in ipairs(session.sharding.params) do
    local source = param.parameter.source
    if source then
      scratch = scratch or ffi.new("float[?]", PIECE)
      bytes = bytes + fill(session, i - 1, source, scratch, wait)
    end
  end
  if scratch then check(C.ms_state_finish_writes(session.state)) end
  compare(session)
  if not scratch then return nil end
  wait:finish()
  return { bytes = bytes, seconds = clock.now() - began }
end

return initial_values
