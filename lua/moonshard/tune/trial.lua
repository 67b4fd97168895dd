-- A training step that is compiled under one point of the search after another, for the first rank of its mesh: exact
-- bytes from the plan, seconds from simulated time. All ranks that do this get the same numbers.
--
-- Points that differ only in policies that ms.set_rules can change share a graph, which saves half of the time.

local blocks = require("moonshard.tune.blocks")
local engine = require("moonshard.base.ffi")
local errors = require("moonshard.base.error")
local point = require("moonshard.tune.point")
local price = require("moonshard.price.price")
local policies = require("moonshard.shard.policies.policies")
local world = require("moonshard.distributed.world")
local C = engine.C

---@class moonshard.Trial
---@field trainer moonshard.Trainer
---@field batch table
---@field cluster moonshard.Cluster
---@field limit number bytes of a rank's arenas
---@field sharding moonshard.Sharding the recipe's
---@field blocks moonshard.Blocks
---@field compiles integer plans compiled so far
---@field on_compile fun()? called after each
local Trial = {}
Trial.__index = Trial

---@class moonshard.Tried a point that was compiled
---@field point moonshard.TunePoint
---@field seconds number of a step
---@field bytes number of the arenas
---@field fits boolean
---@field computing number seconds of a step in which kernels run
---@field exposed number seconds in which they wait for collectives
---@field fingerprint string
---@field by_category table<string, number> bytes at the peak
---@field refused string? why it cannot be compiled; without the other numbers

local trial = {}

---@param trainer moonshard.Trainer
---@param batch table
---@param cluster moonshard.Cluster
---@param limit number
---@return moonshard.Trial
function trial.new(trainer, batch, cluster, limit)
  local sharding = trainer.session.sharding
  return setmetatable({ trainer = trainer, batch = batch, cluster = cluster, limit = limit, sharding = sharding,
    blocks = blocks.of(sharding), rank = sharding.mesh:ranks(sharding.rank)[1], graphs = {}, known = {}, compiles = 0 },
    Trial)
end

-- The policies that a plan of an existing graph can be compiled under. A trainer's prefetch is that of units that no
-- rule decides.
local function set_policies(sharding, recipe, options)
  for _, row in ipairs(policies.changeable) do
    local value = options[row.name]
    if value == nil then value = recipe[row.name] end
    row.set(sharding, sharding:handle(), policies.decide_one(sharding, row, value))
    policies.store(sharding, row)
  end
end

local function compile(self, p)
  local options, session = point.options(p, self.blocks), self.trainer.session
  local key = point.key(p, true)
  local known = self.graphs[key]
  if not known then
    local sharding = self.sharding:with(options, self.rank)
    local plan = session:under(sharding, function() return self.trainer:compile(self.batch) end)
    self.graphs[key] = { sharding = sharding, graph = plan.graph, settings = plan.settings }
    return plan
  end
  return session:under(known.sharding, function()
    set_policies(known.sharding, self.sharding.config, options)
    return session:compile("train", known.graph, known.settings)
  end)
end

local function waiting_of(row, outer)
  local waiting, computing = 0, 0
  for phase = 0, C.MS_PHASES - 1 do
    local one = row.phase[phase]
    local runs = phase == C.MS_PHASE_OUTER and outer or one.runs
    computing = computing + runs * one.computing
    for dim = 0, 5 do waiting = waiting + runs * one.waiting[dim] end
  end
  return waiting, computing
end

local function priced(self, p, plan)
  local row, outer = price.row(plan, self.cluster, self.trainer)
  local exposed, computing = waiting_of(row, outer)
  local summary = plan:summary()
  return { point = p, seconds = row.step, bytes = row.bytes, fits = row.bytes <= self.limit, exposed = exposed,
    computing = computing, fingerprint = summary.fingerprint, by_category = summary.bytes }
end

-- A point can be one that the model or its other rules refuse, such as a unit of one of two tied modules.
local function refused(p, raised)
  if errors.is_fault(raised) then error(raised, 0) end
  return { point = p, fits = false, seconds = math.huge, bytes = math.huge, refused = tostring(raised) }
end

---Compiles and prices a point, once.
---@param p moonshard.TunePoint
---@return moonshard.Tried
function Trial:try(p)
  local key = point.key(p)
  if self.known[key] then return self.known[key] end
  world.check_interrupt()
  local ok, plan = pcall(compile, self, p)
  local tried
  if ok then
    tried = priced(self, p, plan)
    plan:free()
  else
    tried = refused(p, plan)
  end
  self.compiles, self.known[key] = self.compiles + 1, tried
  if self.on_compile then self.on_compile() end
  return tried
end

---All that was tried, in no order.
---@return table<string, moonshard.Tried> by key
function Trial:all() return self.known end

return trial
