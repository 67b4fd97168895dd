-- An error of Lua in one rank at a random step: all ranks end, the rank and the line are named, and whatever the
-- message contains, what is printed is one clean line.

local message = require("lua.support.message")
local trial = require("soak.trial")

local STEPS = 6

-- What a line about each fault of recipe.lua ends with, after the place; the rank is named in front of it.
local SAYS = {
  error = "tests/soak/recipe.lua:%d+: on purpose",
  index = "tests/soak/recipe.lua:%d+: [^\n]*'nothing' %(a nil value%)",
  control = "tests/soak/recipe.lua:%d+: \\x1b%[2Jon\\npurpose\\t\\r\\x00\\x07",
  object = "tests/soak/recipe.lua:%d+: [^\n]*error[^\n]* table[^\n]*",
  exit = "tests/soak/recipe.lua:%d+: os.exit%(7%)[^\n]*",
}
local FAULTS = { "error", "index", "control", "object", "exit", "exit_well" }

-- A rank that leaves by itself, with status 0, is missed by the others, who say so in lines of their own.
local function check_left(ended, ranks, rank)
  if ranks == 1 then return trial.ended_well(ended, { 0 }) end
  local wrong = trial.ended_well(ended, { 3 })
  if wrong then return wrong end
  local lacks = message.lacks(ended.err:match("^[^\n]*"), ("rank %d | left"):format(rank))
  if lacks then return ("does not say %q: %s"):format(lacks, ended.err) end
end

local function check_raised(ended, ranks, rank, fault, step)
  -- Before training began it is a mistake of the recipe, unless a status was asked for.
  local wrong = trial.ended_well(ended, { (step > 1 or fault == "exit") and 3 or 2 })
  if wrong then return wrong end
  local who = ranks > 1 and ("rank %d[%%a ]*: "):format(rank) or ""
  local line = "^moonshard: " .. who .. SAYS[fault] .. "\n$"
  if not ended.err:find(line) then return ("not one line like %q: %q"):format(line, ended.err) end
end

local function run(d)
  local ranks, fault, step = d:integer(1, 4), d:one_of(FAULTS), d:integer(1, STEPS)
  local rank = d:integer(0, ranks - 1)
  local words = ("tests/soak/recipe.lua -n %d fault=%s rank=%d step=%d steps=%d noise=%d"):format(ranks, fault, rank,
    step, STEPS, d:one_of { 0, 5, 500 })
  if d:chance(0.3) then words = words .. " --log-ranks all" end
  if d:chance(0.3) then words = words .. " --log-dir $D/logs" end
  return trial.run({ run = words }, function(ended)
    if fault == "exit_well" then return check_left(ended, ranks, rank) end
    return check_raised(ended, ranks, rank, fault, step)
  end), words
end

return { name = "lua-errors", run = run }
