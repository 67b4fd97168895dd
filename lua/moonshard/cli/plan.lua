-- moonshard plan: compiles the step for one rank of any world, without devices or other ranks, and prints the plan.
-- moonshard explain shares this path with a different `render`.

local automatic = require("moonshard.shard.policies.automatic")
local command_line = require("moonshard.cli.options.command_line")
local C = require("moonshard.base.ffi").C
local planned = require("moonshard.recipe.planned")
local recipe = require("moonshard.recipe.file")
local status = require("moonshard.base.exit_status")
local world = require("moonshard.distributed.world")
local refuse = status.refuse

local plan = {}

local OPTIONS = {
  ["-n"] = { name = "ranks", value = "count" },
  ["--rank"] = { name = "rank", value = "index" },
  ["--ranks-per-node"] = { name = "ranks_per_node", value = "count" },
  ["--json"] = { name = "json", value = "flag" },
  ["--device"] = { name = "device", value = "text", what = "cpu or cuda" },
  ["--cluster"] = { name = "cluster", value = "text", what = "a description" },
}

-- A description says what the devices are and how many ranks a node has, and for which "auto" decides.
local function describe_cluster(line, rank, ranks)
  if line.device or line.ranks_per_node then
    refuse("MS_EINVAL", "--cluster %s and %s: the description has both the device and the ranks of a node: give one "
      .. "of the options", line.cluster, line.device and "--device" or "--ranks-per-node")
  end
  line.described = require("moonshard.price.cluster").load(line.cluster)
  automatic.cluster = line.cluster
  line.described:describe_world(rank, ranks)
end

---Runs a recipe up to the plan of its first step, and prints the text that `render` returns.
---@param command string for messages: "moonshard plan"
---@param arguments string[]
---@param options table<string, moonshard.OptionRow> in addition to -n, --rank and --json
---@param render fun(plan: moonshard.Plan, line: table, trainer: moonshard.Trainer, batch: table): string line: the
---  parsed command line
---@return integer exit status
function plan.of_recipe(command, arguments, options, render)
  local rows = {}
  for _, list in ipairs({ OPTIONS, options }) do
    for option, row in pairs(list) do rows[option] = row end
  end
  local line = command_line.parse(command, arguments, { recipe = true, options = rows })
  local ranks, rank = line.ranks or 1, line.rank or 0
  if line.roofline and not line.cluster then
    refuse("MS_EINVAL", "--roofline needs the rates of a device: give --cluster, like --cluster h100x8")
  end
  if rank >= ranks then
    refuse("MS_EINVAL", "--rank %d: the ranks of -n %d are 0 to %d", rank, ranks, ranks - 1)
  end
  if line.cluster then
    describe_cluster(line, rank, ranks)
    require("moonshard.distributed.device").apply_options({ sm_carveout = line.sm_carveout })
  else
    world.describe(rank, ranks, line.ranks_per_node)
    require("moonshard.distributed.device").apply_options(line)
  end
  C.ms_interrupt_install()
  local out = recipe.print_to_stderr()
  planned.intercept_exit()
  planned.run(line.recipe, recipe.load(line.recipe), line.settings, function(compiled, trainer, batch)
    local text = render(compiled, line, trainer, batch)
    world.check_interrupt("interrupted before anything was printed")
    planned.print(out, text)
  end)
  return status.OK
end

-- A plan without its instructions: its head; in JSON also its communication.
local function summary_of(compiled, as_json)
  if not as_json then return (compiled:text():match("^(.-\n)phase ")) end
  local head = compiled:json():match('^(.-),"phases":%[')
  return ('%s,"comm_bytes":%s}'):format(head, require("moonshard.base.text.json").encode(compiled:summary().comm_bytes))
end

local COUNTED = { "nodes", "instructions", "events", "buffers" }

