-- The bound plans of a session, by what they compute and the rules that they were compiled under. Graphs are kept with
-- them, by what they compute.
--
-- Batches that are padded to their longest row have thousands of shapes, and each shape has a plan of its own. So the
-- plans and graphs of a session have a limit in bytes: a new plan makes room by dropping those that were used longest
-- ago. All ranks must drop the same ones, or some would compile, which all do together, while others run. So sizes and
-- limits are those that the ranks have agreed on, and uses are counted by calls that all ranks make.

---@class moonshard.CachedPlan
---@field id string what it computes
---@field rules string
---@field exec moonshard.Exec
---@field bytes number
---@field used integer when it was last used

---@class moonshard.CachedGraph
---@field trace moonshard.Trace
---@field bytes number
---@field plans integer how many use it

---@class moonshard.PlanCache
---@field entries table<string, moonshard.CachedPlan> by id .. rules
---@field graphs table<string, moonshard.CachedGraph>
---@field bytes number of all, as the ranks have agreed
---@field count integer of plans
---@field dropped table<string, boolean> keys of plans that made room for others
---@field clock integer
local PlanCache = {}
PlanCache.__index = PlanCache

local MAX_NOTED = 1024 -- keys of dropped plans

local plan_cache = {
  ---Plans that are kept whatever their size: what a step, an evaluation and a sample use in turn.
  ALWAYS_KEPT = 4,
}

---@return moonshard.PlanCache
function plan_cache.new()
  return setmetatable({
    entries = {}, graphs = {}, bytes = 0, count = 0, dropped = {}, count_dropped = 0, clock = 0,
  }, PlanCache)
end

local function touch(self, entry)
  self.clock = self.clock + 1
  entry.used = self.clock
end

---@param id string
---@param rules string
---@return moonshard.Exec?
function PlanCache:find(id, rules)
  local entry = self.entries[id .. rules]
  if not entry then return nil end
  touch(self, entry)
  return entry.exec
end

---The graph of a plan that is kept.
---@param graph_id string
---@return moonshard.Trace?
function PlanCache:graph(graph_id)
  local kept = self.graphs[graph_id]
  return kept and kept.trace
end

---Iterates over the bound plans, in no order.
---@return fun(): moonshard.Exec?
function PlanCache:execs()
  local key, entry
  return function()
    key, entry = next(self.entries, key)
    return entry and entry.exec
  end
end

local function release_graph(self, graph_id)
  local kept = self.graphs[graph_id]
  kept.plans = kept.plans - 1
  if kept.plans > 0 then return end
  self.graphs[graph_id], self.bytes = nil, self.bytes - kept.bytes
  kept.trace:free()
end

local function remove(self, key)
  local entry = self.entries[key]
  self.entries[key], self.bytes, self.count = nil, self.bytes - entry.bytes, self.count - 1
  entry.exec:free()
  release_graph(self, entry.exec.graph_id)
end

---Drops plans of which a function says so.
---@param is_dropped fun(entry: moonshard.CachedPlan): boolean
function PlanCache:drop(is_dropped)
  local keys = {}
  for key, entry in pairs(self.entries) do
    if is_dropped(entry) then keys[#keys + 1] = key end
  end
  for _, key in ipairs(keys) do remove(self, key) end
end

---Drops everything.
function PlanCache:clear() self:drop(function() return true end) end

local function oldest(self, pinned)
  local found
  for key, entry in pairs(self.entries) do
    if entry.exec ~= pinned and (not found or entry.used < self.entries[found].used) then found = key end
  end
  return found
end

local function note_dropped(self, key)
  if self.count_dropped == MAX_NOTED then self.dropped, self.count_dropped = {}, 0 end
  self.dropped[key], self.count_dropped = true, self.count_dropped + 1
end

---Adds a plan, in place of one for the same, and drops others until all fit the limit.
---@param id string
---@param rules string
---@param exec moonshard.Exec with its graph_id
---@param size { plan: number, graph: number, limit: number } bytes that the ranks have agreed on
---@param pinned moonshard.Exec? that must stay
function PlanCache:add(id, rules, exec, size, pinned)
  local key, graph_id = id .. rules, exec.graph_id
  local kept = self.graphs[graph_id] or { trace = exec.plan.graph, bytes = 0, plans = 0 }
  kept.plans = kept.plans + 1
  self.bytes = self.bytes + size.graph - kept.bytes + size.plan
  kept.bytes, self.graphs[graph_id] = size.graph, kept
  if self.entries[key] then remove(self, key) end
  local entry = { id = id, rules = rules, exec = exec, bytes = size.plan }
  touch(self, entry)
  self.entries[key], self.count, self.dropped[key] = entry, self.count + 1, nil
  while self.bytes > size.limit and self.count > plan_cache.ALWAYS_KEPT do
    local last = oldest(self, pinned)
    note_dropped(self, last)
    remove(self, last)
  end
end

---Whether a plan was dropped to make room for others.
---@param id string
---@param rules string
---@return boolean
function PlanCache:was_dropped(id, rules) return self.dropped[id .. rules] == true end

---Files the plans, which were compiled before rules had a name, under a name.
---@param rules string
function PlanCache:name_rules(rules)
  local named = {}
  for _, entry in pairs(self.entries) do
    entry.rules = rules
    named[entry.id .. rules] = entry
  end
  self.entries = named
end

return plan_cache
