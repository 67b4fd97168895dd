-- The loss curve that is a picture of the guides: the losses of a run of recipes/quickstart.lua that were written down,
-- since those of another machine differ in their last digits.

local ms = require "moonshard"

local cfg = ms.args { losses = "recipes/guides/pictures/losses.txt", svg = ms.args.output("build/pictures/loss.svg") }

local step = 0
for line in io.lines(cfg.losses) do
  step = step + 1
  ms.log(step, { loss = tonumber(line) })
end
ms.log.curve { title = "loss, nats per byte", svg = cfg.svg }
