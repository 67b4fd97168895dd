-- Runs the recipes of many random cases, one after the other, in the same ranks. `list` names a file with a line for
-- each: a folder with recipe.lua, and how many ranks it is for. With stand_in this one rank stands in for those. A case
-- that the engine refuses to divide leaves a file `refused` with the reason, and the next one follows.

local ms = require "moonshard"
local errors = require "moonshard.base.error"
local stand_in = require "moonshard.shard.reference"
local watch = require "moonshard.check.watch"

local cfg = ms.args { list = "", stand_in = false }
local MANY_STEPS = 1000

local REFUSED = { MS_ESHAPE = true, MS_EUNSUPPORTED = true }

-- The error names the mesh dimension whose ranks cannot divide something, or a fused loss whose logits they do not have
-- as a product, or a weight that they join before a product in 8 bits. All of them raise it, before they wait.
local function is_refusal(raised)
  if not errors.is(raised) or not REFUSED[raised.status] then return false end
  if raised.message:find("ranks that divide the layer", 1, true) then return true end
  if raised.message:find("only products x w and x w' of a matrix w have an 8-bit form", 1, true) then return true end
  local dimension = raised.message:match("%f[%w](%w+) %(%d+ ranks")
  return dimension == "tensor" or dimension == "context"
end

local function note_refusal(folder, raised)
  local file = assert(io.open(folder .. "/refused", "wb"))
  assert(file:write(tostring(raised)))
  assert(file:close())
end

for line in io.lines(cfg.list) do
  local folder, ranks = line:match("^(.*) (%d+)$")
  local recipe = assert(loadfile(folder .. "/recipe.lua"))
  if cfg.stand_in then stand_in.begin(tonumber(ranks)) end
  local ran, raised = pcall(watch.run, recipe, { folder = folder, steps = MANY_STEPS }, errors.locate)
  if not ran and not is_refusal(raised) then error(raised, 0) end
  if not ran and ms.world().rank == 0 then note_refusal(folder, raised) end
  -- Models of earlier cases go, with what they mapped.
  recipe = nil -- luacheck: ignore
  collectgarbage()
  collectgarbage()
end
