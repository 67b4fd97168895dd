-- An optimizer by rules: which of two optimizers trains a parameter, Muon or another one.
--
--   optimizer = {
--     { re[[\.(w\w|fc\d)\.weight$]], ms.optim.muon { lr = 0.02 } },
--     { re".", ms.optim.adamw { lr = 3e-4 } },
--   }
--
-- It has the methods of an optimizer (train/optim.lua), and otherwise the fields of the one that is not Muon.

local errors = require("moonshard.base.error")
local optimizers = require("moonshard.engine.optimizers")
local options = require("moonshard.base.checks.options")
local param_groups = require("moonshard.shard.param_groups")
local rules = require("moonshard.shard.rules")
local sealed = require("moonshard.base.checks.sealed")

local optimizer_rules = {}

---@class moonshard.OptimizerRules: moonshard.Optimizer
---@field rules moonshard.Policy
---@field parts moonshard.Optimizer[] Muon first
---@field main moonshard.Optimizer the one that is not Muon, or Muon
---@field title string "muon and adamw"
---@field chosen table<string, moonshard.Optimizer> by parameter, since the last decision
local Rules = { __name = "optimizers by rules" }

-- Fields that it has not are those of the optimizer that is not Muon.
function Rules:__index(name)
  local method = Rules[name]
  if method ~= nil then return method end
  local main = rawget(sealed.fields(self), "main")
  return main[name]
end

sealed.class(Rules, {
  what = Rules.__name,
  answers = {
    lr = "give each optimizer a schedule as its lr, where its rule makes it",
    rules = "the list that ms.trainer was given decides once for a model",
  },
  otherwise = "its optimizers are made by functions of ms.optim, which take it as an option", tables = { rules = 2 },
})

local POLICY = "optimizer"

local function read(value, rule)
  if type(value) == "table" and value.configure and not value.rules then return value end
  errors.invalid("%s: the value of %s must be an optimizer, as ms.optim.adamw { lr = 3e-4 } returns it, not %s; there "
    .. "are ms.optim.%s", POLICY, rule, options.describe(value), table.concat(optimizers.kinds, ", ms.optim."))
end

local ONE_OBJECT = "make it once, local %s = ms.optim.%s { lr = ..., groups = { { pattern, { lr_scale = ..., "
  .. "weight_decay = ... } } } }, and write %s in both rules"

local function refuse_part(i, rule, before)
  local kind, advice, another = rule.value.kind, "choose one of the two", ""
  if kind == before then advice, another = ONE_OBJECT:format(kind, kind, kind), "another " end
  errors.raise("MS_EUNSUPPORTED", "%s: rule %d (%s) has ms.optim.%s, and a rule before it has %sms.optim.%s: rules can "
    .. "name one Muon and one other optimizer: %s", POLICY, i, rules.describe(rule), kind, another, before, advice)
end

