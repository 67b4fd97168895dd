-- Spikes: steps whose gradient norm or loss is far above the preceding ones. They show where training starts to go
-- wrong, long before a NaN, and are easy to miss among thousands of steps.
--
-- "Far above" is a multiple of the median over a window of steps: one outlier does not move a median, so a spike does
-- not hide the next one.

local errors = require("moonshard.base.error")
local options = require("moonshard.base.checks.options")

local spikes = {}

-- A shorter history does not show what is usual; the first steps of a training vary widely anyway.
local FEWEST = 16
-- Spikes that are kept: a long run whose thresholds are low finds ever more.
local MAX_KEPT = 1024
local WATCHED = { { key = "grad_norm", name = "gradient norm" }, { key = "loss", name = "loss" } }

---@class moonshard.SpikeOptions
---@field window integer? steps in the median, at least 16; 64
---@field grad_norm number? threshold for the gradient norm, as a multiple of the median; 4
---@field loss number? threshold for the loss, as a multiple of the median; 1.5

---@class moonshard.Spikes
---@field found { step: integer, what: string, value: number, ratio: number }[] trainer: its number, after the first
---@field windows table<integer, { at: integer, grad_norm: number[], loss: number[] }> the last values, by trainer
local Spikes = {}
Spikes.__index = Spikes

---@param given moonshard.SpikeOptions?
---@return moonshard.Spikes
function spikes.new(given)
  local o = options.parse("ms.log.spikes", given, {
    window = { "positive", default = 64 }, grad_norm = { "number", default = 4 }, loss = { "number", default = 1.5 },
  })
  if o.window < FEWEST then
    errors.invalid("ms.log.spikes: window must be at least %d steps, not %d", FEWEST, o.window)
  end
  for _, watched in ipairs(WATCHED) do
    if o[watched.key] <= 1 then
      errors.invalid("ms.log.spikes: %s must be above 1, not %g", watched.key, o[watched.key])
    end
  end
  return setmetatable({ options = o, windows = {}, found = {} }, Spikes)
end

local function median(values)
  local sorted = {}
  for i, value in ipairs(values) do sorted[i] = value end
  table.sort(sorted)
  local middle = math.floor(#sorted / 2)
  return #sorted % 2 == 1 and sorted[middle + 1] or (sorted[middle] + sorted[middle + 1]) / 2
end

---Checks a step and adds it to the window.
---@param step integer
---@param m { grad_norm: number?, loss: number }
---@param trainer integer? its number, 1
---@return string? report "step 812: gradient norm 14.2 is 9.1 times the median of 64 steps"
function Spikes:check(step, m, trainer)
  local lines, of = {}, trainer or 1
  local window = self.windows[of] or { at = 0, grad_norm = {}, loss = {} }
  self.windows[of] = window
  window.at = window.at % self.options.window + 1
  for _, watched in ipairs(WATCHED) do
    local value, recent = m[watched.key], window[watched.key]
    if value and value == value then
      local usual = #recent >= FEWEST and median(recent)
      if usual and usual > 0 and value > usual * self.options[watched.key] then
        local ratio = value / usual
        if #self.found == MAX_KEPT then table.remove(self.found, 1) end
        self.found[#self.found + 1] = { step = step, what = watched.key, value = value, ratio = ratio,
          trainer = of > 1 and of or nil }
        lines[#lines + 1] = ("%s %.4g is %.1f times the median of %d steps"):format(watched.name, value, ratio, #recent)
      end
      recent[math.min(window.at, #recent + 1)] = value
    end
  end
  return lines[1] and ("step %d%s: %s"):format(step, of > 1 and " of trainer " .. of or "", table.concat(lines, ", "))
    or nil
end

return spikes
