-- Checks, before anything is mapped, that this host or this rank's GPU has the memory that a plan needs.
--
-- Arenas are mapped without being touched, those of a new model's values too until they are drawn, so a plan that does
-- not fit would only fail in the middle of a step, through the kernel's out-of-memory killer. All ranks reach the same
-- verdict, so no rank waits for one that was refused.

local agreement = require("moonshard.distributed.agreement")
local engine = require("moonshard.base.ffi")
local errors = require("moonshard.base.error")
local host_memory = require("moonshard.base.host_memory")
local world = require("moonshard.distributed.world")
local C, ffi, check = engine.C, engine.ffi, engine.check
local size = require("moonshard.base.text.progress").size

local memory = {}

---Bytes that are left on this host, or in this process's control groups; math.huge if unknown.
---@return number
function memory.available() return host_memory.read().available or math.huge end

-- Each rank uses a different GPU.
local function check_gpus(who, ranks, growths, available)
  for place, growth in ipairs(growths) do
    if growth > available[place] then
      errors.raise("MS_ENOMEM", "%s needs %s more on the GPU of rank %d, which has %s free", who, size(growth),
        ranks[place], size(available[place]))
    end
  end
end

-- Checks that every host has enough memory for all of its ranks, or every GPU for its rank. Collective.
local function check_available(session, who, growth, free_on_gpu)
  local ranks, needed = session:ranks(), {}
  local growths, available, limits = session:gather_numbers(growth, agreement.within_call("of memory needs"),
    free_on_gpu or memory.available(), host_memory.read().limit or 0)
  if free_on_gpu then return check_gpus(who, ranks, growths, available) end
  for place, more in ipairs(growths) do
    local node = session.sharding.single_rank and 0 or world.node_of(ranks[place])
    needed[node] = (needed[node] or 0) + more
    if needed[node] > available[place] then
      errors.raise("MS_ENOMEM", "%s needs at least %s more on the host of rank %d, which has %s available%s", who,
        size(needed[node]), ranks[place], size(available[place]), limits[place] > 0
          and (" (of %s that its control group allows, as moonshard doctor shows)"):format(size(limits[place])) or "")
    end
  end
end

---Bytes of a state's arenas on this rank.
---@param state ffi.cdata* ms_state*
---@return number
function memory.arena_bytes(state)
  local info = ffi.new("ms_state_memory_info")
  check(C.ms_state_memory(state, nil, info, ffi.sizeof(info)))
  return tonumber(info.arena_bytes)
end

-- Bytes that binding a plan to a state would add on this rank.
local function growth(state, plan)
  local info = ffi.new("ms_state_memory_info")
  check(C.ms_state_memory(state, plan.handle, info, ffi.sizeof(info)))
  return tonumber(info.growth)
end

-- Refuses a plan whose peak exceeds its own limit. Collective.
local function check_limit(session, plan)
  local ranks = session:ranks()
  local peak, limit = plan:summary().peak_bytes, plan.memory_limit or math.huge
  local what = agreement.within_call("of memory needs")
  for place, over in ipairs(session:gather_numbers(math.max(0, peak - limit), what)) do
    if over > 0 then
      errors.raise("MS_ENOMEM", "the plan of rank %d needs %s more than memory_limit allows (here: a peak of %s, "
        .. "memory_limit %s)", ranks[place], size(over), size(peak), size(limit))
    end
  end
end

local function free_on_gpu(session)
  local on_gpu = session:device_memory()
  return on_gpu and on_gpu.free
end

---Refuses a plan that exceeds the available memory or its own limit. Collective.
---@param session moonshard.Session
---@param state ffi.cdata* ms_state*
---@param plan moonshard.Plan its memory_limit bounds the arenas of a rank, in bytes; nil: no limit
function memory.check(session, state, plan)
  check_limit(session, plan)
  check_available(session, "the plan", growth(state, plan), free_on_gpu(session))
end

---Refuses a state of which nothing is written yet, with the plan that needs it, if there is not enough memory.
---Collective.
---@param session moonshard.Session
---@param state ffi.cdata* ms_state*
---@param plan moonshard.Plan?
function memory.check_new(session, state, plan)
  if plan then check_limit(session, plan) end
  local free = free_on_gpu(session)
  local bytes = free and 0 or memory.arena_bytes(state) -- a GPU's is allocated by now
  if plan then bytes = bytes + growth(state, plan) end
  check_available(session, plan and "the plan" or "the model", bytes, free)
end

---Refuses copies of parameters outside the arenas that exceed the available memory or memory_limit.
---Collective.
---@param session moonshard.Session
---@param who string the operation, for messages: "unshard"
---@param bytes number additional bytes on this rank
function memory.check_unsharded(session, who, bytes)
  local arenas, limit, unsharded = memory.arena_bytes(session:ensure_state()), session.memory_limit or math.huge, 0
  for _, by_index in pairs(session.unsharded) do
    for _, value in pairs(by_index) do unsharded = unsharded + 4 * value:numel() end
  end
  local missing = math.max(0, arenas + unsharded + bytes - limit)
  for place, over in ipairs(session:gather_numbers(missing, agreement.within_call("of memory needs"))) do
    if over > 0 then
      errors.raise("MS_ENOMEM", "%s: rank %d would need %s more than memory_limit allows (here: arenas %s, unsharded "
        .. "%s, and %s more; memory_limit %s)", who, session:ranks()[place], size(over), size(arenas), size(unsharded),
        size(bytes), size(limit))
    end
  end
  check_available(session, who, bytes)
end

return memory
