-- The progress of a sweep: one line per finished point, and on a terminal a status line that is redrawn below.

local clock = require("moonshard.base.clock")
local progress = require("moonshard.base.text.progress")
local terminal = require("moonshard.base.text.terminal")

---@class moonshard.SweepStatusLine
---@field total integer points
---@field done integer finished points, including those before a --resume
---@field runs integer runs that have ended since this start
local StatusLine = {}
StatusLine.__index = StatusLine

local status_line = {}

local REDRAW_SECONDS = 0.1

---@param total integer points
---@param done integer points that an earlier start finished
---@param job { repeats: integer, steps: integer? }
---@param quiet boolean print nothing
---@return moonshard.SweepStatusLine
function status_line.new(total, done, job, quiet)
  return setmetatable({
    total = total, done = done, before = done, runs = 0, job = job, quiet = quiet, began = clock.now(), drawn_at = 0,
    interactive = not quiet and terminal.interactive(), width = #tostring(total),
  }, StatusLine)
end

-- Assumes that all runs take equally long. fraction: how much of the current run is done.
local function time_left(self, fraction)
  local ended = self.runs + fraction
  local ahead = (self.total - self.before) * self.job.repeats - ended
  if ended <= 0 then return nil end
  return progress.duration((clock.now() - self.began) / ended * math.max(0, ahead)) .. " left"
end

local function clear(self)
  if self.interactive then io.write("\r\27[K") end
end

---Redraws the line about the current run.
---@param key string of the point
---@param run integer number of the run of this point, from 1
---@param steps integer steps that the run has completed
function StatusLine:show(key, run, steps)
  if not self.interactive or clock.now() - self.drawn_at < REDRAW_SECONDS then return end
  self.drawn_at = clock.now()
  local fraction = self.job.steps and math.min(1, steps / self.job.steps) or 0
  local parts = {
    ("%d of %d points"):format(self.done, self.total),
    progress.bar((self.before * self.job.repeats + self.runs + fraction) / (self.total * self.job.repeats)), key,
    time_left(self, fraction) or "",
    self.job.repeats > 1 and ("run %d/%d"):format(run, self.job.repeats) or "", ("step %d"):format(steps),
  }
  local line, columns = "", terminal.columns() - 1
  for i, text in ipairs(parts) do
    local longer = i == 1 and text or text == "" and line or line .. "  " .. text
    if progress.width(longer) > columns then break end
    line = longer
  end
  io.write("\r", line, "\27[K")
  io.flush()
end

---A run has ended.
function StatusLine:ran() self.runs = self.runs + 1 end

local function outcome(record)
  if record.status ~= "ok" then return record.status .. ": " .. record.reason end
  if not record.tokens_per_s then return ("%s per rank"):format(progress.size(record.planned.peak_bytes)) end
  return ("%s  %.2f ms per step  %s per rank"):format(progress.rate(record.tokens_per_s), record.step_ms,
    progress.size(record.peak_bytes))
end

---Prints a line about a finished point.
---@param record moonshard.SweepRecord
function StatusLine:ended(record)
  self.done = self.done + 1
  if self.quiet then return end
  clear(self)
  local left = self.done < self.total and time_left(self, 0)
  io.write(("%" .. self.width .. "d/%d  %s  %s%s\n"):format(self.done, self.total, record.key, outcome(record),
    left and "  " .. left or ""))
  io.flush()
end

---Prints a separate line.
---@param text string
function StatusLine:print(text)
  if self.quiet then return end
  clear(self)
  io.write(text, "\n")
  io.flush()
end

return status_line
