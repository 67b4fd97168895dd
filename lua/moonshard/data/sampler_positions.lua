-- Where the samplers are whose samples a run trains on, as a state of ms.data.random keeps them: one position for each
-- sampler that a training step took a batch of. Samplers that a recipe evaluates with have none, and start over.
--
-- After a resume a position goes back to its own sampler, which is the one that the recipe makes at the same place: the
-- first, the second, and so on. Where the recipe makes none there that still waits for its first pass, the position
-- goes to the first sampler of the same dataset, seed and order that is used.

local errors = require("moonshard.base.error")

local positions = {}

local by_number = {} -- held, as ranks must find the same ones whenever they collect garbage
local made = 0 -- samplers of this rank

---Numbers a new sampler.
---@param sampler moonshard.Sampler
---@return integer
function positions.number(sampler)
  made = made + 1
  by_number[made] = sampler
  return made
end

---@class moonshard.SamplerPosition
---@field number integer? of the sampler; nil in states from before there were several
---@field state moonshard.SamplerState as it was loaded, or after the batch that a step took last
---@field sampler moonshard.Sampler? which has it
---@field trained boolean? a step took a batch of it
---@field given boolean? data gave a batch of it
---@field batches string? how its samples are divided into batches, as text
---@field done integer? batches of the call that it was saved in

---@class moonshard.SamplerPositions
---@field list moonshard.SamplerPosition[] that of the latest training step first
---@field used table<moonshard.Sampler, true> by this data
local Positions = {}
Positions.__index = Positions

---@return moonshard.SamplerPositions
function positions.new() return setmetatable({ list = {}, used = setmetatable({}, { __mode = "k" }) }, Positions) end

local function is_alike(state, sampler)
  return type(state) == "table" and state.seed == sampler.seed and state.length == sampler.length
    and state.shuffle == sampler.shuffle
end

-- A recipe that makes a sampler for each epoch sets its epoch, and goes on in that of the state.
local function is_of(state, sampler)
  return is_alike(state, sampler) and (not sampler.epoch_was_set or state.epoch == sampler.epoch)
end

-- Whether a position is of an epoch before the one that the recipe chose.
local function is_past(one, sampler)
  return sampler.epoch_was_set and is_alike(one.state, sampler) and one.state.epoch < sampler.epoch
end

-- Whether the sampler of a loaded position is there to take it itself.
local function waits(self, one)
  local owner = by_number[one.number]
  return owner ~= nil and is_of(one.state, owner) and (owner.passes == 0 or self.used[owner] ~= nil)
end

-- The loaded position that a sampler takes.
local function find(self, sampler)
  for _, one in ipairs(self.list) do
    if one.sampler == sampler then return nil end -- it has its own
  end
  for _, one in ipairs(self.list) do
    if not one.sampler and one.number == sampler.number and is_of(one.state, sampler) then return one end
  end
  for _, one in ipairs(self.list) do
    if not one.sampler and not waits(self, one) and is_of(one.state, sampler) then return one end
  end
end

---Gives a sampler the position that was loaded for it, if there is one.
---@param sampler moonshard.Sampler
---@return string? batches how its samples were divided then
function Positions:restore(sampler)
  self.used[sampler] = true
  local one = find(self, sampler)
  if not one then return end
  sampler:load_state(one.state)
  one.sampler = sampler
  return one.batches
end

---How many batches the call had given in which a loaded position was saved; nil: unknown, or the sampler is elsewhere.
---@param sampler moonshard.Sampler
---@return integer?
function Positions:done(sampler)
  for _, one in ipairs(self.list) do
    local is_here = one.sampler == sampler and one.state.epoch == sampler.epoch
      and one.state.position == sampler.resume_at
    if is_here and not one.trained then return one.done end
  end
end

-- A step trains on samples of a sampler that has no position, while one that was loaded has found no sampler, or one
-- whose samples no step takes.
local function refuse(sampler, one)
  sampler:load_state(one.state) -- raises where they are of other data
  errors.invalid("data:load_state: the run trained on samples of sampler %d of the recipe, which is not there any "
    .. "more, or evaluates now, and trains now on those of sampler %d: make the samplers in the same order as before",
    one.number or 1, sampler.number)
end

---Data gives a batch of a sampler's samples.
---@param sampler moonshard.Sampler
function Positions:give(sampler)
  for _, one in ipairs(self.list) do one.given = one.given or one.sampler == sampler end
end

---A training step takes a batch of a sampler's samples.
---@param sampler moonshard.Sampler
---@param state moonshard.SamplerState after the batch
---@param batches string how its samples are divided into batches
---@param done integer batches of the call
function Positions:train(sampler, state, batches, done)
  local at, lost
  for i, one in ipairs(self.list) do
    if one.sampler == sampler then at = i end
    local is_lost = not one.sampler and not is_past(one, sampler) or one.given and not one.trained
    lost = lost or is_lost and one or nil
  end
  if not at and lost then refuse(sampler, lost) end
  if at then table.remove(self.list, at) end
  table.insert(self.list, 1, { sampler = sampler, state = state, trained = true, batches = batches,
    done = done })
end

local function described(one)
  return { number = one.sampler and one.sampler.number or one.number, batches = one.batches, call_done = one.done,
    sampler = one.sampler and not one.trained and one.sampler:state() or one.state }
end

---@class moonshard.SavedSampler
---@field sampler moonshard.SamplerState
---@field number integer? of the sampler
---@field batches string?
---@field call_done integer? batches of the call of data:batches that it was saved in

---The positions, that of the latest training step first.
---@param latest moonshard.Sampler? whose samples were given last, where no step has trained on any
---@return moonshard.SavedSampler[]
function Positions:state(latest)
  local list = {}
  for i, one in ipairs(self.list) do list[i] = described(one) end
  return list[1] and list or { latest and described({ sampler = latest }) }
end

---Takes positions of a state; each sampler gets its own when it is used next.
---@param saved moonshard.SavedSampler[]
function Positions:load(saved)
  self.list = {}
  for i, one in ipairs(saved) do
    self.list[i] = { state = one.sampler, number = one.number, batches = one.batches, done = one.call_done }
  end
end

return positions
