-- Ranks that share a data source must read the same one: each selects its part of the samples by their numbers, so with
-- other files on one host, or another seed or epoch, some samples would be trained on twice and others never, without
-- an error.
--
-- A batch of a loader has a text that says what it is from (moonshard.data.loader); of other batches it is the pass of
-- the sampler whose samples this rank took last (moonshard.data.sampler). Ranks send hashes of it with the numbers that
-- they exchange before every step and evaluation, and the texts only if hashes differ.

local agreement = require("moonshard.distributed.agreement")
local context = require("moonshard.base.context")
local errors = require("moonshard.base.error")
local hash = require("moonshard.base.hash")
local world = require("moonshard.distributed.world")

local same_data = {}

local UNKNOWN = 0 -- in place of a hash: the ranks that share the data are not known

---@class moonshard.DataOfRank what a rank's batch is from
---@field source string?
---@field shared_by string?
---@field sharers number a hash of whom the rank shares it with
---@field number number a hash of the source
local DataOfRank = {}
DataOfRank.__index = DataOfRank

---What this rank's batch is from.
---@param batch { source: string?, shared_by: string? }
---@return moonshard.DataOfRank
function same_data.of(batch)
  local from, sampled = batch, context.sampled
  context.sampled = nil
  if type(from.source) ~= "string" or type(from.shared_by) ~= "string" then from = sampled end
  if not from then return setmetatable({ sharers = UNKNOWN, number = UNKNOWN }, DataOfRank) end
  local shared_by = from.shared_by
  return setmetatable({
    source = from.source, shared_by = shared_by, sharers = hash.of_text(shared_by), number = hash.of_text(from.source),
  }, DataOfRank)
end

---Refuses data that is divided over ranks which need the same samples.
---@param session moonshard.Session
---@param batch { shared_by: string? }
function same_data.check_mesh(session, batch)
  if batch.shared_by == "all" and session:data_ranks() < #session:ranks() then
    errors.invalid("the data divides the samples over all ranks, but the ranks along dimension tensor of mesh %s need "
      .. "the same ones: give the data the mesh, as in ms.data.text { mesh = mesh, ... }",
      session.sharding.mesh:label())
  end
end

-- The places of two ranks that share data and have other sources; nil: there are none.
local function differing(sharers, numbers)
  local first = {}
  for place, shared in ipairs(sharers) do
    local before = first[shared]
    if shared ~= UNKNOWN and before and numbers[before] ~= numbers[place] then return before, place end
    first[shared] = before or place
  end
end

local function are_alike(sharers)
  for _, shared in ipairs(sharers) do
    if shared ~= sharers[1] then return false end
  end
  return true
end

-- The ranks that a text of a loader names, as a set; nil if it names none. Passes of a sampler are not compared: ranks
-- that leave out samples can be in different ones.
local function named_by(text)
  if text:find(", pass %d") then return nil end
  local found, among = {}, text:match("^a sampler over (.*)$") or text
  local list = among == "all" and ("0-%d"):format(world.size - 1) or among:match("^ranks ([%d,%-]+)$")
  for first, last in (list or ""):gmatch("(%d+)%-?(%d*)") do
    for rank = tonumber(first), tonumber(last) or tonumber(first) do found[rank] = true end
  end
  return next(found) ~= nil and found or nil
end

-- Raises if a rank's data is shared with a rank whose data is not shared with it: they would have other shares of the
-- samples, and their sources would not be compared. Whom ranks share data with is looked at once, as it stays.
local function check_sharers(self, session, what, sharers)
  local key = {}
  for place, shared in ipairs(sharers) do key[place] = ("%.0f"):format(shared) end
  key = table.concat(key, " ")
  session.sharers = session.sharers or {}
  if session.sharers[key] then return end
  local texts, ranks, place_of = agreement.texts(session, what, self.shared_by), session:ranks(), {}
  for place, rank in ipairs(ranks) do place_of[rank] = place end
  for place, text in ipairs(texts) do
    for rank in pairs(named_by(text) or {}) do
      local other = place_of[rank]
      if other and named_by(texts[other]) and texts[other] ~= text then
        local one, two = math.min(place, other), math.max(place, other)
        errors.raise("MS_EMISMATCH", "the data is divided among other ranks on each rank: among %s on %s, and among %s "
          .. "on %s: give the data of all ranks the same mesh", texts[one], world.rank_name(ranks[one]), texts[two],
          world.rank_name(ranks[two]))
      end
    end
  end
  session.sharers[key] = true
end

---Raises MS_EMISMATCH on all ranks of a model if two that share data have batches of different sources, or share it
---with other ranks. Batches whose source is not known are not compared. Collective, but only if they differ, or if a
---new set of ranks shares data.
---@param session moonshard.Session
---@param what string for reports, equal on all ranks: "of the training data"
---@param sharers number[] of all ranks, in the order of session:ranks()
---@param numbers number[]
function DataOfRank:check(session, what, sharers, numbers)
  if not are_alike(sharers) then check_sharers(self, session, what, sharers) end
  local one, other = differing(sharers, numbers)
  if not one then return end
  local texts, ranks = agreement.texts(session, what, self.source), session:ranks()
  errors.raise("MS_EMISMATCH", "the data differs between ranks that share it: %s has %s; %s has %s; give all ranks "
    .. "the same files, settings and epoch", world.rank_name(ranks[one]), texts[one], world.rank_name(ranks[other]),
    texts[other])
end

return same_data
