-- Compares a run on many ranks with a run on one rank, and reports what differs first.

local dtypes = require("moonshard.base.dtypes")
local optimizers = require("moonshard.engine.optimizers")
local tolerance = require("moonshard.check.tolerance")

local report = {}

---@class moonshard.Finding a difference
---@field what "loss"|"grad_norm"|"parameter"|"steps"|"plan"
---@field step integer? after which step
---@field name string? parameter
---@field element integer[]? indices, from 0
---@field distance number? instead: the norm of all differences of a parameter
---@field one number? value on one rank
---@field ranks number? value on many ranks
---@field allowed number? largest difference allowed
---@field text string? for "plan": the deviation from the plan

---@class moonshard.Verdict
---@field same boolean
---@field steps integer number of steps compared
---@field findings moonshard.Finding[] in the order: steps, loss, norm, parameters, plans
---@field worst table<string, { excess: number, name: string? }> by what: the largest ratio of difference to tolerance
---@field tensors integer number of parameters compared

local function place_of(at, shape)
  local place = {}
  for d = #shape, 1, -1 do
    place[d] = at % shape[d]
    at = math.floor(at / shape[d])
  end
  return place
end

local function note_worst(self, what, difference, name)
  local worst = self.worst[what]
  if not worst or tolerance.is_worse(difference.excess, worst.excess) then
    self.worst[what] = { excess = difference.excess, name = name, difference = math.abs(difference.expected
      - difference.got), one = difference.expected, ranks = difference.got }
  end
end

-- ---- losses and norms -------------------------------------------------------------------------------------------

