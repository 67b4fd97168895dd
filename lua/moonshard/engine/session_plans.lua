-- How a session finds the bound plan of a function for these input shapes, and compiles it at the first call. A session
-- has these methods.

local agreement = require("moonshard.distributed.agreement")
local context = require("moonshard.base.context")
local errors = require("moonshard.base.error")
local exec = require("moonshard.engine.exec")
local long_wait = require("moonshard.distributed.long_wait")
local memory = require("moonshard.engine.memory")
local new_shapes = require("moonshard.engine.trace.new_shapes")
local reads = require("moonshard.engine.trace.reads")
local retrace = require("moonshard.engine.trace.retrace")
local same_constants = require("moonshard.engine.agreement.same_constants")
local same_run = require("moonshard.engine.agreement.same_run")
local written_constants = require("moonshard.engine.trace.written_constants")
local session_ranks = require("moonshard.engine.session_ranks")

---@class moonshard.SessionPlans: moonshard.SessionRanks
---@field watched table<any, moonshard.Reads> what traced functions can read, by function
---@field compiled table<string, moonshard.NewShapes> what was compiled, by user and name
local SessionPlans = setmetatable({}, session_ranks)
SessionPlans.__index = SessionPlans

-- Bytes of plans and graphs that a session keeps, if its trainer does not say.
local PLAN_MEMORY = 256 * 2 ^ 20

---Binds a plan to this session's state, if all ranks have enough memory for it, and the same constants. Collective.
---@param compiled moonshard.Plan
---@param state ffi.cdata*? ms_state*; nil: the session's
---@return moonshard.Exec
function SessionPlans:bind(compiled, state)
  state = state or self:ensure_state()
  memory.check(self, state, compiled)
  local bound = exec.bind(state, compiled)
  same_constants.require(self, compiled)
  written_constants.note(compiled)
  return bound
end

-- Plans are part of memory_limit where they are in the memory that it limits.
local function room_for_plans(self)
  local room = self.plan_memory or PLAN_MEMORY
  if not self.memory_limit or self.sharding.mesh.device ~= "cpu" then return room end
  return math.min(room, math.max(0, self.memory_limit - memory.arena_bytes(self.state)))
end

---Keeps a plan that was just bound, and drops others that there is no room for. Collective.
---@param bound moonshard.Exec
---@param of { id: string, settings: moonshard.PlanSettings, trace: fun(): moonshard.Trace }
function SessionPlans:keep(bound, of)
  bound.id, bound.settings, bound.trace = of.id, of.settings, of.trace
  bound.graph_id = self:graph_id(of.id)
  local plan_bytes, graph_bytes = bound:host_bytes()
  local plans, graphs, rooms = self:gather_numbers(plan_bytes, "of plans' sizes", graph_bytes, room_for_plans(self))
  self.plans:add(of.id, self.rules, bound, {
    plan = math.max(unpack(plans)), graph = math.max(unpack(graphs)), limit = math.min(unpack(rooms)),
  }, self.train_exec)
end

---What a graph is kept as: it has the setting of sequence_parallel with which it was first compiled.
---@param id string
---@return string
function SessionPlans:graph_id(id)
  return self.sharding.sequence_parallel and id .. " sequence_parallel" or id
end

local function check_runs(self, settings)
  if self.in_full_params then
    errors.invalid("the model cannot run inside ms.with_full_params, which changes its weights: run it after that "
      .. "returns")
  end
  self:check_goes_on()
  self:check_whole()
  if context.trace then
    errors.invalid("a model cannot run inside a forward or loss, which are traced and not run: do it between steps")
  end
  if settings.train and self.averaged then
    errors.invalid("train:with_ema has replaced the weights by the averages: train after it returns")
  end
  self.sharding:check_unchanged()
end

