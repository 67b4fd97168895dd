-- moonshard sweep: runs a Lua file that calls ms.sweep. Like a recipe, the file takes its own settings as key=value.
-- With --compare it compares two finished sweeps and runs nothing.

local command_line = require("moonshard.cli.options.command_line")
local compare = require("moonshard.sweep.compare")
local compare_page = require("moonshard.sweep.page.compare_page")
local engine = require("moonshard.base.ffi")
local errors = require("moonshard.base.error")
local input_file = require("moonshard.base.files.input_file")
local output_file = require("moonshard.base.files.output_file")
local recipe = require("moonshard.recipe.file")
local status = require("moonshard.base.exit_status")
local sweep = require("moonshard.sweep")
local sweep_hosts = require("moonshard.cli.hosts.sweep_hosts")

local command = {}

local OPTIONS = {
  ["--resume"] = { name = "resume", value = "flag" },
  ["--json"] = { name = "json", value = "flag" },
  ["--plan"] = { name = "plan", value = "flag" },
  ["--price"] = { name = "price", value = "text", what = "a cluster" },
  ["--run"] = { name = "run", value = "flag" },
  ["--ranks-per-node"] = { name = "ranks_per_node", value = "count" },
}
for option, row in pairs(sweep_hosts.OPTIONS) do OPTIONS[option] = row end

local COMPARE_OPTIONS = {
  ["--compare"] = { name = "compare", value = "flag" },
  ["--json"] = { name = "json", value = "flag" },
  ["--out"] = { name = "out", value = "text", what = "a folder" },
}

local function asks_to_compare(arguments)
  for _, argument in ipairs(arguments) do
    if argument:match("^%-%-compare") then return true end
  end
  return false
end

local function compare_two(arguments)
  local line = command_line.parse("moonshard sweep --compare", arguments, { files = true, options = COMPARE_OPTIONS })
  if #line.files ~= 2 then
    status.refuse("MS_EINVAL", "moonshard sweep --compare takes two sweeps, not %d: moonshard sweep --compare OLD NEW",
      #line.files)
  end
  if line.out then output_file.check_option("--out", line.out, true) end
  local compared = compare.read(line.files[1], line.files[2])
  local page = line.out and line.out:gsub("/+$", "") .. "/compare.html"
  if page then output_file.write("sweep", page, compare_page.page(compared)) end
  output_file.print(line.json and compare.json(compared) or compare.text(compared), "\n")
  if page and not line.json then output_file.print("\nwritten: ", page, "\n") end
  return status.OK
end

-- Without this check a recipe given by mistake would train to its end before the error. A file that runs other files
-- passes, because those can call ms.sweep.
local function check_it_sweeps(path)
  local source = assert(input_file.text(path))
  local rest = source:gsub("require%s*%(?%s*[\"']moonshard[\"']", "")
  for _, word in ipairs({ "sweep", "scaling", "find_lr", "require", "dofile", "load" }) do
    if rest:find(word, 1, true) then return end
  end
  status.refuse("MS_EINVAL", "%s calls none of ms.sweep, ms.find_lr and ms.scaling; to train by a recipe: moonshard "
    .. "run %s", path, path)
end

---@param arguments string[] without "sweep"
---@return integer exit status
function command.main(arguments)
  if asks_to_compare(arguments) then return compare_two(arguments) end
  local line = command_line.parse("moonshard sweep", arguments, {
    recipe = true, usage = "SWEEP.lua", options = OPTIONS,
  })
  if line.run and not line.price then
    status.refuse("MS_EINVAL", "--run goes with --price: points are then priced and run")
  end
  sweep.mode = { file = line.recipe, resume = line.resume or false, json = line.json or false,
    price = line.price, run = line.run or false,
    plan = line.plan or false, ranks_per_node = line.ranks_per_node, hosts = sweep_hosts.read(line) }
  local chunk = recipe.load(line.recipe)
  check_it_sweeps(line.recipe)
  engine.C.ms_interrupt_install()
  local ok, raised = xpcall(function() recipe.run(line.recipe, chunk, line.settings) end, errors.locate)
  if not ok then error(raised, 0) end
  if sweep.ran == 0 then
    status.refuse("MS_EINVAL", "%s: the file ended without calling ms.sweep, ms.find_lr or ms.scaling", line.recipe)
  end
  return sweep.failed and status.FAILED_RUN or status.OK
end

return command
