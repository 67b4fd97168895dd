-- Lists of rules that are kept in separate files and joined.
--
--   local preset = ms.rules.load "presets/llama.lua"       -- returns a list of rules, or lists by policy
--   ms.fully_shard(model, {
--     units = preset.units,
--     reshard_after_forward = ms.rules.join({ { "head", false } }, preset.reshard_after_forward),
--   })
--
-- The first matching rule decides, so earlier lists take precedence over later ones.

local errors = require("moonshard.base.error")
local lists = require("moonshard.base.checks.lists")
local input_file = require("moonshard.base.files.input_file")
local options = require("moonshard.base.checks.options")
local recompute = require("moonshard.nn.recompute")
local re = require("moonshard.base.re")
local placements = require("moonshard.shard.policies.placements")
local rules = require("moonshard.shard.rules")
local strict = require("moonshard.base.checks.strict")

---@class moonshard.rule_presets
local rule_presets = {}

-- For `recompute`, a list can also be one value for all modules: a list of ops.
local function is_rules(policy, value)
  return rules.is_list(value) and not (policy == "recompute" and recompute.is_op_list(value))
end

-- Appends a later value of a policy: a list of rules, or one value as a rule for all remaining names.
local function append(joined, policy, value)
  local before = joined[policy]
  if before == nil then
    joined[policy] = is_rules(policy, value) and { unpack(value) } or value
  elseif is_rules(policy, before) then
    local rest = is_rules(policy, value) and value or { { re"", value, optional = true } }
    for _, rule in ipairs(rest) do before[#before + 1] = rule end
  end
end

---Joins lists of rules, in order: rules of earlier lists decide first. Tables by policy are joined policy by policy: an
---earlier single value for all names is final, and a later one applies to names that no earlier rule matches.
---@param ... table lists of rules, or tables by policy
---@return table joined a new table
function rule_presets.join(...)
  local list, by_policy, listed = {}, {}, nil
  for i = 1, select("#", ...) do
    local set = select(i, ...)
    if type(set) ~= "table" or re.is(set) then
      errors.raise("MS_ERULE",
        "ms.rules.join: argument %d must be a list of rules, { { pattern, value }, ... }, or lists by policy, not %s",
        i, options.describe(set))
    end
    local is_list = rules.is_list(set)
    if next(set) ~= nil then
      if listed ~= nil and is_list ~= listed then
        errors.raise("MS_ERULE", "ms.rules.join: argument %d is %s, but the earlier ones are not: join lists, or "
          .. "tables by policy", i, is_list and "a list of rules" or "a table by policy")
      end
      listed = is_list
    end
    for _, rule in ipairs(is_list and set or {}) do list[#list + 1] = rule end
    for policy, value in pairs(is_list and {} or set) do append(by_policy, policy, value) end
  end
  return listed == false and by_policy or list
end

-- Searches the folder of the calling file, then the working directory.
local function find(path)
  local folder = (errors.caller() or ""):match("^(.*/)[^/]*$") or ""
  for _, candidate in ipairs(path:sub(1, 1) == "/" and { path } or { folder .. path, path }) do
    local source = input_file.text(candidate)
    if source then return candidate, source end
  end
  errors.raise("MS_EIO", "ms.rules.load: no file %s in the folder of this file or in the working directory",
    path)
end

-- Searches for a quoted name from a byte on; returns its line. Strings, unlike patterns, do not record their line.
local function line_of(source, name, from)
  for at = from, #source do
    local quote = source:sub(at, at)
    if (quote == '"' or quote == "'") and source:sub(at + 1, at + #name + 1) == name .. quote then
      local _, breaks = source:sub(1, at):gsub("\n", "")
      return breaks + 1, at + #name + 2
    end
  end
end

-- Adds the line to rules with plain names; patterns already have theirs.
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

---Reads a file that returns a list of rules, or a table of lists by policy (other values are passed on). Messages about
---its rules name this file and the line.
---@param path string relative to the folder of the calling file, or to the working directory
---@return table
function rule_presets.load(path)
  if type(path) ~= "string" then
    errors.invalid("ms.rules.load takes the path of a file, not %s", options.describe(path))
  end
  local found, source = find(path)
  local chunk, wrong = loadstring(source, "@" .. found, "t")
  if not chunk then errors.raise("MS_ERULE", "ms.rules.load: %s", wrong) end
  local ran, returned = pcall(chunk)
  if not ran and errors.is(returned) then error(returned, 0) end
  if not ran then errors.raise("MS_ERULE", "ms.rules.load: %s", tostring(returned)) end
  if type(returned) ~= "table" or re.is(returned) then
    errors.raise("MS_ERULE", "ms.rules.load: %s must return a list of rules, or lists by policy, not %s", found,
      options.describe(returned))
  end
  lists.check("ms.rules.load: " .. found, returned)
  lists.check_fields("ms.rules.load: " .. found, returned)
  if rules.is_list(returned) then return placed(returned, found, source) end
  local by_policy = {}
  for policy, value in pairs(returned) do
    by_policy[policy] = is_rules(policy, value) and placed(value, found, source) or value
  end
  return by_policy
end

---The rules of `placements` that divide a model of ms.models over the mesh dimension `tensor`.
rule_presets.tensor_parallel = placements.tensor_parallel

return strict.fields("ms.rules", rule_presets)
