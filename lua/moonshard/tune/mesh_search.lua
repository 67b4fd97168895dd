-- Searches over meshes and policies: first plain policies on every mesh, then a search on the meshes that can still
-- win, the most promising first. Meshes are compared by tokens per second, since with tensor ranks a step has fewer
-- tokens.

local batch_of = require("moonshard.engine.batch")
local errors = require("moonshard.base.error")
local search = require("moonshard.tune.search")
local trial = require("moonshard.tune.trial")
local world = require("moonshard.distributed.world")

---@class moonshard.TunedMesh
---@field mesh string "8x8"
---@field own boolean whether it is the mesh of the recipe's settings
---@field label string "8x8 (replicate, shard)"
---@field search moonshard.Search
---@field tokens integer of a step of all ranks
---@field searched boolean whether more than plain policies was tried
---@field refused any? the error, if the recipe has no plan on this mesh

---@class moonshard.MeshSearch
---@field cluster moonshard.Cluster
---@field limit number bytes of a rank's arenas
---@field meshes moonshard.TunedMesh[] the fastest first; those that do not fit and refused ones last
---@field compiles integer
local mesh_search = {}

-- Compiles of a search, and of all searches together.
local OF_A_MESH, OF_ALL = 160, 400
---About the most plans that are compiled, for a progress bar.
mesh_search.MAX_COMPILES = 500
-- Meshes that are searched at least, even if others look better.
local MIN_SEARCHED = 3
-- A search gains little over the fastest plain policy, apart from making it fit: a mesh on which that is slower than
-- the best so far by more than this factor is not searched.
local FAR = 1.25

---@class moonshard.SurveyOptions
---@field cluster moonshard.Cluster
---@field limit number bytes of a rank's arenas
---@field free table<string, boolean> policies that may change
---@field run fun(mesh: string?, take: function) runs the recipe on a mesh (nil: its own) until take has plan, trainer
---  and batch
---@field progress? fun(compiles: integer, best: moonshard.TunedMesh?)

---Seconds per token of the best point; infinite if none fits.
---@param row moonshard.TunedMesh
---@return number
function mesh_search.cost(row)
  local best = row.search and row.search.best
  return best and best.seconds / row.tokens or math.huge
end

local function tokens_of(trainer, batch)
  return batch_of.tokens(batch) * trainer.session:data_ranks()
end

local function new_row(options, mesh, trainer, batch)
  local limit = math.min(options.limit, trainer.memory_limit or math.huge)
  local of = trial.new(trainer, batch, options.cluster, limit)
  local label = trainer.session.sharding.mesh:label()
  return { mesh = mesh or label:match("^%S+"), own = mesh == nil, label = label, search = search.new(of, options.free),
    tokens = tokens_of(trainer, batch), searched = false }
end

-- Plain policies on one mesh. A mesh that the recipe refuses is a row without a search.
local function plain(options, mesh)
  local row
  local ok, raised = pcall(options.run, mesh, function(compiled, trainer, batch)
    compiled:free()
    row = new_row(options, mesh, trainer, batch)
    row.search.trial.on_compile = options.on_compile
    row.search:try_baselines()
  end)
  if ok then return row end
  if errors.is_fault(raised) then error(raised, 0) end
  return { mesh = mesh or "", label = mesh or "", tokens = 1, searched = false, refused = raised }
end

-- What a mesh could cost if all of its plain policies fitted.
local function hope(row) return row.search and row.search:fastest_plain() / row.tokens or math.huge end

local function sort(rows)
  table.sort(rows, function(a, b)
    if mesh_search.cost(a) ~= mesh_search.cost(b) then return mesh_search.cost(a) < mesh_search.cost(b) end
    if hope(a) ~= hope(b) then return hope(a) < hope(b) end
    return a.mesh < b.mesh
  end)
end

---The mesh with the smallest plan of all that were tried.
---@param found moonshard.MeshSearch
---@return moonshard.TunedMesh
function mesh_search.smallest(found)
  local least
  for _, row in ipairs(found.meshes) do
    local tried = row.search and row.search.smallest
    if tried and (not least or tried.bytes < least.search.smallest.bytes) then least = row end
  end
  return least
end

local function lowest(rows)
  local best
  for _, row in ipairs(rows) do
    if mesh_search.cost(row) < (best and mesh_search.cost(best) or math.huge) then best = row end
  end
  return best
end

local function can_win(row, best)
  return not best or hope(row) < FAR * mesh_search.cost(best)
end

local function improve(rows, state)
  local searched = 0
  for _, row in ipairs(rows) do
    local best = lowest(rows)
    local left, few = OF_ALL - state.searching, searched < MIN_SEARCHED
    if not row.refused and (few or left > 0 and can_win(row, best)) then
      world.check_interrupt()
      local before = row.search.trial.compiles
      row.search:try_frugal()
      if row.search.best then row.search:improve(math.min(OF_A_MESH, math.max(left, OF_A_MESH / MIN_SEARCHED))) end
      row.searched, searched = true, searched + 1
      state.searching = state.searching + row.search.trial.compiles - before
    end
  end
end

-- The recipe's own mesh, then others.
local function plain_rows(options, state, meshes)
  local rows = { plain(options, nil) }
  state.rows = rows
  local own = rows[1]
  for _, mesh in ipairs(meshes()) do
    world.check_interrupt()
    if mesh ~= own.mesh then rows[#rows + 1] = plain(options, mesh) end
  end
  -- A recipe need not have a mesh of its own for these ranks, if it has others.
  if own.refused and #rows > 1 then table.remove(rows, 1) end
  return rows
end

---@param options moonshard.SurveyOptions
---@param meshes fun(): string[] others than the recipe's own; called when that was tried
---@return moonshard.MeshSearch
function mesh_search.run(options, meshes)
  local state = { compiles = 0, searching = 0, rows = {} }
  options.on_compile = function()
    state.compiles = state.compiles + 1
    if options.progress then options.progress(state.compiles, lowest(state.rows)) end
  end
  local rows = plain_rows(options, state, meshes)
  local first = rows[1]
  sort(rows)
  if not rows[1].search then error(first.refused, 0) end
  improve({ unpack(rows) }, state)
  sort(rows)
  return { cluster = options.cluster, limit = options.limit, meshes = rows, compiles = state.compiles }
end

return mesh_search