-- Its distinct optimizers. The engine has one that parameters choose (Muon), and one for all others.
local function parts_of(policy)
  local chosen, other
  for i, rule in ipairs(policy.rules) do
    local part = rule.value
    local before
    if part:chosen_as() then before, chosen = chosen, part else before, other = other, part end
    if before and before ~= part then
      refuse_part(i, rule, before.kind)
    end
  end
  local parts = {}
  if chosen then parts[1] = chosen end
  if other then parts[#parts + 1] = other end
  return parts
end

-- The rule's optimizer for each name. A rule that decides nothing is a mistake that warnings and errors tell.
local function choose(self, fqns, tied)
  local decided, warnings, unmatched = self.rules:resolve(fqns, nil, tied)
  local chosen, of = {}, {}
  for _, part in ipairs(self.parts) do of[part] = {} end
  for i, fqn in ipairs(fqns) do
    local part = decided[i].value
    if not part then
      errors.raise("MS_ERULE", "%s: no rule matches %s: end with { re\".\", ms.optim.adamw { ... } }", POLICY, fqn)
    end
    chosen[fqn] = part
    table.insert(of[part], fqn)
  end
  self.chosen = chosen
  return { decided = decided, of = of, warnings = warnings, unmatched = unmatched }
end

local function append(list, more)
  for _, value in ipairs(more) do list[#list + 1] = value end
end

---The rule that decides each parameter; of a parameter that a group of its optimizer sets apart, that group.
---@param fqns string[]
---@param tied table<string, string>?
---@return moonshard.Decision[] decisions
---@return string[] warnings
---@return moonshard.Rule[] unmatched
function Rules:decide(fqns, tied)
  local choice, by_name, decisions = choose(self, fqns, tied), {}, {}
  local warnings, unmatched = choice.warnings, choice.unmatched
  for _, part in ipairs(self.parts) do
    local own = choice.of[part]
    local decided, more, idle = part:decide(own, tied)
    append(warnings, more)
    append(unmatched, idle)
    for i, fqn in ipairs(own) do by_name[fqn] = decided[i] end
  end
  for i, fqn in ipairs(fqns) do
    local group, rule = by_name[fqn], choice.decided[i]
    decisions[i] = group.rule and group
      or { value = group.value, rule = rule.rule, pattern = rule.pattern, where = rule.where }
  end
  return decisions, warnings, unmatched
end

---@param fqns string[]
---@param tied table<string, string>?
---@return table<string, moonshard.ParamGroup> groups
---@return string[] warnings
function Rules:param_groups(fqns, tied)
  local decided, warnings = self:decide(fqns, tied)
  local result = {}
  for i, fqn in ipairs(fqns) do
    local part = self.chosen[fqn]
    result[fqn] = param_groups.complete(decided[i].value, part.weight_decay)
    result[fqn].optimizer = part.kind
  end
  return result, warnings
end

---The rules that a model uses: ms.set_rules changes none of their optimizers, so there is nothing to copy.
---@return moonshard.Optimizer
function Rules:for_model() return self end

---Whether others are the same: every trainer of a model makes its own from the list that it is given.
---@param other moonshard.Optimizer
---@return boolean
function Rules:is_same(other)
  local own, others = self.rules.rules, other.parts and other.rules.rules
  if not others or #own ~= #others then return false end
  for i, rule in ipairs(own) do
    for _, name in ipairs({ "pattern", "is_regex", "value" }) do
      if rule[name] ~= others[i][name] then return false end
    end
  end
  return true
end

---The optimizer of a parameter, after param_groups.
---@param fqn string
---@return moonshard.Optimizer
function Rules:part_of(fqn) return self.chosen[fqn] end

---@return moonshard.Optimizer?
function Rules:chosen_part() return self.parts[1]:chosen_part() end

---@param param { fqn: string, numel: number, frozen: boolean? }
---@return "f32"|"bf16"|"i8"|nil
function Rules:moments_of(param) return self.chosen[param.fqn]:moments_of(param) end

---@param config ffi.cdata* ms_plan_config
function Rules:configure(config)
  for _, part in ipairs(self.parts) do part:configure(config) end
end

---Reads the option `optimizer` of a trainer if it is a list of rules.
---@param list table
---@return moonshard.OptimizerRules
function optimizer_rules.new(list)
  local policy = rules.policy(POLICY, list, { read = read })
  local parts, kinds = parts_of(policy), {}
  if #parts == 0 then
    errors.raise("MS_ERULE", "%s: there is no rule: give ms.optim.adamw { ... }, or a list such as "
      .. "{ { pattern, ms.optim.muon { ... } }, ... }", POLICY)
  end
  for i, part in ipairs(parts) do kinds[i] = part.kind end
  local self = { rules = policy, parts = parts, main = parts[#parts], title = table.concat(kinds, " and ") }
  return sealed.seal(setmetatable(self, Rules), { rules = list })
end

return optimizer_rules
