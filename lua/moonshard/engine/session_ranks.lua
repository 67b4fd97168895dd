-- What the ranks of a session tell each other outside its plans: numbers that must agree, and whether all succeeded. A
-- session has these methods.

local agreement = require("moonshard.distributed.agreement")
local context = require("moonshard.base.context")
local engine = require("moonshard.base.ffi")
local errors = require("moonshard.base.error")
local world = require("moonshard.distributed.world")
local C, ffi, check = engine.C, engine.ffi, engine.check

---@class moonshard.SessionRanks
---@field sharding moonshard.Sharding
---@field open_state fun(self: moonshard.SessionRanks): ffi.cdata*
local SessionRanks = {}
SessionRanks.__index = SessionRanks

---Gathers a number from every rank that trains this model, or several, in the order of ranks(). Collective over them.
---@param number number this rank's
---@param what string? the meaning, for reports; equal on all ranks: "of the learning rate"
---@param ... number further numbers
---@return number[] numbers in the order of ranks()
---@return number[] ... a list for each further number
function SessionRanks:gather_numbers(number, what, ...)
  return unpack(self:gather_lists({ number, ... }, what))
end

---Refuses what ranks do together, a step or a save, in the method of a data object that a save or a load calls: it
---would run within that, on other weights and another position than those that the checkpoint records.
function SessionRanks.refuse_within_data()
  if not context.in_data then return end
  errors.invalid("%s is called while a checkpoint is saved or loaded, and must not train, evaluate, save or load "
    .. "itself: let it only return or restore a position, and call the other before or after", context.in_data)
end

local MAX_BYTES = 4096 -- that ms_state_all_gather_bytes takes from each rank
local MODEL_BYTES = 8 -- of a model's number, which goes with all that ranks exchange

-- Refuses what ranks do on different models of the same parameters, as in a loop by pairs: it would mix them.
local function check_models(self, numbers)
  for place = 1, self.sharding.mesh:size() - 1 do
    if numbers[place] ~= numbers[0] then
      local ranks = self:ranks()
      errors.raise("MS_EMISMATCH", "ranks are at different models: %s at number %d of those that it sharded, %s at "
        .. "number %d: all ranks must shard, call and train models in the same order (pairs differs between ranks)",
        world.rank_name(ranks[1]), numbers[0], world.rank_name(ranks[place + 1]), numbers[place])
    end
  end
end

---Raises MS_EMISMATCH if ranks are at different models. Every exchange does; so only what ranks do together without one
---needs this before it. Collective. Replicas of local steps read theirs apart.
---@param what string as for gather_numbers
function SessionRanks:require_same_model(what)
  if not self.sharding.single_rank and not self.sharding.local_sync then self:gather_lists({}, what) end
end

---Gathers a list of numbers from every rank that trains this model, as many of each. Collective over them.
---@param mine number[] this rank's
---@param what string? as for gather_numbers
---@return number[][] lists for each number, in the order of ranks()
function SessionRanks:gather_lists(mine, what)
  SessionRanks.refuse_within_data()
  local lists = {}
  for i, value in ipairs(mine) do lists[i] = { value } end
  if world.plan_only and not self.sharding.single_rank then return lists end
  local n, count = self.sharding.mesh:size(), #mine
  local given, all = ffi.new("double[?]", count, mine), ffi.new("double[?]", count * n)
  self:gather_bytes(given, 8 * count, all, what)
  for place = 1, n do
    for i = 1, count do lists[i][place] = all[count * (place - 1) + i - 1] end
  end
  return lists
end

-- Gathers one piece, which fits, into [place][from, from + bytes) of `all`, in rows of `row` bytes.
local function gather_piece(self, mine, from, bytes, all, row, what)
  local state, n, size = self:open_state(), self.sharding.mesh:size(), MODEL_BYTES + bytes
  local given, received, numbers = ffi.new("char[?]", size), ffi.new("char[?]", size * n), ffi.new("double[?]", n)
  ffi.copy(given, mine + from, bytes)
  ffi.copy(given + bytes, ffi.new("double[1]", self.sharding.number or 0), MODEL_BYTES)
  world.set_activity(what)
  local status = C.ms_state_all_gather_bytes(state, given, size, received)
  world.set_activity(nil)
  check(status)
  for place = 0, n - 1 do
    ffi.copy(all + row * place + from, received + size * place, bytes)
    ffi.copy(numbers + place, received + size * place + bytes, MODEL_BYTES)
  end
  check_models(self, numbers)
end

---Gathers as many bytes from every rank that trains this model, and raises MS_EMISMATCH if a rank is at another model.
---Collective over them.
---@param mine ffi.cdata* this rank's
---@param bytes integer
---@param all ffi.cdata* receives the bytes of each, in the order of ranks()
---@param what string? as for gather_numbers
function SessionRanks:gather_bytes(mine, bytes, all, what)
  mine, all = ffi.cast("const char *", mine), ffi.cast("char *", all)
  local from = 0
  repeat
    local piece = math.min(bytes - from, MAX_BYTES - MODEL_BYTES)
    gather_piece(self, mine, from, piece, all, bytes, what)
    from = from + piece
  until from >= bytes
end

---The first rank whose number differs from this rank's. Collective.
---@param number number
---@param what string as for gather_numbers
---@param ... number further numbers, which can differ
---@return integer? rank nil when all agree
---@return number? other that rank's
---@return number[] ... a list for each further number
function SessionRanks:find_mismatch(number, what, ...)
  local lists = { self:gather_numbers(number, what, ...) }
  for place, other in ipairs(lists[1]) do
    if other ~= number then return self:ranks()[place], other, unpack(lists, 2) end
  end
  return nil, nil, unpack(lists, 2)
end

---Raises MS_EMISMATCH if a rank has a different number. Collective.
---@param number number
---@param what string as for gather_numbers
---@param message fun(rank: integer, other: number): string about the first rank that differs
---@param ... number further numbers, which can differ
---@return number[] ... a list for each further number
function SessionRanks:require_same(number, what, message, ...)
  local found = { self:find_mismatch(number, what, ...) }
  if found[1] then errors.raise("MS_EMISMATCH", "%s", message(found[1], found[2])) end
  return unpack(found, 3, 2 + select("#", ...))
end

---Calls a function that every rank executes independently, and reports whether all succeeded. Collective.
---@param what string for reports, equal on all ranks: "of what set_rules found"
---@param call function
---@param ... any arguments
---@return integer? failed the first rank on which it failed
---@return table results of pcall on this rank
function SessionRanks:attempt(what, call, ...)
  local results, failed = { pcall(call, ...) }, nil
  for place, bad in ipairs(self:gather_numbers(results[1] and 0 or 1, what)) do
    if bad ~= 0 then failed = failed or self:ranks()[place] end
  end
  return failed, results
end

---Calls a function as part of an operation that all ranks complete or none. A failing rank raises its error; the others
---raise the first one's, with the rank. Collective.
---@param what string the operation, for messages; equal on all ranks: "unshard"
---@param call function
---@param ... any arguments
---@return ... what the function returns
function SessionRanks:all_or_none(what, call, ...)
  local results = { pcall(call, ...) }
  agreement.raise_first_failure(self, "of " .. what, results[1], results[2])
  return unpack(results, 2, table.maxn(results))
end

---The ranks that train this model together.
---@return integer[]
function SessionRanks:ranks()
  return self.sharding.mesh:ranks(self.sharding.rank)
end

---Whether this rank is the first of those that train this model together.
---@return boolean
function SessionRanks:is_first() return self:ranks()[1] == self.sharding.rank end

return SessionRanks
