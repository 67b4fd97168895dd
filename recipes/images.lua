-- A vision transformer or a residual network learns to read digits that the recipe draws itself: a 5x7 font, anywhere
-- on 16x16 pixels, in any brightness, under noise. So it needs no data.
--
--   moonshard run recipes/images.lua -n 4
--   moonshard run recipes/images.lua -n 2 mesh=1x2 model=resnet steps=300

local ms = require "moonshard"
local models = require "image_models" -- the file next to this one
local re = ms.re

local cfg = ms.args {
  model = "vit", layers = 3, dim = 64, heads = 4, batch = 32, steps = 500, lr = 2e-3, mesh = "2x2", seed = 1,
  eval_every = 100, eval_images = 512,
}
local SIZE, CLASSES = 16, 10

-- ---- digits -----------------------------------------------------------------------------------------------------

-- Rows of five pixels, from the left: bits 4 to 0.
local FONT = {
  { 14, 17, 19, 21, 25, 17, 14 }, { 4, 12, 4, 4, 4, 4, 14 }, { 14, 17, 1, 2, 4, 8, 31 }, { 31, 2, 4, 2, 1, 17, 14 },
  { 2, 6, 10, 18, 31, 2, 2 }, { 31, 16, 30, 1, 1, 17, 14 }, { 6, 8, 16, 30, 17, 17, 14 }, { 31, 1, 2, 4, 8, 8, 8 },
  { 14, 17, 17, 14, 17, 17, 14 }, { 14, 17, 17, 15, 1, 2, 12 },
}

-- Numbers in [0, 1) that depend only on the image's number: linear congruences (Knuth's constants).
local function random_of(number)
  local state = (number * 2654435761 + 12345) % 2 ^ 32
  return function()
    state = (state * 1664525 + 1013904223) % 2 ^ 32
    return math.floor(state / 2 ^ 8) / 2 ^ 24
  end
end

local function draw(number)
  local random = random_of(number)
  for _ = 1, 4 do random() end
  local class = math.floor(CLASSES * random())
  local left, top, light = math.floor((SIZE - 4) * random()), math.floor((SIZE - 6) * random()), 0.5 + random()
  local rows = {}
  for y = 1, SIZE do
    rows[y] = {}
    for x = 1, SIZE do
      local bits = FONT[class + 1][y - top] or 0
      local on = x > left and x <= left + 5 and math.floor(bits / 2 ^ (left + 5 - x)) % 2 == 1
      rows[y][x] = (on and light or 0) + 0.6 * (random() - 0.5)
    end
  end
  return { rows }, class
end

local function batch_of(first, count)
  local images, classes = {}, {}
  for i = 1, count do images[i], classes[i] = draw(first + i - 1) end
  return { inputs = ms.tensor(images), targets = ms.tensor(classes, { dtype = "i32" }) }
end

-- ---- training ---------------------------------------------------------------------------------------------------

local mesh = ms.init_device_mesh(cfg.device, cfg.mesh, { "replicate", "shard" })
if not models[cfg.model] then error("model must be vit or resnet, not " .. cfg.model) end
local model = models[cfg.model] {
  size = SIZE, channels = 1, classes = CLASSES, layers = cfg.layers, heads = cfg.heads, patch = 4, groups = 4,
  dim = cfg.model == "vit" and cfg.dim or math.max(4, math.floor(cfg.dim / 16) * 4),
}
ms.fully_shard(model, {
  mesh = mesh, units = { re[[^layers\.\d+$]] }, mp_policy = { param_dtype = "auto", reduce_dtype = "f32" },
  seed = cfg.seed,
})
local train = ms.trainer {
  model = model, loss = ms.loss.cross_entropy, clip_grad_norm = 1.0,
  optimizer = ms.optim.adamw {
    lr = ms.schedule.cosine { peak = cfg.lr, warmup = math.min(50, cfg.steps), total = cfg.steps, floor = cfg.lr / 20 },
    weight_decay = 0.05, groups = { { re[[norm|bias|positions]], { weight_decay = 0 } } },
  },
}

-- Images that training never sees: numbers below 0.
local function accuracy()
  local batch = batch_of(-cfg.eval_images, cfg.eval_images)
  return model(batch.inputs):argmax(1):eq(batch.targets):float():mean():item()
end

local ranks, rank = mesh:size(), mesh:get_index()
ms.log.expect(cfg.steps)
for step = 1, cfg.steps do
  ms.log(step, train:step(batch_of(((step - 1) * ranks + rank) * cfg.batch, cfg.batch)))
  if step % cfg.eval_every == 0 or step == cfg.steps then
    ms.log.print(("step %d: reads %.1f %% of unseen digits"):format(step, 100 * accuracy()))
  end
end
