-- Ranks along the mesh dimensions context and tensor compute the same rows together, so they must be given the same
-- inputs: otherwise they mix parts of different samples, and the results are wrong. A sampler that has the mesh gives
-- them the same inputs; batches made by hand can differ, so all are compared.
--
-- Every rank hashes its inputs, which takes one pass over their bytes, and sends the hash along with numbers that ranks
-- exchange anyway. If they do not exchange in every step (local SGD), a hash covers all inputs since the last exchange.

local dtypes = require("moonshard.base.dtypes")
local errors = require("moonshard.base.error")
local hash = require("moonshard.base.hash")
local roles = require("moonshard.shard.roles")
local world = require("moonshard.distributed.world")

---@class moonshard.SameRows what a rank was given since ranks last compared
---@field session moonshard.Session
---@field places table<integer, string> which rows each rank has, in the order of session:ranks(): equal for the same
---@field hashes table<string, number> by input
---@field names string[] of the inputs, sorted
---@field is_compared boolean whether ranks have compared
local SameRows = {}
SameRows.__index = SameRows

local same_rows = {}

-- Which rows each rank has, as text; nil if no two ranks have the same.
local function places_of(session)
  local mesh, places = session.sharding.mesh, {}
  local same = {}
  for _, dim in ipairs(roles.model_dims(mesh)) do same[dim] = true end
  if next(same) == nil then return nil end
  for place, rank in ipairs(session:ranks()) do
    local coordinate, of_rows = mesh:coordinate_of(rank), {}
    for dim = 0, mesh.ndim - 1 do
      if not same[dim] then of_rows[#of_rows + 1] = coordinate[dim + 1] end
    end
    places[place] = table.concat(of_rows, " ")
  end
  return places
end

---@param session moonshard.Session
---@param before moonshard.SameRows? inputs that ranks have not compared yet, which the next comparison includes
---@return moonshard.SameRows? nil if every rank has rows of its own
function same_rows.new(session, before)
  if session.row_places == nil then session.row_places = places_of(session) or false end
  if not session.row_places then return nil end
  local self = setmetatable({ session = session, places = session.row_places, hashes = {}, names = {},
    is_compared = false }, SameRows)
  for i, name in ipairs(before and before.names or {}) do
    self.names[i], self.hashes[name] = name, before.hashes[name]
  end
  return self
end

---Adds an input.
---@param name string
---@param dtype string
---@param data ffi.cdata* pointer or array
---@param count integer elements
function SameRows:add(name, dtype, data, count)
  local value, before = hash.of_bytes(data, count * dtypes.sizes[dtype]), self.hashes[name]
  if not before then
    self.names[#self.names + 1] = name
    table.sort(self.names)
  end
  self.hashes[name] = before and hash.of_text(("%.0f %.0f"):format(before, value)) or value
end

---What ranks exchange.
---@return number
function SameRows:number()
  local list = {}
  for i, name in ipairs(self.names) do list[i] = ("%s %.0f"):format(name, self.hashes[name]) end
  return hash.of_text(table.concat(list, " "))
end

-- The lowest two ranks that have the same rows but different numbers; nil if there are none.
local function find_pair(self, numbers)
  local ranks, first = self.session:ranks(), {}
  for place, rows in ipairs(self.places) do
    first[rows] = first[rows] or place
    if numbers[place] ~= numbers[first[rows]] then return ranks[first[rows]], ranks[place] end
  end
end

local function dimensions_between(mesh, one, other)
  local a, b, names = mesh:coordinate_of(one), mesh:coordinate_of(other), {}
  for _, dim in ipairs(roles.model_dims(mesh)) do
    if a[dim + 1] ~= b[dim + 1] then names[#names + 1] = mesh:dim_name(dim) end
  end
  return table.concat(names, " and ")
end

---Raises MS_EMISMATCH on all ranks if two of the same rows were given other inputs. Collective, but only if there are
---such ranks.
---@param numbers number[] of all ranks
---@param who string for messages: "train:step"
---@param when string "step 3"
function SameRows:check(numbers, who, when)
  self.is_compared = true
  if not find_pair(self, numbers) then return end
  local mesh = self.session.sharding.mesh
  for _, name in ipairs(self.names) do
    local one, other = find_pair(self, self.session:gather_numbers(self.hashes[name], "of the input " .. name))
    if one then
      errors.raise("MS_EMISMATCH", "%s: input %s differs in %s between %s and %s, which compute the same samples "
        .. "together, along dimension %s of mesh %s: give both the same, as data with mesh = mesh does", who, name,
        when, world.rank_name(one), world.rank_name(other), dimensions_between(mesh, one, other), mesh:label())
    end
  end
  errors.raise("MS_EMISMATCH", "%s: ranks that compute the same samples together were given inputs of other names in "
    .. "%s", who, when)
end

---Exchanges the numbers, and compares them. Collective.
---@param who string
---@param when string
function SameRows:compare(who, when)
  self:check(self.session:gather_numbers(self:number(), "of the inputs"), who, when)
end

return same_rows
