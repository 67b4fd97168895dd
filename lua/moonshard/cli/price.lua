-- moonshard price: what a step of a recipe takes on a described cluster, for one mesh or a list of them. Compiles the
-- plans that would run there, for rank 0, and runs nothing.

local automatic = require("moonshard.shard.policies.automatic")
local clusters = require("moonshard.price.cluster")
local command_line = require("moonshard.cli.options.command_line")
local C = require("moonshard.base.ffi").C
local errors = require("moonshard.base.error")
local forked = require("moonshard.price.forked")
local json = require("moonshard.base.text.json")
local output_file = require("moonshard.base.files.output_file")
local page = require("moonshard.price.page")
local planned = require("moonshard.recipe.planned")
local price = require("moonshard.price.price")
local recipe = require("moonshard.recipe.file")
local show = require("moonshard.price.show")
local status = require("moonshard.base.exit_status")
local trace = require("moonshard.price.trace")
local world = require("moonshard.distributed.world")
local refuse = status.refuse

local command = {}

local OPTIONS = {
  ["-n"] = { name = "ranks", value = "count" },
  ["--cluster"] = { name = "cluster", value = "text" },
  ["--mesh-list"] = { name = "mesh_list", value = "text", what = 'meshes separated by commas, like "1x512,64x8"' },
  ["--trace"] = { name = "trace", value = "text", what = "a file" },
  ["--page"] = { name = "page", value = "text", what = "a file" },
  ["--constants"] = { name = "constants", value = "flag" },
  ["--processes"] = { name = "processes", value = "count" },
  ["--json"] = { name = "json", value = "flag" },
}

local MESH = "mesh" -- the recipes' setting

local function read_meshes(text)
  local meshes, seen = {}, {}
  for mesh in text:gmatch("[^,%s]+") do
    if not mesh:find("^%-?%d[%dx-]*$") then
      refuse("MS_EINVAL", "--mesh-list: %s: a mesh is sizes joined by x, and commas separate meshes, like 64x8,8x64",
        mesh)
    end
    if not seen[mesh] then meshes[#meshes + 1] = mesh end
    seen[mesh] = true
  end
  if #meshes == 0 then refuse("MS_EINVAL", "--mesh-list names no mesh") end
  return meshes
end

local function check_line(line)
  for _, setting in ipairs(line.settings) do
    if setting.key == MESH and setting.text:find("^[%dx-]+,[%dx,-]+$") and not line.mesh_list then
      refuse("MS_EINVAL", "%s=%s gives one mesh: to price several, --mesh-list %s", MESH, setting.text, setting.text)
    end
  end
  if line.processes and not line.mesh_list then
    refuse("MS_EINVAL", "--processes %d: only a list of meshes is divided among processes: give --mesh-list",
      line.processes)
  end
  if not line.mesh_list then return end
  for _, name in ipairs({ "trace", "page" }) do
    if line[name] then
      refuse("MS_EINVAL", "--%s writes the %s of one mesh: give mesh=... instead of --mesh-list", name, name)
    end
  end
  for _, setting in ipairs(line.settings) do
    if setting.key == MESH then
      refuse("MS_EINVAL", "%s=%s and --mesh-list both give the mesh: give one of them", MESH, setting.text)
    end
  end
end

-- ---- one mesh ---------------------------------------------------------------------------------------------------

local function print_constants(out, cluster, as_json)
  if not as_json then return planned.print(out, cluster:explain()) end
  planned.print(out, json.encode({ cluster = cluster.name, about = cluster.about, constants = cluster.constants }))
end

local function price_one(out, line, cluster, chunk)
  for _, name in ipairs({ "trace", "page" }) do
    if line[name] then output_file.check_option("--" .. name, line[name]) end
  end
  planned.run(line.recipe, chunk, line.settings, function(compiled, trainer, batch)
    local priced = price.of(compiled, cluster, trainer, batch)
    world.check_interrupt("interrupted before anything was printed")
    if line.trace then output_file.write("trace", line.trace, trace.of(priced)) end
    if line.page then output_file.write("page", line.page, page.of(priced, line.recipe)) end
    planned.print(out, line.json and json.encode(show.detailed_record(priced)) or show.text(priced))
  end)
end

-- ---- many meshes ------------------------------------------------------------------------------------------------

-- A mesh that cannot be planned is a row; a mistake in the recipe's other settings is the same for all meshes.
local function price_mesh(line, cluster, chunk, mesh)
  local settings, record = { unpack(line.settings) }, nil
  settings[#settings + 1] = { key = MESH, text = mesh }
  world.check_interrupt()
  local ok, raised = pcall(planned.run, line.recipe, chunk, settings, function(compiled, trainer, batch)
    record = show.record(price.of(compiled, cluster, trainer, batch))
    compiled:free()
  end)
  if ok then return record end
  if errors.is_fault(raised) then error(raised, 0) end
  return { mesh = mesh, refused = tostring(raised), status = raised.status }
end

local function print_records(out, line, cluster, records)
  show.sort(records)
  planned.print(out, line.json and json.encode(records) or show.table(records, cluster))
end

local function price_many(out, line, cluster, chunk)
  local meshes, records, refused = read_meshes(line.mesh_list), {}, {}
  local ok, raised = pcall(forked.each, {
    count = #meshes, processes = line.processes,
    work = function(i) return price_mesh(line, cluster, chunk, meshes[i]) end,
    take = function(i, record)
      if record.refused then refused[#refused + 1] = record end
      records[i] = record
    end,
  })
  if not ok then
    if #records == 0 or not errors.is(raised) or raised.status ~= "MS_EINTERRUPT" then error(raised, 0) end
    raised.message = ("interrupted after %d of %d meshes; those are printed"):format(#records, #meshes)
  end
  if ok and #refused == #records then refuse(refused[1].status, "%s", refused[1].refused) end
  for _, record in ipairs(refused) do record.status = nil end
  print_records(out, line, cluster, records)
  if not ok then error(raised, 0) end
end

---@param arguments string[] without "price"
---@return integer exit status
function command.main(arguments)
  local line = command_line.parse("moonshard price", arguments, { recipe = true, optional = true, options = OPTIONS })
  check_line(line)
  local cluster = clusters.of_option("moonshard price", line.cluster)
  automatic.cluster = line.cluster
  if not line.recipe then
    if line.constants then
      print_constants(io.stdout, cluster, line.json)
      return status.OK
    end
    refuse("MS_EINVAL", "moonshard price needs a recipe: moonshard price RECIPE.lua -n RANKS --cluster %s",
      line.cluster)
  end
  if line.constants then refuse("MS_EINVAL", "--constants lists those of the cluster alone: leave out the recipe") end
  cluster:describe_world(0, line.ranks or 1)
  C.ms_interrupt_install()
  local chunk = recipe.load(line.recipe)
  local out = recipe.print_to_stderr()
  planned.intercept_exit()
  if line.mesh_list then price_many(out, line, cluster, chunk)
  else price_one(out, line, cluster, chunk) end
  return status.OK
end

return command
