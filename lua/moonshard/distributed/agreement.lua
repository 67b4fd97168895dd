-- Operations that all ranks complete or none, because ranks that did and ranks that did not could not continue
-- together: the end of a step, binding a plan, changing rules, a save. Also how a failure on some ranks is reported.

local arguments = require("moonshard.base.checks.arguments")
local context = require("moonshard.base.context")
local engine = require("moonshard.base.ffi")
local errors = require("moonshard.base.error")
local text_lines = require("moonshard.base.text.text_lines")
local world = require("moonshard.distributed.world")
local C, ffi = engine.C, engine.ffi

local agreement = {}

---Calls a function with arguments; returns its result or raises its error. Ctrl-C, and the news that another rank gave
---up elsewhere, are deferred until it returns. Use it only if the first collective of the call precedes any change: no
---rank passes that collective unless all have entered the call.
---@param call function
---@param ... any
---@return any
function agreement.uninterrupted(call, ...)
  if context.trace then
    errors.invalid("this call needs all ranks, but is in a forward or loss, which is traced and not run: call it "
      .. "between steps")
  end
  C.ms_interrupt_defer(1)
  local ok, result = pcall(call, ...)
  C.ms_interrupt_defer(-1)
  if not ok then error(result, 0) end
  return result
end

-- Errors that follow from another rank or from the user are not causes; nor are those of ranks that disagree, which all
-- of them have, so that they count.
local FOLLOWS = { MS_EPEER = true, MS_EINTERRUPT = true }

-- How many calls that note failures are under way, and the latest error that was noted in them: it passes several on
-- its way up, and counts once.
local depth, noted = 0, nil
local current -- the recipe's call that is under way, "train:parameter"; nil: one that has no name here

local function note_failure(raised)
  if not (errors.is(raised) or type(raised) == "string") or FOLLOWS[raised.status] then return end
  if world.plan_only or world.size == 1 or raised == noted then return end
  noted = raised
  local is_cause = raised.status ~= "MS_EMISMATCH"
  C.ms_world_note_failure(world.handle, is_cause and text_lines.message(tostring(raised)) or nil)
end

local function returned(ok, ...)
  depth = depth - 1
  if depth == 0 then current = nil end
  if ok then return ... end
  note_failure(...)
  error(..., 0)
end

---Calls a function that all ranks call; records its error and raises it. If a recipe catches the error and continues,
---the other ranks wait elsewhere and their final error hides the cause. The engine therefore keeps it, quotes it when
---ranks disagree, and refuses further steps of ranks that did not all fail.
---@param call function
---@param ... any arguments
---@return ... its results
function agreement.noting_failure(call, ...)
  if depth == 0 then noted = nil end
  depth = depth + 1
  return returned(pcall(call, ...))
end

local function called(name, call, ...)
  if depth == 0 then current = name end
  return agreement.noting_failure(call, ...)
end

-- A method that was called with a dot fails at once; what explains that looks at the stack, which a pcall ends.
local function collective(name, call)
  if debug.getlocal(arguments.original(call), 1) ~= "self" then
    return function(...) return called(name, call, ...) end
  end
  return function(self, ...)
    if type(self) ~= "table" then return call(self, ...) end
    return called(name, call, self, ...)
  end
end

---Makes functions of a table that all ranks call note their failures so.
---@param functions table<string, function>
---@param names string "step evaluate"
---@param of string what recipes call them: "train:%s", by the name
function agreement.collective(functions, names, of)
  for name in names:gmatch("%S+") do
    local call = functions[name]
    functions[name] = arguments.replace(call, collective(of:format(name), call))
  end
end

---What ranks do together as a part of a recipe's call, for reports.
---@param what string "of memory needs"
---@return string "of memory needs of train:parameter"
function agreement.within_call(what) return current and ("%s of %s"):format(what, current) or what end

local TEXT_BYTES = 1024

ffi.cdef(("typedef struct { int code; char text[%d]; } ms_lua_outcome;"):format(TEXT_BYTES))

