-- Reads a command's options, its recipe, and the recipe's settings (key=value), in any order.

local nearest = require("moonshard.base.names.nearest")
local refuse = require("moonshard.base.exit_status").refuse

local command_line = {}

---@class moonshard.OptionRow
---@field name string key of the value in the parsed line
---@field value "flag"|"count"|"index"|"seconds"|"number"|"text"|"texts" "flag" takes none;
---"texts": a list, one text each time that the option is given
---@field what string? for "text": description of the value in messages, such as "a file"

---@class moonshard.CommandLine
---@field recipe string? path
---@field settings { key: string, text: string }[] in the order given
---@field files string[]? for commands that take any number of files
---@field command string "run"
---@field words { option: string?, [integer]: string }[] the arguments as given, an option with its value
---@field [string] any options by name

local LARGEST = 2 ^ 31 - 1 -- the engine counts in int32_t

local function read_whole(text, least)
  local number = tonumber(text)
  local fits = number and number >= least and number <= LARGEST and number % 1 == 0
  return fits and number or nil, ("a whole number from %d to %d"):format(least, LARGEST)
end

local READERS = {
  count = function(text) return read_whole(text, 1) end,
  index = function(text) return read_whole(text, 0) end,
  seconds = function(text)
    local number = tonumber(text)
    return number and number > 0 and number < math.huge and number or nil, "a number of seconds above 0"
  end,
  number = function(text)
    local number = tonumber(text)
    return number and number > 0 and number < math.huge and number or nil, "a number above 0"
  end,
  text = function(text) return text ~= "" and text or nil, "a name" end,
}

-- What an option writes is never named like a setting: its value was left out, and the setting taken for it.
local WRITTEN = { ["a file"] = true, ["a folder"] = true }

local function read_option_value(option, row, text)
  if WRITTEN[row.what] and (text:find("^[%a_][%w_]*=[^/]*$") or text:find("^%-%-%l")) then
    refuse("MS_EINVAL", "%s %s: %s is missing, and what follows is %s; with this name it is written ./%s", option, text,
      row.what, text:sub(1, 1) == "-" and "an option" or "a setting", text)
  end
  local value, expected = READERS[row.value](text)
  if value == nil then refuse("MS_EINVAL", "%s %s: must be %s", option, text, row.what or expected) end
  return value
end

local function take_value(parsed, option, row, text)
  if row.value == "texts" then
    parsed[row.name] = parsed[row.name] or {}
    table.insert(parsed[row.name], text)
  else
    parsed[row.name] = read_option_value(option, row, text)
  end
end

-- "--rank=3" as "--rank", "3"; "-n4" and "-n=4" as "-n", "4"; "-j4" too.
local function split_option(argument)
  local option, text = argument:match("^(%-%-[^=]+)=(.*)$")
  if option then return option, text end
  option, text = argument:match("^(%-[nj])=?(%d+)$")
  if option then return option, text end
  return argument, nil
end

-- Options of torchrun, accelerate, deepspeed, mpirun and srun, with what is given here instead.
local OF_LAUNCHERS = {
  ["-n RANKS"] = "-np --np --nproc --nproc_per_node --ntasks --ntasks_per_node --num_gpus --num_processes --ranks "
    .. "--num_ranks --world_size --workers --num_workers --gpus --gpus_per_node",
  ["--nodes N"] = "-N --nnodes --num_nodes --num_machines",
  ["--node-rank R"] = "--machine_rank --node_rank",
  ["--rendezvous tcp://HOST:PORT"] =
    "--main_process_ip --main_process_port --master_addr --master_port --rdzv_backend --rdzv_conf --rdzv_endpoint",
  ["--hosts a:4,b:4"] = "-H --host --nodelist -w",
  ["--hosts @FILE"] = "--hostfile --machinefile",
}

-- What an option of another launcher is called here, if the command has that; "-" and "_" are the same to torchrun.
local function launcher_option(option, options)
  local dashes, name = option:match("^(%-+)(.*)$")
  local spelling = dashes .. name:gsub("-", "_")
  for here, words in pairs(OF_LAUNCHERS) do
    for word in words:gmatch("%S+") do
      if word == spelling and options[here:match("^%S+")] then return here end
    end
  end
  return nil
end

