-- In which update the momentum of each parameter begins, for SGD whose groups can leave it out. PyTorch makes a buffer
-- of the first gradient that meets a momentum, without dampening, and keeps it if the momentum becomes 0 later. The
-- engine keeps one from the start, and takes the number of the update in which it begins.
--
-- Known of a parameter (sharding.momentum_starts): the number of that update; false: it was updated, and never with a
-- momentum; nil: its first update, and it has had none.

local division = require("moonshard.shard.division")
local engine = require("moonshard.base.ffi")
local C = engine.C

local momentum_starts = {}

-- Whether groups can leave out the momentum of a parameter.
local function can_lack(part) return part.kind == "sgd" and part.momentum ~= 0 end

---Whether an optimizer, or one of several, can begin momentum later than in the first update.
---@param optimizer moonshard.Optimizer?
---@return boolean
function momentum_starts.concern(optimizer)
  for _, part in ipairs(optimizer and (optimizer.parts or { optimizer }) or {}) do
    if can_lack(part) then return true end
  end
  return false
end

-- Calls a function of every parameter that SGD updates: its name, its momentum, and the number of its updates.
local function each(session, call)
  local sharding, optimizer = session.sharding, session.optimizer
  if not (session.state and momentum_starts.concern(optimizer)) then return end
  local fqns = {}
  for i, param in ipairs(sharding.params) do fqns[i] = param.fqn end
  local groups = optimizer:param_groups(fqns, sharding.tied)
  for i, param in ipairs(sharding.params) do
    local part = not param.frozen and optimizer:part_of(param.fqn)
    if part and can_lack(part) then
      call(param.fqn, groups[param.fqn].momentum or part.momentum,
        division.kept(session.state, i - 1, C.MS_TENSOR_PARAM).updates)
    end
  end
end

---What is known now, under the groups with which the last updates were made.
---@param session moonshard.Session
---@return table<string, integer|false> starts by parameter
function momentum_starts.now(session)
  local before, now = session.sharding.momentum_starts or {}, {}
  each(session, function(fqn, momentum, updates)
    local start = before[fqn]
    if updates > 0 and momentum == 0 then
      now[fqn] = start and start <= updates and start or false
    elseif updates > 0 then
      start = start or 1
      now[fqn] = updates >= start and start or false
    end
  end)
  return now
end

---Begins to use other groups: momentum that a parameter has not had begins in its next update.
---@param session moonshard.Session
---@param starts table<string, integer|false> what is known
function momentum_starts.continue(session, starts)
  each(session, function(fqn, momentum, updates)
    if momentum ~= 0 and starts[fqn] == false then starts[fqn] = updates + 1 end
  end)
  session.sharding.momentum_starts = starts
end

---The engine's number for a parameter: without dampening it means nothing, since the buffer is zero until then.
---@param sharding moonshard.Sharding
---@param optimizer moonshard.Optimizer?
---@param fqn string
---@return integer 0: the first update
function momentum_starts.number(sharding, optimizer, fqn)
  local start = sharding.momentum_starts and sharding.momentum_starts[fqn]
  local part = start and start ~= 1 and optimizer and optimizer:part_of(fqn)
  return part and can_lack(part) and part.dampening ~= 0 and start or 0
end

---What a checkpoint says of a parameter: nil where its momentum began in its first update, or it has none.
---@param start integer|false|nil
---@return integer? 0: it was updated, and never with a momentum
function momentum_starts.saved(start)
  if start == false then return 0 end
  return start ~= 1 and start or nil
end

---What is known of a parameter by what a checkpoint says.
---@param saved integer?
---@param updates integer of the parameter
---@return integer|false|nil
function momentum_starts.loaded(saved, updates)
  if saved == 0 then return false end
  return saved or updates > 0 and 1 or nil
end

return momentum_starts
