-- Learning-rate schedules: functions from the step (1 for the first) to a learning rate.
--
-- All of them warm up linearly from peak/warmup at step 1 to peak at step `warmup`, reach `floor` in step `total`, and
-- stay there: the last step of a run has the rate `floor`, and changes nothing if that is 0. The only step of a run,
-- total = 1, has the rate `peak`.

local errors = require("moonshard.base.error")
local json = require("moonshard.base.text.json")
local options = require("moonshard.base.checks.options")

---@alias moonshard.Schedule fun(step: integer): number

---@class moonshard.ConstantOptions
---@field peak number the learning rate after the warm-up
---@field warmup? integer steps; default 0

---@class moonshard.SpanOptions
---@field peak number the largest learning rate
---@field total integer steps after which the rate stays at floor
---@field warmup? integer steps; default 0
---@field floor? number the learning rate of step `total`, the last one, and of later ones; default 0, with which they
---  change no weights

---@class moonshard.WsdOptions: moonshard.SpanOptions
---@field decay integer number of steps before total in which the rate falls to floor

---@class moonshard.schedule
local schedule = {}

-- The peak of each schedule made here, and what it is, as text.
local peaks, texts = setmetatable({}, { __mode = "k" }), setmetatable({}, { __mode = "k" })

local function text_of(kind, o)
  local names, parts = {}, {}
  for name in pairs(o) do names[#names + 1] = name end
  table.sort(names)
  for i, name in ipairs(names) do parts[i] = ("%s %s"):format(name, json.encode(o[name])) end
  return ("%s of %s"):format(kind, table.concat(parts, ", "))
end

local function with_peak(kind, o, made)
  peaks[made], texts[made] = o.peak, text_of(kind, o)
  return made
end

local function check_span(who, o)
  if o.warmup < 0 or o.total and o.total < 1 then
    errors.invalid("%s: warmup must be at least 0 and total at least 1, not %d and %d", who, o.warmup, o.total or 1)
  end
  if o.total and o.warmup > o.total then
    errors.invalid("%s: warmup (%d) is longer than total (%d)", who, o.warmup, o.total)
  end
  for _, rate in ipairs({ o.peak, o.floor }) do
    if not (rate >= 0 and rate < math.huge) then
      errors.invalid("%s: a learning rate must be at least 0 and finite, not %g", who, rate)
    end
  end
  if o.floor > o.peak then
    errors.invalid("%s: the rate falls from peak to floor, but floor is %g and peak %g", who, o.floor, o.peak)
  end
end

-- Whether a step is the only one of a run, the first and the last.
local function is_only(o, step) return o.total == 1 and step <= 1 end

-- Warm-up, then `after(progress)`, where progress runs from 0 at the end of the warm-up to 1 at `total`.
local function with_warmup(kind, o, after)
  return with_peak(kind, o, function(step)
    if is_only(o, step) then return o.peak end
    if step <= o.warmup then return o.peak * step / o.warmup end
    local span = o.total - o.warmup
    local progress = span > 0 and (step - o.warmup) / span or 1
    return after(math.min(progress, 1))
  end)
end

local SPAN = {
  peak = { "number", required = true },
  total = { "positive", required = true },
  warmup = { "integer", default = 0 },
  floor = { "number", default = 0 },
}

---The same rate at every step, after the warm-up.
---@param o moonshard.ConstantOptions
---@return moonshard.Schedule
function schedule.constant(o)
  o = options.parse("ms.schedule.constant", o, { peak = SPAN.peak, warmup = SPAN.warmup })
  o.floor = 0
  check_span("ms.schedule.constant", o)
  return with_peak("constant", o, function(step) return step <= o.warmup and o.peak * step / o.warmup or o.peak end)
end

---A straight line from peak down to floor at step `total`.
---@param o moonshard.SpanOptions
---@return moonshard.Schedule
function schedule.linear(o)
  o = options.parse("ms.schedule.linear", o, SPAN)
  check_span("ms.schedule.linear", o)
  return with_warmup("linear", o, function(progress) return o.peak + (o.floor - o.peak) * progress end)
end

---Half a cosine from peak down to floor at step `total` (Loshchilov & Hutter 2017, without restarts).
---@param o moonshard.SpanOptions
---@return moonshard.Schedule
function schedule.cosine(o)
  o = options.parse("ms.schedule.cosine", o, SPAN)
  check_span("ms.schedule.cosine", o)
  return with_warmup("cosine", o, function(progress)
    return o.floor + (o.peak - o.floor) * 0.5 * (1 + math.cos(math.pi * progress))
  end)
end

---Warm-up, stable, decay (Hu et al. 2024): peak until the last `decay` steps, then a straight line to floor.
---@param o moonshard.WsdOptions
---@return moonshard.Schedule
function schedule.wsd(o)
  o = options.parse("ms.schedule.wsd", o, {
    peak = SPAN.peak, total = SPAN.total, warmup = SPAN.warmup, floor = SPAN.floor,
    decay = { "positive", required = true },
  })
  check_span("ms.schedule.wsd", o)
  if o.warmup + o.decay > o.total then
    errors.invalid("ms.schedule.wsd: warmup (%d) and decay (%d) are longer than total (%d)", o.warmup, o.decay, o.total)
  end
  return with_peak("wsd", o, function(step)
    if is_only(o, step) then return o.peak end
    if step <= o.warmup then return o.peak * step / o.warmup end
    local left = o.total - step
    if left >= o.decay then return o.peak end
    return o.floor + (o.peak - o.floor) * math.max(left, 0) / o.decay
  end)
end

---Makes a schedule from a recipe's lr: a number is constant, a function is used as is.
---@param lr number|moonshard.Schedule
---@return moonshard.Schedule
function schedule.of(lr)
  if type(lr) == "number" then return schedule.constant({ peak = lr }) end
  return lr
end

---The largest rate of a schedule made here; nil: the function is a recipe's own.
---@param lr moonshard.Schedule
---@return number?
function schedule.peak_of(lr) return peaks[lr] end

---A schedule for people: "linear of floor 0, peak 0.1, total 100, warmup 0".
---@param lr moonshard.Schedule
---@return string
function schedule.describe(lr) return texts[lr] or "a function of the recipe's" end

return require("moonshard.base.checks.strict").fields("ms.schedule", schedule, "of describe peak_of")
