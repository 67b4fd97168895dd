-- Explains a compiled plan: the decisions of its rules and their costs, what sets the peak, and the effect of
-- alternatives. Builds one table, which is rendered as text or JSON.

local advice = require("moonshard.explain.advice")
local better_mesh = require("moonshard.explain.better_mesh")
local decisions = require("moonshard.explain.decisions")
local json = require("moonshard.base.text.json")
local plan_costs = require("moonshard.explain.plan_costs")
local session = require("moonshard.engine.session")
local show = require("moonshard.explain.show")
local tree = require("moonshard.nn.tree")
local units = require("moonshard.shard.units")
local world = require("moonshard.distributed.world")

local explain = {}

---@class moonshard.Explanation
---@field rank integer
---@field world integer
---@field mesh string
---@field nodes string on which nodes the ranks are, and what replicas share
---@field better_mesh moonshard.BetterMesh? that sends less between nodes
---@field tensor_across_nodes moonshard.TensorAcrossNodes?
---@field micro_batches integer
---@field peak_bytes number arenas of one rank
---@field peak moonshard.Peak with `unit`, and `unit` of every buffer
---@field total { gathered: number, reduced: number, gathered_wire: number, reduced_wire: number } bytes per step
---@field decisions table<string, moonshard.Explained[]> by policy
---@field shadowed string[]
---@field unmatched { policy: string, pattern: string, where: string? }[]
---@field exposed { collectives: integer, exposed: moonshard.Exposed[] }
---@field conversions moonshard.Conversion[] of a micro-batch
---@field losses moonshard.ChunkedLoss[]
---@field muon moonshard.MuonOwners?
---@field advice moonshard.Candidate[]
---@field all boolean
---@field folder string? of the recipe

