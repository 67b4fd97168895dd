-- A policy: an ordered list of { pattern, value } over names, in which the first matching rule decides. This file
-- parses the lists of recipes and reports, for every name, which rule decided. The engine matches the patterns (PCRE2).
--
--   { re[[^layers\.0$]], false },          a regular expression, searched for
--   { "head", true },                      a string: an exact name or a dotted prefix of one
--   { "extra", true, optional = true },    can match nothing, which is an error for other rules

local errors = require("moonshard.base.error")
local engine = require("moonshard.base.ffi")
local re = require("moonshard.base.re")
local C, ffi = engine.C, engine.ffi

---@class moonshard.Rule
---@field pattern string
---@field is_regex boolean
---@field value any
---@field optional boolean
---@field where string? line on which it was written; for a plain string, the line that used the list (ms.rules.load
---  knows the line)

---@class moonshard.Policy
---@field name string for messages: "reshard_after_forward"
---@field rules moonshard.Rule[]
---@field by_layer boolean? see moonshard.PolicyRow
local Policy = {}
Policy.__index = Policy

local rules = {}

local function pattern_of(policy, entry, position)
  if re.is(entry) then return entry.pattern, true, entry.where end
  if type(entry) == "string" then return entry, false, nil end
  errors.raise("MS_ERULE", "%s: rule %d has no pattern: write { re[[...]], value } or { \"name\", value }%s", policy,
    position, entry ~= nil and ", not " .. (type(entry) == "table" and "a table" or tostring(entry)) or "")
end

-- A pattern in messages: /regex/ or name.
local function shown(pattern, is_regex) return is_regex and "/" .. pattern .. "/" or pattern end

-- The same as Lua.
local function written(pattern, is_regex) return is_regex and "re[[" .. pattern .. "]]" or ("%q"):format(pattern) end

local function refuse_without_value(policy, position, pattern, is_regex, one_value)
  errors.raise("MS_ERULE", "%s: rule %d (%s) has no value: write { %s, value }%s", policy, position,
    shown(pattern, is_regex), written(pattern, is_regex),
    one_value and (", or one value for all, as in %s = %s"):format(policy, one_value) or "")
end

local function read_entry(policy, entry, position, options)
  local bare = re.is(entry) or type(entry) == "string"
  if not bare and type(entry) ~= "table" then
    errors.raise("MS_ERULE", "%s: rule %d is %s: write { pattern, value }", policy, position, tostring(entry))
  end
  local pattern, is_regex, where = pattern_of(policy, bare and entry or entry[1], position)
  local value = options.bare_value
  if not bare and entry[2] ~= nil then value = entry[2] end
  if value == nil then refuse_without_value(policy, position, pattern, is_regex, options.one_value) end
  for key in pairs(bare and {} or entry) do
    if key ~= 1 and key ~= 2 and key ~= "optional" and key ~= "where" then
      errors.raise("MS_ERULE", "%s: rule %d (%s) has %s: a rule is { pattern, value, optional = true }", policy,
        position, shown(pattern, is_regex), tostring(key))
    end
  end
  local optional = not bare and entry.optional or false
  if type(optional) ~= "boolean" then
    errors.raise("MS_ERULE", "%s: rule %d (%s): optional must be true or false, not %s", policy, position,
      shown(pattern, is_regex), tostring(optional))
  end
  return { pattern = pattern, is_regex = is_regex, value = value, optional = optional,
    where = where or not bare and entry.where or errors.caller() }
end

---Whether a value is a list of rules rather than one value for all names. An empty table is a list without rules.
---@param value any
---@return boolean
function rules.is_list(value)
  if type(value) ~= "table" or re.is(value) then return false end
  if next(value) == nil then return true end
  local first = value[1]
  return re.is(first) or type(first) == "string" or type(first) == "table"
end

---A rule's pattern as it was written: /regex/ or name.
---@param rule moonshard.Rule
---@return string
function rules.describe(rule) return shown(rule.pattern, rule.is_regex) end

---Raises because a rule's value does not suit a parameter.
---@param status string "MS_ESHAPE", ...
---@param policy string
---@param fqn string
---@param decision moonshard.Decision
---@param why string "it is not a matrix"
---@param instead string the value that suits it, as Lua
function rules.refuse(status, policy, fqn, decision, why, instead)
  errors.raise(status, "%s: %s is %q by rule %s%s, but %s: give it the value %s in an earlier rule, or narrow the "
    .. "pattern", policy, fqn, decision.value, decision.pattern, decision.where and " (" .. decision.where .. ")" or "",
    why, instead)
