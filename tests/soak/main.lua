-- make soak: campaigns of random cases, bounded by time.
--
--   luajit tests/soak/main.lua SECONDS [SEED [CASES [CAMPAIGN]]]
--
-- Ends with 1 when anything failed.

local campaigns = require("soak.campaigns")

local function number(text) return text ~= "" and tonumber(text) or nil end

local function tell(line)
  print(line)
  io.stdout:flush()
end

local seed = number(arg[2]) or os.time() % 1000000
tell(("seed %d"):format(seed))
os.exit(campaigns.run(require("soak.all"), {
  seconds = assert(number(arg[1]), "SECONDS must be a number"), seed = seed, cases = number(arg[3]), only = arg[4],
  tell = tell,
}) and 0 or 1)
