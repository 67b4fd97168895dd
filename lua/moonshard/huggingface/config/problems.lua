-- What is wrong with a config.json, collected while it is read and raised as one error, so that a user mends the file
-- once. A check that needs a field which is itself wrong is left out: what it would say follows from that field.

local errors = require("moonshard.base.error")

local problems = {}

---Most problems that an error lists, and most fields that it looks near names up for.
problems.LISTED = 100

---@class moonshard.ConfigProblems
---@field path string of the config.json
---@field faulty table<string, true> names of fields
---@field list { status: string, text: string }[]
---@field unknown string[] fields of which no effect is known
local Problems = {}
Problems.__index = Problems

---@param path string
---@return moonshard.ConfigProblems
function problems.new(path)
  return setmetatable({ path = path, faulty = {}, list = {}, unknown = {} }, Problems)
end

local DEPENDS = {} -- raised where a check reads what is faulty

---Notes a problem of a field. Later checks that read the field are left out.
---@param status string "MS_EINVAL" or "MS_EUNSUPPORTED"
---@param field string
---@param format string begins with the field's name
---@param ... any arguments of string.format
function Problems:add(status, field, format, ...)
  self.faulty[field] = true
  self.list[#self.list + 1] = { status = status, text = errors.format(format, ...) }
end

---A table of values of which the faulty ones cannot be read: the check that tries ends.
---@param values table<string, any>
---@param fields table<string, string>? the field that each value is made of, by the value's name; default: its name
---@return table
function Problems:guard(values, fields)
  local function is_faulty(name)
    local field = name
    if fields then field = fields[name] end
    return field and self.faulty[field]
  end
  for name in pairs(values) do
    if is_faulty(name) then values[name] = nil end
  end
  return setmetatable(values, { __index = function(_, name)
    if is_faulty(name) then error(DEPENDS, 0) end
  end })
end

---Runs a check that raises errors of its own, and collects what it raises.
---@param check fun(...)
---@param ... any its arguments
function Problems:try(check, ...)
  local ok, raised = pcall(check, ...)
  if ok or raised == DEPENDS then return end
  if not errors.is(raised) then error(raised, 0) end
  local text, before = raised.message, self.path .. ": "
  if text:sub(1, #before) == before then text = text:sub(#before + 1) end
  self.list[#self.list + 1] = { status = raised.status, text = text }
end

-- How the fields without an effect are given.
local function advice_of(names)
  if not names[1] then return nil end
  table.sort(names)
  if #names > problems.LISTED then return "name those that have no effect on the results in ignore = { ... }" end
  local quoted = {}
  for i, name in ipairs(names) do quoted[i] = ("%q"):format(name) end
  local short = table.concat(names, ","):find("^[%w_.,-]+$")
  return ("if %s no effect on the results, give ignore = { %s }%s"):format(#names == 1 and "it has" or "they have",
    table.concat(quoted, ", "), short and (", or ignore=%s to a recipe"):format(table.concat(names, ",")) or "")
end

---Raises one error that says all of them, if there are any. Its status is MS_EINVAL if a value is invalid, and else
---MS_EUNSUPPORTED.
function Problems:raise()
  local list, status, texts = self.list, "MS_EUNSUPPORTED", {}
  if not list[1] then return end
  for i, problem in ipairs(list) do
    texts[i] = problem.text
    if problem.status ~= status then status = "MS_EINVAL" end
  end
  table.sort(texts)
  local advice, most = advice_of(self.unknown), problems.LISTED
  if #list == 1 then
    errors.raise(status, advice and "%s: %s; %s" or "%s: %s", self.path, texts[1], advice)
  end
  local shown = { unpack(texts, 1, most) }
  if #list > most then shown[most + 1] = ("and %d more"):format(#list - most) end
  shown[#shown + 1] = advice
  errors.raise(status, "%s: %d problems:" .. ("\n  %s"):rep(#shown), self.path, #list, unpack(shown))
end

return problems
