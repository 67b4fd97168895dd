-- ms.find_lr: which learning rate? A sweep over rates, evenly spaced in their logarithm, of short runs with the
-- recipe's own schedule, model and mesh. The lowest loss wins, and a parabola through it and its neighbours says where
-- between them the lowest point should be. A rate at which training diverges is a point that failed, with its reason.

local errors = require("moonshard.base.error")
local minimum = require("moonshard.sweep.minimum")
local options = require("moonshard.base.options")
local sweep = require("moonshard.sweep")

---@class moonshard.FindLrOptions
---@field recipe string path, beside the sweep's file or from the working directory
---@field from number? lowest rate; 1e-5
---@field to number? highest rate; 1e-1
---@field points integer? how many rates, at least 3; 9
---@field setting string? what the recipe calls its learning rate; "lr"
---@field settings table<string, any>? of every run
---@field steps integer? of a run
---@field repeats integer? runs of every rate; 1
---@field ranks integer?
---@field memory_limit string|number?
---@field timeout number? seconds that a run may take
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

local function rates(o)
  local list = {}
  for i = 0, o.points - 1 do list[i + 1] = minimum.rounded(o.from * (o.to / o.from) ^ (i / (o.points - 1))) end
  return list
end

local function check(o)
  if not (o.from > 0 and o.to > o.from and o.to < math.huge) then
    errors.invalid("ms.find_lr: from and to must be rates with 0 < from < to, not %g and %g", o.from, o.to)
  end
  if o.points < 3 then errors.invalid("ms.find_lr: points must be at least 3, not %d", o.points) end
end

---Runs the sweep, prints its table by loss and the advice (not with --json), and gives the advised rate; nil when no
---rate could be measured. Works under `moonshard sweep FILE.lua`.
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
