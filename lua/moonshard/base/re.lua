-- Patterns over names: ms.re[[^layers\.\d+$]]. A pattern searches (write ^ and $ to anchor) and remembers where it was
-- written, so that messages name the recipe's line. The syntax is PCRE2's, a superset of Python's.

local errors = require("moonshard.base.error")
local engine = require("moonshard.base.ffi")
local C, ffi = engine.C, engine.ffi

---@class moonshard.Pattern
---@field pattern string
---@field where string? "recipe.lua:12"
local Pattern = {}
Pattern.__index = Pattern

function Pattern:__tostring()
  return "/" .. self.pattern .. "/"
end

local re = {}

local known = {} -- patterns that were found to be right: a list of plans runs its recipe again and again

-- Rejects a bad pattern on its own line, even if no rule ever uses it.
local function check_syntax(pattern, where)
  if known[pattern] then return end
  local out = ffi.new("ms_rules *[1]")
  engine.check(C.ms_rules_new("re", out))
  local rules = ffi.gc(out[0], C.ms_free)
  engine.check(C.ms_rules_add(rules, pattern, 1, 0, where or ""))
  known[pattern] = true
end

---@param value any
---@return boolean
function re.is(value)
  return getmetatable(value) == Pattern
end

---Makes a pattern object.
---@param pattern string a PCRE2 regular expression
---@return moonshard.Pattern
local function make(_, pattern, ...)
  if select("#", ...) > 0 then
    errors.raise("MS_ERULE", "re takes one pattern and no flags, which PCRE2 has within it: re[[(?i)^layers]]")
  end
  if type(pattern) ~= "string" then
    errors.raise("MS_ERULE", "re takes a pattern as a string, as in re[[^layers]], not %s",
      pattern == nil and "nil" or "a " .. type(pattern))
  end
  local where = errors.caller()
  check_syntax(pattern, where)
  return setmetatable({ pattern = pattern, where = where }, Pattern)
end

return setmetatable(re, { __call = make })