local function failed_as(raised)
  if errors.is(raised) then return raised.code, raised.message end
  return errors.CODES.MS_EINTERNAL, tostring(raised)
end

-- What this rank failed of can follow from the death of another, such as a file in a folder that a third has removed
-- since: then its error names that rank, too.
local function with_cause(raised, why)
  if errors.is(raised) and errors.is(why) and why.status == "MS_EPEER" then
    raised.message = ("%s; meanwhile, %s"):format(raised.message, why.message)
  end
  return raised
end

---The error of the first rank that failed in a part that every rank executes alone, the same on all ranks; nil: none
---failed. Raises where the ranks do not meet. Collective over the ranks of a model.
---@param session moonshard.Session
---@param what string what was attempted, for reports: "of the save"
---@param ok boolean
---@param raised any the error if not ok
---@return moonshard.Error?
function agreement.first_failure(session, what, ok, raised)
  local ranks = session:ranks()
  local mine, all = ffi.new("ms_lua_outcome"), ffi.new("ms_lua_outcome[?]", #ranks)
  if not ok then
    local code, text = failed_as(raised)
    mine.code = code
    ffi.copy(mine.text, text:sub(1, TEXT_BYTES - 1))
  end
  local gathered, why = pcall(session.gather_bytes, session, mine, ffi.sizeof(mine), all, what)
  if not ok and not gathered then error(with_cause(raised, why), 0) end
  if not gathered then error(why, 0) end
  for place, rank in ipairs(ranks) do
    local other = all[place - 1]
    if other.code ~= 0 then
      return errors.new({
        status = ffi.string(C.ms_status_name(other.code)), where = errors.caller(),
        message = ("%s: %s"):format(world.rank_name(rank), ffi.string(other.text)),
      })
    end
  end
end

---Raises, on all ranks, the error of the first rank that failed in a part that every rank executes alone, so that all
---ranks continue or none does, with the same message. Collective over the ranks of a model.
---@param session moonshard.Session
---@param what string what was attempted, for reports: "of the save"
---@param ok boolean
---@param raised any the error if not ok
function agreement.raise_first_failure(session, what, ok, raised)
  local failure = agreement.first_failure(session, what, ok, raised)
  if not ok then error(raised, 0) end
  if failure then error(failure, 0) end
end

local PIECE_BYTES = 4080

ffi.cdef(("typedef struct { int bytes; char text[%d]; } ms_lua_piece;"):format(PIECE_BYTES))

---The text that each rank of a model gives, in the order of session:ranks(). Collective over its ranks.
---@param session moonshard.Session
---@param what string for reports: "of what ranks run"
---@param text string? what this rank gives; nil: nothing
---@return string[]
function agreement.texts(session, what, text)
  local ranks, received, at = #session:ranks(), {}, 0
  local mine, all = ffi.new("ms_lua_piece"), ffi.new("ms_lua_piece[?]", ranks)
  for place = 1, ranks do received[place] = {} end
  while true do
    local rest, ended = text and text:sub(at + 1, at + PIECE_BYTES) or "", true
    mine.bytes, at = #rest, at + PIECE_BYTES
    ffi.copy(mine.text, rest, #rest)
    session:gather_bytes(mine, ffi.sizeof(mine), all, what)
    for place, pieces in ipairs(received) do
      local piece = all[place - 1]
      pieces[#pieces + 1] = ffi.string(piece.text, piece.bytes)
      ended = ended and piece.bytes < PIECE_BYTES
    end
    if ended then break end
  end
  for place, pieces in ipairs(received) do received[place] = table.concat(pieces) end
  return received
end

---The text that the first rank of a model gives. Collective over its ranks.
---@param session moonshard.Session
---@param what string for reports: "of the manifest"
---@param text string? what this rank gives; the first rank's counts
---@return string
function agreement.text_of_first(session, what, text)
  return agreement.texts(session, what, session:is_first() and text or nil)[1]
end

return agreement
