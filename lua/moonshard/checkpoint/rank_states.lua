-- What a rank saves besides tensors: the state of its data object, and its generators. Mostly all ranks have the same:
-- it is saved once and loads on any mesh. Where ranks differ (each makes its own rows, or draws its own numbers), the
-- manifest has the state of each, which only ranks in the same places of the same mesh can go on from.

local agreement = require("moonshard.distributed.agreement")
local create = require("moonshard.tensor.create")
local data_position = require("moonshard.checkpoint.data_position")
local errors = require("moonshard.base.error")
local hash = require("moonshard.base.hash")
local json = require("moonshard.base.text.json")
local state_values = require("moonshard.checkpoint.state_values")

local rank_states = {}

-- The states, with their names in messages. In the manifest a state of all ranks has this key, states of single ranks
-- have it with "_of_ranks": an object of states by the rank's place among those that saved.
local STATES = { { key = "data", name = "data positions" }, { key = "generator", name = "generators" } }

---The members of the manifest, in its order; and the states of a rank.
---@type string[]
rank_states.keys, rank_states.names = {}, {}

local function key_of_ranks(key) return key .. "_of_ranks" end

for i, state in ipairs(STATES) do
  rank_states.keys[2 * i - 1], rank_states.keys[2 * i] = state.key, key_of_ranks(state.key)
  rank_states.names[i] = state.key
end

-- ---- saving -----------------------------------------------------------------------------------------------------

---This rank's states, as JSON by key. Raises MS_EINVAL for a value that cannot be kept.
---@param train moonshard.Trainer
---@param data table?
---@return table<string, string>
function rank_states.of(train, data)
  return {
    data = data and data_position.text(data),
    generator = json.encode { seed = train.seed, micro_batches = train.micro_batches, eager = create.generator() },
  }
end

---The states of all ranks, as members of the manifest: JSON by key. Collective.
---@param session moonshard.Session
---@param mine table<string, string> of rank_states.of
---@return table<string, string>
function rank_states.gather(session, mine)
  local hashes, members = {}, {}
  for i, state in ipairs(STATES) do hashes[i] = hash.of_text(mine[state.key] or "") end
  local lists = session:gather_lists(hashes, "of generators and data")
  for i, state in ipairs(STATES) do
    local same = true
    for _, other in ipairs(lists[i]) do same = same and other == lists[i][1] end
    if same then
      members[state.key] = mine[state.key]
    else
      local parts = {}
      for place, text in ipairs(agreement.texts(session, "of " .. state.name, mine[state.key])) do
        if text ~= "" then parts[#parts + 1] = ('"%d":%s'):format(place - 1, text) end
      end
      members[key_of_ranks(state.key)] = "{" .. table.concat(parts, ",") .. "}"
    end
  end
  return members
end

---Whether readers need more than JSON and one state for all ranks.
---@param members table<string, string>
---@return boolean
function rank_states.are_extended(members)
  for _, state in ipairs(STATES) do
    if members[key_of_ranks(state.key)] then return true end
  end
  return members.data ~= nil and (members.data:sub(1, 1) ~= "{" or members.data:find('{"$', 1, true) ~= nil)
end

-- ---- loading ----------------------------------------------------------------------------------------------------

local ADVICE = {
  data = "leave out data",
  generator = "leave this run's generators as they are, ms.checkpoint.load(train, path, { generator = false })",
}

---Refuses, before anything is loaded, states of single ranks on another mesh. Raises MS_EMISMATCH.
---@param read moonshard.Manifest
---@param path string of the checkpoint
---@param sharding moonshard.Sharding
---@param wanted table<string, boolean> by key
function rank_states.check(read, path, sharding, wanted)
  local label = sharding.mesh:label()
  for _, state in ipairs(STATES) do
    if wanted[state.key] and read[key_of_ranks(state.key)] and read.mesh.label ~= label then
      errors.raise("MS_EMISMATCH", "checkpoint %s has %s that differ between its %d ranks of mesh %s, and the mesh "
        .. "here is %s: resume on the same mesh, or %s", path, state.name, read.ranks, read.mesh.label, label,
        ADVICE[state.key])
    end
  end
end

-- This rank's state; nil: there is none.
local function state_of(read, key, session)
  local all = read[key_of_ranks(key)]
  if not all then return read[key] end
  for place, rank in ipairs(session:ranks()) do
    if rank == session.sharding.rank then return all[tostring(place - 1)] end
  end
end

local furthest -- the generator of the process that trainers of this run have resumed with

---Restores the generators of this rank.
---@param train moonshard.Trainer
---@param read moonshard.Manifest
function rank_states.load_generators(train, read)
  local generator = state_of(read, "generator", train.session)
  if not generator then return end
  train.seed = generator.seed
  local eager = generator.eager
  -- It is the process's: where several trainers resume, what they saved last counts, in whatever order they are made.
  if train.resuming and furthest and furthest.seed == eager.seed and furthest.draws > eager.draws then
    eager = furthest
  end
  if train.resuming then furthest = eager end
  create.load_generator(eager)
end

---What the data object of this rank is to be given. Raises, before anything is loaded, where there is nothing.
---@param read moonshard.Manifest
---@param path string of the checkpoint
---@param session moonshard.Session
---@return any
function rank_states.data_of(read, path, session)
  local state = state_of(read, "data", session)
  if state == nil then
    errors.invalid("the checkpoint of step %d has no data position%s: it was saved without data =; to go on with its "
      .. "weights and optimizer, load it with ms.checkpoint.load(train, %q) in a trainer that saves into a new folder",
      read.step, read.data_of_ranks and " of this rank" or "", path)
  end
  return read.exact_states and state_values.decode(state, path .. "/manifest.json: data") or state
end

return rank_states
