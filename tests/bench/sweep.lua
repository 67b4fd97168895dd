-- A sweep of points that hardly train: what they take is what a point costs besides its steps.
local ms = require "moonshard"

ms.sweep {
  title = "What a point costs",
  recipe = "../../recipes/toy_hsdp.lua",
  over = { mesh = { "1x4", "2x2", "4x1" } },
  steps = 3,
  repeats = 4,
  out = "build/bench/sweep",
}
