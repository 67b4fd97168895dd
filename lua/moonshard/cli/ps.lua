-- moonshard ps: lists the runs of this host and what each of their ranks does.

local command_line = require("moonshard.cli.options.command_line")
local hosts = require("moonshard.cli.hosts.hosts")
local json = require("moonshard.base.text.json")
local progress = require("moonshard.base.text.progress")
local status = require("moonshard.base.exit_status")
local text_lines = require("moonshard.base.text.text_lines")

local ps = {}

local OPTIONS = { ["--json"] = { name = "json", value = "flag" } }
for option, row in pairs(hosts.REACH) do OPTIONS[option] = row end

local FORMAT = "  %5s %8s %8s %11s  %-14s %-24s %9s  %s"

local function duration(seconds)
  if not seconds then return "" end
  if seconds < 1 then return ("%.1f ms"):format(1e3 * seconds) end
  if seconds < 60 then return ("%.1f s"):format(seconds) end
  return progress.duration(seconds)
end

-- What ranks of a session do between lines (repl/session.lua): no step, and what they wait for is a person.
local function is_at_prompt(rank) return rank.doing == "at the prompt" end

local function where(rank)
  if is_at_prompt(rank) then return rank.doing end
  if rank.state == "absent" then return "not joined" end
  if rank.state == "left" then return "left" end
  return rank.activity or rank.doing or "Lua"
end

-- The label of a wait is a unit ("layers.1") or a purpose ("of the learning rate"), which contains a space.
local function is_purpose(label) return label ~= nil and label:find(" ", 1, true) ~= nil end

-- "all_gather for ranks 1, 3", "all_gather_bytes of the learning rate for rank 1"
local function waiting(rank)
  local waits = rank.waits
  if not waits or is_at_prompt(rank) then return "" end
  return ("%s%s for rank%s %s"):format(waits.kind, is_purpose(waits.unit) and " " .. waits.unit or "",
    #waits.ranks == 1 and "" or "s", table.concat(waits.ranks, ", "))
end

local function unit_of(rank)
  if is_at_prompt(rank) then return "" end
  if rank.waits then return is_purpose(rank.waits.unit) and "" or rank.waits.unit or "" end
  return rank.activity and rank.unit or ""
end

-- Command lines and names of units are texts of other users.
local function print_line(text) io.write(text_lines.trim_end(text_lines.escape(text)), "\n") end

local function print_run(run)
  print_line(("run %d  %s  %s"):format(run.pid, duration(run.seconds), run.command or ""))
  if run.unreadable then
    print_line("  started by a different build of moonshard, or not by moonshard: " .. run.unreadable)
    return
  end
  print_line(FORMAT:format("rank", "pid", "step", "tokens/s", "activity", "unit", "elapsed", "waiting in"))
  for _, rank in ipairs(run.ranks) do
    local rate = is_at_prompt(rank) and "" or ("%.0f"):format(rank.tokens_per_s)
    print_line(FORMAT:format(rank.rank, rank.pid, rank.step, rate, where(rank),
      unit_of(rank), duration(rank.waits and rank.waits.seconds or rank.seconds), waiting(rank)))
  end
end

local function print_runs(runs)
  if #runs == 0 then io.write("no runs\n") end
  for _, run in ipairs(runs) do print_run(run) end
end

-- Hosts that did not answer do not hide the runs of the others.
local function of_hosts(line)
  local list, ended = hosts.runs(line), status.OK
  local texts = {}
  for i, one in ipairs(list) do
    if one.why then
      ended = status.FAILED_RUN
      io.stderr:write(("moonshard: host %s: %s\n"):format(one.name, one.why))
    end
    if line.json then
      texts[i] = json.encode({ host = one.name, runs = one.runs, why = one.why })
    elseif one.runs then
      io.write("host ", one.name, "\n")
      print_runs(one.runs)
    end
  end
  if line.json then io.write("[", table.concat(texts, ","), "]\n") end
  return ended
end

---@param arguments string[] without "ps"
---@return integer exit status
function ps.main(arguments)
  local line = command_line.parse("moonshard ps", arguments, { options = OPTIONS })
  hosts.check_options(line)
  if line.hosts then return of_hosts(line) end
  local runs = require("moonshard.host").runs()
  table.sort(runs, function(a, b) return a.pid < b.pid end)
  if line.json then
    local texts = {}
    for i, run in ipairs(runs) do texts[i] = json.encode(run) end
    io.write("[", table.concat(texts, ","), "]\n")
    return status.OK
  end
  print_runs(runs)
  return status.OK
end

return ps
