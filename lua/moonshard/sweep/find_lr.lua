-- ms.find_lr: finds a learning rate by a sweep of short runs over rates that are evenly spaced on a logarithmic scale,
-- with the recipe's own schedule, model and mesh. A parabola through the rate with the lowest loss and its two
-- neighbours estimates the best rate. A rate at which training diverges is a failed point, with its reason.

local errors = require("moonshard.base.error")
local minimum = require("moonshard.sweep.minimum")
local options = require("moonshard.base.checks.options")
local sweep = require("moonshard.sweep")

---@class moonshard.FindLrOptions
---@field recipe string path, relative to the sweep's file or to the working directory
---@field from number? lowest rate; default 1e-5
---@field to number? highest rate; default 1e-1
---@field points integer? number of rates, at least 3; default 9
---@field setting string? the recipe's setting for the learning rate; default "lr"
---@field settings table<string, any>? settings of every run
---@field steps integer? steps per run
---@field repeats integer? runs per rate; default 1
---@field ranks integer? as for ms.sweep
---@field memory_limit string|number? as for ms.sweep
---@field timeout number? time limit of a run, in seconds
---@field out string? folder for the results
---@field title string?

local OWN = {
  from = { "number", default = 1e-5 }, to = { "number", default = 1e-1 }, points = { "positive", default = 9 },
  setting = { "string", default = "lr" },
}
local PASSED = {
  recipe = { "string", required = true }, settings = { "table" }, steps = { "positive" }, repeats = { "positive" },
  ranks = { "positive" }, memory_limit = { "string|number" }, timeout = { "number" }, out = { "string" },
  title = { "string" },
}

local function specs()
  local all = {}
  for name, spec in pairs(OWN) do all[name] = spec end
  for name, spec in pairs(PASSED) do all[name] = spec end
  return all
end

-- With two digits, or as many as keep the rates apart, and within what was asked for.
local function rates(o)
  for digits = 1, 15 do
    local list, ascends = { o.from }, true
    for i = 1, o.points - 2 do
      list[i + 1] = tonumber(("%." .. digits .. "e"):format(o.from * (o.to / o.from) ^ (i / (o.points - 1))))
    end
    list[o.points] = o.to
    for i = 2, o.points do ascends = ascends and list[i] > list[i - 1] end
    if ascends then return list end
  end
  errors.invalid("ms.find_lr: %d rates from %.15g to %.15g are too near to each other: give fewer points", o.points,
    o.from, o.to)
end

local function check(o)
  if not (o.from > 0 and o.to > o.from and o.to < math.huge) then
    errors.invalid("ms.find_lr: from and to must be rates with 0 < from < to, not %g and %g", o.from, o.to)
  end
  if o.points < 3 then errors.invalid("ms.find_lr: points must be at least 3, not %d", o.points) end
end

---Runs the sweep, prints its table sorted by loss and the suggested rate (not with --json), and returns this rate; nil
---if no rate could be measured. Works only under `moonshard sweep FILE.lua`.
---@param given moonshard.FindLrOptions
---@return number?
local function find_lr(given)
  local o = options.parse("ms.find_lr", given, specs())
  check(o)
  local passed = { over = { [o.setting] = rates(o) }, sort = "loss" }
  for name in pairs(PASSED) do passed[name] = o[name] end
  local report = sweep.run(passed)
  local rate, text = minimum.advise(minimum.measured(report, o.setting))
  if not sweep.mode.json then io.write("\n", o.setting, ": ", text, "\n") end
  return rate
end

return find_lr
