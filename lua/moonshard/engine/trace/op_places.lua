-- Where a recipe calls the ops of a trace: a graph whose ops the ranks cannot divide is refused when it is compiled, in
-- a step, and its error is to name the line of the op. The engine says which op in which module it was; here are the
-- lines of such calls. Only traces of models that ranks divide need them.

local errors = require("moonshard.base.error")
local roles = require("moonshard.shard.roles")

local op_places = {}

local MAX_NAMED = 3

---By module path and op.
---@alias moonshard.OpPlaces table<string, { where: string, shapes: string }[]>

---@param sharding moonshard.Sharding
---@return moonshard.OpPlaces? nil: not needed
function op_places.new(sharding)
  return (roles.ranks(sharding, "tensor") > 1 or roles.ranks(sharding, "context") > 1) and {} or nil
end

local function key_of(path, op) return path .. ":" .. op end

-- "[4,16,8][8]"
local function shapes_of(inputs, count)
  local texts = {}
  for i = 1, count do
    local shape = inputs[i].shape
    texts[i] = shape and ("[%s]"):format(table.concat(shape, ",")) or ""
  end
  return table.concat(texts)
end

---Notes the caller's line.
---@param places moonshard.OpPlaces
---@param path string of the module, "" for the root
---@param op string
---@param inputs (moonshard.Tensor|moonshard.Parameter)[]
---@param count integer
function op_places.note(places, path, op, inputs, count)
  local where, key, shapes = errors.caller(), key_of(path, op), shapes_of(inputs, count)
  if not where then return end
  local list = places[key] or {}
  places[key] = list
  for _, known in ipairs(list) do
    if known.where == where and known.shapes == shapes then return end
  end
  list[#list + 1] = { where = where, shapes = shapes }
end

-- The different lines of entries that have an input of the shape.
local function lines_of(list, shape)
  local lines, known = {}, {}
  for _, entry in ipairs(list) do
    if not known[entry.where] and (not shape or entry.shapes:find(shape, 1, true)) then
      known[entry.where] = true
      lines[#lines + 1] = entry.where
    end
  end
  return lines
end

---The engine's message about a graph, with the line of the op that it is about in front, or with the lines that it can
---be.
---@param places moonshard.OpPlaces?
---@param message string "in layers.0: reshape: [4,16,8] to ..."
---@return string
function op_places.put_in(places, message)
  local path, rest = message:match("^in ([^:]+): (.*)$")
  rest = rest or message
  local op = rest:match("^([%w_]+): ")
  local list = places and op and places[key_of(path or "", op)] or {}
  local lines = lines_of(list, rest:match("%[[%d,]*%]"))
  if not lines[1] then lines = lines_of(list) end
  if #lines == 1 then return ("%s: %s"):format(lines[1], message) end
  if #lines == 0 or #lines > MAX_NAMED then return message end
  return ("%s (it is at %s)"):format(message, table.concat(lines, " or "))
end

return op_places
