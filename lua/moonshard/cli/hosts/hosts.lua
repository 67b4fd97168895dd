-- Several hosts from one machine: reads --hosts and --agent, and runs a command on every host through the agent (ssh).
--
-- The agent gets only words that a shell leaves as they are: "AGENT HOST /path/moonshard host". So it makes no
-- difference whether it starts them itself (`ip netns exec`) or passes them to a shell (ssh). Everything else, such as
-- the recipe's settings, goes through standard input (runtime/host/hosts).

local input_file = require("moonshard.base.files.input_file")
local json = require("moonshard.base.text.json")
local refuse = require("moonshard.base.exit_status").refuse

local hosts = {}

---Options for moonshard.cli.options.command_line.
hosts.REACH = {
  ["--hosts"] = { name = "hosts", value = "text", what = "hosts like a:4,b:4, node[01-04]:8 or @FILE" },
  ["--agent"] = { name = "agent", value = "text", what = "a command like ssh" },
  ["--remote-moonshard"] = { name = "remote_moonshard", value = "text", what = "a path" },
}
---The same, for commands that start ranks.
hosts.OPTIONS = { ["--env"] = { name = "env", value = "texts", what = "NAME or NAME=VALUE" } }
for option, row in pairs(hosts.REACH) do hosts.OPTIONS[option] = row end

local DEFAULT_AGENT = "ssh -o BatchMode=yes"
local DEFAULT_TIMEOUT = 300
local MAX_RANKS = 4096
local SAFE_WORD = "^[%w_%./:=@%%,+-]+$"

---Refuses options that need --hosts without it.
---@param line moonshard.CommandLine
function hosts.check_options(line)
  if line.hosts then return end
  for option, row in pairs(hosts.OPTIONS) do
    if line[row.name] then refuse("MS_EINVAL", "%s needs --hosts", option) end
  end
end

-- ---- the list -----------------------------------------------------------------------------------------------------

