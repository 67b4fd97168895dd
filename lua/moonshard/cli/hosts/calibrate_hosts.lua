-- The hosts of `moonshard calibrate --hosts`: checks them before anything is measured, and gives the command that
-- starts ranks over them.

local calibration_between = require("moonshard.calibrate.between")
local hosts = require("moonshard.cli.hosts.hosts")
local nodes = require("moonshard.cli.options.nodes")
local refuse = require("moonshard.base.exit_status").refuse
local MAX_RANKS = tonumber(require("moonshard.base.ffi").C.MS_MAX_LOCAL_RANKS)

local calibrate_hosts = { OPTIONS = { ["--timeout"] = { name = "timeout", value = "seconds" } } }
for option, row in pairs(hosts.OPTIONS) do calibrate_hosts.OPTIONS[option] = row end
for _, option in ipairs({ "--rendezvous", "--transport" }) do
  calibrate_hosts.OPTIONS[option] = nodes.OPTIONS[option]
end

---@class moonshard.CalibrationHosts
---@field list moonshard.HostEntry[]
---@field world integer ranks of all hosts
---@field ranks integer the most ranks of a host
---@field words string[] options that choose and reach them

-- The options of calibrate_hosts.OPTIONS that were given, with their values.
local function given_words(line)
  local words = {}
  for _, given in ipairs(line.words) do
    if calibrate_hosts.OPTIONS[given.option] then
      for _, word in ipairs(given) do words[#words + 1] = word end
    end
  end
  return words
end

---Refuses options that need --hosts without it, and --hosts where links are not measured.
---@param line moonshard.CommandLine
function calibrate_hosts.check(line)
  hosts.check_options(line)
  for option, row in pairs(calibrate_hosts.OPTIONS) do
    if line[row.name] and not line.hosts then refuse("MS_EINVAL", "%s needs --hosts", option) end
  end
  if line.hosts and line.device ~= "cpu" then
    refuse("MS_EINVAL", "--hosts with --device %s: links between hosts are measured for ranks on CPUs only: omit "
      .. "--hosts, and add the network to a description that extends the written one", line.device)
  end
  nodes.choose_transport(line)
end

---Reads the hosts. Raises if they are fewer than two.
---@param line moonshard.CommandLine
---@param units integer cores of this machine: ranks of a host if no number is given
---@return moonshard.CalibrationHosts? nil without --hosts
function calibrate_hosts.read(line, units)
  if not line.hosts then return nil end
  local list, world, lacks_numbers = hosts.read(line.hosts, line.ranks)
  local words = given_words(line)
  if lacks_numbers then
    local ranks = line.ranks or units
    list, world = hosts.read(line.hosts, ranks)
    words[#words + 1] = "-n"
    words[#words + 1] = tostring(ranks)
  end
  if #list < 2 then
    refuse("MS_EINVAL", "--hosts %s: the links between hosts need two of them or more, like a:4,b:4: without --hosts, "
      .. "calibrate measures this one", line.hosts)
  end
  local most = 0
  for _, host in ipairs(list) do most = math.max(most, host.ranks) end
  if most > MAX_RANKS then
    refuse("MS_EINVAL", "--hosts %s: a node can have at most %d ranks, not %d", line.hosts, MAX_RANKS, most)
  end
  return { list = list, world = world, ranks = most, words = words }
end

---The command line of the ranks that measure the links. One thread for each: others that wait busily would count as
---processor time of the links.
---@param given moonshard.CalibrationHosts
---@param rounds integer
---@param quick boolean?
---@return string[]
function calibrate_hosts.words(given, rounds, quick)
  local words = { "calibrate_ranks", "--between", "--rounds", tostring(rounds), "--env", "OMP_NUM_THREADS=1" }
  if quick then words[#words + 1] = "--quick" end
  for _, word in ipairs(given.words) do words[#words + 1] = word end
  return words
end

---How many records they print at most.
---@param rounds integer
---@param quick boolean?
---@return integer
function calibrate_hosts.records(rounds, quick) return rounds * calibration_between.layers(quick) end

return calibrate_hosts