end

---Refuses what ipairs does not reach: rules by name, { embed = true }, which have no order. Lists with nil are refused
---where a recipe gives them.
---@param name string the policy's name in messages
---@param list table
function rules.check_names(name, list)
  for key in pairs(list) do
    if type(key) ~= "number" then
      errors.raise("MS_ERULE", "%s: the list has a field %s, which is not a rule: the first rule that matches decides, "
        .. "so rules are a list, { { %q, value, optional = true }, ... }", name, tostring(key), tostring(key))
    end
  end
end

-- Whether a name is one of several, or the beginning of one, as a rule's plain pattern would be.
local function is_one_of(names, name)
  for _, known in ipairs(names) do
    if known == name or known:sub(1, #name + 1) == name .. "." then return true end
  end
  return false
end

---Refuses a table from names to values in place of rules; a table of options, as mp_policy has it, is none.
---@param policy string
---@param given table not a list of rules
---@param names string[] what its rules can name
function rules.refuse_map(policy, given, names)
  if getmetatable(given) then return end
  for key in pairs(given) do
    if type(key) ~= "string" or not is_one_of(names, key) then return end
  end
  rules.check_names(policy, given)
end

-- Refuses one rule where a list of rules is meant: { "layers.0", false }.
local function check_nested(policy, list)
  local pattern, value = list[1], list[2]
  local bare = re.is(pattern) or type(pattern) == "string"
  if not bare or type(value) ~= "boolean" and type(value) ~= "number" or #list ~= 2 then return end
  local is_regex = re.is(pattern)
  errors.raise("MS_ERULE", "%s: rules are a list, also one alone: write { { %s, %s } }", policy,
    written(is_regex and pattern.pattern or pattern, is_regex), tostring(value))
end

---Reads a policy from a recipe.
---@param name string the policy's name in messages
---@param list table rules, first match wins; bare patterns are allowed when bare_value is given
---@param options? { bare_value: any, read: fun(value: any, rule: string): any, by_layer: boolean?, one_value: string? }
---  read checks and converts each value; one_value is a value in place of the list, as Lua, for messages
---@return moonshard.Policy
function rules.policy(name, list, options)
  options = options or {}
  if not (type(list) == "table" and not re.is(list)) then
    errors.raise("MS_ERULE", "%s: a policy is a list of rules { { pattern, value }, ... }", name)
  end
  check_nested(name, list)
  local read = {}
  for position, entry in ipairs(list) do
    local rule = read_entry(name, entry, position, options)
    if options.read then
      rule.value = options.read(rule.value, ("rule %d (%s)"):format(position, rules.describe(rule)))
    end
    read[position] = rule
  end
  rules.check_names(name, list)
  return setmetatable({ name = name, rules = read, by_layer = options.by_layer }, Policy)
end

local function warnings_of(handle)
  local warnings = {}
  while true do
    local text = C.ms_rules_warning(handle, #warnings)
    if text == nil then return warnings end
    warnings[#warnings + 1] = ffi.string(text)
  end
end

local function matches_any(rule, n, c_names)
  local out, decided = ffi.new("ms_rules *[1]"), ffi.new("int[?]", n + 1)
  engine.check(C.ms_rules_new("rules", out))
  local handle = ffi.gc(out[0], C.ms_free)
  engine.check(C.ms_rules_add(handle, rule.pattern, rule.is_regex and 1 or 0, 1, rule.where or ""))
  engine.check(C.ms_rules_resolve(handle, n, c_names, decided))
  for i = 0, n - 1 do
    if decided[i] >= 0 then return true end
  end
  return false
end

-- Optional rules that match nothing. A rule that decides nothing can also be shadowed, so it is matched separately.
local function unmatched_of(self, n, c_names, decided)
  local decides, unmatched = {}, {}
  for i = 0, n - 1 do decides[decided[i] + 1] = true end
  for position, rule in ipairs(self.rules) do
    if rule.optional and not decides[position] and not matches_any(rule, n, c_names) then
      unmatched[#unmatched + 1] = rule
    end
  end
  return unmatched
end

-- The rules that must match a name and match none.
local function without_match(self, n, c_names)
  local list = {}
  for _, rule in ipairs(self.rules) do
    if not rule.optional and not matches_any(rule, n, c_names) then list[#list + 1] = rule end
  end
  return list
end

local function matches(rule, name) return matches_any(rule, 1, ffi.new("const char *[1]", { name })) end

-- Raises if a rule matches only another name of a tied parameter.
local function check_tied(self, n, c_names, tied)
  for _, rule in ipairs(without_match(self, n, c_names)) do
    for other, name in pairs(tied) do
      if matches(rule, other) then
        errors.raise_at(rule.where, "MS_ERULE", "%s: rule %s matches only a second name: %s is tied, and rules use "
          .. "its first name, %s", self.name, rules.describe(rule), other, name)
      end
    end
  end
end

-- The first rule that matches a name.
local function first_match(self, name)
  for _, rule in ipairs(self.rules) do
    if matches(rule, name) then return rule end
  end
end

-- Raises if a rule would decide for another name of a tied parameter, matches others, too, and lets the parameter have
-- another value: what it is meant for would not happen, as freezing a head whose weight is the embedding's.
local function check_halves(self, names, decisions, tied)
  local index = {}
  for i, name in ipairs(names) do index[name] = i end
  for other, name in pairs(tied) do
    local rule, decision = first_match(self, other), decisions[index[name]]
    local same = rule and decision and (decision.value or false) == (rule.value or false) -- nil: off, too
    if rule and decision and not same and not matches(rule, name) then
      errors.raise_at(rule.where, "MS_ERULE", "%s: rule %s matches %s, a second name of %s: they are tied, and rules "
        .. "use the first name: let the rule, or one of the same value, match %s, or narrow it to what is meant",
        self.name, rules.describe(rule), other, name, name)
    end
  end
end

-- Raises if a rule matches only names that the policy does not decide for.
local function check_left_out(self, n, c_names, left_out)
  for _, rule in ipairs(without_match(self, n, c_names)) do
    local matched = {}
    for _, name in ipairs(left_out.names) do
      if matches(rule, name) then matched[#matched + 1] = name end
    end
    if matched[1] then
      errors.raise_at(rule.where, "MS_ERULE", "%s: rule %s matches only %s%s, %s", self.name, rules.describe(rule),
        matched[1], #matched > 1 and (" (and %d more)"):format(#matched - 1) or "", left_out.because)
    end
  end
end

-- Raises if a rule that matches nothing has a name from Hugging Face's library, which is another one in this model.
local function check_other_names(self, n, c_names, names)
  for _, rule in ipairs(without_match(self, n, c_names)) do
    local text = require("moonshard.base.names.other_names").in_model(rule.pattern, names)
    if text then
      errors.raise_at(rule.where, "MS_ERULE", "%s: rule %s matches none of %d names: %s", self.name,
        rules.describe(rule), n, text)
    end
  end
end

---@class moonshard.Decision
---@field value any
---@field rule integer? index of the rule that decided, from 1; nil: the default
---@field pattern string? that rule's pattern, as written
---@field where string? that rule's line

---Decides every name.
---@param names string[]
---@param default any value of names that no rule matches
---@param tied table<string, string>? names by their alternative names
---@param left_out { names: string[], because: string }? other names, and why the policy does not decide for them
---@return moonshard.Decision[] decisions one per name, in the order of names; names with one rule share a decision
---@return string[] warnings rules that match names but never decide
---@return moonshard.Rule[] unmatched optional rules that match no name
function Policy:resolve(names, default, tied, left_out)
  local out = ffi.new("ms_rules *[1]")
  engine.check(C.ms_rules_new(self.name, out))
  local handle = ffi.gc(out[0], C.ms_free)
  for _, rule in ipairs(self.rules) do
    local is_regex, optional = rule.is_regex and 1 or 0, rule.optional and 1 or 0
    engine.check(C.ms_rules_add(handle, rule.pattern, is_regex, optional, rule.where or ""))
  end
  local c_names, decided = ffi.new("const char *[?]", #names + 1, names), ffi.new("int[?]", #names + 1)
  local status = C.ms_rules_resolve(handle, #names, c_names, decided)
  if status == C.MS_ERULE and tied then check_tied(self, #names, c_names, tied) end
  if status == C.MS_ERULE and left_out then check_left_out(self, #names, c_names, left_out) end
  if status == C.MS_ERULE then check_other_names(self, #names, c_names, names) end
  engine.check(status)
  local of_rule, decisions = { [0] = { value = default } }, {}
  for position, rule in ipairs(self.rules) do
    of_rule[position] = { value = rule.value, rule = position, pattern = rules.describe(rule), where = rule.where }
  end
  for i = 1, #names do decisions[i] = of_rule[decided[i - 1] + 1] end
  if tied and not self.by_layer then check_halves(self, names, decisions, tied) end
  return decisions, warnings_of(handle), unmatched_of(self, #names, c_names, decided)
end

return rules