-- The word after the value of an option whose value needs quotes or commas when it has several words.
local function refuse_rest(argument, before)
  if before and before.option == "--agent" then
    refuse("MS_EINVAL", "--agent %s %s: write a command of several words in quotes: --agent '%s %s'", before[2],
      argument, before[2], argument)
  elseif before and before.option == "--hosts" and argument:find(":%d+$") then
    refuse("MS_EINVAL", "--hosts %s %s: separate hosts by commas: --hosts %s,%s", before[2], argument, before[2],
      argument)
  end
end

local function refuse_option(command, option, rows)
  if option == "--hosts" and rows.options["--ranks-per-node"] then
    refuse("MS_EINVAL", "%s starts no ranks, so it takes no --hosts: give the number of ranks, in all and on each "
      .. "host, as -n RANKS --ranks-per-node M", command)
  end
  if option == "--hosts" then
    refuse("MS_EINVAL", "%s runs on one host: `moonshard run`, `calibrate`, `check`, `sweep`, `generate`, `repl` and "
      .. "`ps` take --hosts", command)
  end
  local key = rows.recipe == true and option:match("^%-%-([%a_][%w_]*)$")
  local here = launcher_option(option, rows.options)
  if here then refuse("MS_ENAME", "%s has no option %s: did you mean %s?", command, option, here) end
  local advice = nearest.advice(option, rows.options)
  if key then
    local written = ("setting of the recipe is written %s=value; `%s --help` lists the options"):format(key, command)
    advice = advice:find("^did you mean") and advice .. " A " .. written or "a " .. written
  end
  refuse("MS_ENAME", "%s has no option %s: %s", command, option, advice)
end

local function take_positional(parsed, command, argument, rows)
  if rows.files then
    table.insert(parsed.files, argument)
    return
  end
  local key, text = argument:match("^([%a_][%w_]*)=(.*)$")
  if key then
    table.insert(parsed.settings, { key = key, text = text })
  elseif not rows.recipe then
    refuse("MS_EINVAL", "unexpected argument %s", argument)
  elseif not parsed.recipe then
    parsed.recipe = argument
  elseif type(rows.recipe) == "string" then
    refuse("MS_EINVAL", "unexpected argument %s after %s: %s takes one %s", argument, parsed.recipe, command,
      rows.recipe)
  else
    refuse_rest(argument, parsed.words[#parsed.words])
    refuse("MS_EINVAL", "unexpected argument %s after the recipe %s: settings are written key=value, without spaces",
      argument, parsed.recipe)
  end
end

---@param command string for messages: "moonshard run"
---@param arguments string[]
---@param rows { recipe: boolean|string?, optional: boolean?, usage: string?, files: boolean?,
---options: table<string, moonshard.OptionRow> } recipe: the command takes a recipe (optional: can take one); a string:
---it takes a different file, called by that name; usage: the file and further arguments that messages show instead of
---RECIPE.lua; files: it takes any number of files and no settings
---@return moonshard.CommandLine
function command_line.parse(command, arguments, rows)
  local parsed = { settings = {}, files = rows.files and {} or nil, words = {}, command = command:match("%S+$") }
  local i = 1
  while arguments[i] do
    local argument, first = arguments[i], i
    local given = {}
    if argument:match("^%-.") then
      local option, text = split_option(argument)
      local row = rows.options[option]
      if not row then
        refuse_rest(argument, parsed.words[#parsed.words])
        refuse_option(command, option, rows)
      end
      given.option = option
      if row.value == "flag" then
        if text then refuse("MS_EINVAL", "%s takes no value", option) end
        parsed[row.name] = true
      else
        if not text then
          i = i + 1
          text = arguments[i]
        end
        if not text then refuse("MS_EINVAL", "%s needs a value after it", option) end
        take_value(parsed, option, row, text)
      end
    else
      take_positional(parsed, command, argument, rows)
    end
    for k = first, i do table.insert(given, arguments[k]) end
    table.insert(parsed.words, given)
    i = i + 1
  end
  if rows.recipe and not rows.optional and not parsed.recipe then
    local file = type(rows.recipe) == "string" and rows.recipe or rows.usage
    refuse("MS_EINVAL", "%s needs a %s: %s %s", command, file and "file" or "recipe", command, file or "RECIPE.lua")
  end
  if not rows.recipe and parsed.settings[1] then
    refuse("MS_EINVAL", "%s takes no settings like %s=%s", command, parsed.settings[1].key,
      parsed.settings[1].text)
  end
  return parsed
end

return command_line
