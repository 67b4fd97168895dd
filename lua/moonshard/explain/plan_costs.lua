-- The cost of decisions, read from a compiled plan: bytes that one rank receives, sends and keeps in one step.

local division = require("moonshard.shard.division")
local engine = require("moonshard.base.ffi")
local plans = require("moonshard.engine.plan")
local C, ffi, check = engine.C, engine.ffi, engine.check

local plan_costs = {}

---@class moonshard.UnitCost of one rank and one step
---@field gathers integer
---@field gathered number bytes received by all_gathers of its weights
---@field again number part of `gathered`: received again because the weights were freed after forward
---@field reduced number bytes sent and received to sum gradients over ranks
---@field gathered_wire number bytes that its gathers send to other nodes, or receive from them if that is more
---@field again_wire number part of `gathered_wire`, as `again` of `gathered`
---@field reduced_wire number the same of the sums of its gradients
---@field updated number bytes received by all_gathers of what other replicas have updated
---@field updated_wire number the same as `gathered_wire` is of `gathered`
---@field ahead number most bytes of prefetched weights, which only later units read, in use while it computes
---@field kept number bytes of gathered weights, or of a shard of them, kept from forward to backward
---@field parameters number
---@field copies number part of `parameters`: copies in bf16
---@field gradients number
---@field optimizer number

---How often each phase runs in a step.
---@param plan moonshard.Plan
---@param micro_batches integer
---@return table<integer, integer> times by phase
function plan_costs.phases(plan, micro_batches)
  local last = plan.config.sync ~= C.MS_SYNC_EVERY and micro_batches > 1 and 1 or 0
  local times = { [tonumber(C.MS_PHASE_FIRST)] = 1 }
  if micro_batches - 1 - last > 0 then times[tonumber(C.MS_PHASE_NEXT)] = micro_batches - 1 - last end
  if last > 0 then times[tonumber(C.MS_PHASE_LAST)] = 1 end
  return times
end

-- What every phase adds to; the rest of a cost is the same in all phases, or that of FIRST.
local PER_PHASE = { "gathers", "gathered", "again", "reduced", "gathered_wire", "again_wire", "reduced_wire" }

local engine_cost = ffi.new("ms_unit_cost")

-- An ms_unit_cost of a phase as Lua numbers, under the names of moonshard.UnitCost.
local function cost_of(plan, phase, unit)
  local c = engine_cost
  check(C.ms_plan_unit_cost(plan.handle, phase, unit, c, ffi.sizeof(c)))
  return {
    copies = tonumber(c.copy_bytes),
    gathered_wire = plans.wire_bytes(c.gathered), again_wire = plans.wire_bytes(c.gathered_again),
    reduced_wire = plans.wire_bytes(c.reduced),
    gathers = c.gathers, gathered = tonumber(c.gathered_bytes), again = tonumber(c.gathered_again_bytes),
    reduced = c.reduced_bytes, kept = tonumber(c.kept_bytes), ahead = tonumber(c.ahead_bytes),
    parameters = tonumber(c.parameter_bytes), gradients = tonumber(c.gradient_bytes),
    optimizer = tonumber(c.optimizer_bytes),
  }
end

---@param plan moonshard.Plan
---@param unit integer the engine's index, from 0
---@param times table<integer, integer> of plan_costs.phases
---@return moonshard.UnitCost
function plan_costs.unit(plan, unit, times)
  local sum = cost_of(plan, C.MS_PHASE_FIRST, unit)
  local update = plan:summary().collectives.update > 0 and cost_of(plan, C.MS_PHASE_UPDATE, unit)
  sum.updated, sum.updated_wire = update and update.gathered or 0, update and update.gathered_wire or 0
  for _, name in ipairs(PER_PHASE) do sum[name] = 0 end
  for phase, count in pairs(times) do
    local cost = cost_of(plan, phase, unit)
    for _, name in ipairs(PER_PHASE) do sum[name] = sum[name] + count * cost[name] end
  end
  return sum
end

