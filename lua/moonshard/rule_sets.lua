-- Lists of rules as values: kept in files of their own, and put together.
--
--   local preset = ms.rules.load "presets/llama.lua"       -- returns a list of rules, or lists by policy
--   ms.fully_shard(model, {
--     units = preset.units,
--     reshard_after_forward = ms.rules.join({ { "head", false } }, preset.reshard_after_forward),
--   })
--
-- The first rule that matches decides, so what is joined first goes before what comes after it.

local errors = require("moonshard.error")
local options = require("moonshard.options")
local re = require("moonshard.re")
local rules = require("moonshard.rules")

---@class moonshard.rule_sets
local rule_sets = {}

---One list of several, in order: rules of an earlier list decide before those of a later one.
---@param ... table lists of rules
---@return table list a new one
function rule_sets.join(...)
  local joined = {}
  for i = 1, select("#", ...) do
    local list = select(i, ...)
    if type(list) ~= "table" or re.is(list) or (next(list) ~= nil and not rules.is_list(list)) then
      errors.raise("MS_ERULE",
        "ms.rules.join: argument %d must be a list of rules, { { pattern, value }, ... }, not %s", i,
        options.describe(list))
    end
    for _, rule in ipairs(list) do joined[#joined + 1] = rule end
  end
  return joined
end

local function read_file(path)
  local file = io.open(path, "rb")
  if not file then return nil end
  local source = file:read("*a")
  file:close()
  return source
end

-- Beside the file that asks, or from the working directory.
local function find(path)
  local folder = (errors.caller() or ""):match("^(.*/)[^/]*$") or ""
  for _, candidate in ipairs(path:sub(1, 1) == "/" and { path } or { folder .. path, path }) do
    local source = read_file(candidate)
    if source then return candidate, source end
  end
  errors.raise("MS_EIO", "ms.rules.load: there is no file %s, neither beside this one nor in the working directory",
    path)
end

-- The line that has a name in quotes, from a byte on: a string does not know where it was written.
local function line_of(source, name, from)
  for at = from, #source do
    local quote = source:sub(at, at)
    if (quote == '"' or quote == "'") and source:sub(at + 1, at + #name + 1) == name .. quote then
      local _, breaks = source:sub(1, at):gsub("\n", "")
      return breaks + 1, at + #name + 2
    end
  end
end

-- Plain names as rules that know their line; patterns know theirs already.
local function placed(list, path, source)
  local result, from = {}, 1
  for i, entry in ipairs(list) do
    local name = type(entry) == "table" and not re.is(entry) and entry[1] or entry
    if type(name) == "string" then
      local line, after = line_of(source, name, from)
      from = after or from
      local rule = {}
      for key, value in pairs(type(entry) == "table" and entry or { entry }) do rule[key] = value end
      rule.where = line and path .. ":" .. line or path
      entry = rule
    end
    result[i] = entry
  end
  return result
end

---Reads a file that returns a list of rules, or a table of lists by policy (whose other values are passed on). Its
---rules are told with that file's name and line.
---@param path string beside the calling file, or from the working directory
---@return table
function rule_sets.load(path)
  if type(path) ~= "string" then
    errors.invalid("ms.rules.load takes the path of a file, not %s", options.describe(path))
  end
  local found, source = find(path)
  local chunk, wrong = loadstring(source, "@" .. found)
  if not chunk then errors.raise("MS_ERULE", "ms.rules.load: %s", wrong) end
  local returned = chunk()
  if type(returned) ~= "table" or re.is(returned) then
    errors.raise("MS_ERULE", "ms.rules.load: %s must return a list of rules, or lists by policy, not %s", found,
      options.describe(returned))
  end
  if rules.is_list(returned) then return placed(returned, found, source) end
  local by_policy = {}
  for policy, value in pairs(returned) do
    by_policy[policy] = rules.is_list(value) and placed(value, found, source) or value
  end
  return by_policy
end

return rule_sets
