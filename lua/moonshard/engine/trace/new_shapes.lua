-- Warns when plans are compiled again and again because inputs have ever new shapes, as batches have that are padded to
-- their longest row: compiling takes time, and plans that there is no room for are dropped.

local progress = require("moonshard.base.text.progress")
local world = require("moonshard.distributed.world")

---@class moonshard.NewShapes what one user compiled by one name
---@field who string "train:step"
---@field plans integer
---@field ms number that compiling took
---@field shapes table<string, string> of inputs, of the latest plan
---@field warned table<string, boolean>
local NewShapes = {}
NewShapes.__index = NewShapes

local new_shapes = {
  ---Plans of one kind before the warning.
  MANY = 32,
}

---@param who string the caller, as the user wrote it: "train:step"
---@return moonshard.NewShapes
function new_shapes.new(who)
  return setmetatable({ who = who, plans = 0, ms = 0, shapes = {}, warned = {} }, NewShapes)
end

local function text_of(shape) return "[" .. table.concat(shape, ",") .. "]" end

---The inputs whose shapes differ from those of the latest plan.
---@param inputs moonshard.InputSpec[]
---@return string "tokens [2,30], then [2,31]"; "" if none does
function NewShapes:differing(inputs)
  local list = {}
  for _, input in ipairs(inputs) do
    local shape, before = text_of(input.shape), self.shapes[input.name]
    if before and before ~= shape then list[#list + 1] = ("%s %s, then %s"):format(input.name, before, shape) end
  end
  return table.concat(list, "; ")
end

local function warn(self, kind, text)
  if self.warned[kind] then return end
  self.warned[kind] = true
  if world.rank ~= 0 or world.plan_only then return end
  progress.finish()
  io.stderr:write("moonshard: warning: ", text, "\n")
end

---Notes that a plan was compiled.
---@param inputs moonshard.InputSpec[]
---@param ms number that it took
---@param again boolean it was kept before, and dropped for others
function NewShapes:note(inputs, ms, again)
  local shapes = self:differing(inputs)
  for _, input in ipairs(inputs) do self.shapes[input.name] = text_of(input.shape) end
  self.plans, self.ms = self.plans + 1, self.ms + ms
  if again then
    warn(self, "again", ("%s compiles plans again that were dropped to make room for others (%s): pad inputs to a few "
      .. "lengths, such as multiples of 64, or give ms.trainer a larger plan_memory"):format(self.who, shapes))
  elseif self.plans == new_shapes.MANY then
    warn(self, "many", ("%s has compiled %d plans, for %.3g s in all, since its inputs have ever new shapes (%s): pad "
      .. "them to a few lengths, such as multiples of 64"):format(self.who, self.plans, self.ms / 1e3, shapes))
  end
end

return new_shapes
