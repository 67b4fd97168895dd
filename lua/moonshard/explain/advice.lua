-- The effect of alternative decisions: compiles each candidate for the same graph and batch, and compares its peak and
-- traffic with the current plan. Nothing is estimated.
--
-- Candidates: resharding a unit after forward or keeping it; recomputing a module's activations in backward or keeping
-- them; prefetching one unit more or fewer; fusing the loss, or not. In a run of neighbouring units with the same
-- decision, only the first, the middle and the last are tried individually, and then all of them together.

local engine_model = require("moonshard.shard.engine_model")
local plan_costs = require("moonshard.explain.plan_costs")
local tracing = require("moonshard.base.context")
local units = require("moonshard.shard.units")
local world = require("moonshard.distributed.world")

local advice = {}

---@class moonshard.Candidate
---@field action "keep"|"reshard"|"recompute"|"keep activations"|"prefetch"|"fuse the loss"|"whole logits"
---@field names string[] units or modules; empty for prefetch and the loss
---@field depth integer? prefetch depth
---@field peak number change of the arenas of one rank, bytes; below 0: saved
---@field gathered number change of the weight bytes that one rank receives per step
---@field refused string? the error, when the candidate does not compile
---@field idle boolean? it is the plan as it is

---@class moonshard.AdviceContext
---@field session moonshard.Session
---@field sharding moonshard.Sharding
---@field plan moonshard.Plan
---@field costs moonshard.UnitCost[] in the order of units
---@field times table<integer, integer> of plan_costs.phases
---@field retrace fun(): moonshard.Plan traces and compiles again under the current rules
---@field modules moonshard.NamedModule[] of the model
---@field all boolean try every unit of a run, not just three

-- ---- which candidates -------------------------------------------------------------------------------------------

