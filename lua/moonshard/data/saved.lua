-- Checks that a saved state of a data source belongs to the same data before a run resumes from it.
--
-- A position is only meaningful for the same data in the same order. The state of other data is refused.

local errors = require("moonshard.base.error")
local json = require("moonshard.base.text.json")
local options = require("moonshard.base.checks.options")

local saved = {}

-- A number with all of its digits: two that differ look different.
local function text_of(value)
  if type(value) == "number" and math.abs(value) < math.huge then return json.encode(value) end
  return tostring(value)
end

---Compares a state with the data source; raises if they differ.
---@param who string for messages: "data:load_state"
---@param state table
---@param own table<string, number|boolean|string> the data source's values, by field of the state
---@param later table<string, any|fun(): any>? those that states of earlier versions lack, or what computes them
---@param same string? what must be the same; default "the same files, seq, seed, shuffle and valid_fraction"
function saved.check(who, state, own, later, same)
  if type(state) ~= "table" then errors.invalid("%s: a state must be a table, not %s", who, tostring(state)) end
  if state.mask ~= nil and own.mask == nil then
    errors.invalid("%s: the state was saved by ms.data.masked (mask=%s), and this data masks nothing: give it to "
      .. "ms.data.masked, with the same options", who, tostring(state.mask))
  end
  for name, value in pairs(later or {}) do
    if state[name] ~= nil then own[name] = type(value) == "function" and value() or value end
  end
  local names = {}
  for name in pairs(own) do names[#names + 1] = name end
  table.sort(names)
  for _, name in ipairs(names) do
    if state[name] ~= own[name] then
      errors.invalid("%s: the state was saved with %s=%s, but this data has %s=%s: resume on the data that "
        .. "it was saved with: %s", who, name, text_of(state[name]), name, text_of(own[name]),
        same or "the same files, seq, seed, shuffle and valid_fraction")
    end
  end
end

---Reads a field that must be a count.
---@param who string for messages
---@param state table
---@param name string
---@return number
function saved.count(who, state, name)
  local value = state[name]
  if type(value) ~= "number" or value < 0 or value % 1 ~= 0 then
    errors.invalid("%s: %s must be a whole number of at least 0, not %s", who, name, options.describe(value))
  end
  return value
end

return saved
