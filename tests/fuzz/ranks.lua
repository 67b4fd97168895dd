-- Runs the recipes of many random cases, one after the other, in the same ranks. `list` names a file with a line for
-- each: a folder with recipe.lua, and how many ranks it is for. With stand_in this one rank stands in for those.

local ms = require "moonshard"
local errors = require "moonshard.base.error"
local stand_in = require "moonshard.shard.reference"
local watch = require "moonshard.check.watch"

local cfg = ms.args { list = "", stand_in = false }
local MANY_STEPS = 1000

for line in io.lines(cfg.list) do
  local folder, ranks = line:match("^(.*) (%d+)$")
  local recipe = assert(loadfile(folder .. "/recipe.lua"))
  if cfg.stand_in then stand_in.begin(tonumber(ranks)) end
  watch.run(recipe, { folder = folder, steps = MANY_STEPS }, errors.locate)
  -- Models of earlier cases go, with what they mapped.
  recipe = nil -- luacheck: ignore
  collectgarbage()
  collectgarbage()
end
