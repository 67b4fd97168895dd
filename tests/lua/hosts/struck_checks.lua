-- What every run of struck_hosts.lua must come to: its status, in time, that all that survive name the first victim
-- and that no other rank is blamed, and nothing is left.

local message = require("lua.support.message")
local struck_hosts = require("lua.hosts.struck_hosts")

local struck_checks = {}

---Seconds after the deadline in which all must have ended.
struck_checks.SECONDS = 2

-- Whether the victim is a rank, or all of a host; what the command that started all hosts says, where %s is the host's
-- name and %d the rank; and the status.
local STRIKES = {
  kill_rank = { of = "rank", says = "rank %d | %s | signal 9" },
  kill_launcher = { of = "host", says = "launcher | %s | signal 9", dies = true },
  kill_host = { of = "host", says = "host %s | connection | signal 9", dies = true },
  stop_rank = { of = "rank" },
  stop_launcher = { of = "host", says = "launcher | %s | stopped | signal" },
  lose_host = { of = "host", says = "host %s | nothing | down", dies = true },
  cut_link = { of = "host" },
  lag_rank = { status = 0 },
  blink_link = { status = 0 },
  part_hosts = { says = "connection between rank | failed" },
  none = { status = 0 },
  term = { status = 143, says = "terminated" },
  term_launcher = { status = 143, says = "terminated" },
  int = { status = 130, says = "interrupted" },
}
struck_checks.STRIKES = STRIKES

local function victims(case)
  local strike, set, first = STRIKES[case.strike], {}, (case.host - 1) * case.ranks
  if strike.of == "rank" then set[first + case.rank - 1] = true end
  if strike.of == "host" then
    for rank = first, first + case.ranks - 1 do set[rank] = true end
  end
  -- Its ranks end before there is a store that could tell the others why: those only miss rank 0.
  if case.at == "start" and case.nodes and case.host == 1 then set[0] = true end
  return set
end

-- "ranks 0, 2-3" and "rank 1" name these.
local function names(text, set, host)
  if host and text:find(host, 1, true) then return true end
  for list in text:gmatch("ranks? ([%d, %-]+)") do
    for from, to in list:gmatch("(%d+)%-?(%d*)") do
      for rank = tonumber(from), tonumber(to) or tonumber(from) do
        if set[rank] then return true end
      end
    end
  end
  return false
end

-- Those that a text says to be the cause.
local BLAMES = { "rank (%d+) died", "between rank %d+ and rank (%d+) failed", "rank (%d+) has left" }

local function blames_another(text, set)
  for _, pattern in ipairs(BLAMES) do
    for rank in text:gmatch(pattern) do
      if not set[tonumber(rank)] then return rank end
    end
  end
end

local function check_words(text, set, host)
  if not names(text, set, host) then return "does not name the victim" end
  local another = blames_another(text, set)
  return another and "blames rank " .. another
end

-- If two hosts have lost each other, either can name the other.
local function is_told_apart(case) return case.strike ~= "cut_link" or case.hosts > 2 end

-- Whether this command, of several, died or has nothing left that runs.
local function is_victim(case, i)
  local dies = STRIKES[case.strike].dies or case.strike == "stop_rank" and case.ranks == 1
  return case.nodes and i == case.host and dies
end

local function check_command(case, ended, i)
  local one, strike = ended.commands[i], STRIKES[case.strike]
  if is_victim(case, i) then return nil end
  if one.hung then return "hangs" end
  if one.status ~= (strike.status or 3) then return ("status %d, not %d"):format(one.status, strike.status or 3) end
  if strike.says and not case.nodes then
    local host = ended.host .. case.host
    local says = strike.says:gsub("%%s", host):gsub("%%d", (case.host - 1) * case.ranks + (case.rank or 1) - 1)
    local lacks = message.lacks(one.err, says)
    if lacks then return ("does not say %q"):format(lacks) end
  end
  if strike.of and is_told_apart(case) and not (case.strike == "cut_link" and case.nodes and i == case.host) then
    return check_words(one.err, victims(case), ended.host .. case.host)
  end
end

-- What the ranks of other hosts raised, and those of the same host that did not die with it.
local function check_said(case, ended)
  local strike, set = STRIKES[case.strike], victims(case)
  if not strike.of or not is_told_apart(case) then return nil end
  for rank = 0, case.hosts * case.ranks - 1 do
    local said = not set[rank] and ended.said[rank]
    local wrong = said and check_words(said, set, ended.host .. case.host)
    if wrong then return ("rank %d %s: %s"):format(rank, wrong, said) end
  end
end

local function is_late(case, ended)
  for i, one in ipairs(ended.commands) do
    if not is_victim(case, i) and one.seconds > case.timeout + struck_checks.SECONDS then return true end
  end
  return false
end

local function check(case, ended)
  local told = {}
  for i, one in ipairs(ended.commands) do told[i] = ("\n      command %d: %s"):format(i, one.err) end
  for i in ipairs(ended.commands) do
    local wrong = check_command(case, ended, i)
    if wrong then return ("command %d %s%s"):format(i, wrong, table.concat(told)) end
  end
  if ended.left ~= "" then return "left " .. ended.left .. table.concat(told) end
  return check_said(case, ended)
end

---Runs a case. On a loaded machine one that ends late is run again: the best of a few counts.
---@param case StruckCase
---@return string? wrong
function struck_checks.run(case)
  local wrong, late
  for _ = 1, 3 do
    struck_hosts.run(case, function(ended) wrong, late = check(case, ended), is_late(case, ended) end)
    if wrong or not late then return wrong end
  end
  return ("later than %g s"):format(case.timeout + struck_checks.SECONDS)
end

return struck_checks
