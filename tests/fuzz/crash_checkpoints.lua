-- Kills runs at random points of saving: luajit tests/fuzz/crash_checkpoints.lua POINTS [SEED]
--
-- Ends with 1 where something is wrong afterwards; see tests/lua/checkpoints/crash.lua.

local crash = require("lua.checkpoints.crash")

local points = tonumber(arg[1] ~= "" and arg[1] or 200)
local seed = tonumber(arg[2] ~= "" and arg[2] or os.time())
print(("seed %d"):format(seed))
local _, killed, step = crash.run({ points = points, seed = seed, tell = print })
print(("%d points, %d runs killed, each time the newest checkpoint was whole; step %d equals an unbroken run's, bit "
  .. "for bit"):format(points, killed, step))
