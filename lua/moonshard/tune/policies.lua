-- The table of policies that are searched, by `moonshard tune` and for "auto". A row says all that the search knows of
-- a policy: how a point carries it, how it becomes an option of ms.fully_shard, how it is shown, and how it changes.
-- The other files loop over the rows.

local automatic = require("moonshard.shard.policies.automatic")
local buckets = require("moonshard.tune.buckets")
local pattern_of = require("moonshard.tune.pattern_of")
local re = require("moonshard.base.re")
local roles = require("moonshard.shard.roles")
local unit_groups = require("moonshard.tune.unit_groups")
local unit_loops = require("moonshard.tune.unit_loops")
local world = require("moonshard.distributed.world")

local policies = {}

local RECIPE = "recipe" -- the recipe's own rules
local DIVIDED = unit_groups.DIVIDED
local MAX_AHEAD = 4 -- units that are gathered ahead

---@class moonshard.TunePoint
---@field group number|"recipe" blocks of a unit: 1, 2, ...; DIVIDED: the parts of a block are units
---@field apart boolean whether embedding, head and the like have units of their own
---@field reshard string|integer "recipe", "default", "always", "never", or the size of the groups of backward
---@field keep integer so many units of blocks stay gathered, against `reshard`
---@field first boolean the first units, not the last ones
---@field prefetch integer|"recipe"
---@field recompute integer|"recipe" so many blocks are recomputed
---@field spread boolean evenly spread blocks, not the first ones
---@field over_replicate boolean|"recipe" whether optimizer state is sharded over the replicas, too

---@class moonshard.TuneContext what the moves of a search depend on
---@field blocks moonshard.Blocks
---@field free table<string, boolean> policies that may change
---@field bucket integer blocks of a unit that saturate the link
---@field modes (string|integer)[] values of `reshard`
---@field recomputes boolean whether the recipe's rules recompute something
---@field ahead integer units that the recipe gathers ahead
---@field sliced boolean? whether the recipe shards the optimizer state of all units over the replicas; nil: it cannot

-- ---- what rows share --------------------------------------------------------------------------------------------

local function size_of(p) return p.group == RECIPE and 1 or p.group end

local function ahead_of(p, context) return p.prefetch == RECIPE and context.ahead or p.prefetch end

local function recomputed_of(p) return p.recompute == RECIPE and 0 or p.recompute end

local function blocks_text(count) return ("%d block%s"):format(count, count == 1 and "" or "s") end

-- ---- units ------------------------------------------------------------------------------------------------------

