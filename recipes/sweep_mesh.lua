-- Finds the fastest mesh of four ranks for a small Llama: mesh shapes, resharding and batch sizes.
--
--   moonshard sweep recipes/sweep_mesh.lua
--   moonshard sweep recipes/sweep_mesh.lua repeats=1 steps=5

local ms = require "moonshard"

local cfg = ms.args { steps = 12, repeats = 3, memory_limit = "30MiB", dtype = "" }

ms.sweep {
  title = "A small Llama on four ranks",
  recipe = "llama.lua",
  over = { mesh = { "1x4", "2x2", "4x1" }, reshard = { true, false }, batch = { 1, 4 } },
  where = function(point) return point.mesh ~= "4x1" or not point.reshard end, -- one shard: nothing to reshard
  settings = { seq = 128, files = cfg.files, dtype = cfg.dtype },
  steps = cfg.steps,
  repeats = cfg.repeats,
  memory_limit = cfg.memory_limit,
  out = "build/sweep/mesh",
}
