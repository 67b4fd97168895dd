-- moonshard check: compares a recipe on many ranks with the same recipe on one rank.

local check = require("moonshard.check")
local command_line = require("moonshard.cli.options.command_line")
local engine = require("moonshard.base.ffi")
local hosts = require("moonshard.cli.hosts.hosts")
local json = require("moonshard.base.text.json")
local nodes = require("moonshard.cli.options.nodes")
local recipe = require("moonshard.recipe.file")
local run = require("moonshard.cli.run")
local status = require("moonshard.base.exit_status")
local report = require("moonshard.check.report")
local ffi, refuse = engine.ffi, status.refuse

ffi.cdef [[
int open(const char *path, int flags, ...);
int dup2(int from, int to);
]]

local command = {}

local OPTIONS = {
  ["-n"] = { name = "ranks", value = "count" },
  ["--steps"] = { name = "steps", value = "count" },
  ["--rtol"] = { name = "rtol", value = "number" },
  ["--json"] = { name = "json", value = "flag" },
  ["--timeout"] = { name = "timeout", value = "seconds" },
}
for option, row in pairs(nodes.OPTIONS) do OPTIONS[option] = row end
for option, row in pairs(hosts.OPTIONS) do OPTIONS[option] = row end

local STEPS = 5
local O_WRONLY = 1 -- Linux

-- The recipe's prints are not part of the verdict; the launcher reports its errors.
local function silence()
  local nowhere = ffi.C.open("/dev/null", O_WRONLY)
  if nowhere >= 0 then ffi.C.dup2(nowhere, 1) end
end

local function launcher(line, chunk)
  return function(one, body)
    local ended, why = require("moonshard.host").launch {
      ranks = not one and line.ranks or 1, nodes = not one and line.nodes or nil,
      node_rank = not one and line.node_rank or nil, rendezvous = not one and line.rendezvous or nil,
      main = function()
        silence()
        return run.rank_main(line, function() body(chunk) end)
      end,
    }
    if not ended then refuse("MS_EINVAL", "%s", why) end
    return ended
  end
end

local function plural(count, what)
  return ("%d %s%s"):format(count, what, count == 1 and "" or "s")
end

local WORST = { { "loss", "losses" }, { "grad_norm", "gradient norms" }, { "parameter", "parameters" } }

local function print_text(found, of_ranks, line)
  local trainer = of_ranks.trainers[1]
  io.write(("%s: mesh %s compared with one rank, %s, the same global batches\n"):format(line.recipe, trainer.mesh,
    plural(found.steps, "step")))
  for _, row in ipairs(WORST) do
    local worst = found.worst[row[1]]
    if worst then
      io.write(("  %-15s %s, largest difference %.2g%s (%.9g and %.9g)\n"):format(row[2],
        worst.excess <= 1 and "equal" or "DIFFER", worst.difference, worst.name and " in " .. worst.name or "",
        worst.ranks, worst.one))
    end
  end
  if found.same then
    io.write(("equal within tolerance: %s, %s; counts, bytes and memory are the plan's\n"):format(plural(found.steps,
      "step"), plural(found.tensors, "parameter")))
    return
  end
  local more = 0
  for _, finding in ipairs(found.findings) do
    if finding.what ~= "parameter" then
      io.write(report.text(finding), "\n")
    elseif finding.name ~= found.first_parameter.name then
      more = more + 1
    end
  end
  if found.first_parameter then io.write(report.text(found.first_parameter), "\n") end
  if more > 0 then io.write(("%s more differ%s\n"):format(plural(more, "parameter"), more == 1 and "s" or "")) end
end

local function print_json(found, of_ranks)
  local trainer = of_ranks.trainers[1]
  io.write(json.encode({
    same = found.same, steps = found.steps, mesh = trainer.mesh, findings = found.findings, worst = found.worst,
    first_parameter = found.first_parameter,
  }), "\n")
end

---@param arguments string[] without "check"
---@return integer exit status
function command.main(arguments)
  local line = command_line.parse("moonshard check", arguments, { recipe = true, options = OPTIONS })
  nodes.check_timeout()
  nodes.choose_transport(line)
  hosts.check_options(line)
  if line.hosts then return hosts.launch(line) end
  if nodes.joins(line) then
    refuse("MS_EINVAL", "moonshard check starts its ranks itself, but this process is one that another launcher "
      .. "started: run it alone, or with --hosts")
  end
  local chunk = recipe.load(line.recipe)
  run.preload()
  local ended, found, of_ranks = check.run {
    ranks = line.ranks or 1, node = line.node_rank or 0, nodes = line.nodes or 1, steps = line.steps or STEPS,
    rtol = line.rtol, launch = launcher(line, chunk),
  }
  if ended ~= status.OK or not found then return ended end
  if found.steps == 0 then
    refuse("MS_EINVAL", "%s: ended without a training step, so there is nothing to compare", line.recipe)
  end
  if line.json then print_json(found, of_ranks) else print_text(found, of_ranks, line) end
  return found.same and status.OK or status.FAILED_RUN
end

return command