local function bucket_of(trial)
  local list, bytes = trial.blocks.of, 0
  for _, block in ipairs(list) do bytes = bytes + block.bytes end
  return buckets(trial.sharding, trial.cluster, #list > 0 and bytes / #list or 0, math.max(1, #list))
end

local function units_text(p)
  local parts = {}
  if p.group == DIVIDED then parts[1] = "units of parts of a layer"
  elseif p.group ~= RECIPE then parts[1] = "units of " .. blocks_text(p.group) end
  if p.apart then parts[#parts + 1] = "embedding and head apart" end
  return #parts > 0 and table.concat(parts, ", ") or nil
end

local function move_units(add, p, context)
  local n, group = #context.blocks.of, size_of(p)
  local function add_size(size)
    if size ~= group and size >= DIVIDED and size <= n then add({ group = size, keep = 0 }) end
  end
  add_size(2 * group)
  add_size(group / 2)
  -- Half as large units, of which as many bytes are gathered ahead.
  local ahead = 2 * ahead_of(p, context)
  if context.free.prefetch and group / 2 >= DIVIDED and ahead <= MAX_AHEAD then
    add({ group = group / 2, keep = 0, prefetch = ahead })
  end
  if group < context.bucket / 2 then add_size(context.bucket) end
  if #context.blocks.apart > 0 then add({ apart = not p.apart }) end
end

local function save_by_units(add, p, context)
  if not p.apart and #context.blocks.apart > 0 then add({ apart = true }) end
  if size_of(p) / 2 >= DIVIDED then add({ group = size_of(p) / 2, keep = 0 }) end
end

-- ---- reshard_after_forward --------------------------------------------------------------------------------------

-- Plain values, which a search never loses to.
local PLAIN = { "default", "always", "never" }
local RESHARD_VALUES = { always = true, never = false, default = "default" }

-- Plain values, and sizes of the groups in which backward can gather: those of a node, if a shard group has several.
local function modes_of(sharding)
  local modes, shards = { unpack(PLAIN) }, roles.shards(sharding)
  local inside = world.node_ranks(0)
  if inside > 1 and inside < shards and shards % inside == 0 then modes[#modes + 1] = inside end
  return modes
end

local function reshard_option(p, blocks)
  if p.reshard == RECIPE then return nil end
  local value = p.reshard
  if RESHARD_VALUES[value] ~= nil then value = RESHARD_VALUES[value] end
  if p.keep == 0 then return value end
  local groups, names = unit_groups.of(size_of(p), blocks), {}
  local from = p.first and 1 or #groups - p.keep + 1
  for i = from, from + p.keep - 1 do names[#names + 1] = groups[i][1] end
  return { { re(pattern_of(names)), false }, { re"", value } }
end

local function reshard_text(p)
  local kept = p.keep > 0 and ("%d %s units kept"):format(p.keep, p.first and "first" or "last") or nil
  if p.reshard == RECIPE then return kept end
  local how = type(p.reshard) == "number" and ("over %d ranks"):format(p.reshard) or p.reshard
  return "reshard " .. how .. (kept and ", " .. kept or "")
end

local function move_reshard(add, p, context, part)
  for _, mode in ipairs(context.modes) do
    if mode ~= p.reshard then add({ reshard = mode, keep = 0, first = false }) end
  end
  if p.reshard == RECIPE or p.reshard == "never" then return end
  local n = #unit_groups.of(size_of(p), context.blocks)
  local step = math.max(1, math.floor(n * part))
  if p.keep + step < n then add({ keep = p.keep + step }) end
  if p.keep > 0 then
    add({ keep = math.max(0, p.keep - step) })
    add({ first = not p.first })
  end
end

local function save_by_reshard(add, p, context)
  for _, mode in ipairs(context.modes) do
    if mode ~= "never" and mode ~= p.reshard then add({ reshard = mode, keep = 0 }) end
  end
  if p.keep > 0 then add({ keep = math.floor(p.keep / 2) }) end
end

local function plain_reshard()
  local list = {}
  for i, mode in ipairs(PLAIN) do list[i] = { name = mode, fields = { reshard = mode } } end
  return list
end

-- ---- prefetch ---------------------------------------------------------------------------------------------------

local function prefetch_of(trial) return trial.trainer.prefetch or 1 end

local function prefetch_text(p) return p.prefetch ~= RECIPE and ("prefetch %d"):format(p.prefetch) or nil end

local function move_prefetch(add, p, context)
  local depth = ahead_of(p, context)
  for _, other in ipairs({ depth + 1, depth - 1 }) do
    if other >= 0 and other <= MAX_AHEAD then add({ prefetch = other }) end
  end
end

local function save_by_prefetch(add, p, context)
  local depth = ahead_of(p, context)
  if depth > 0 then add({ prefetch = depth - 1 }) end
end

-- ---- recompute --------------------------------------------------------------------------------------------------

-- The first blocks, or as many evenly spread ones.
local function recompute_option(p, blocks)
  if p.recompute == RECIPE then return nil end
  if p.recompute == 0 then return false end
  local names, n = {}, #blocks.of
  for i, block in ipairs(blocks.of) do
    local chosen = i <= p.recompute
    if p.spread then chosen = math.floor(i * p.recompute / n) > math.floor((i - 1) * p.recompute / n) end
    for _, name in ipairs(chosen and block.names or {}) do names[#names + 1] = name end
  end
  return { { re(pattern_of(names)), true } }
end

local function recompute_text(p) return p.recompute ~= RECIPE and "recompute " .. blocks_text(p.recompute) or nil end

local function move_recompute(add, p, context, part)
  if p.recompute == RECIPE and context.recomputes then add({ recompute = 0 }) end
  local n, now = #context.blocks.of, recomputed_of(p)
  local step = math.max(1, math.floor(n * part))
  if now > 0 then add({ recompute = math.max(0, now - step) }) end
  if now > 0 and now < n then add({ spread = not p.spread }) end
end

local function save_by_recompute(add, p, context)
  local n, now = #context.blocks.of, recomputed_of(p)
  for _, count in ipairs({ now + 1, math.ceil((now + n) / 2), n }) do
    if now < n then add({ recompute = count }) end
  end
end

local function recompute_less(add, p, part)
  if p.recompute == RECIPE then return end
  local fewer = math.max(1, math.floor(p.recompute * part))
  if p.recompute >= fewer then add({ recompute = p.recompute - fewer }) end
end

-- ---- shard_optimizer_over_replicate ---------------------------------------------------------------------------------

-- Whether replicas can have slices: local steps need whole updates, and sums in few bits are of whole gradients.
local function can_slice(sharding)
  if roles.ranks_of_sum(sharding, "replicate") == 1 or sharding.local_sync then return false end
  for _, unit in ipairs(sharding.units) do
    if unit.replicate_dtype or unit.shard_dtype then return false end
  end
  return true
end

local function slices_of(trial)
  if not can_slice(trial.sharding) then return {} end
  for _, unit in ipairs(trial.sharding.units) do
    if not unit.shard_over_replicate then return { sliced = false } end
  end
  return { sliced = true }
end

local function is_sliced(p, context)
  if p.over_replicate == RECIPE then return context.sliced end
  return p.over_replicate
end

local function slices_option(p)
  if p.over_replicate == RECIPE then return nil end
  return p.over_replicate
end

local function slices_text(p)
  if p.over_replicate == RECIPE then return nil end
  return p.over_replicate and "optimizer over replicas" or "optimizer not over replicas"
end

local function move_slices(add, p, context)
  local other = not is_sliced(p, context)
  if other == context.sliced then add({ over_replicate = RECIPE }) else add({ over_replicate = other }) end
end

local function save_by_slices(add, p, context)
  if not is_sliced(p, context) then add({ over_replicate = true }) end
end

-- ---- the table --------------------------------------------------------------------------------------------------

---@alias moonshard.AddMove fun(fields: table) adds the point that differs in these fields

---@class moonshard.AutoPolicy
---@field default fun(trial: moonshard.Trial): any its option if the search leaves it to the recipe
---@field until_decided (fun(inventory: moonshard.Inventory): any)? its option before the search; without it none

---@class moonshard.SearchedPolicy
---@field name string the option of ms.fully_shard
---@field fields { [1]: string, [2]: any }[] its fields of a point, and the values that leave it to the recipe
---@field recipe table<string, any>? those values by field; set below
---@field auto moonshard.AutoPolicy? nil: a recipe cannot leave it to the search, as "auto"
---@field option fun(p: moonshard.TunePoint, blocks: moonshard.Blocks): any nil: the recipe's
---@field text fun(p: moonshard.TunePoint): string? for people; nil: the recipe's
---@field before (fun(value: any, of_value: fun(value: any): string): string[]?)? for an option of several lines: Lua
---  that makes a local variable of its name, before ms.fully_shard; nil: the option stays whole
---@field replaces string? an option that a recipe with this one has to leave out
---@field plain { name: string, fields: table }[]? points that a search begins with and never loses to, by name in JSON
---@field applies (fun(sharding: moonshard.Sharding): boolean)? without it always
---@field context (fun(trial: moonshard.Trial): table)? adds fields to moonshard.TuneContext
---@field moves fun(add: moonshard.AddMove, p: moonshard.TunePoint, context: moonshard.TuneContext, part: number)
---  neighbours: one step of the policy, towards a faster one; a step of what is counted in blocks is a part of all
---@field saving fun(add: moonshard.AddMove, p: moonshard.TunePoint, context: moonshard.TuneContext) neighbours that can
---  take less memory
---@field frugal fun(context: moonshard.TuneContext): table? fields of little memory; nil: the recipe's
---@field last_resort table? fields of still less memory, which take more time
---@field less (fun(add: moonshard.AddMove, p: moonshard.TunePoint, part: number))? the same with a part less, which a
---  search takes if that is as fast
---@field advice (fun(p: moonshard.TunePoint, category: string, context: moonshard.TuneContext): string?)? what makes
---  bytes of a category fewer

-- In the order in which rules are printed; they are dropped in the opposite one.
---@type moonshard.SearchedPolicy[]
local ROWS = {
  {
    name = "units", fields = { { "group", RECIPE }, { "apart", false } },
    auto = { default = function(trial) return trial.blocks.entries end, until_decided = automatic.lists },
    option = function(p, blocks)
      return (p.group ~= RECIPE or p.apart) and unit_groups.entries(size_of(p), p.apart, blocks) or nil
    end,
    text = units_text, before = unit_loops.of,
    context = function(trial) return { bucket = bucket_of(trial) } end,
    moves = move_units, saving = save_by_units,
    frugal = function(context) return { apart = #context.blocks.apart > 0 } end, last_resort = { group = DIVIDED },
  },
  {
    name = "reshard_after_forward", fields = { { "reshard", RECIPE }, { "keep", 0 }, { "first", false } },
    auto = { default = function() return "default" end },
    option = reshard_option, text = reshard_text, replaces = "strategy", plain = plain_reshard(),
    applies = function(sharding) return sharding.config.strategy ~= "NO_SHARD" end,
    context = function(trial) return { modes = modes_of(trial.sharding) } end,
    moves = move_reshard, saving = save_by_reshard,
    frugal = function() return { reshard = "always", keep = 0 } end,
  },
  {
    name = "prefetch", fields = { { "prefetch", RECIPE } },
    auto = { default = prefetch_of },
    option = function(p) return p.prefetch ~= RECIPE and p.prefetch or nil end, text = prefetch_text,
    context = function(trial) return { ahead = prefetch_of(trial) } end,
    moves = move_prefetch, saving = save_by_prefetch,
    frugal = function() return { prefetch = 0 } end,
  },
  {
    name = "recompute", fields = { { "recompute", RECIPE }, { "spread", false } },
    auto = { default = function() return false end },
    option = recompute_option, text = recompute_text,
    context = function(trial) return { recomputes = next(trial.sharding.recompute) ~= nil } end,
    moves = move_recompute, saving = save_by_recompute, less = recompute_less,
    frugal = function(context) return { recompute = #context.blocks.of, spread = false } end,
    advice = function(p, category)
      return category == "activations" and recomputed_of(p) == 0 and "recompute" or nil
    end,
  },
  {
    name = "shard_optimizer_over_replicate", fields = { { "over_replicate", RECIPE } },
    auto = { default = function() return false end },
    option = slices_option, text = slices_text,
    plain = { { name = "shard_optimizer_over_replicate", fields = { over_replicate = true } } },
    applies = can_slice, context = slices_of,
    moves = move_slices, saving = save_by_slices,
    frugal = function(context) return not context.sliced and { over_replicate = true } or nil end,
    advice = function(p, category, context)
      local helps = category == "optimizer" and context.sliced ~= nil and not is_sliced(p, context)
      return helps and "shard_optimizer_over_replicate" or nil
    end,
  },
}

-- ---- orders -----------------------------------------------------------------------------------------------------

local by_name = {}
for _, row in ipairs(ROWS) do
  by_name[row.name], row.recipe = row, {}
  for _, field in ipairs(row.fields) do row.recipe[field[1]] = field[2] end
end

-- Rows of these names, then all others.
local function ordered(names)
  local list, named = {}, {}
  for name in names:gmatch("%S+") do
    list[#list + 1], named[name] = by_name[name], true
  end
  for _, row in ipairs(ROWS) do
    if not named[row.name] then list[#list + 1] = row end
  end
  return list
end

policies.all = ROWS
---@type table<string, moonshard.SearchedPolicy>
policies.by_name = by_name
---In the order of moves, which decides between those that gain the same.
policies.moved = ordered("units prefetch reshard_after_forward recompute shard_optimizer_over_replicate")
---In the order of moves that save memory.
policies.saved = ordered("shard_optimizer_over_replicate recompute reshard_after_forward units prefetch")
---In the order in which they become frugal, the one that takes least time first.
policies.frugal = ordered("shard_optimizer_over_replicate reshard_after_forward recompute units prefetch")

---The names of options that a recipe with these options has to leave out.
---@param options table of ms.fully_shard
---@return string[]
function policies.replaced_by(options)
  local names = {}
  for _, row in ipairs(ROWS) do
    if row.replaces and options[row.name] ~= nil then names[#names + 1] = row.replaces end
  end
  return names
end

return policies
