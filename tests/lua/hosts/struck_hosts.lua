-- A training run over several hosts that is struck while it runs, and what came of it: when it ended, what every
-- survivor said, and what was left. See soak/strike_hosts.sh.

local launched = require("lua.support.launched")
local leftovers = require("lua.support.leftovers")

local struck_hosts = {}

---@class StruckCase
---@field hosts integer
---@field ranks integer of each host
---@field mesh string
---@field nodes boolean? one `run --nodes` on each host, instead of one `run --hosts` for all
---@field at "start"|"begun"|"saving" struck after its start, after its first step, or when a save begins
---@field delay number and so many seconds later
---@field strike string a name in strike_hosts.sh
---@field host integer? the victim's, from 1
---@field rank integer? of that host, from 1
---@field timeout number
---@field words string? further words of the command

---@class StruckEnded
---@field commands { status: integer, err: string, seconds: number, hung: boolean }[] seconds: since the strike
---@field said table<integer, string> what ranks that failed raised, by rank
---@field metrics string? the file
---@field host string the prefix of the hosts' names, which end with their numbers
---@field left string what is left: empty is right
---@field folder string

---Why there can be no such hosts here; nil where there can.
---@return string?
function struck_hosts.why_not()
  if not launched.can("command -v ip") then return "iproute2 is not installed" end
  local name = ("mst%d"):format(launched.find_port())
  if not launched.can("ip netns add " .. name) then return "namespaces need root" end
  os.execute("ip netns del " .. name)
end

local function read(path)
  local file = io.open(path, "rb")
  if not file then return nil end
  local text = file:read("*a")
  file:close()
  return text
end

local function read_commands(case, folder)
  local commands = {}
  for i = 1, case.nodes and case.hosts or 1 do
    local function of(name) return read(("%s/%s.%d"):format(folder, name, i - 1)) end
    commands[i] = {
      status = tonumber(of("status") or "-1"), err = of("err") or "", hung = of("hung") ~= nil,
      seconds = tonumber(of("microseconds") or "0") / 1e6,
    }
  end
  return commands
end

local function read_said(case, folder)
  local said = {}
  for rank = 0, case.hosts * case.ranks - 1 do said[rank] = read(("%s/said.%d"):format(folder, rank)) end
  return said
end

local made = 0

---Runs a case and calls check with what it came to, whose folder is there for so long.
---@param case StruckCase
---@param check fun(ended: StruckEnded): any
---@return any of check
function struck_hosts.run(case, check)
  made = made + 1
  local folder = os.tmpname()
  os.remove(folder)
  assert(os.execute(("mkdir -p %s/tmp"):format(folder)) == 0)
  local mark = ("struck-%s-%d"):format(folder:match("[^/]*$"), made)
  local host = "ms" .. folder:match("[^/]*$"):gsub("%W", ""):sub(-8)
  local words = ("--timeout %g mesh=%s said=%s %s"):format(case.timeout, case.mesh, folder, case.words or "")
  os.execute(("D=%s P=%s MARK=%s HOSTS=%d RANKS=%d VICTIM_HOST=%d VICTIM=%d NODES=%d AT=%s DELAY=%.3f STRIKE=%s "
    .. "LIMIT=%d WORDS='%s' bash tests/soak/strike_hosts.sh 2>%s/bash"):format(folder, host, mark, case.hosts,
    case.ranks, case.host or 1, case.rank or 1, case.nodes and 1 or 0, case.at, case.delay, case.strike,
    case.timeout + 40, words, folder))
  local ended = {
    commands = read_commands(case, folder), said = read_said(case, folder), host = host, folder = folder,
    left = leftovers.of("MOONSHARD_JOB_ID=" .. mark, folder .. "/tmp"),
  }
  for h = 1, case.hosts do os.execute(("ip netns del %s%d 2>/dev/null"):format(host, h)) end
  os.execute(("ip netns del %ss 2>/dev/null"):format(host))
  local ok, result = pcall(check, ended)
  os.execute("rm -rf " .. folder)
  if not ok then error(result, 0) end
  return result
end

return struck_hosts
