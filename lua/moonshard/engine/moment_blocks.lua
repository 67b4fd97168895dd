-- The blocks of moments in 8 bits, of 256 elements with one scale. They are those of one rank on every mesh, but for a
-- parameter that a tensor dimension divides: there each part has blocks of its own. Values that move from one division
-- to another, by new placements or by a load, are rounded again where the blocks are others, and this says so.

local division = require("moonshard.shard.division")

local moment_blocks = {}

local BLOCK = 256
local MAX_NAMED = 3

-- Whether the blocks of a part are blocks of the whole.
local function are_of_whole(part)
  return division.is_whole(part) or part.run % BLOCK == 0 and part.stride % BLOCK == 0 and part.origin % BLOCK == 0
end

---Whether two divisions of a parameter have the same blocks.
---@param a moonshard.Division
---@param b moonshard.Division
---@return boolean
function moment_blocks.are_same(a, b) return division.equals(a, b) or are_of_whole(a) and are_of_whole(b) end

---What is said of parameters whose moments are rounded again.
---@param names string[] of parameters, as the model lists them
---@return string? nil: there is none
function moment_blocks.describe(names)
  if #names == 0 then return nil end
  local more = #names - MAX_NAMED
  return ("the 8-bit moments of %s%s are rounded again, to within a step of their codes, since a tensor dimension "
    .. "divides blocks of 256 elements otherwise than before"):format(table.concat(names, ", ", 1, math.min(#names,
    MAX_NAMED)), more > 0 and (" and %d more"):format(more) or "")
end

---The parameters whose moments are rounded again when their state moves from one model of the engine to another.
---@param session moonshard.Session
---@param from ffi.cdata* ms_model*
---@param to ffi.cdata* ms_model*
---@return string[]
function moment_blocks.of_move(session, from, to)
  local names = {}
  for i, param in ipairs(session.sharding.params) do
    local packed = session.optimizer and session.optimizer:moments_of(param) == "i8"
    if packed and not moment_blocks.are_same(division.of(from, i - 1), division.of(to, i - 1)) then
      names[#names + 1] = param.fqn
    end
  end
  return names
end

-- Whether a saved optimizer, or one of several, has kept moments in 8 bits.
local function has_packed(saved)
  if saved.moments == "i8" then return true end
  for _, value in pairs(saved) do
    if type(value) == "table" and value.moments == "i8" then return true end
  end
  return false
end

---The parameters whose moments a load rounds again.
---@param session moonshard.Session
---@param read moonshard.Manifest
---@param ranges { owned: moonshard.OwnedRange, piece: table }[] what this rank reads
---@return string[]
function moment_blocks.of_load(session, read, ranges)
  local names, seen = {}, {}
  if not (read.optimizer and has_packed(read.optimizer)) then return names end
  for _, range in ipairs(ranges) do
    local owned, param = range.owned, range.owned.param
    if not seen[param] and owned.kind:find("^exp_avg") and session.optimizer:moments_of(param) == "i8"
      and not moment_blocks.are_same(owned.part, range.piece.division) then
      seen[param], names[#names + 1] = true, param.fqn
    end
  end
  table.sort(names)
  return names
end

return moment_blocks
