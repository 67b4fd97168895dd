-- ms.scaling: prices one recipe from few nodes to many, in several shapes of mesh, and reports which shape wins where,
-- as text, JSON and a page with charts. Works under `moonshard sweep FILE`; nothing runs but the compiler.

local cluster = require("moonshard.price.cluster")
local collect = require("moonshard.scaling.collect")
local errors = require("moonshard.base.error")
local forked = require("moonshard.price.forked")
local options = require("moonshard.base.checks.options")
local output_file = require("moonshard.base.files.output_file")
local recipe = require("moonshard.recipe.file")
local report = require("moonshard.scaling.report")
local shapes = require("moonshard.scaling.shapes")
local sweep = require("moonshard.sweep")

local scaling = {}

---@class moonshard.ScalingOptions
---@field recipe string path, relative to the sweep's file or to the working directory; it takes the mesh as setting
---@field cluster string a description's name or path
---@field nodes integer[] ascending
---@field shapes string[]? default: fsdp, hsdp, hsdp:2
---@field settings table<string, any>? of every point; a number `batch` is multiplied by a shape's tensor ranks, which
---  share samples: all shapes have the same tokens per rank
---@field models table<string, any[]>? one setting and its values: rows of the heat map
---@field tradeoffs table<string, any[]>? settings and their values: memory against time, on the most nodes
---@field out string? folder; default build/scaling
---@field title string?

local SPECS = {
  recipe = { "string", required = true }, cluster = { "string", required = true }, nodes = { "table", required = true },
  shapes = { "table", default = { "fsdp", "hsdp", "hsdp:2" } }, settings = { "table", default = {} },
  models = { "table" }, tradeoffs = { "table" }, out = { "string", default = "build/scaling" }, title = { "string" },
}

local function check_nodes(nodes)
  local before = 0
  for _, n in ipairs(nodes) do
    if type(n) ~= "number" or n % 1 ~= 0 or n < 1 then
      errors.invalid("ms.scaling: nodes must be ascending integers from 1, and one is %s", options.describe(n))
    end
    if n <= before then errors.invalid("ms.scaling: nodes must be ascending, and %d comes after %d", n, before) end
    before = n
  end
  if before == 0 then errors.invalid("ms.scaling: nodes names no number of nodes") end
end

-- Every combination of the values of some settings.
local function combinations(over)
  local keys, list = {}, { {} }
  for key in pairs(over) do keys[#keys + 1] = key end
  table.sort(keys)
  for _, key in ipairs(keys) do
    local longer = {}
    for _, one in ipairs(list) do
      for _, value in ipairs(over[key]) do
        local copy = { [key] = value }
        for k, v in pairs(one) do copy[k] = v end
        longer[#longer + 1] = copy
      end
    end
    list = longer
  end
  return list
end

-- Fills a list of records, in order; what is there stays if Ctrl-C ends it.
local function fill(records, job, nodes, varied)
  local list = {}
  for _, shape in ipairs(job.shapes) do
    for _, n in ipairs(nodes) do
      local mesh = shapes.mesh(shape, n, job.cluster.ranks_per_node)
      for _, settings in ipairs(mesh and varied or {}) do
        list[#list + 1] = { shape = shape, nodes = n, mesh = mesh, settings = settings }
      end
    end
  end
  forked.each {
    count = #list, work = function(i) return collect.point(job, list[i]) end,
    take = function(i, record) records[i] = record end,
  }
end

local function points(job, nodes, varied)
  local records = {}
  fill(records, job, nodes, varied)
  return records
end

local function heat_of(job, models, nodes)
  local setting, values = next(models)
  if not setting or next(models, setting) then
    errors.invalid("ms.scaling: models must be one setting and its values, like { size = { \"1B\", \"8B\" } }")
  end
  return { setting = setting, values = values, records = points(job, nodes, combinations(models)) }
end

local function job_of(o)
  local path = sweep.find_recipe(o.recipe)
  local job = { path = path, chunk = recipe.load(path), cluster = cluster.load(o.cluster), settings = o.settings,
    shapes = shapes.distinct(o.shapes) }
  if not job.cluster.has_network and o.nodes[#o.nodes] > 1 then
    errors.invalid("ms.scaling: cluster %s has no network between nodes: describe one, or give nodes = { 1 }",
      job.cluster.name)
  end
  return job
end

-- Options of the command that would change what a sweep of runs does.
local function check_command()
  if not sweep.mode.file then errors.invalid("ms.scaling works under `moonshard sweep FILE.lua`") end
  for _, name in ipairs({ "plan", "price", "run", "resume", "ranks_per_node", "hosts", "json" }) do
    if sweep.mode[name] then
      errors.invalid("ms.scaling prices on its own cluster and runs nothing: leave out --%s%s", name:gsub("_", "-"),
        name == "price" and ", and give the cluster in the file" or "")
    end
  end
end

-- Refuses a study without a point to show, for the reason of its first one.
local function check_planned(self)
  for _, record in ipairs(self.curve) do
    if not record.refused then return end
  end
  local first = self.curve[1]
  if first then errors.invalid("ms.scaling: no mesh has a plan; the first, %s: %s", first.mesh, first.refused) end
  errors.invalid("ms.scaling: none of the shapes has a mesh on %s node%s of %d ranks: hsdp:K takes 2 K, 3 K, ... "
    .. "nodes, and the T of tensor:T divides the ranks of a node", table.concat(self.nodes, ", "),
    #self.nodes == 1 and self.nodes[1] == 1 and "" or "s", self.cluster.ranks_per_node)
end

local function collect_all(self, job, o)
  fill(self.curve, job, o.nodes, { {} })
  check_planned(self)
  self.answered = true
  self.models = o.models and heat_of(job, o.models, o.nodes)
  self.tradeoffs = o.tradeoffs and { records = points(job, { o.nodes[#o.nodes] }, combinations(o.tradeoffs)) }
end

-- After Ctrl-C: prints the prices that there are, and completes the error.
local function print_partial(self, raised)
  if #self.curve == 0 or not errors.is(raised) or raised.status ~= "MS_EINTERRUPT" then return end
  output_file.print(self.answered and report.text(self) or report.curve(self))
  raised.message = self.answered and "interrupted before the page was written; the table is printed"
    or ("interrupted after %d plans; those are printed, and stars are of them alone"):format(#self.curve)
end

---Prices one recipe from few nodes to many, in several shapes of mesh.
---@param o moonshard.ScalingOptions
---@return moonshard.Scaling
function scaling.run(o)
  o = options.parse("ms.scaling", o, SPECS)
  check_command()
  check_nodes(o.nodes)
  local job = job_of(o)
  local self = { title = o.title or ("scaling of " .. o.recipe), cluster = job.cluster, settings = o.settings,
    shapes = {}, nodes = o.nodes, curve = {} }
  for i, shape in ipairs(job.shapes) do self.shapes[i] = shape.name end
  output_file.check("page", o.out .. "/index.html")
  local ok, raised = pcall(collect_all, self, job, o)
  if not ok then
    print_partial(self, raised)
    error(raised, 0)
  end
  sweep.ran = sweep.ran + 1
  output_file.write("page", o.out .. "/index.html", require("moonshard.scaling.page").of(self))
  output_file.write("results", o.out .. "/results.json", require("moonshard.base.text.json").encode(
    { curve = self.curve, models = self.models, tradeoffs = self.tradeoffs }) .. "\n")
  output_file.print(report.text(self), ("\n%s/index.html has the charts\n"):format(o.out))
  return self
end

return scaling
