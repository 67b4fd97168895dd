-- make fuzz-plans: random cases without end, or CASES of them from SEED on.
--
--   luajit tests/fuzz/main.lua [SEED [CASES]]
--
-- What fails is made as small as it gets and printed as a recipe. Ends with 1 when anything failed.

local case = require("fuzz.case")
local cases = require("fuzz.cases")
local recipe = require("fuzz.recipe")
local shrink = require("fuzz.shrink")

local ROUND = 200

local seed, wanted = tonumber(arg[1]) or os.time() % 1000000, tonumber(arg[2]) or math.huge
local ran, failed, refused = 0, 0, 0

local function report(each)
  failed = failed + 1
  print(("seed %d fails: %s"):format(each.case.seed, each.failure.text))
  io.stdout:flush()
  local minimal = shrink.minimal(each)
  print(("the smallest case that fails so: %s\n\n%s"):format(minimal.failure.text, recipe.of(minimal.case)))
end

while ran < wanted do
  local list = {}
  for i = 1, math.min(ROUND, wanted - ran) do list[i] = case.of(seed + ran + i - 1) end
  local failing, cannot = cases.run(list)
  for _, each in ipairs(failing) do report(each) end
  refused = refused + #cannot
  print(("seeds %d to %d: %d cases; %d refused and %d failed in all"):format(seed + ran, seed + ran + #list - 1, #list,
    refused, failed))
  io.stdout:flush()
  ran = ran + #list
end
os.exit(failed == 0 and 0 or 1)
