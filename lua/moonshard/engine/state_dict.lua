-- A model's parameters as a table by name: each rank its own shards, or in full on the first rank.

local agreement = require("moonshard.distributed.agreement")
local engine = require("moonshard.base.ffi")
local errors = require("moonshard.base.error")
local inspect = require("moonshard.engine.inspect")
local options = require("moonshard.base.options")
local session = require("moonshard.engine.session")
local tensor = require("moonshard.tensor")
local values = require("moonshard.tensor.values")
local world = require("moonshard.distributed.world")
local C, check, ffi = engine.C, engine.check, engine.ffi

local state_dict = {}

local OPTIONS = { full = { "boolean", default = false } }

local function is_first(around) return around.sharding.single_rank or around:ranks()[1] == around.sharding.rank end

local function gather(around, index, param)
  local state = around:ensure_state()
  if not is_first(around) then return check(C.ms_state_gather(state, index, C.MS_TENSOR_PARAM, nil)) end
  local shape = { unpack(param.shape) }
  local data = values.allocate("f32", shape)
  check(C.ms_state_gather(state, index, C.MS_TENSOR_PARAM, data))
  return tensor.eager("f32", shape, data, not around.sharding.single_rank and ("rank %d"):format(world.rank) or nil)
end

---@param model moonshard.Module
---@param o { full: boolean? }?
---@return table<string, moonshard.Tensor>
function state_dict.get(model, o)
  o = options.parse("state_dict", o, OPTIONS)
  local around, dict = session.around(model), {}
  for i, param in ipairs(around.sharding.params) do
    if o.full then dict[param.fqn] = gather(around, i - 1, param)
    else dict[param.fqn] = inspect.local_parameter(model, param.fqn) end
  end
  return dict
end

-- The elements of a parameter that this rank needs: shape (nil if any), count, first, and whether no replica has them.
local function expected(around, i, param, full)
  if full then return param.shape, param.numel, 0 end
  local first, count, sliced = ffi.new("int64_t[1]"), ffi.new("int64_t[1]"), ffi.new("int[1]")
  check(C.ms_state_kept(around.state, i - 1, C.MS_TENSOR_PARAM, first, count, sliced))
  return nil, tonumber(count[0]), tonumber(first[0]), sliced[0] ~= 0
end

local function check_entry(around, i, param, given, full, wrong)
  local shape, count = expected(around, i, param, full)
  if given == nil then
    wrong[#wrong + 1] = ("%s is missing"):format(param.fqn)
  elseif not tensor.is_eager(given) then
    wrong[#wrong + 1] = ("%s is %s, not a tensor"):format(param.fqn, options.describe(given))
  elseif given.dtype ~= "f32" then
    wrong[#wrong + 1] = ("%s is %s, not f32"):format(param.fqn, given.dtype)
  elseif shape and tensor.shape_text(given.shape) ~= tensor.shape_text(shape) then
    wrong[#wrong + 1] = ("%s is %s, here %s"):format(param.fqn, tensor.shape_text(given.shape),
      tensor.shape_text(shape))
  elseif given:numel() ~= count then
    wrong[#wrong + 1] = ("%s has %d elements, this rank owns %d"):format(param.fqn, given:numel(), count)
  end
end

local MOST_LISTED = 8

local function check_all(around, dict, full)
  if type(dict) ~= "table" then errors.invalid("load_state_dict takes a table of tensors by name, not %s",
    options.describe(dict)) end
  local wrong, known = {}, {}
  for i, param in ipairs(around.sharding.params) do
    known[param.fqn] = true
    check_entry(around, i, param, dict[param.fqn], full, wrong)
  end
  local extra = {}
  for name in pairs(dict) do
    if not known[name] then extra[#extra + 1] = tostring(name) end
  end
  table.sort(extra)
  for _, name in ipairs(extra) do wrong[#wrong + 1] = ("the model has no %s"):format(name) end
  if #wrong == 0 then return end
  if #wrong > MOST_LISTED then
    wrong[MOST_LISTED] = ("and %d more"):format(#wrong - MOST_LISTED + 1)
    for i = #wrong, MOST_LISTED + 1, -1 do wrong[i] = nil end
  end
  errors.raise("MS_ENAME", "load_state_dict: %s", table.concat(wrong, "; "))
end

local function write(around, dict, full)
  local any_sliced = false
  for i, param in ipairs(around.sharding.params) do
    local given = dict[param.fqn]
    if full then
      check(C.ms_state_scatter(around.state, i - 1, 0, is_first(around) and given.data or nil))
    else
      local _, count, first, sliced = expected(around, i, param, false)
      check(C.ms_state_write(around.state, i - 1, C.MS_TENSOR_PARAM, first, count, given.data))
      if param.unit.fragment and around.optimizer and not param.frozen then
        check(C.ms_state_write(around.state, i - 1, C.MS_TENSOR_SYNCED, first, count, given.data))
      end
      any_sliced = any_sliced or sliced
    end
  end
  check(C.ms_state_seal(around.state))
  if any_sliced then check(C.ms_state_spread(around.state)) end
end

---@param model moonshard.Module
---@param dict table<string, moonshard.Tensor>
---@param o { full: boolean? }?
function state_dict.set(model, dict, o)
  o = options.parse("load_state_dict", o, OPTIONS)
  local around = session.around(model)
  if around.sharding.single_rank then
    errors.invalid("load_state_dict: shard the model first (ms.fully_shard); until then it has no values of its own")
  end
  around:ensure_state()
  local ok, raised = pcall(function()
    if not o.full or is_first(around) then check_all(around, dict, o.full) end
  end)
  -- This also ensures that no peer reads the old values after it.
  agreement.raise_first_failure(around, "of load_state_dict", ok, raised)
  around.unsharded = {} -- copies of the old values
  write(around, dict, o.full)
end

return state_dict
