-- A sweep over several hosts: which of them each point runs on, as words of the command line.
--
-- A point's ranks fill the hosts in their order, so a point of fewer ranks than there are takes the first hosts.

local hosts = require("moonshard.cli.hosts.hosts")
local status = require("moonshard.base.exit_status")

---@class moonshard.SweepHosts
---@field text string as in --hosts
---@field list moonshard.HostEntry[]
---@field ranks integer of all hosts
---@field words string[] options of `moonshard run` that every point has
local SweepHosts = {}
SweepHosts.__index = SweepHosts

local sweep_hosts = { OPTIONS = { ["--rendezvous"] = { name = "rendezvous", value = "text" } } }
for option, row in pairs(hosts.OPTIONS) do sweep_hosts.OPTIONS[option] = row end

---Reads the options of `moonshard sweep`.
---@param line moonshard.CommandLine with sweep_hosts.OPTIONS
---@return moonshard.SweepHosts? nil without --hosts
function sweep_hosts.read(line)
  hosts.check_options(line)
  if line.rendezvous and not line.hosts then status.refuse("MS_EINVAL", "--rendezvous needs --hosts") end
  if not line.hosts then return nil end
  if line.plan then
    status.refuse("MS_EINVAL", "--plan runs nothing, so it takes no --hosts: give --ranks-per-node")
  end
  local list, ranks = hosts.read(line.hosts)
  local words = {}
  for _, given in ipairs(line.words) do
    if sweep_hosts.OPTIONS[given.option] and given.option ~= "--hosts" then
      for _, word in ipairs(given) do words[#words + 1] = word end
    end
  end
  return setmetatable({ text = line.hosts, list = list, ranks = ranks, words = words }, SweepHosts)
end

---The options of `moonshard run` for a point.
---@param ranks integer of the point
---@return string[]? words
---@return string? why not
function SweepHosts:run_words(ranks)
  if ranks > self.ranks then
    return nil, ("needs %d ranks, but --hosts %s has %d"):format(ranks, self.text, self.ranks)
  end
  local used = {}
  for _, host in ipairs(self.list) do
    local here = math.min(host.ranks, ranks - host.first)
    if here > 0 then used[#used + 1] = ("%s:%d"):format(host.name, here) end
  end
  local words = { "--hosts", table.concat(used, ",") }
  for _, word in ipairs(self.words) do words[#words + 1] = word end
  return words
end

---How many ranks of a point each of its hosts has, for its plan.
---@param ranks integer of the point
---@return integer? ranks_per_node nil where hosts have different numbers of them, which a plan cannot be made for
function SweepHosts:ranks_per_node(ranks)
  local most = self.list[1].ranks
  for _, host in ipairs(self.list) do
    local here = math.min(host.ranks, ranks - host.first)
    if here > 0 and here ~= math.min(most, ranks) then return nil end
  end
  return math.min(most, ranks)
end

return sweep_hosts
