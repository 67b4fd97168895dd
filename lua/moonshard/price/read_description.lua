-- Reads cluster descriptions: shipped ones by name, others from a file. `extends` names another description, whose
-- fields this one overrides: tables with names merge field by field, lists and constants are replaced, and `false`
-- removes an inherited field.
--
-- A description is data: a file runs without any function of Lua, not even those of strings, and its loops end.

local input_file = require("moonshard.base.files.input_file")
local nearest = require("moonshard.base.names.nearest")
local names = require("moonshard.clusters")
local networks = require("moonshard.clusters.networks")
local refuse = require("moonshard.base.exit_status").refuse

local read_description = {}

local MAX_INSTRUCTIONS = 1e7 -- far more than a table of constants takes
local MAX_NESTED = 8
local MAX_VALUES = 1e6 -- a table that is in several places counts in each
local MAX_EXTENDED = 16 -- a chain that goes round through other folders has a new path in each round

---@class moonshard.ClusterDescription
---@field name string as given
---@field tree table the fields, merged
---@field files table<string, string> by dotted path: the description that a field is from

local function is_path(name) return name:find("/", 1, true) ~= nil or name:find("%.lua$") ~= nil end

-- Without string.rep or string.find: the hook does not see what they do in one instruction.
local function limited(chunk)
  local strings = getmetatable("")
  jit.off(chunk, true)
  debug.sethook(function() error("it does not end", 0) end, "", MAX_INSTRUCTIONS)
  strings.__index = nil
  local ok, result = pcall(chunk)
  strings.__index = string
  debug.sethook()
  return ok, result
end

-- by: the description that extends this one, or nil
local function from_file(path, by)
  local source = input_file.read(path, by and "cluster " .. by .. " extends it"
    or "--cluster takes a name or the path of a description")
  local chunk, wrong = load(source, "@" .. path, "t", {})
  if not chunk then
    refuse("MS_EINVAL", "cluster %s%s", wrong:sub(1, #path) == path and "" or path .. ": ", wrong)
  end
  local ok, result = limited(chunk)
  if not ok then
    local where, why = tostring(result):match("^(.-:%d+): (.*)$")
    refuse("MS_EINVAL", "cluster %s: %s: a description is a table of data, without calls and loops", where or path,
      why or tostring(result))
  end
  return result
end

local function shipped(name, by)
  if networks[name] then return networks[name] end
  for _, known in ipairs(names) do
    local room = name:find("%-pytorch$") and "pytorch." or ""
    if known == name then return require("moonshard.clusters." .. room .. name) end
  end
  local valid = {}
  for _, known in ipairs(names) do valid[known] = true end
  refuse("MS_ENAME", "cluster %s: %s A description of your own is given by its path, like ./%s",
    by and by .. ": extends " .. name or name, nearest.sentence(name, valid),
    name:find(".", 1, true) and name or name .. ".lua")
end

-- Only text, numbers, booleans and tables of them, at most MAX_NESTED deep. Returns how many values there are.
local function check_data(file, path, value, depth, before)
  local kind, count = type(value), before + 1
  if count > MAX_VALUES then refuse("MS_EINVAL", "cluster %s: it has more than %d values", file, MAX_VALUES) end
  if kind ~= "table" then
    if kind == "string" or kind == "number" or kind == "boolean" then return count end
    refuse("MS_EINVAL", "cluster %s: %s is a %s: a description holds text, numbers and tables", file, path, kind)
  end
  if depth > MAX_NESTED then
    refuse("MS_EINVAL", "cluster %s: %s: tables nest more than %d deep", file, path, MAX_NESTED)
  end
  for key, part in pairs(value) do
    count = check_data(file, path == "" and tostring(key) or path .. "." .. tostring(key), part, depth + 1, count)
  end
  return count
end

local function one(name, by)
  local description
  if is_path(name) then description = from_file(name, by) else description = shipped(name, by) end
  if type(description) ~= "table" then
    refuse("MS_EINVAL", "cluster %s: it must return a table, not a %s", name, type(description))
  end
  check_data(name, "", description, 0, 0)
  return description
end

local function is_list(value) return value[1] ~= nil end

-- A copy of the fields of `upper` over those of `lower`.
local function merge(lower, upper, file, path, files)
  local result = {}
  for key, value in pairs(lower) do result[key] = value end
  for key, value in pairs(upper) do
    local at = path == "" and tostring(key) or path .. "." .. tostring(key)
    local before = result[key]
    if type(value) == "table" and not is_list(value) then
      local deeper = type(before) == "table" and not is_list(before) and before or {}
      files[at] = files[at] or file
      result[key] = merge(deeper, value, file, at, files)
    elseif value == false then
      if before == nil then refuse("MS_ENAME", "cluster %s: %s = false removes nothing", file, at) end
      result[key], files[at], files[path] = nil, nil, file
    else
      result[key], files[at] = value, file
    end
  end
  return result
end

-- A path in `extends` is relative to the file that has it.
local function named_in(file, name)
  if not is_path(name) or name:sub(1, 1) == "/" or not is_path(file) then return name end
  local folder, rest = file:match("^(.*/)[^/]*$") or "", name
  while rest:sub(1, 2) == "./" do rest = rest:sub(3) end
  return folder .. rest
end

local function whole(name, seen)
  for i, before in ipairs(seen) do
    if before == name then
      refuse("MS_EINVAL", "cluster %s: extends itself: %s extends %s", seen[1],
        table.concat(seen, " extends ", i), name)
    end
  end
  if #seen == MAX_EXTENDED then
    refuse("MS_EINVAL", "cluster %s: more than %d descriptions extend one another, the last of them %s", seen[1],
      MAX_EXTENDED, name)
  end
  local own, files, lower = one(name, seen[#seen]), {}, {}
  seen[#seen + 1] = name
  local base = own.extends
  if base ~= nil then
    if type(base) ~= "string" then
      refuse("MS_EINVAL", 'cluster %s: extends must be a name or a path, like "h100x8"', name)
    end
    lower, files = whole(named_in(name, base), seen)
  end
  local fields = {}
  for key, value in pairs(own) do
    if key ~= "extends" then fields[key] = value end
  end
  return merge(lower, fields, name, "", files), files
end

---Reads a description and what it extends. Raises if there is none, or if it is not data.
---@param name string of a shipped description, or a path
---@return moonshard.ClusterDescription
function read_description.of(name)
  local tree, files = whole(name, {})
  return { name = name, tree = tree, files = files }
end

return read_description
