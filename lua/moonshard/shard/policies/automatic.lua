-- The value "auto" of units, reshard_after_forward, prefetch, recompute and shard_optimizer_over_replicate, and
-- recompute = { budget = "60GiB" }: the policy is decided when a trainer compiles its first plan, because only then are
-- the shapes of its batches known.
--
-- Until then a model has the units of its lists of modules, and the defaults of the other policies. tune/auto.lua
-- decides; tune/policies.lua says which policies can be "auto".

local byte_size = require("moonshard.base.text.byte_size")
local context = require("moonshard.base.context")
local errors = require("moonshard.base.error")
local options = require("moonshard.base.checks.options")
local re = require("moonshard.base.re")

local automatic = {
  ---Whether what is "auto" stays undecided: `moonshard tune` decides itself.
  off = false,
  ---The described cluster of a command line, for recipes that name none.
  cluster = nil, ---@type string?
  ---Options that replace those of the recipe, and names of those left out; `moonshard tune` checks with them what it
  ---prints.
  replaced = nil, ---@type { options: table, left_out: string[] }?
}

---@class moonshard.Automatic
---@field policies table<string, boolean> those to decide
---@field cluster string? for which
---@field memory number? bytes of a rank's device; nil: all of the cluster's
---@field budget number? bytes of a rank's arenas, from recompute = { budget = ... }
---@field where string? line of the recipe

local function read_size(name, given)
  if given == nil then return nil end
  local bytes = byte_size.read(given)
  if bytes then return bytes end
  errors.invalid("ms.fully_shard: %s must be a size like \"60GiB\" or a number of bytes above 0, not %s", name,
    options.describe(given))
end

local function budget_of(value)
  if type(value) ~= "table" or value.budget == nil then return nil end
  for key in pairs(value) do
    if key ~= "budget" then
      errors.invalid("ms.fully_shard: recompute: { budget = \"60GiB\" } has no other fields: leave out %s",
        tostring(key))
    end
  end
  return read_size("recompute: budget", value.budget)
end

---Patterns of the modules that are items of a list, without those inside of others: the layers of most models.
---@param inventory moonshard.Inventory
---@return table? units for the option of this name; nil if the model has no lists
function automatic.lists(inventory)
  local inside, patterns, seen = {}, {}, {}
  for i, entry in ipairs(inventory.modules) do
    local list = entry.name:match("^(.-)%d+$")
    local is_item = list == "" or list ~= nil and list:sub(-1) == "."
    inside[i] = is_item or entry.parent ~= nil and inside[entry.parent] or false
    if is_item and not inside[entry.parent] and not seen[list] then
      seen[list] = true
      patterns[#patterns + 1] = re("^" .. list:gsub("%W", "\\%0") .. "\\d+$")
    end
  end
  return #patterns > 0 and patterns or nil
end

---Takes what is "auto" out of the options of ms.fully_shard, and gives it the values that it has until it is decided.
---@param config table changed
---@param inventory moonshard.Inventory
---@return moonshard.Automatic? nil: nothing is "auto"
function automatic.take(config, inventory)
  local budget = budget_of(config.recompute)
  if budget then config.recompute = "auto" end
  local found = { policies = {}, cluster = config.cluster, memory = read_size("memory", config.memory), budget = budget,
    where = errors.caller() }
  for name, value in pairs(config) do
    local row = value == "auto" and context.auto_policies()[name]
    if row and row.auto then
      local until_decided = row.auto.until_decided
      found.policies[name], config[name] = true, until_decided and until_decided(inventory)
    end
  end
  return next(found.policies) and found or nil
end

---The options of a recipe with those that replace them.
---@param config table
---@return table config
function automatic.replace(config)
  if not automatic.replaced then return config end
  for name, value in pairs(automatic.replaced.options) do config[name] = value end
  for _, name in ipairs(automatic.replaced.left_out) do config[name] = nil end
  return config
end

return automatic
