-- Full parameters. model:unshard keeps those of a unit on every rank until model:reshard, so that each rank can read
-- them without communication; ms.with_full_params passes them to a function and writes back its changes.
--
-- Both copy the f32 masters to memory outside the arenas; plans gather parameters themselves and never read the copies.
-- Before a copy is made, its size is checked against the host's memory and the trainer's memory_limit. A step would
-- make copies stale, so it reshards all units first.

local agreement = require("moonshard.distributed.agreement")
local create = require("moonshard.tensor.create")
local engine = require("moonshard.base.ffi")
local errors = require("moonshard.base.error")
local hash = require("moonshard.base.hash")
local memory = require("moonshard.engine.memory")
local nearest = require("moonshard.base.names.nearest")
local options = require("moonshard.base.checks.options")
local re = require("moonshard.base.re")
local rules = require("moonshard.shard.rules")
local session = require("moonshard.engine.session")
local tensor = require("moonshard.tensor")
local tree = require("moonshard.nn.tree")
local values = require("moonshard.tensor.values")
local world = require("moonshard.distributed.world")
local C, check = engine.C, engine.check

local unshard = {}

-- ---- which ------------------------------------------------------------------------------------------------------

-- The units whose roots are in a module; for the model itself, all units.
local function units_inside(around, module)
  if module == around.model then return around.sharding.units end
  local inside, found = {}, {}
  for _, entry in ipairs(tree.inventory(module).modules) do inside[entry.module] = true end
  for _, unit in ipairs(around.sharding.units) do
    if inside[unit.module] then found[#found + 1] = unit end
  end
  if found[1] then return found end
  local parameter = tree.inventory(module).parameters[1].parameter
  local unit = around.sharding.params[around.sharding.index[parameter] + 1].unit
  errors.invalid("unshard: %s is not a unit: its parameters are gathered with unit %s; name that unit",
    getmetatable(module).name, unit.name)
end

-- The units that a pattern or a list of patterns selects; without one, the units of the module.
local function choose(around, module, which)
  if which == nil then return units_inside(around, module) end
  local units, names, chosen = around.sharding.units, {}, {}
  for i, unit in ipairs(units) do names[i] = unit.name end
  if type(which) == "string" or re.is(which) then which = { which } end
  local decisions = rules.policy("unshard", which, { bare_value = true }):resolve(names, false)
  for i, unit in ipairs(units) do
    if decisions[i].value then chosen[#chosen + 1] = unit end
  end
  return chosen
end

-- ---- together ---------------------------------------------------------------------------------------------------

-- The chosen units, the same on all ranks, or an error on all. Collective.
local function choose_together(around, module, which, who)
  local units = around:all_or_none(who, choose, around, module, which)
  local names = {}
  for i, unit in ipairs(units) do names[i] = unit.name end
  local text = table.concat(names, "\n")
  around:require_same(hash.of_text(text), "of units to unshard", function(other)
    return ("%s: rank %d named different units than rank %d (here %s); all ranks must agree"):format(who, other,
      world.rank, table.concat(names, ", "))
  end)
  return units
end

-- ---- values -----------------------------------------------------------------------------------------------------

-- Size in bytes. Raises if a parameter is too large for a tensor, on all ranks, even those that keep no copy.
local function bytes_of(units)
  local bytes = 0
  for _, unit in ipairs(units) do
    for _, param in ipairs(unit.params) do bytes = bytes + 4 * values.check_size("f32", param.shape) end
  end
  return bytes
end

-- The values of all parameters of some units, by the engine's index. Collective; empty on ranks that keep no copy.
local function gather(around, units, what, keeps)
  local by_index, state = {}, around:ensure_state()
  for _, unit in ipairs(units) do
    for _, param in ipairs(unit.params) do
      if what ~= C.MS_TENSOR_GRAD or not param.frozen then
        local index, data = around.sharding.index[param.parameter], nil
        if keeps then data = values.allocate("f32", param.shape) end
        check(C.ms_state_gather(state, index, what, 0, -1, data))
        by_index[index] = data and tensor.eager("f32", { unpack(param.shape) }, data,
          not around.sharding.single_rank and "replicated" or nil)
      end
    end
  end
  return by_index
end

-- Names values as in a module. A tied parameter is listed under its first name, and can be read under all.
local function by_name(around, module, by_index)
  local view, first_name, known = {}, {}, {}
  for _, entry in ipairs(tree.inventory(module).parameters) do
    local value = by_index[around.sharding.index[entry.parameter]]
    view[entry.name] = value
    for _, place in ipairs(value and entry.places or {}) do
      first_name[place.name] = entry.name
      known[#known + 1] = place.name
    end
  end
  local function real(name)
    if first_name[name] then return first_name[name] end
    errors.raise("MS_ENAME", "no parameter %s is here: %s", tostring(name), #known == 0 and "there are none"
      or nearest.name(tostring(name), known) and ("did you mean %s?"):format(nearest.name(tostring(name), known))
      or ("the %d parameters here start with %s"):format(#known, known[1]))
  end
  return setmetatable(view, {
    __index = function(self, name) return rawget(self, real(name)) end,
    __newindex = function(self, name, value) rawset(self, real(name), value) end,
  })
end

-- ---- unshard and reshard ----------------------------------------------------------------------------------------

local function hold(around, module, which)
  local units = choose_together(around, module, which, "unshard")
  local missing, by_index = {}, {}
  for _, unit in ipairs(units) do
    if not around.unsharded[unit] then missing[#missing + 1] = unit end
  end
  memory.check_unsharded(around, "unshard", bytes_of(missing))
  for _, unit in ipairs(missing) do around.unsharded[unit] = gather(around, { unit }, C.MS_TENSOR_PARAM, true) end
  for _, unit in ipairs(units) do
    for index, value in pairs(around.unsharded[unit]) do by_index[index] = value end
  end
  return by_name(around, module, by_index)
end

local function release(around, module, which)
  for _, unit in ipairs(choose_together(around, module, which, "reshard")) do around.unsharded[unit] = nil end
  collectgarbage()
end

---Keeps units in full, f32, on every rank. Collective.
---@param module moonshard.Module
---@param which any? name, pattern or list of them over units; nil: the units of the module
---@return table<string, moonshard.Tensor> by FQN in the module
function unshard.unshard(module, which)
  return agreement.uninterrupted(hold, session.around(module), module, which)
end

---Frees the copies of units that unshard keeps. Collective.
---@param module moonshard.Module
---@param which any? as for unshard
function unshard.reshard(module, which)
  return agreement.uninterrupted(release, session.around(module), module, which)
end

---Size of the copies that unshard keeps on this rank.
---@param module moonshard.Module
---@return table<string, number> bytes by unit
function unshard.bytes(module)
  local bytes = {}
  for unit in pairs(session.around(module).unsharded) do bytes[unit.name] = bytes_of({ unit }) end
  return bytes
end

-- ---- with full parameters ---------------------------------------------------------------------------------------

local function check_may_lend(around, o)
  if around.in_full_params then errors.invalid("ms.with_full_params cannot be nested on the same model") end
  if o.writeback and around.sharding.single_rank then
    errors.invalid("ms.with_full_params: shard the model first (ms.fully_shard); until then it has no values of its "
      .. "own to write to")
  end
  if o.with_grads then around:require_gradient() end
end

local function lend(around, module, o)
  around:all_or_none("ms.with_full_params", check_may_lend, around, o)
  local units = choose_together(around, module, o.units, "ms.with_full_params")
  local keeps = not o.rank0_only or around:is_first() or around.sharding.single_rank
  local bytes = (o.with_grads and 2 or 1) * bytes_of(units)
  memory.check_unsharded(around, "ms.with_full_params", keeps and bytes or 0)
  local lent = { by_index = gather(around, units, C.MS_TENSOR_PARAM, keeps), hash = {} }
  for index, value in pairs(o.writeback and lent.by_index or {}) do
    lent.hash[index] = hash.of_bytes(value.data, values.bytes(value))
  end
  lent.params = by_name(around, module, lent.by_index)
  if o.with_grads then
    local grads = gather(around, units, C.MS_TENSOR_GRAD, keeps)
    for index, sum in pairs(grads) do
      values.scale(sum.data, sum:numel(), around:gradient_factor(around.sharding.params[index + 1]))
    end
    lent.grads = by_name(around, module, grads)
  end
  return lent
end

-- The new value of a parameter as f32; raises if its shape is wrong.
local function read_new(name, param, given)
  if given == nil then errors.invalid("ms.with_full_params: %s was removed; assign values, or leave it as is", name) end
  local new = tensor.is_eager(given) and given or create.tensor(given)
  if tensor.shape_text(new.shape) ~= tensor.shape_text(param.shape) then
    errors.raise("MS_ESHAPE", "ms.with_full_params: %s is %s, the values it was given are %s", name,
      tensor.shape_text(param.shape), tensor.shape_text(new.shape))
  end
  return new:cast("f32")
end

-- The parameters that the function changed, by assignment or in place, in the order of the engine's indices.
local function changes_of(around, module, lent)
  local changes = {}
  for _, entry in ipairs(tree.inventory(module).parameters) do
    local index = around.sharding.index[entry.parameter]
    if lent.hash[index] then
      local new = read_new(entry.name, entry.parameter, rawget(lent.params, entry.name))
      local of_new = hash.of_bytes(new.data, values.bytes(new))
      if of_new ~= lent.hash[index] then
        changes[#changes + 1] = { index = index, name = entry.name, new = new, hash = of_new }
      end
    end
  end
  return changes
end

-- Each rank writes its own shard, so different values would produce a mixture of them.
local function check_equal(around, changes)
  local text = {}
  for i, change in ipairs(changes) do text[i] = ("%d %.0f"):format(change.index, change.hash) end
  text = table.concat(text, " ")
  if not around:find_mismatch(hash.of_text(text), "of changed parameters") then return end
  local by_index = {}
  for _, change in ipairs(changes) do by_index[change.index] = change.hash end
  for i, param in ipairs(around.sharding.params) do
    around:require_same(by_index[i - 1] or -1, "of changed parameters", function(other)
      return ("ms.with_full_params: rank %d gave %s different values than rank %d, so nothing is written back; all "
        .. "ranks must give the same"):format(other, param.fqn, world.rank)
    end)
  end
end

local function give_back(around, module, lent, returned, o)
  local changes = around:all_or_none("the function of ms.with_full_params", function()
    if not returned[1] then error(returned[2], 0) end
    local changes = o.writeback and changes_of(around, module, lent) or {}
    if changes[1] then around:require_weights("ms.with_full_params", "change them") end
    return changes
  end)
  check_equal(around, changes)
  if changes[1] then around.edits = around.edits + 1 end
  for _, change in ipairs(changes) do
    check(C.ms_state_scatter(around:ensure_state(), change.index, -1, change.new.data))
    local unsharded = around.unsharded[around.sharding.params[change.index + 1].unit]
    if unsharded then unsharded[change.index] = change.new end
  end
end

local function pack(...) return { n = select("#", ...), ... } end

local SPECS = {
  writeback = { "boolean", default = true }, with_grads = { "boolean", default = false },
  rank0_only = { "boolean", default = false }, units = { "any" },
}

---@class moonshard.FullParamsOptions
---@field writeback? boolean true
---@field with_grads? boolean also the gradients of the last step's mean loss, before clipping, of what is not frozen,
---  to read; false
---@field rank0_only? boolean other ranks get empty tables, and nothing can be written back; false
---@field units? any patterns, as for model:unshard

---Calls a function with a module's parameters in full, f32, as a table of tensors by name. What it assigns
---(params["head.weight"] = params["head.weight"] * 0.5), or changes in their memory, is written back to all owners when
---it returns. When it fails on any rank, nothing is written on any, and all ranks raise. No step, evaluation or call of
---the model inside: they would not see the changes. Nothing is called where only a plan is made. Collective.
---@param model moonshard.Module
---@param block fun(params: table<string, moonshard.Tensor>, grads: table<string, moonshard.Tensor>?): ...
---@param o moonshard.FullParamsOptions?
---@return ... what the function returns
function unshard.with_full_params(model, block, o)
  if not tree.is_module(model) or type(block) ~= "function" then
    errors.invalid("ms.with_full_params takes a module and a function: ms.with_full_params(model, function(params) "
      .. "... end)")
  end
  o = options.parse("ms.with_full_params", o, SPECS)
  if o.rank0_only and o.writeback then
    errors.invalid("ms.with_full_params: rank0_only gives the other ranks nothing to write back; set writeback = false")
  end
  local around = session.around(model)
  if world.plan_only and not around.sharding.single_rank then return end
  local lent = agreement.uninterrupted(lend, around, model, o)
  around.in_full_params = true
  local returned = pack(pcall(block, lent.params, lent.grads))
  around.in_full_params = false
  agreement.uninterrupted(give_back, around, model, lent, returned, o)
  return unpack(returned, 2, returned.n)
end

return unshard
