-- The sweep whose page's chart of speeds is a picture of the guides: priced, so that it is the same everywhere.

local ms = require "moonshard"

local cfg = ms.args { out = "build/pictures/sweep" }

ms.sweep {
  title = "Llama 1B on 16 GPUs",
  recipe = "recipes/llama.lua", plan = true, price = "h100x8-400g",
  over = { mesh = { "1x16", "2x8", "16x1" }, reshard = { true, false } },
  settings = { size = "1B", seq = 1024, batch = 4, files = "recipes" },
  out = cfg.out,
}