-- The items of "a:4,node[01,03]:8": separated by commas outside brackets.
local function split_list(text)
  local items, item, depth = {}, {}, 0
  for character in (text .. ","):gmatch(".") do
    depth = depth + (character == "[" and 1 or character == "]" and -1 or 0)
    if character == "," and depth == 0 then
      items[#items + 1] = table.concat(item):match("^%s*(.-)%s*$")
      item = {}
    else
      item[#item + 1] = character
    end
  end
  if depth ~= 0 then refuse("MS_EINVAL", "--hosts %s: a bracket is not closed", text) end
  return items
end

-- A file has one host, or list of hosts, on each line; "#" begins a comment.
local function read_items(text)
  local path = text:match("^@(.+)$")
  if not path then return split_list(text) end
  local items = {}
  local needed = "--hosts @FILE reads a file with one host, or list of hosts, on each line"
  for line in input_file.read(path, needed):gmatch("[^\n]+") do
    line = line:gsub("#.*", ""):match("^%s*(.-)%s*$")
    if line ~= "" then
      for _, item in ipairs(split_list(line)) do items[#items + 1] = item end
    end
  end
  if not items[1] then refuse("MS_EINVAL", "--hosts %s: the file names no hosts", text) end
  return items
end

local function refuse_name(text, item, name)
  local slots = item:match("^(%S+)%s+slots=%d+$")
  if slots then
    refuse("MS_EINVAL", "--hosts %s: %s: write %s:%s", text, item, slots, item:match("%d+$"))
  elseif not text:find("^@") and input_file.exists(text) then
    refuse("MS_EINVAL", "--hosts %s: %s is a file: --hosts @%s reads the hosts from it", text, text, text)
  end
  refuse("MS_EINVAL", "--hosts %s: %q is no host: write a name or an IPv4 address, or one with its number of ranks, "
    .. "like a:4, and commas between hosts", text, name)
end

---@class moonshard.HostEntry
---@field name string as given
---@field ranks integer
---@field first integer the world's number of its first rank

---Reads a value of --hosts.
---@param text string "a:4,b:4", "node[01-04]:8" or "@FILE"
---@param ranks integer? for hosts without a number
---@return moonshard.HostEntry[] list
---@return integer world number of ranks of all hosts
---@return boolean lacks_numbers whether a host is without a number
function hosts.read(text, ranks)
  local list, seen, world, needs_ranks = {}, {}, 0, false
  for _, item in ipairs(read_items(text)) do
    local names, count = item:match("^(.-):(%d+)$")
    needs_ranks = needs_ranks or not count
    count = tonumber(count) or ranks or 1
    names = names or item
    local expanded, why = require("moonshard.host").expand(names)
    if not expanded then refuse("MS_EINVAL", "--hosts %s: %s", text, why) end
    if count < 1 then refuse("MS_EINVAL", "--hosts %s: %s: a host has 1 rank or more", text, item) end
    for _, name in ipairs(expanded) do
      if not name:match("^[%w_][%w_%.@-]*$") then
        refuse_name(text, item, name)
      elseif seen[name] then
        refuse("MS_EINVAL", "--hosts %s: %s is named twice; %s:%d gives it more ranks", text, name, name, 2 * count)
      end
      seen[name] = true
      list[#list + 1] = { name = name, ranks = count, first = world }
      world = world + count
      if world > MAX_RANKS then
        refuse("MS_EINVAL", "--hosts %s: a job has at most %d ranks", text, MAX_RANKS)
      end
    end
  end
  if ranks and not needs_ranks then
    refuse("MS_EINVAL", "-n %d applies to hosts without a number of ranks, but in --hosts %s each has one: omit -n",
      ranks, text)
  end
  return list, world, needs_ranks
end

-- ---- the agent ----------------------------------------------------------------------------------------------------

---Splits a command into words as a shell does, with quotes and backslashes, but expands nothing.
---@param text string "ssh -p 2222 -i 'my key'"
---@return string[]
function hosts.words(text)
  local words, word, i = {}, nil, 1
  while i <= #text do
    local character = text:sub(i, i)
    if character:find("%s") then
      words[#words + 1], word = word, nil
    elseif character == "'" then
      local close = text:find("'", i + 1, true)
      if not close then refuse("MS_EINVAL", "--agent %s: a quote is not closed", text) end
      word, i = (word or "") .. text:sub(i + 1, close - 1), close
    elseif character == '"' then
      local close = i + 1
      while close <= #text and text:sub(close, close) ~= '"' do
        close = close + (text:sub(close, close) == "\\" and 2 or 1)
      end
      if close > #text then refuse("MS_EINVAL", "--agent %s: a quote is not closed", text) end
      word, i = (word or "") .. text:sub(i + 1, close - 1):gsub('\\([\\"$`])', "%1"), close
    elseif character == "\\" and i < #text then
      word, i = (word or "") .. text:sub(i + 1, i + 1), i + 1
    else
      word = (word or "") .. character
    end
    i = i + 1
  end
  words[#words + 1] = word
  if not words[1] then refuse("MS_EINVAL", "--agent %q: it names no command", text) end
  return words
end

local function is_this_host(name)
  local own = require("moonshard.host").name()
  return name == "localhost" or name == own or name == own:match("^[^.]+")
end

-- The words that start `moonshard ...` on a host: without an agent on this one.
local function command(line, name, arguments)
  local here = require("moonshard.host").place()
  local there = line.remote_moonshard or here
  if not there:find(SAFE_WORD) then
    refuse("MS_EINVAL", "%s: the path of moonshard on the other hosts has characters that a shell would change: give "
      .. "another with --remote-moonshard PATH", there)
  end
  local words = {}
  if line.agent or not is_this_host(name) then
    words = hosts.words(line.agent or DEFAULT_AGENT)
    words[#words + 1] = name
  elseif not line.remote_moonshard then
    there = here
  end
  words[#words + 1] = there
  for _, argument in ipairs(arguments) do words[#words + 1] = argument end
  return words
end

-- ---- the run ------------------------------------------------------------------------------------------------------

-- Variables of this launcher, not of its ranks; the token goes another way.
local NOT_PASSED = {
  MOONSHARD_TOKEN = true, MOONSHARD_TOKEN_FILE = true, MOONSHARD_RENDEZVOUS = true, MOONSHARD_JOB_FD = true,
  MOONSHARD_NODE = true,
}
local PASSED = { "^MOONSHARD_", "^OMP_", "^LUA_" }

local function is_passed(name)
  for _, pattern in ipairs(PASSED) do
    if name:find(pattern) then return not NOT_PASSED[name] end
  end
  return false
end

-- Names and values, one after the other, sorted by name.
local function variables(line, environment)
  local value_of, names, list = {}, {}, {}
  for _, text in ipairs(environment) do
    local name, value = text:match("^([^=]+)=(.*)$")
    if name and (is_passed(name) or line.interactive and name == "TERM") then value_of[name] = value end
  end
  for _, text in ipairs(line.env or {}) do
    local name, value = text:match("^([%a_][%w_]*)=(.*)$")
    name = name or text:match("^[%a_][%w_]*$")
    if not name or NOT_PASSED[name] then
      refuse("MS_EINVAL", "--env %s: must be NAME or NAME=VALUE, and not a variable of the job's token or rendezvous",
        text)
    end
    value_of[name] = value or os.getenv(name)
    if not value_of[name] then refuse("MS_EINVAL", "--env %s: the variable is not set here; give NAME=VALUE", text) end
  end
  for name in pairs(value_of) do names[#names + 1] = name end
  table.sort(names)
  for _, name in ipairs(names) do
    list[#list + 1] = name
    list[#list + 1] = value_of[name]
  end
  return list
end

-- The arguments of each host's launcher: those given here, without those that are for this one alone.
local function launcher_arguments(line)
  local list = { line.command }
  local ours = { ["-n"] = true, ["--rendezvous"] = true }
  for option in pairs(hosts.OPTIONS) do ours[option] = true end
  for _, given in ipairs(line.words) do
    if not ours[given.option] then
      for _, word in ipairs(given) do list[#list + 1] = word end
    end
  end
  return list
end

-- Whether all are this machine by its loopback, which then reaches them all.
local function are_loopback(list)
  for _, one in ipairs(list) do
    local name = one.name:match("[^@]+$")
    if name ~= "localhost" and not name:find("^127%.%d+%.%d+%.%d+$") then return false end
  end
  return true
end

-- Where ranks meet, as the first host gets it: "" when it chooses by itself (runtime/host/hosts/rendezvous_port.h).
local function wanted_place(line, list)
  local place = line.rendezvous or os.getenv("MOONSHARD_RENDEZVOUS") or ""
  if place ~= "" and not place:find("^tcp://[^/]+$") then
    refuse("MS_EINVAL", "--rendezvous %s: with --hosts it must be tcp://host or tcp://host:port", place)
  end
  return place == "" and (#list == 1 or are_loopback(list)) and "tcp://127.0.0.1:0" or place
end

local function check(line)
  if line.nodes or line.node_rank then
    refuse("MS_EINVAL", "--hosts starts a launcher on each host and numbers them: omit --nodes and --node-rank")
  end
  local task, why = require("moonshard.host").task()
  if not task then refuse("MS_EINVAL", "%s", why) end
  if task.size > 1 then
    refuse("MS_EINVAL", "--hosts starts ranks, but this process is already rank %d of %d (%s): omit --hosts to join "
      .. "them, or unset those variables", task.rank, task.size, task.source)
  end
end

---Runs a command on every host of --hosts and waits until all have ended.
---@param line moonshard.CommandLine of a command with hosts.OPTIONS and nodes.OPTIONS; interactive: rank 0 gets the
---standard input of this process, and its terminal
---@return integer exit status
function hosts.launch(line)
  check(line)
  local host = require("moonshard.host")
  local list, world = hosts.read(line.hosts, line.ranks)
  local _, folder, environment = host.place()
  local passed, arguments, entries = variables(line, environment), launcher_arguments(line), {}
  local place = wanted_place(line, list)
  for i, one in ipairs(list) do
    local fields = {
      one.name:match("[^@]+$"), ("%d %d"):format(one.first, world), folder, line.recipe or "", i == 1 and "1" or "0",
      place, i == 1 and line.interactive and host.streams() or "", tostring(#passed / 2),
    }
    for _, text in ipairs(passed) do fields[#fields + 1] = text end
    for _, word in ipairs(arguments) do fields[#fields + 1] = word end
    local ours = { "-n", one.ranks, "--nodes", #list, "--node-rank", i - 1 }
    for _, word in ipairs(ours) do fields[#fields + 1] = tostring(word) end
    entries[i] = {
      name = one.name, command = command(line, one.name, { "host" }), setup = table.concat(fields, "\0") .. "\0",
    }
  end
  local ended, why, status = host.over_hosts {
    hosts = entries, log_all = line.log_ranks == "all", agent = line.agent or DEFAULT_AGENT,
    timeout = line.timeout or tonumber(os.getenv("MOONSHARD_TIMEOUT")) or DEFAULT_TIMEOUT,
    interactive = line.interactive,
  }
  if not ended then refuse(status, "%s", why) end
  return ended
end

-- ---- runs of other hosts ------------------------------------------------------------------------------------------

local function quoted(words)
  local list = {}
  for i, word in ipairs(words) do list[i] = "'" .. word:gsub("'", "'\\''") .. "'" end
  return table.concat(list, " ")
end

---What `moonshard ps --json` prints on every host; all hosts are asked at once.
---@param line moonshard.CommandLine with hosts.REACH
---@return { name: string, runs: table[]?, why: string? }[] why: it did not answer
function hosts.runs(line)
  local list, pipes = hosts.read(line.hosts), {}
  for i, one in ipairs(list) do
    pipes[i] = assert(io.popen(quoted(command(line, one.name, { "ps", "--json" })) .. " </dev/null; echo \" $?\""))
  end
  for i, one in ipairs(list) do
    local text, status = pipes[i]:read("*a"):match("^(.-)%s*(%d+)\n$")
    pipes[i]:close()
    if status == "0" then
      local ok, runs = pcall(json.decode, text:match("%b[]%s*$") or "")
      if ok then list[i].runs = runs else one.why = "what it answered is not from moonshard" end
    else
      one.why = ("`%s` ended with exit status %s"):format(table.concat(command(line, one.name, { "ps" }), " "),
        status or "?")
    end
  end
  return list
end

return hosts
