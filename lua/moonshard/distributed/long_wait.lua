-- Says what a run waits for before its steps, as soon as that has taken a moment: reading weights, drawing
-- them, compiling. Who sees nothing for half a minute cannot know whether a run hangs.
--
-- Rank 0 says it, on standard error, because standard output is the recipe's own. What waits looks at the clock between
-- two pieces of its work, so a wait is named at most one piece after it has become a long one.

local clock = require("moonshard.base.clock")
local file_status = require("moonshard.base.files.file_status")
local progress = require("moonshard.base.text.progress")
local world = require("moonshard.distributed.world")

local long_wait = {
  ---Seconds after which a wait is named.
  seconds = 0.5,
  ---The clock, in seconds.
  now = clock.now,
  ---@param line string
  print = function(line) io.stderr:write(line, "\n") end,
}

---@class moonshard.LongWait
---@field verb string "loading"
---@field about fun(): string what is waited for
---@field began number
---@field said boolean
local LongWait = {}
LongWait.__index = LongWait

local function is_silent() return world.rank ~= 0 or world.plan_only end

local function say(verb, text)
  progress.finish()
  long_wait.print(("%-9s %s"):format(verb, text))
end

---A wait begins.
---@param verb string "loading", "compiling"
---@param about fun(): string what is waited for; called when the wait is named, so that it can look at files
---@return moonshard.LongWait
function long_wait.begin(verb, about)
  return setmetatable({ verb = verb, about = about, began = long_wait.now(), said = false }, LongWait)
end

---Names the wait, once, if it has become a long one.
---@param more number? seconds that its next piece takes at least, which cannot be interrupted for a look at the clock
function LongWait:check(more)
  if self.said or is_silent() or long_wait.now() - self.began + (more or 0) < long_wait.seconds then return end
  self.said = true
  say(self.verb, self.about())
end

---The wait is over: says how long it was, if it was named.
function LongWait:finish()
  if self.said then say(self.verb, ("took %.1f s"):format(long_wait.now() - self.began)) end
end

---"models/llama (12.6 GiB in 2 files)"
---@param folder string
---@param files string[] their paths
---@return string
function long_wait.of_files(folder, files)
  local bytes = 0
  for _, path in ipairs(files) do bytes = bytes + select(2, assert(file_status.of_path(path))) end
  return ("%s (%s in %d file%s)"):format(folder, progress.size(bytes), #files, #files == 1 and "" or "s")
end

return long_wait