-- One trainer's values of all steps, and the numbers of those steps.
local function series(run, trainer, what)
  local values, steps = {}, {}
  for i, step in ipairs(run.steps) do
    if step.trainer == trainer then
      -- NaN has no JSON form.
      values[#values + 1], steps[#steps + 1] = step[what] or 0 / 0, i
    end
  end
  return values, steps
end

local function compare_series(self, ranks, one, trainer, what, rtol)
  local expected, steps = series(one, trainer, what)
  local got = series(ranks, trainer, what)
  local count = math.min(#expected, #got)
  local difference = tolerance.arrays(expected, got, { count = count, tolerance = rtol })
  if not difference then return end
  note_worst(self, what, difference)
  if difference.differs then
    local i = difference.first + 1
    table.insert(self.findings, { what = what, step = steps[i], one = expected[i], ranks = got[i],
      allowed = difference.allowed })
  end
end

-- ---- parameters -------------------------------------------------------------------------------------------------

-- The effect of rounding on steps that divide by gradients or take their signs (the sensitivities of watch.lua), for
-- learning rates that sum up to `travelled`. A sign is right, or it is wrong.
local function slack_of(trainer, run, sensitivity, rtol)
  local optimizer = optimizers.of(trainer.optimizer)
  local least = optimizer.by_size == "sign" and optimizer.training_tolerance * rtol
  local travelled = 0
  for _, step in ipairs(run.steps) do
    if run.trainers[step.trainer] == trainer then travelled = travelled + step.lr end
  end
  return function(i)
    local reach = travelled * trainer.params[i].lr_scale * (trainer.params[i].step_scale or 1)
    if least then return function(e) return sensitivity[i][e] < least and 2 * reach or 0 end end
    return function(e) return reach * math.min(2, rtol / sensitivity[i][e]) end
  end
end

-- How far the weights of SGD may be off, for a scale of the learning rate of 1, where gradients are clipped by value.
-- They were rounded before that, when their largest element was at most the norm; one moves by no more than from one
-- end of the clipped range to the other. With momentum it counts again in every later step, with Nesterov's once more.
local function slack_of_clipping(trainer, run, rtol)
  if not (trainer.clip_grad_value and trainer.clip_grad_value > 0) then return 0 end
  local slack, steps = 0, {}
  for _, step in ipairs(run.steps) do
    if run.trainers[step.trainer] == trainer then steps[#steps + 1] = step end
  end
  for i, step in ipairs(steps) do
    local off = math.min(rtol * step.grad_norm, 2 * trainer.clip_grad_value)
    slack = slack + off * step.lr * (#steps - i + 2)
  end
  return slack
end

-- The arrays of a run's values in order: parameters, and for the run on one rank also their values before the first
-- step, and where steps depend on rounding, their sensitivity.
local function slices(run, is_one)
  local at, all = 0, {}
  for t, trainer in ipairs(run.trainers) do
    local params, before, sensitivity = {}, {}, {}
    for i, param in ipairs(trainer.params) do
      params[i] = run.values + at
      at = at + param.numel
      if is_one then
        before[i] = run.values + at
        at = at + param.numel
      end
      if is_one and optimizers.of(trainer.optimizer).by_size then
        sensitivity[i] = run.values + at
        at = at + param.numel
      end
    end
    all[t] = { params = params, before = before, sensitivity = sensitivity }
  end
  assert(at == run.value_count, "values of other parameters")
  return all
end

local ROUNDING = 2 ^ -23 -- relative rounding of a weight stored in f32, per step

-- The update that training made: its largest element per parameter, and over all parameters.
local function largest_updates(trainer, of_trainer)
  local updates, largest = {}, 0
  for i, param in ipairs(trainer.params) do
    updates[i] = tolerance.largest(of_trainer.params[i], 0, param.numel, of_trainer.before[i])
    largest = math.max(largest, updates[i])
  end
  return updates, largest
end

-- Rounding moves some elements that take Muon by much, and a mistake all of them: their norm distinguishes the two
-- better than the largest difference does (muon_sensitivity.lua).
local function muon_distance(expected, got, param, rounding)
  return tolerance.changes(expected, got, { count = param.numel, first = 0, tolerance = 0, rounding = rounding,
    slack = param.apart.norm })
end

-- Both runs begin with the same values, so values differ by as much as updates do. The allowed difference is the sum of
-- several times the tolerance of the parameter's own largest update, once that of the largest update of all (a gradient
-- can be zero up to rounding), and the f32 rounding of weights.
local function compare_parameters(self, ranks, one, rtol)
  local of_ranks, of_one = slices(ranks, false), slices(one, true)
  for t, trainer in ipairs(one.trainers) do
    local base = rtol or dtypes.uses[trainer.dtype].tolerance
    local slack = optimizers.of(trainer.optimizer).by_size and slack_of(trainer, one, of_one[t].sensitivity, base)
    local updates, largest = largest_updates(trainer, of_one[t])
    local clipped = slack_of_clipping(trainer, one, base)
    for i, param in ipairs(trainer.params) do
      local optimizer = optimizers.of(param.optimizer)
      local weight = tolerance.largest(of_one[t].params[i], 0, param.numel)
      local scale = param.frozen and weight
        or optimizer.training_tolerance * updates[i] + largest + ROUNDING / base * #one.steps * weight
      local difference = tolerance.arrays(of_one[t].params[i], of_ranks[t].params[i], {
        count = param.numel, first = 0, tolerance = base, scale = scale,
        slack = param.apart and function() return param.apart.element end
          or slack and optimizer.by_size and not param.frozen and slack(i)
          or function() return param.frozen and 0 or clipped * param.lr_scale end,
      })
      note_worst(self, "parameter", difference, param.name)
      self.tensors = self.tensors + 1
      local apart = param.apart and muon_distance(of_one[t].params[i], of_ranks[t].params[i], param,
        ROUNDING * #one.steps * weight)
      if difference.differs then
        table.insert(self.findings, { what = "parameter", step = #one.steps, name = param.name,
          element = place_of(difference.at, param.shape), one = difference.expected, ranks = difference.got,
          allowed = difference.allowed })
      elseif apart and apart.differs then
        table.insert(self.findings, { what = "parameter", step = #one.steps, name = param.name,
          distance = apart.difference, allowed = apart.allowed })
      end
    end
  end
end

-- ---- all of it --------------------------------------------------------------------------------------------------

---@param ranks moonshard.CheckedRun rank 0's, with values
---@param one moonshard.CheckedRun with values
---@param o { rtol: number?, wrong: string[] } rtol: replaces the dtype's tolerance; wrong: deviations of ranks from
---  their plans
---@return moonshard.Verdict
function report.of(ranks, one, o)
  local self = { steps = #one.steps, findings = {}, worst = {}, tensors = 0 }
  if #ranks.steps ~= #one.steps or #ranks.trainers ~= #one.trainers then
    table.insert(self.findings, { what = "steps", ranks = #ranks.steps, one = #one.steps })
  else
    for t, trainer in ipairs(one.trainers) do
      compare_series(self, ranks, one, t, "loss", o.rtol or dtypes.uses[trainer.dtype].tolerance)
      compare_series(self, ranks, one, t, "grad_norm", o.rtol or dtypes.uses[trainer.dtype].norm_tolerance)
    end
    compare_parameters(self, ranks, one, o.rtol)
  end
  for _, text in ipairs(o.wrong) do table.insert(self.findings, { what = "plan", text = text }) end
  self.same = #self.findings == 0
  return self
end

-- ---- as text ----------------------------------------------------------------------------------------------------

local TEXT = {
  steps = function(f) return ("steps: %d on the ranks, %d on one rank"):format(f.ranks, f.one) end,
  plan = function(f) return f.text end,
  parameter = function(f)
    if f.distance then
      return ("after step %d: %s on the ranks and on one rank: the differences have norm %.2g; %.2g is allowed"):format(
        f.step, f.name, f.distance, f.allowed)
    end
    return ("after step %d: %s[%s] is %.9g on the ranks and %.9g on one rank, %.2g apart; %.2g is allowed"):format(
      f.step, f.name, table.concat(f.element, ","), f.ranks, f.one, math.abs(f.ranks - f.one), f.allowed)
  end,
}

---A finding as one line.
---@param finding moonshard.Finding
---@return string
function report.text(finding)
  if TEXT[finding.what] then return TEXT[finding.what](finding) end
  return ("step %d: %s is %.9g on the ranks and %.9g on one rank, %.2g apart; %.2g is allowed"):format(finding.step,
    finding.what, finding.ranks, finding.one, math.abs(finding.ranks - finding.one), finding.allowed)
end

return report
