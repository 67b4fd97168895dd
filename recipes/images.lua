-- A vision transformer or a residual network learns to read digits that the recipe draws itself: a 5x7 font, anywhere
-- on 16x16 pixels, in any brightness, under noise. Or a U-Net learns to remove the noise. So it needs no data.
--
--   moonshard run recipes/images.lua -n 4
--   moonshard run recipes/images.lua -n 2 mesh=1x2 model=resnet steps=300
--   moonshard run recipes/images.lua -n 2 mesh=1x2 model=unet steps=300

local ms = require "moonshard"
local models = require "image_models" -- the file next to this one
local re = ms.re

local cfg = ms.args {
  model = "vit", layers = 3, dim = 64,
  heads = 0,                       -- of a vit; 0: 4
  batch = 32, steps = 500, lr = 2e-3, mesh = "2x2", seed = 1,
  eval_every = 100, eval_images = 512,
}
for _, key in ipairs { "batch", "eval_images" } do
  if cfg[key] < 1 then error(("%s=%d: it must be at least 1"):format(key, cfg[key])) end
end
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

-- Rows of pixels under noise, rows without it, and the digit.
local function draw(number)
  local random = random_of(number)
  for _ = 1, 4 do random() end
  local class = math.floor(CLASSES * random())
  local left, top, light = math.floor((SIZE - 4) * random()), math.floor((SIZE - 6) * random()), 0.5 + random()
  local rows, clean = {}, {}
  for y = 1, SIZE do
    rows[y], clean[y] = {}, {}
    for x = 1, SIZE do
      local bits = FONT[class + 1][y - top] or 0
      local on = x > left and x <= left + 5 and math.floor(bits / 2 ^ (left + 5 - x)) % 2 == 1
      clean[y][x] = on and light or 0
      rows[y][x] = clean[y][x] + 0.6 * (random() - 0.5)
    end
  end
  return { rows }, { clean }, class
end

local denoises = cfg.model == "unet"

local function batch_of(first, count)
  local images, clean, classes = {}, {}, {}
  for i = 1, count do images[i], clean[i], classes[i] = draw(first + i - 1) end
  local targets = denoises and ms.tensor(clean) or ms.tensor(classes, { dtype = "i32" })
  return { inputs = ms.tensor(images), targets = targets }
end

-- ---- training ---------------------------------------------------------------------------------------------------

local mesh = ms.init_device_mesh(cfg.device, cfg.mesh, { "replicate", "shard" })
local narrow = cfg.dim / 4 -- channels of the first convolutions
if cfg.model ~= "vit" then
  if cfg.heads ~= 0 then error("heads= is of model=vit: leave it out") end
  if cfg.dim % 16 ~= 0 then error("model=" .. cfg.model .. " needs a dim that is a multiple of 16") end
end
if cfg.model == "unet" and SIZE % 2 ^ cfg.layers ~= 0 then
  error(("model=unet halves images of %d pixels layers=%d times: give fewer layers"):format(SIZE, cfg.layers))
end
local makers = {
  vit = function()
    return ms.models.vit {
      size = SIZE, channels = 1, patch = 4, classes = CLASSES, layers = cfg.layers, dim = cfg.dim,
      heads = cfg.heads == 0 and 4 or cfg.heads, deviation = 0.1,
    }
  end,
  resnet = function()
    return models.resnet { channels = 1, classes = CLASSES, layers = cfg.layers, dim = narrow, groups = 4 }
  end,
  unet = function() return models.unet { channels = 1, layers = cfg.layers, dim = narrow, groups = 4 } end,
}
if not makers[cfg.model] then error("model must be vit, resnet or unet, not " .. cfg.model) end
local model = makers[cfg.model]()
ms.fully_shard(model, {
  mesh = mesh, units = { re[[^(layers|down|up)\.\d+$]] }, mp_policy = { param_dtype = "auto", reduce_dtype = "f32" },
  seed = cfg.seed,
})
local train = ms.trainer {
  model = model, loss = denoises and ms.loss.mse or ms.loss.cross_entropy, clip_grad_norm = 1.0,
  optimizer = ms.optim.adamw {
    lr = ms.schedule.cosine { peak = cfg.lr, warmup = math.min(50, cfg.steps), total = cfg.steps, floor = cfg.lr / 20 },
    weight_decay = 0.05, groups = { { re[[norm|bias|positions|class_token]], { weight_decay = 0 } } },
  },
}

-- What the model does with images that training never sees: numbers below 0.
local function report()
  local batch = batch_of(-cfg.eval_images, cfg.eval_images)
  local result = model(batch.inputs)
  if denoises then
    local left, before = ms.loss.mse(result, batch.targets):item(), ms.loss.mse(batch.inputs, batch.targets):item()
    return ("leaves %.1f %% of the noise in unseen images"):format(100 * left / before)
  end
  return ("reads %.1f %% of unseen digits"):format(100 * result:argmax(1):eq(batch.targets):float():mean():item())
end

local ranks, rank = mesh:size(), mesh:get_index()
ms.log.expect(cfg.steps)
for step = 1, cfg.steps do
  ms.log(step, train:step(batch_of(((step - 1) * ranks + rank) * cfg.batch, cfg.batch)))
  if step % cfg.eval_every == 0 or step == cfg.steps then
    ms.log.print(("step %d: %s"):format(step, report()))
  end
end
