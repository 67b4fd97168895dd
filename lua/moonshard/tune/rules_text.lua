-- What a search found as Lua: the options of ms.fully_shard that replace the recipe's, to be pasted there. The text is
-- read back before it is printed, so that what is pasted is what was compiled.

local point = require("moonshard.tune.point")
local policies = require("moonshard.tune.policies")
local progress = require("moonshard.base.text.progress")
local re = require("moonshard.base.re")

local rules_text = {}

local COLUMNS = 112

-- ---- Lua ---------------------------------------------------------------------------------------------------------

local function long_string(text)
  local level = ""
  while text:find("]" .. level .. "]", 1, true) do level = level .. "=" end
  return ("[%s[%s]%s]"):format(level, text, level)
end

local of_value

-- Lists first, then fields by name. `where` is the line of a rule, which changes when it is pasted.
local function of_table(value)
  local parts, names = {}, {}
  for i, part in ipairs(value) do parts[i] = of_value(part) end
  for name in pairs(value) do
    if type(name) == "string" and name ~= "where" then names[#names + 1] = name end
  end
  table.sort(names)
  for _, name in ipairs(names) do parts[#parts + 1] = name .. " = " .. of_value(value[name]) end
  return #parts > 0 and "{ " .. table.concat(parts, ", ") .. " }" or "{}"
end

function of_value(value)
  if re.is(value) then return "re" .. long_string(value.pattern) end
  if type(value) == "table" then return of_table(value) end
  return type(value) == "string" and ("%q"):format(value) or tostring(value)
end

-- Lines of "name = value,", as many items in a line as fit.
local function lines_of(name, value)
  local whole = ("%s = %s,"):format(name, of_value(value))
  if #whole <= COLUMNS or type(value) ~= "table" or value[2] == nil then return { whole } end
  local lines, line = { name .. " = {" }, nil
  for _, item in ipairs(value) do
    local text = of_value(item) .. ","
    if line and #line + #text + 1 <= COLUMNS then
      line = line .. " " .. text
    else
      lines[#lines + 1] = line
      line = "  " .. text
    end
  end
  lines[#lines + 1] = line
  lines[#lines + 1] = "},"
  return lines
end

---@class moonshard.RulesText lines without indent
---@field before string statements that come before ms.fully_shard; "" for none
---@field options string its options

local function text_of(lines) return #lines > 0 and table.concat(lines, "\n") .. "\n" or "" end

-- Adds a comment after the first line, or above it.
local function note(lines, text)
  if #lines[1] + #text + 5 <= COLUMNS then lines[1] = lines[1] .. "  -- " .. text
  else table.insert(lines, 1, "-- " .. text) end
end

---@param options table of ms.fully_shard
---@param notes table<string, string>? what a policy costs, by name: a comment in its first line
---@return moonshard.RulesText
function rules_text.of(options, notes)
  local lines, before = {}, {}
  for _, row in ipairs(policies.all) do
    local name, value = row.name, options[row.name]
    local list = value ~= nil and lines_of(name, value) or {}
    local statements = row.before and #list > 1 and row.before(value, of_value) or {}
    if #statements > 0 then list = { ("%s = %s,"):format(name, name) } end
    for _, line in ipairs(statements) do before[#before + 1] = line end
    if list[1] and notes and notes[name] then note(list, notes[name]) end
    for _, line in ipairs(list) do lines[#lines + 1] = line end
  end
  return { before = text_of(before), options = text_of(lines) }
end

---Reads a text of rules_text.of.
---@param text moonshard.RulesText
---@return table options
function rules_text.read(text)
  local chunk = assert(loadstring(text.before .. "return {\n" .. text.options .. "}", "=rules"))
  return setfenv(chunk, { re = re })()
end

-- ---- what to print ----------------------------------------------------------------------------------------------

---The options of a point, with values for policies that are "auto" in the recipe and stay as they were.
---@param trial moonshard.Trial
---@param p moonshard.TunePoint
---@return table options
function rules_text.options(trial, p)
  local options, auto = point.options(p, trial.blocks), trial.sharding.auto
  for name in pairs(auto and auto.policies or {}) do
    if options[name] == nil then options[name] = policies.by_name[name].auto.default(trial) end
  end
  return options
end

---@class moonshard.RulePrice
---@field seconds number that the rule adds to a step; below 0: saves
---@field bytes number that it adds to a rank

---What each policy of a point changes: the point against one that leaves the policy to the recipe.
---@param trial moonshard.Trial
---@param best moonshard.Tried
---@return table<string, moonshard.RulePrice> by policy; none for what the recipe has already
function rules_text.prices(trial, best)
  local prices, options = {}, point.options(best.point, trial.blocks)
  for _, reverted in ipairs(point.reverted(best.point)) do
    local name = reverted.policy
    local without = options[name] ~= nil and trial:try(reverted.point)
    if without and not without.refused then
      prices[name] = { seconds = best.seconds - without.seconds, bytes = best.bytes - without.bytes }
    end
  end
  return prices
end

---@param price moonshard.RulePrice
---@return string "saves 12.30 ms, adds 1.2 GiB"
function rules_text.price(price)
  local ms, bytes = ("%.2f ms"):format(1e3 * math.abs(price.seconds)), progress.size(math.abs(price.bytes))
  local does, then_does = price.seconds < 0 and "saves" or "adds", price.bytes < 0 and "saves" or "adds"
  if does == then_does then return ("%s %s and %s"):format(does, ms, bytes) end
  return ("%s %s, %s %s"):format(does, ms, then_does, bytes)
end

return rules_text
