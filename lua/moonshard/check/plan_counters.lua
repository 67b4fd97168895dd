-- Compares the numbers in a plan with the counters of its execution: collectives per phase, bytes on the wire, bytes of
-- the arenas, allocations. They must be equal on every rank of a checked run.

local engine = require("moonshard.base.ffi")
local C = engine.C

local plan_counters = {}

local PHASES = { "first", "next", "last", "norm", "update" }

---How often the phases run in one step.
---@param trainer moonshard.Trainer
---@param plan moonshard.Plan
---@return table<string, integer>
function plan_counters.phases(trainer, plan)
  local further = trainer.micro_batches - 1
  local last = further > 0 and plan.config.sync ~= C.MS_SYNC_EVERY and 1 or 0
  return { first = 1, next = further - last, last = last, norm = 1, update = 1 }
end

local function promised(summary, runs)
  local collectives = {}
  for _, phase in ipairs(PHASES) do collectives[phase] = summary.collectives[phase] * runs[phase] end
  return collectives
end

---Compares a plan with the counters of its exec.
---@param exec moonshard.Exec
---@param runs table<string, integer> how often each phase ran
---@param is_only boolean the exec is the only one over its state
---@return string[] wrong the differences, as text
function plan_counters.compare(exec, runs, is_only)
  local summary, report, wrong = exec.plan:summary(), exec:report(), {}
  local function expect(planned, ran, what)
    if math.abs(planned - ran) > 1e-9 * math.abs(planned) then
      wrong[#wrong + 1] = ("%s: %.17g in the plan, %.17g in the run"):format(what, planned, ran)
    end
  end
  local collectives, sum = promised(summary, runs), 0
  for _, phase in ipairs(PHASES) do
    expect(collectives[phase], report.collectives[phase], "collectives of phase " .. phase)
  end
  if runs.next + runs.last == 0 then -- the plan states the bytes of a step with one micro-batch
    for name, bytes in pairs(summary.comm_bytes) do
      expect(bytes * runs.first, report.comm_bytes[name], "bytes over " .. name)
    end
    for name, planned in pairs(exec.plan:traffic()) do
      for _, way in ipairs({ "inside", "sent", "received" }) do
        expect(planned.rank[way] * runs.first, report.traffic[name][way], ("bytes %s over %s"):format(way, name))
      end
    end
  end
  for _, bytes in pairs(summary.bytes) do sum = sum + bytes end
  expect(summary.peak_bytes, sum, "peak bytes against the sum of categories")
  if is_only then expect(summary.peak_bytes, exec:arena_bytes(), "bytes of the arenas") end
  expect(0, report.allocations, "allocations in a step")
  return wrong
end

return plan_counters
