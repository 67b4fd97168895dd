-- ms.find_lr: which learning rate? A sweep over rates, evenly spaced in their logarithm, of short runs with the
-- recipe's own schedule, model and mesh. The lowest loss wins, and a parabola through it and its neighbours says where
-- between them the lowest point should be. A rate at which training diverges is a point that failed, with its reason.

local errors = require("moonshard.error")
local grid = require("moonshard.sweep.grid")
local options = require("moonshard.options")
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

-- Two digits are enough to set a rate by, and read better in a table.
local function rounded(rate) return tonumber(("%.1e"):format(rate)) end

local function rates(o)
  local list = {}
  for i = 0, o.points - 1 do list[i + 1] = rounded(o.from * (o.to / o.from) ^ (i / (o.points - 1))) end
  return list
end

local function check(o)
  if not (o.from > 0 and o.to > o.from and o.to < math.huge) then
    errors.invalid("ms.find_lr: from and to must be rates with 0 < from < to, not %g and %g", o.from, o.to)
  end
  if o.points < 3 then errors.invalid("ms.find_lr: points must be at least 3, not %d", o.points) end
end

-- { rate, loss } of the points that ended well, by rate.
local function measured(report, setting)
  local list = {}
  for _, record in ipairs(report.records) do
    if record.status == "ok" then list[#list + 1] = { rate = record.point[setting], loss = record.loss } end
  end
  table.sort(list, function(a, b) return a.rate < b.rate end)
  return list
end

-- Abscissa of the lowest point of the parabola through three points of which the middle one is lowest.
local function lowest_of_parabola(x, y)
  local left, right = x[2] - x[1], x[2] - x[3]
  local to_left, to_right = y[2] - y[1], y[2] - y[3]
  local divisor = left * to_right - right * to_left
  if divisor == 0 then return x[2] end
  return x[2] - (left ^ 2 * to_right - right ^ 2 * to_left) / (2 * divisor)
end

---The rate with the lowest loss, refined by its neighbours, and a sentence that tells it.
---@param list { rate: number, loss: number }[] by rate
---@return number?, string
local function advise(list)
  if #list == 0 then return nil, "no rate was measured" end
  local best = 1
  for i, point in ipairs(list) do
    if point.loss < list[best].loss then best = i end
  end
  local rate, told = list[best].rate, ("lowest loss %.4f at %s"):format(list[best].loss, grid.text(list[best].rate))
  if best == #list or best == 1 then
    return rate, ("%s, the %s rate that was measured: look further %s"):format(told,
      best == 1 and "lowest" or "highest", best == 1 and "down, or between it and the next" or "up")
  end
  local x, y = {}, {}
  for i = 1, 3 do
    x[i], y[i] = math.log(list[best - 2 + i].rate), list[best - 2 + i].loss
  end
  local refined = rounded(math.exp(lowest_of_parabola(x, y)))
  return refined, ("%s; a parabola through it and its neighbours is lowest at %s"):format(told, grid.text(refined))
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
  local rate, told = advise(measured(report, o.setting))
  if not sweep.mode.json then io.write("\n", o.setting, ": ", told, "\n") end
  return rate
end

return find_lr
