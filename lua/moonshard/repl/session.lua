-- The session on every rank: rank 0 reads a line and sends it to all ranks. They run it, return to a common clean state
-- even if some of them failed, and send the outcome to rank 0.

local clock = require("moonshard.base.clock")
local context = require("moonshard.base.context")
local evaluate = require("moonshard.repl.evaluate")
local prompt = require("moonshard.repl.prompt")
local results = require("moonshard.repl.results")
local status = require("moonshard.base.exit_status")

---@class moonshard.ReplSession
---@field host table moonshard.host.repl
---@field world moonshard.World
---@field evaluator moonshard.Evaluator
---@field prompt moonshard.Prompt? of rank 0
local Session = {}
Session.__index = Session

local session = {}

local AT_PROMPT = "at the prompt" -- for cli/ps.lua

---@param world moonshard.World
---@return moonshard.ReplSession
function session.new(world)
  local errors = require("moonshard.base.error")
  local host = require("moonshard.host.repl")
  host.stop_with(errors.new({ status = "MS_EINTERRUPT", code = 14, message = "interrupted" }))
  local self = setmetatable({ host = host, world = world, evaluator = evaluate.new(world.rank) }, Session)
  -- From here on Ctrl-C does not end ranks, so it is safe at the prompt.
  local ready, why = host.join_ranks(world.handle)
  if not ready then error(why, 0) end
  if world.rank == 0 then self.prompt = prompt.new(host, world, self.evaluator.environment) end
  return self
end

-- ---- requests of rank 0 --------------------------------------------------------------------------------------------

local function encode(request)
  return ("%s %d %d %d %d %d\n%s"):format(request.kind, request.line or 1, request.silent and 1 or 0,
    request.only or -1, request.apart and 1 or 0, request.presses, request.text)
end

local function decode(text)
  local kind, line, silent, only, apart, presses, rest = text:match("^(%a+) (%d+) (%d) (-?%d+) (%d) (%d+)\n(.*)$")
  return {
    kind = kind, line = tonumber(line), silent = silent == "1", only = only ~= "-1" and tonumber(only) or nil,
    apart = apart == "1", presses = tonumber(presses), text = rest,
  }
end

-- A rank was lost, so the session must end.
local Lost = {}

local function lose(message)
  error(setmetatable({ message = message }, Lost), 0)
end

function Session:all_gather(text)
  local texts, why = self.host.all_gather_texts(self.world.handle, text)
  return texts or lose(why)
end

-- ---- a line --------------------------------------------------------------------------------------------------------

local ALONE = ": @%d runs the line on this rank alone: without @%d all ranks run it"

function Session:evaluate(request)
  if request.only and request.only ~= self.world.rank then return { kind = "idle", text = "", output = "" } end
  context.alone = request.only ~= nil
  local outcome = self.evaluator:run(request, self.host.stoppable)
  context.alone = nil
  if outcome.kind == "ok" or outcome.kind == "quit" then return outcome end
  if request.only and outcome.needs_others then
    outcome.text = outcome.text .. ALONE:format(request.only, request.only)
  end
  -- Other ranks may be waiting for this one in a collective.
  local C = require("moonshard.base.ffi").C
  C.ms_error_clear()
  C.ms_world_abort(self.world.handle, outcome.text)
  return outcome
end

function Session:print_outcomes(texts, request, began)
  require("moonshard.base.text.progress").finish()
  local outcomes = {}
  for i, text in ipairs(texts) do outcomes[i] = results.decode(text) end
  local merged = results.summarize(outcomes, request.apart)
  local write = function(line) io.stdout:write(line, "\n") end
  -- After an unfinished line of output, or the terminal's own ^C.
  local interrupted = merged.failures[1] == results.INTERRUPTED
  if self.prompt.interactive and (interrupted or not self.evaluator.ends_line) then write("") end
  for _, line in ipairs(merged.lines) do write(line) end
  for _, message in ipairs(merged.failures) do self.prompt:fail(message) end
  if #merged.failures == 0 then self.prompt.notebook:keep(request) end
  if self.prompt.timing then write(("(%.2f ms)"):format(1e3 * (clock.now() - began))) end
  io.stdout:flush()
  return merged.quit
end

-- Runs rank 0's request on all ranks; returns the exit status if the session should end. finish: called at the end of
-- a file, on every rank.
function Session:carry_out(asked, finish)
  local began = clock.now()
  if asked then asked.presses = self.host.presses() end
  local request = decode(self:all_gather(asked and encode(asked) or "")[1])
  self.world.set_activity(nil)
  if request.kind == "quit" then return tonumber(request.text) or status.OK end
  request.finish = finish
  local outcome = self:evaluate(request)
  local recovered, why = self.host.recover(self.world.handle)
  if not recovered then lose(why) end
  local texts = self:all_gather(results.encode(outcome))
  if self.prompt then return self:print_outcomes(texts, request, began) end
  for _, text in ipairs(texts) do
    local other = results.decode(text)
    if other.kind == "quit" then return other.code end
  end
end

-- ---- the loop ------------------------------------------------------------------------------------------------------

-- The next request, on rank 0; others wait for it in carry_out. All ranks enter that for the same activity.
function Session:next()
  self.world.set_activity(AT_PROMPT)
  if not self.prompt then return nil end
  local request, why = self.prompt:next()
  if not request then lose(why) end
  if request.kind == "quit" then
    -- From a pipe, the exit status is 0 only if all lines succeeded.
    request.text = tostring(self.prompt.failed and not self.prompt.interactive and status.BAD_INPUT or status.OK)
  end
  return request
end

---Runs the session to its end.
---@param recipe string? path of a file that is run first
---@param finish function? called after the recipe
---@return integer exit status
---@return boolean? lost a rank was lost, so the others cannot be waited for
function Session:run(recipe, finish)
  local ok, ended = pcall(function()
    local code = recipe and self:carry_out(self.prompt and { kind = "file", text = recipe } or nil, finish)
    while not code do code = self:carry_out(self:next()) end
    return code
  end)
  if self.prompt then self.prompt:close() end
  if ok then return ended end
  local C = require("moonshard.base.ffi").C
  C.ms_world_abort(self.world.handle, getmetatable(ended) == Lost and ended.message or tostring(ended))
  return status.FAILED_RUN, true
end

return session