-- The members of a run that are tried individually.
local function alone(run, all)
  if all or #run <= 3 then return run end
  return { run[1], run[math.ceil(#run / 2)], run[#run] }
end

-- Groups neighbours with the same action; items { name =, action = }.
local function runs_of(items)
  local runs = {}
  for _, item in ipairs(items) do
    local run = runs[#runs]
    if run and run.action == item.action then
      run[#run + 1] = item.name
    else
      runs[#runs + 1] = { action = item.action, item.name }
    end
  end
  return runs
end

local function add_runs(candidates, items, all)
  for _, run in ipairs(runs_of(items)) do
    for _, name in ipairs(alone(run, all)) do
      candidates[#candidates + 1] = { action = run.action, names = { name } }
    end
    if #run > 1 then
      local names = { unpack(run) }
      candidates[#candidates + 1] = { action = run.action, names = names }
    end
  end
end

local function candidates_of(context)
  local sharding, candidates, resharding, recomputing = context.sharding, {}, {}, {}
  for i, unit in ipairs(sharding.units) do
    local cost = context.costs[i]
    if cost.gathers > 0 then
      resharding[#resharding + 1] = { name = unit.name, action = cost.again > 0 and "keep" or "reshard" }
    end
    if unit.name ~= units.ROOT then
      local decision = sharding.recompute[unit.module]
      local on = decision and decision.on
      recomputing[#recomputing + 1] = { name = unit.name, action = on and "keep activations" or "recompute" }
    end
  end
  add_runs(candidates, resharding, context.all)
  add_runs(candidates, recomputing, context.all)
  local depth = context.plan.config.prefetch
  for _, other in ipairs({ depth - 1, depth + 1 }) do
    if other >= 0 and #resharding > 0 then
      candidates[#candidates + 1] = { action = "prefetch", names = {}, depth = other }
    end
  end
  local is_fused = #context.plan:chunked_losses() > 0
  candidates[#candidates + 1] = { action = is_fused and "whole logits" or "fuse the loss", names = {} }
  return candidates
end

-- ---- trying one -------------------------------------------------------------------------------------------------

local function with_reshard(context, candidate)
  local sharding = context.sharding
  local decided = sharding.decisions.reshard_after_forward
  local changed = setmetatable({}, { __index = decided })
  for _, name in ipairs(candidate.names) do
    changed[name] = { value = candidate.action == "keep" and "never" or "always" }
  end
  local handle = sharding:handle()
  engine_model.set_reshard(sharding, handle, changed)
  return function() return context.session:compile("train", context.plan.graph, context.plan.settings) end,
    function() engine_model.set_reshard(sharding, handle, decided) end
end

-- Drops decisions for modules inside the unit, because they would override the unit's own.
local function with_recompute(context, candidate)
  local sharding, wanted, changed, chosen = context.sharding, {}, {}, {}
  for _, name in ipairs(candidate.names) do wanted[name] = true end
  for _, unit in ipairs(sharding.units) do
    for _, root in ipairs(wanted[unit.name] and unit.modules or {}) do chosen[root] = true end
  end
  local inside = {}
  for i, entry in ipairs(context.modules) do
    inside[i] = entry.parent ~= nil and (inside[entry.parent] or chosen[context.modules[entry.parent].module] or false)
    if not inside[i] then changed[entry.module] = sharding.recompute[entry.module] end
    if chosen[entry.module] then changed[entry.module] = { on = candidate.action == "recompute" } end
  end
  local before = sharding.recompute
  sharding.recompute = changed
  return context.retrace, function() sharding.recompute = before end
end

local function with_prefetch(context, candidate)
  local session = context.session
  local before = session.prefetch
  session.prefetch = candidate.depth
  return function() return session:compile("train", context.plan.graph, context.plan.settings) end,
    function() session.prefetch = before end
end

-- "auto" changes nothing where it would not help, or the loss reads no logits of a linear layer.
local function with_loss(context, candidate)
  local before = tracing.fused_loss
  tracing.fused_loss = candidate.action == "fuse the loss" and "auto"
  return context.retrace, function() tracing.fused_loss = before end
end

local CHANGES = {
  keep = with_reshard, reshard = with_reshard, recompute = with_recompute, ["keep activations"] = with_recompute,
  prefetch = with_prefetch, ["fuse the loss"] = with_loss, ["whole logits"] = with_loss,
}

local function try(context, candidate, now)
  world.check_interrupt()
  local compile, restore = CHANGES[candidate.action](context, candidate)
  local ok, compiled = pcall(compile)
  restore()
  if not ok then
    candidate.peak, candidate.gathered, candidate.refused = 0, 0, tostring(compiled)
    return
  end
  local total = plan_costs.total(compiled, #context.sharding.units, context.times)
  candidate.peak, candidate.gathered = total.peak - now.peak, total.gathered - now.gathered
  candidate.idle = candidate.action == "fuse the loss" and #compiled:chunked_losses() == 0
  compiled:free()
end

-- ---- which are worth telling ------------------------------------------------------------------------------------

local function by(value)
  return function(a, b)
    local x, y = value(a), value(b)
    if x ~= y then return x > y end
    if #a.names ~= #b.names then return #a.names < #b.names end
    return (a.names[1] or "") < (b.names[1] or "")
  end
end

-- Bytes saved per byte spent; free candidates rank first, by size.
local function worth(won, paid)
  if paid <= 0 then return 1e18 + won end
  return won / paid
end

---The candidates that save traffic and those that save memory, each with the best ratio of gain to cost first.
---@param candidates moonshard.Candidate[]
---@return moonshard.Candidate[] traffic
---@return moonshard.Candidate[] memory
function advice.sorted(candidates)
  local traffic, memory = {}, {}
  for _, candidate in ipairs(candidates) do
    if candidate.gathered < 0 then traffic[#traffic + 1] = candidate end
    if candidate.peak < 0 then memory[#memory + 1] = candidate end
  end
  table.sort(traffic, by(function(c) return worth(-c.gathered, c.peak) end))
  table.sort(memory, by(function(c) return -c.peak end))
  return traffic, memory
end

---Compiles every candidate.
---@param context moonshard.AdviceContext
---@return moonshard.Candidate[] in the order of units
function advice.of(context)
  local now = plan_costs.total(context.plan, #context.sharding.units, context.times)
  local candidates = {}
  for _, candidate in ipairs(candidates_of(context)) do
    try(context, candidate, now)
    if not candidate.idle then candidates[#candidates + 1] = candidate end
  end
  return candidates
end

return advice
