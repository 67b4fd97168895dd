-- A number that is equal on two ranks if their values are: all digits, all elements, all entries. What the prompt shows
-- of a value leaves much of that out.

local dtypes = require("moonshard.base.dtypes")
local hash = require("moonshard.base.hash")
local tensor = require("moonshard.tensor")
local values = require("moonshard.tensor.values")

local digest = {}

-- Entries of all tables of a line. More are compared as they are shown: ranks visit them in orders of their own, and
-- would not stop at the same ones.
local MAX_ENTRIES = 100000
local DEEPEST = 64

local add

-- Objects have fields of their own rank, such as handles, so what they show is what counts. A table that is inside
-- itself ends there; one in several places counts in each, whichever a rank visits first.
local function add_table(parts, value, seen, depth)
  if getmetatable(value) ~= nil or seen[value] or depth > DEEPEST then return end
  seen[value] = true
  local entries = {}
  for key, entry in next, value do
    seen.left = seen.left - 1
    if seen.left < 0 then return end
    local own = {}
    add(own, key, seen, depth + 1)
    add(own, entry, seen, depth + 1)
    entries[#entries + 1] = table.concat(own, ":")
  end
  table.sort(entries) -- their order is each rank's own
  parts[#parts + 1] = "{" .. table.concat(entries, ",") .. "}"
  seen[value] = nil
end

function add(parts, value, seen, depth)
  local kind = type(value)
  if kind == "number" then
    parts[#parts + 1] = ("%.17g"):format(value)
  elseif kind == "string" then
    parts[#parts + 1] = ("%d %.0f"):format(#value, hash.of_text(value))
  elseif kind == "boolean" or kind == "nil" then
    parts[#parts + 1] = tostring(value)
  elseif tensor.is_eager(value) then
    local data = values.readable(value).data
    parts[#parts + 1] = ("%s %s %.0f"):format(value.dtype, tensor.shape_text(value.shape),
      hash.of_bytes(data, value:numel() * dtypes.sizes[value.dtype]))
  elseif kind == "table" then
    add_table(parts, value, seen, depth)
  end
end

---@param list table with field n
---@return number 0: there are too many entries
function digest.of(list)
  local parts, seen = {}, { left = MAX_ENTRIES }
  for i = 1, list.n do add(parts, list[i], seen, 0) end
  return seen.left < 0 and 0 or hash.of_text(table.concat(parts, "\n"))
end

return digest
