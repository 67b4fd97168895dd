-- moonshard tune: the fastest mesh and policies for a recipe on a described cluster, within its memory.
-- Compiles many plans and runs none. What it prints is compiled once more from its text before it is printed.

local args = require("moonshard.recipe.args")
local automatic = require("moonshard.shard.policies.automatic")
local byte_size = require("moonshard.base.text.byte_size")
local clock = require("moonshard.base.clock")
local clusters = require("moonshard.price.cluster")
local command_line = require("moonshard.cli.options.command_line")
local C = require("moonshard.base.ffi").C
local errors = require("moonshard.base.error")
local json = require("moonshard.base.text.json")
local meshes = require("moonshard.tune.meshes")
local nothing_fits = require("moonshard.tune.nothing_fits")
local output_file = require("moonshard.base.files.output_file")
local page = require("moonshard.tune.page")
local planned = require("moonshard.recipe.planned")
local policies = require("moonshard.tune.policies")
local progress = require("moonshard.base.text.progress")
local recipe = require("moonshard.recipe.file")
local report = require("moonshard.tune.report")
local memory_limit_of = require("moonshard.tune.memory_limit")
local rules_text = require("moonshard.tune.rules_text")
local status = require("moonshard.base.exit_status")
local mesh_search = require("moonshard.tune.mesh_search")
local terminal = require("moonshard.base.text.terminal")
local refuse = status.refuse

local command = {}

local OPTIONS = {
  ["-n"] = { name = "ranks", value = "count" },
  ["--cluster"] = { name = "cluster", value = "text" },
  ["--memory"] = { name = "memory", value = "text", what = 'a size, like "72GiB"' },
  ["--mesh"] = { name = "mesh", value = "text", what = "sizes joined by x, like 8x8" },
  ["--page"] = { name = "page", value = "text", what = "a file" },
  ["--json"] = { name = "json", value = "flag" },
}

local MESH = "mesh" -- the recipes' setting
local REDRAW_SECONDS = 0.1

local function given_mesh(line)
  for _, setting in ipairs(line.settings) do
    if setting.key == MESH then return setting.text end
  end
end

local function check_line(line)
  if line.memory and not byte_size.read(line.memory) then
    refuse("MS_EINVAL", "--memory %s: %s", line.memory, byte_size.advice(line.memory, "72GiB"))
  end
  if line.mesh and given_mesh(line) then
    refuse("MS_EINVAL", "%s=%s and --mesh both give the mesh: give one of them", MESH, given_mesh(line))
  end
  if line.mesh then table.insert(line.settings, { key = MESH, text = line.mesh }) end
  if line.page then output_file.check_option("--page", line.page) end
end

-- Runs the recipe on a mesh; nil: its own. What it prints is shown once.
local function runner(line, chunk)
  local ran = false
  return function(mesh, take)
    if ran then recipe.print_nothing() end
    ran = true
    local settings = { unpack(line.settings) }
    if mesh then settings[#settings + 1] = { key = MESH, text = mesh } end
    planned.run(line.recipe, chunk, settings, take)
  end
end

-- All meshes, if the recipe has a setting for them and the command line gives none.
local function others(line, cluster)
  return function()
    local list = {}
    if given_mesh(line) or args.texts[MESH] == nil then return list end
    local ranks = line.ranks or 1
    for i, sizes in ipairs(meshes.of(ranks, math.min(ranks, cluster.ranks_per_node))) do
      list[i] = meshes.text(sizes)
    end
    return list
  end
end

local function best_text(best)
  return best and ("best so far: mesh %s, %s"):format(best.mesh, progress.rate(1 / mesh_search.cost(best))) or ""
end

-- Follows a search: a line that is redrawn on a terminal, and how far the search came.
local function follow(most)
  local at, drawn, draws = { compiles = 0 }, 0, terminal.interactive()
  function at.update(compiles, best)
    at.compiles, at.best = compiles, best
    if not draws or clock.now() - drawn < REDRAW_SECONDS then return end
    drawn = clock.now()
    io.stderr:write("\r", progress.bar(compiles / most), ("  %d plans  "):format(compiles), best_text(best), "\27[K")
  end
  function at.clear()
    if draws then io.stderr:write("\r\27[K") end
  end
  return at
end

local function search(options, list)
  local at = follow(mesh_search.MAX_COMPILES)
  options.progress = at.update
  C.ms_interrupt_install()
  local ok, found = pcall(mesh_search.run, options, list)
  at.clear()
  if ok then return found end
  if errors.is(found) and found.status == "MS_EINTERRUPT" then
    found.message = ("interrupted after %d plans, before anything was printed%s"):format(at.compiles,
      at.best and "; " .. best_text(at.best) or "")
  end
  error(found, 0)
end

-- Compiles the printed rules as a recipe with them would, on the mesh of the report.
local function check_rules(run, found)
  local text = rules_text.of(found.options)
  local options = rules_text.read(text)
  automatic.replaced = { options = options, left_out = policies.replaced_by(options) }
  local fingerprint, mesh
  if not found.row.own then mesh = found.row.mesh end
  run(mesh, function(compiled)
    fingerprint = compiled:summary().fingerprint
    compiled:free()
  end)
  automatic.replaced = nil
  if fingerprint == found.best.fingerprint then return end
  errors.raise("MS_EINTERNAL", "tune: the rules of mesh %s give plan %s when they are read back, not %s:\n  %s",
    found.row.mesh, fingerprint, found.best.fingerprint, ((text.before .. text.options):gsub("\n", "\n  ")))
end

---@param arguments string[] without "tune"
---@return integer exit status
function command.main(arguments)
  local line = command_line.parse("moonshard tune", arguments, { recipe = true, options = OPTIONS })
  check_line(line)
  local cluster = clusters.of_option("moonshard tune", line.cluster)
  cluster:describe_world(0, line.ranks or 1)
  local memory = memory_limit_of(cluster, line.memory and byte_size.read(line.memory), "--memory")
  local chunk = recipe.load(line.recipe)
  local out = recipe.print_to_stderr()
  planned.intercept_exit()
  automatic.off = true
  local free, run = {}, runner(line, chunk)
  for _, row in ipairs(policies.all) do free[row.name] = true end
  local found = search({ cluster = cluster, limit = memory.bytes, free = free, run = run }, others(line, cluster))
  if not report.fits(found) then
    local least = mesh_search.smallest(found)
    nothing_fits(least.search, "mesh " .. least.label
      .. (line.ranks and "" or " (1 rank: -n gives another number)"))
  end
  local result = report.of(found, memory, line.ranks or 1)
  check_rules(run, result)
  if line.page then output_file.write("page", line.page, page.of(result, line.recipe)) end
  planned.print(out, line.json and json.encode(report.json(result)) or report.text(result))
  return status.OK
end

return command