---The cost of all units and the peak, by which alternatives are compared. Gathers include those of the update.
---@param plan moonshard.Plan
---@param units integer number of units
---@param times table<integer, integer> of plan_costs.phases
---@return { peak: number, gathered: number, reduced: number, gathered_wire: number, reduced_wire: number }
function plan_costs.total(plan, units, times)
  local total = { peak = plan:summary().peak_bytes, gathered = 0, reduced = 0, gathered_wire = 0, reduced_wire = 0 }
  for unit = 0, units - 1 do
    local one = plan_costs.unit(plan, unit, times)
    total.gathered, total.reduced = total.gathered + one.gathered + one.updated, total.reduced + one.reduced
    total.gathered_wire = total.gathered_wire + one.gathered_wire + one.updated_wire
    total.reduced_wire = total.reduced_wire + one.reduced_wire
  end
  return total
end

---Bytes of activations that a module keeps for backward.
---@param plan moonshard.Plan
---@param module string FQN
---@return number
function plan_costs.activations(plan, module)
  local bytes = ffi.new("int64_t[1]")
  check(C.ms_plan_kept_activations(plan.handle, module, bytes))
  return tonumber(bytes[0])
end

---Elements of a parameter that this rank owns.
---@param handle ffi.cdata* ms_model*
---@param param integer the engine's index, from 0
---@return number
function plan_costs.owned(handle, param)
  return division.owned(handle, param).count
end

---@class moonshard.Peak
---@field phase string
---@field instruction integer numbered as in `moonshard plan`
---@field op string
---@field scope string module, or unit of a collective
---@field backward boolean
---@field in_use number bytes, all categories
---@field bytes table<string, number> by category
---@field buffers { category: string, bytes: number, label: string, scope: string }[] in use there, without state

---The instruction with the most bytes in use.
---@param plan moonshard.Plan
---@return moonshard.Peak
function plan_costs.peak(plan)
  local summary = ffi.new("ms_plan_summary")
  check(C.ms_plan_summarize(plan.handle, summary, ffi.sizeof(summary)))
  local peak, list, n = summary.peak, plans.rows_of(plan, "MS_PLAN_PEAK", "ms_peak_buffer")
  local result = {
    phase = plans.PHASES[peak.phase + 1], instruction = peak.instruction, op = ffi.string(peak.op),
    scope = ffi.string(peak.scope), backward = peak.backward ~= 0, in_use = tonumber(peak.total_bytes),
    bytes = {}, buffers = {},
  }
  for i, category in ipairs(plans.CATEGORIES) do result.bytes[category] = tonumber(peak.bytes[i - 1]) end
  for i = 1, n do
    local b = list[i - 1]
    result.buffers[i] = { category = plans.CATEGORIES[b.category + 1], bytes = tonumber(b.bytes),
      label = ffi.string(b.label), scope = ffi.string(b.scope) }
  end
  return result
end

---@class moonshard.Exposed
---@field phase string
---@field op string all_gather, reduce_scatter or all_reduce
---@field unit string
---@field backward boolean it starts after the first kernel of the backward pass
---@field bytes number sent or received by this rank

---The collectives of a step without overlapping computation, and the total number of collectives in its phases.
---@param plan moonshard.Plan
---@param times table<integer, integer> of plan_costs.phases
---@return { collectives: integer, exposed: moonshard.Exposed[] }
function plan_costs.exposed(plan, times)
  local result, collectives = { collectives = 0, exposed = {} }, plan:summary().collectives
  for phase, name in ipairs(plans.PHASES) do
    if times[phase - 1] then
      result.collectives = result.collectives + collectives[name]
      local list, n = plans.timeline(plan, nil, phase - 1)
      for i = 0, n - 1 do
        local event = list[i]
        if event.exposed ~= 0 then
          table.insert(result.exposed, { phase = name, op = ffi.string(event.name), unit = ffi.string(event.scope),
            backward = event.backward ~= 0, bytes = event.bytes - event.also_bytes })
        end
      end
    end
  end
  return result
end

---Bytes in use at the peak, without state: by category, then by unit.
---@param peak moonshard.Peak
---@return table<string, table<string, number>>
function plan_costs.shares(peak)
  local by = {}
  for _, buffer in ipairs(peak.buffers) do
    local of_category = by[buffer.category] or {}
    by[buffer.category] = of_category
    of_category[buffer.unit] = (of_category[buffer.unit] or 0) + buffer.bytes
  end
  return by
end

return plan_costs