-- The innermost unit that contains a module. The scope of a collective is the unit itself.
local function unit_of(sharding, scope)
  local best, length = units.ROOT, -1
  for _, unit in ipairs(sharding.units) do
    if unit.name == scope then return unit.name end
    for _, name in ipairs(unit.name ~= units.ROOT and sharding.root_names[unit] or {}) do
      local inside = scope == name or scope:sub(1, #name + 1) == name .. "."
      if inside and #name > length then best, length = unit.name, #name end
    end
  end
  return best
end

local function root_names(sharding, modules)
  local name_of, names = {}, {}
  for _, entry in ipairs(modules) do name_of[entry.module] = entry.name end
  for _, unit in ipairs(sharding.units) do
    names[unit] = {}
    for i, root in ipairs(unit.modules) do names[unit][i] = name_of[root] end
  end
  return names
end

local function peak_of(plan, sharding, names)
  local peak = plan_costs.peak(plan)
  local place = { units = sharding.units, root_names = names }
  peak.unit = unit_of(place, peak.scope)
  for _, buffer in ipairs(peak.buffers) do
    buffer.unit = buffer.label == "input" and "inputs" or unit_of(place, buffer.scope)
  end
  return peak
end

---Explains the plan of a trainer's step.
---@param plan moonshard.Plan
---@param trainer moonshard.Trainer
---@param batch table the batch that it was compiled for
---@param options { all: boolean?, folder: string? } all: try every unit; folder: the recipe's
---@return moonshard.Explanation
function explain.plan(plan, trainer, batch, options)
  local model = trainer.model
  local of_model = session.of(model)
  local sharding, modules = of_model.sharding, tree.inventory(model).modules
  local times, costs = plan_costs.phases(plan, trainer.micro_batches), {}
  for i = 1, #sharding.units do costs[i] = plan_costs.unit(plan, i - 1, times) end
  local found = {
    rank = sharding.rank, world = world.size, mesh = sharding.mesh:label(),
    nodes = plan:nodes(), better_mesh = better_mesh.of(plan, trainer, batch),
    tensor_across_nodes = better_mesh.tensor_across_nodes(plan, sharding),
    micro_batches = trainer.micro_batches, peak_bytes = plan:summary().peak_bytes, bytes = plan:summary().bytes,
    peak = peak_of(plan, sharding, root_names(sharding, modules)),
    total = plan_costs.total(plan, #sharding.units, times),
    exposed = plan_costs.exposed(plan, times), conversions = plan:conversions(), losses = plan:chunked_losses(),
    muon = plan:muon_owners(sharding),
    all = options.all, folder = options.folder,
  }
  found.decisions, found.shadowed, found.unmatched = decisions.of(sharding, plan, costs, trainer.optimizer, modules)
  found.advice = advice.of({ session = of_model, sharding = sharding, plan = plan, costs = costs, times = times,
    modules = modules, retrace = function() return trainer:compile(batch) end, all = options.all })
  return found
end

-- ---- JSON -------------------------------------------------------------------------------------------------------

-- Absolute paths differ between machines: files below the recipe's folder are relative to it, others base names.
local function stable(where, folder)
  if not where or where:sub(1, 1) ~= "/" then return where end
  if folder and where:sub(1, #folder) == folder then return where:sub(#folder + 1) end
  return where:match("[^/]*$")
end

local function rows_as_json(rows, folder)
  local list = {}
  for i, row in ipairs(rows) do
    local rule = row.rule
    list[i] = { name = row.name, value = row.value, gathered_bytes = row.gathered, reduced_bytes = row.reduced,
      gathered_wire_bytes = row.gathered_wire, reduced_wire_bytes = row.reduced_wire,
      kept_bytes = row.kept,
      rule = rule and { pattern = rule.pattern, number = rule.rule, where = stable(rule.where, folder) } or "default" }
  end
  return list
end

local function candidates_as_json(candidates)
  local list = {}
  for i, c in ipairs(candidates) do
    list[i] = { action = c.action, names = c.names, depth = c.depth, peak_bytes = c.peak, gathered_bytes = c.gathered,
      refused = c.refused }
  end
  return list
end

---The explanation as one JSON object with sorted keys: equal plans give equal text. Empty lists are written as `{}`.
---@param found moonshard.Explanation
---@return string
function explain.json(found)
  local by_policy, unmatched, shadowed, peak = {}, {}, {}, found.peak
  for policy, rows in pairs(found.decisions) do by_policy[policy] = rows_as_json(rows, found.folder) end
  for i, rule in ipairs(found.unmatched) do
    unmatched[i] = { policy = rule.policy, pattern = rule.pattern, where = stable(rule.where, found.folder) }
  end
  for i, warning in ipairs(found.shadowed) do
    shadowed[i] = (" " .. warning):gsub("([ (])(/[^%s:()]+)(:%d+)", function(before, path, line)
      return before .. stable(path, found.folder) .. line
    end):sub(2)
  end
  return json.encode({
    rank = found.rank, world = found.world, mesh = found.mesh, nodes = found.nodes, better_mesh = found.better_mesh,
    tensor_across_nodes = found.tensor_across_nodes, micro_batches = found.micro_batches,
    peak_bytes = found.peak_bytes, bytes = found.bytes, gathered_bytes = found.total.gathered,
    reduced_bytes = found.total.reduced, gathered_wire_bytes = found.total.gathered_wire,
    reduced_wire_bytes = found.total.reduced_wire, decisions = by_policy, shadowed = shadowed, unmatched = unmatched,
    peak = { phase = peak.phase, instruction = peak.instruction, op = peak.op, scope = peak.scope,
      backward = peak.backward, unit = peak.unit, in_use_bytes = peak.in_use, bytes = peak.bytes,
      units = plan_costs.shares(peak) },
    placement_changes = #found.conversions > 0 and found.conversions or nil,
    muon = found.muon and { owners = found.muon.of, balance = found.muon.balance } or nil,
    chunked_losses = #found.losses > 0 and found.losses or nil,
    collectives = found.exposed.collectives, exposed = found.exposed.exposed, advice = candidates_as_json(found.advice),
  })
end

---The explanation as text for people.
---@param found moonshard.Explanation
---@return string
function explain.text(found)
  return show.text(found)
end

return explain