local function id_of(name, inputs, settings)
  local key = { name, tostring(settings.owner), tostring(settings.train), tostring(settings.accumulate) }
  for _, input in ipairs(inputs) do
    key[#key + 1] = input.name .. ":" .. input.dtype .. ":" .. table.concat(input.shape, "x")
  end
  if settings.outer then key[#key + 1] = ("outer %d %d"):format(settings.outer.fragment, settings.outer.parts) end
  return table.concat(key, " ")
end

local function watch_of(self, fn)
  local key = fn or self.model
  self.watched[key] = self.watched[key] or reads.new(self.model, fn)
  return self.watched[key]
end

local function shapes_of(name, settings) return ("%s %s"):format(name, tostring(settings.owner)) end

---The inputs whose shapes differ from those that were compiled last by a name, as text; "" if none does.
---@param name string
---@param inputs moonshard.InputSpec[]
---@param settings table as for exec
---@return string
function SessionPlans:new_shapes(name, inputs, settings)
  local shapes = self.compiled[shapes_of(name, settings)]
  return shapes and shapes:differing(inputs) or ""
end

local function compile(self, name, inputs, settings, id, trace)
  local shapes = self.compiled[shapes_of(name, settings)] or new_shapes.new(settings.who)
  self.compiled[shapes_of(name, settings)] = shapes
  local wait = long_wait.begin("compiling", function()
    local units = #self.sharding.units
    return ("plan %s, %d unit%s on mesh %s"):format(name, units, units == 1 and "" or "s", self.sharding.mesh:label())
  end)
  local graph = self.plans:graph(self:graph_id(id)) or trace()
  wait:check()
  local compiled = self:compile(name, graph, settings)
  wait:finish()
  self:ensure_state(compiled) -- can read files, and fail on a single rank
  shapes:note(inputs, compiled:summary().compile_ms, self.plans:was_dropped(id, self.rules))
  return agreement.uninterrupted(function()
    local bound = self:bind(compiled)
    self:keep(bound, { id = id, settings = settings, trace = trace })
    return bound
  end)
end

-- What its forward computes otherwise than what was traced, and the places that changed; nil: the same. New rules have
-- a plan of their own for the same graph.
local function change_of(graph, trace, watch, settings)
  if not graph then return nil end
  local difference, places = retrace.changes(graph, trace, watch)
  if difference and settings.changed then settings.changed(difference, places) end
  return difference, places
end

-- One that changes on a rank alone must not be compiled there alone.
local function require_same(self, name, inputs, settings, change, places)
  local of_forward = { "what forward computes", change and "something else than before: " .. change or "as before",
    "what forward reads outside its arguments must change on all ranks alike, or be an argument", places }
  same_run.new(settings.who, { { "what runs", settings.owner or name }, of_forward }, inputs)
    :require(self, "of what ranks run")
end

---The exec for these inputs if it is bound already.
---@param name string
---@param inputs moonshard.InputSpec[]
---@param settings table as for exec
---@return moonshard.Exec?
function SessionPlans:bound_exec(name, inputs, settings)
  return self.plans:find(id_of(name, inputs, settings), self.rules)
end

---The exec for these inputs under the current rules, compiled and bound at the first call, and when it was dropped.
---Collective: ranks compare what they are about to run, unless the caller has.
---@param name string
---@param inputs moonshard.InputSpec[]
---@param forward function
---@param settings table moonshard.PlanSettings, and owner: separates users that compute different things by this name;
---  reads: the recipe's function that forward calls, if there is one; changed: raises an error when that function would
---  compute something else now (fun(difference: string, places: string?)); nil: it is compiled again
---  agreed: ranks have compared what they run; who: the caller, as the user wrote it, for messages
---@return moonshard.Exec
function SessionPlans:exec(name, inputs, forward, settings)
  check_runs(self, settings)
  if settings.train then self.unsharded = {} end
  local id, watch = id_of(name, inputs, settings), watch_of(self, settings.reads)
  local function trace()
    local graph = self:trace(inputs, forward)
    retrace.begin(graph, watch)
    return graph
  end
  local found = self.plans:find(id, self.rules)
  local graph = found and found.plan.graph or self.plans:graph(self:graph_id(id))
  local change, places = change_of(graph, function() return self:trace(inputs, forward) end, watch, settings)
  if not settings.agreed then
    require_same(self, name, inputs, settings, change, places)
    if found and not change then same_constants.require(self, found.plan) end
  end
  if change then
    self.plans:drop(function(entry) return entry.id == id end)
    found = nil
  end
  found = found or compile(self, name, inputs, settings, id, trace)
  if settings.train then self.train_exec = found end
  return found
end

---Bytes of plans and graphs that are kept, as the ranks have agreed.
---@return number
function SessionPlans:plan_bytes() return self.plans.bytes end

---The counters of an exec with a name.
---@param name string "train", "evaluate", "generate"
---@return moonshard.Counters?
function SessionPlans:counters(name)
  for bound in self.plans:execs() do
    if bound.plan.name == name then return bound:report() end
  end
end

return SessionPlans
