-- Finds a learning rate for the quickstart's GPT by short runs at rates from 1e-5 to 0.1.
--
--   moonshard sweep recipes/sweep_lr.lua
--   moonshard sweep recipes/sweep_lr.lua steps=100 from=1e-4 to=1e-2 points=5

local ms = require "moonshard"

local cfg = ms.args { from = 1e-5, to = 1e-1, points = 9, steps = 60, mesh = "1x2" }

ms.find_lr {
  title = "Learning rate of a small GPT",
  recipe = "quickstart.lua",
  from = cfg.from, to = cfg.to, points = cfg.points,
  settings = { mesh = cfg.mesh, files = cfg.files, layers = 2, dim = 128, sample = 0, svg = "" },
  steps = cfg.steps,
  out = "build/sweep/lr",
}
