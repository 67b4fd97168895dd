-- Which layers the rules of ms.lora give adapters, and what each of them is.

local adapter = require("moonshard.nn.adapter")
local errors = require("moonshard.base.error")
local nearest = require("moonshard.base.names.nearest")
local options = require("moonshard.base.checks.options")
local rules = require("moonshard.shard.rules")
local shardings = require("moonshard.shard.sharding")
local tree = require("moonshard.nn.tree")

-- ---- the values of rules ----------------------------------------------------------------------------------------

local function read(value, rule)
  if type(value) ~= "table" then
    errors.invalid("ms.lora: %s must have a table, as in { rank = 16, alpha = 32 }, not %s", rule,
      options.describe(value))
  end
  local config = options.parse("ms.lora: " .. rule, value, adapter.OPTIONS.specs)
  config.alpha = config.alpha or 2 * config.rank
  if not (config.alpha > 0 and config.alpha < math.huge) then
    errors.invalid("ms.lora: %s: alpha must be above 0 and finite, not %g", rule, config.alpha)
  end
  if not (config.dropout >= 0 and config.dropout < 1) then
    errors.invalid("ms.lora: %s: dropout must be at least 0 and below 1, not %g", rule, config.dropout)
  end
  if adapter.INITIAL[config.init_lora_weights] == nil then
    errors.invalid('ms.lora: %s: init_lora_weights must be true, false or "gaussian", not %s', rule,
      options.describe(config.init_lora_weights))
  end
  if config.lora_bias and config.use_dora then
    errors.invalid("ms.lora: %s: lora_bias and use_dora exclude each other, as in PEFT", rule)
  end
  if config.use_rslora then config.alpha = config.alpha * math.sqrt(config.rank) end
  return config
end

-- ---- which layers -----------------------------------------------------------------------------------------------

local function is_linear(entry) return entry.module.takes_adapter == true end

-- The modules that contain linear layers.
local function containers(modules)
  local contains = {}
  for _, entry in ipairs(modules) do
    local at = is_linear(entry) and entry.parent
    while at and not contains[modules[at]] do
      contains[modules[at]] = true
      at = modules[at].parent
    end
  end
  return contains
end

local function refuse_module(rule, entry, names)
  errors.raise_at(rule.where, "MS_ERULE", "ms.lora: rule %s matches %s (%s), which is not a linear layer "
    .. "(ms.nn.linear), and only those take adapters; nearest: %s", rules.describe(rule), entry.name,
    getmetatable(entry.module).name, nearest.several(entry.name, names, 3))
end

---The layers that rules choose, with what they give them. A rule can match a module that contains what it matches.
---@param model moonshard.Module
---@param list table rules over names of modules
---@return { name: string, layer: moonshard.Module, config: moonshard.Adapter }[]
return function(model, list)
  local modules, entries, names, linear = tree.inventory(model).modules, {}, {}, {}
  for _, entry in ipairs(modules) do
    if entry.name ~= "" then
      entries[#entries + 1], names[#names + 1] = entry, entry.name
      if is_linear(entry) then linear[entry.name] = true end
    end
  end
  if next(linear) == nil then errors.invalid("ms.lora: the model has no linear layer (ms.nn.linear)") end
  local policy = rules.policy("ms.lora", list, { read = read })
  if #policy.rules == 0 then errors.invalid("ms.lora: there is no rule: write { { re[[...]], { rank = 16 } } }") end
  local decisions, warnings = policy:resolve(names, false)
  shardings.report(warnings)
  local chosen, contains, effect, container = {}, containers(modules), {}, {}
  for i, entry in ipairs(entries) do
    local decision = decisions[i]
    if decision.rule and is_linear(entry) then
      chosen[#chosen + 1] = { name = entry.name, layer = entry.module, config = decision.value }
      effect[decision.rule] = true
    elseif decision.rule and contains[entry] then
      container[decision.rule] = container[decision.rule] or entry
    elseif decision.rule then
      refuse_module(policy.rules[decision.rule], entry, linear)
    end
  end
  for i, entry in pairs(container) do
    if not effect[i] then refuse_module(policy.rules[i], entry, linear) end
  end
  return chosen
end