-- "instructions 208 -> 250, events 0 -> 21"
local function changes_of(pass)
  local changes, size = {}, require("moonshard.base.text.progress").size
  for _, what in ipairs(COUNTED) do
    local before, after = pass.before[what], pass.after[what]
    if before ~= after then changes[#changes + 1] = ("%s %d -> %d"):format(what, before, after) end
  end
  if pass.before.bytes ~= pass.after.bytes then
    changes[#changes + 1] = ("bytes %s -> %s"):format(size(pass.before.bytes), size(pass.after.bytes))
  end
  if pass.cached then return "kept from an earlier plan" end
  return #changes > 0 and table.concat(changes, ", ") or "no change"
end

-- The head of a plan, and the compiler passes.
local function passes_of(compiled, as_json)
  local passes = compiled:passes()
  if as_json then
    return ('%s,"passes":%s}'):format(summary_of(compiled, true):match("^(.*)}$"),
      require("moonshard.base.text.json").encode(passes))
  end
  local lines = { summary_of(compiled, false) .. ("passes: %.2f ms"):format(compiled:summary().compile_ms) }
  for _, pass in ipairs(passes) do
    lines[#lines + 1] = ("  %-16s %8.3f ms   %s"):format(pass.name, pass.ms, changes_of(pass))
  end
  return table.concat(lines, "\n") .. "\n"
end

-- The plan, with the copy that a trainer makes for asynchronous saves in addition to the arenas.
local function whole_plan(compiled, line, trainer)
  local bytes = require("moonshard.checkpoint.policy").snapshot_bytes(trainer, trainer.checkpoint, compiled)
  if line.json then
    if bytes == 0 then return compiled:json() end
    return ('%s,"snapshot_bytes":%.0f}'):format(compiled:json():match("^(.*)}%s*$"), bytes)
  elseif bytes == 0 then
    return compiled:text()
  end
  return ("%sbeside the arenas: %s for the copy of a save in the background\n"):format(compiled:text(),
    require("moonshard.base.text.progress").size(bytes))
end

-- What kernels would take at the described rates. Another text than the plan's, so not together with its other forms.
local function roofline_of(compiled, line, trainer, batch)
  local roofline = require("moonshard.price.roofline")
  local found = roofline.of(require("moonshard.price.price").of(compiled, line.described, trainer, batch))
  return line.json and require("moonshard.base.text.json").encode(roofline.record(found)) or roofline.text(found)
end

-- What is in use over the instructions of a step. Another text than the plan's, too.
local function memory_of(compiled, as_json)
  if as_json then return require("moonshard.base.text.json").encode(compiled:memory_in_use()) end
  return require("moonshard.price.memory_curve").text(compiled)
end

-- Adds notes at the end of the head, if another mesh would send less between nodes.
local function print_plan(compiled, line, trainer, batch)
  if line.roofline then return roofline_of(compiled, line, trainer, batch) end
  if line.memory then return memory_of(compiled, line.json) end
  if line.passes then return passes_of(compiled, line.json) end
  local text = line.summary and summary_of(compiled, line.json) or whole_plan(compiled, line, trainer)
  local better_mesh = require("moonshard.explain.better_mesh")
  local better = better_mesh.of(compiled, trainer, batch)
  local tensor = better_mesh.tensor_across_nodes(compiled, trainer.session.sharding)
  if line.json then
    local notes = require("moonshard.base.text.json").encode({ better_mesh = better, tensor_across_nodes = tensor })
    return (better or tensor) and ("%s,%s"):format(text:match("^(.*)}%s*$"), notes:sub(2)) or text
  end
  local head = text:match("^(.-\n)phase ") or text
  local notes = (better and "  " .. better_mesh.text(better) .. "\n" or "")
    .. (tensor and "  " .. better_mesh.text_of_tensor(tensor) .. "\n" or "")
  return head .. notes .. text:sub(#head + 1)
end

---@param arguments string[] without "plan"
---@return integer exit status
function plan.main(arguments)
  local options = {
    ["--summary"] = { name = "summary", value = "flag" }, ["--passes"] = { name = "passes", value = "flag" },
    ["--memory"] = { name = "memory", value = "flag" },
    ["--roofline"] = { name = "roofline", value = "flag" },
    ["--sm-carveout"] = { name = "sm_carveout", value = "index" },
  }
  return plan.of_recipe("moonshard plan", arguments, options, print_plan)
end

return plan
