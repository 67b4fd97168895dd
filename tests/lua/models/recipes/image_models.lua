-- Trains a model of recipes/image_models.lua as its reference did (tests/fixtures/images/make_models.py), and writes
-- the logits, losses, gradients and final parameters to `out`, as JSON.

local ms = require "moonshard"
local json = require "moonshard.base.text.json"
package.path = "recipes/?.lua;" .. package.path
local models = require "image_models"

local cfg = ms.args { mesh = "1x1", model = "resnet", out = "", steps = 10, dtype = "f32" }
local file = ms.safetensors.open(("tests/fixtures/images/%s.safetensors"):format(cfg.model))

local function stored(name, shape, first)
  local found = file:tensor(name)
  local x = ms.zeros(shape or found.shape, { dtype = found.dtype == "I32" and "i32" or "f32" })
  file:read(name, 4 * (first or 0), 4 * x:numel(), x.data)
  return x
end

local mesh = ms.init_device_mesh(cfg.device, cfg.mesh, { "replicate", "shard" })
local unet = cfg.model == "unet"
local model = models[cfg.model] {
  channels = 3, classes = 5, layers = 2, groups = unet and 2 or 4, dim = unet and 4 or 8,
}
ms.fully_shard(model, {
  mesh = mesh, units = { ms.re[[^(layers|down|up)\.\d+$]] }, mp_policy = { param_dtype = cfg.dtype },
})
local before = {}
for name in model:named_parameters() do before[name] = stored("before." .. name) end
model:load_state_dict(before, { full = true })

local train = ms.trainer {
  model = model, loss = unet and ms.loss.mse or ms.loss.cross_entropy,
  optimizer = ms.optim.adamw { lr = 1e-2, betas = { 0.9, 0.95 }, eps = 1e-5, weight_decay = 0.1 },
}

local IMAGES, ELEMENTS = 8, 3 * 8 * 8
local mine = IMAGES / mesh:size()

local function batch_of(step)
  local first = (step - 1) * IMAGES + mesh:get_index() * mine
  local function images(name) return stored(name, { mine, 3, 8, 8 }, first * ELEMENTS) end
  return { inputs = images "images", targets = unet and images "wanted" or stored("classes", { mine }, first) }
end

local function numbers(x) return x:reshape(-1):tolist() end

local result = { losses = {}, norms = {}, gradient = {}, after = {} }
result.logits = numbers(model(stored("images", { IMAGES, 3, 8, 8 })))
for step = 1, cfg.steps do
  local m = train:step(batch_of(step))
  result.losses[step], result.norms[step] = m.loss, m.grad_norm
  if step == 1 then
    for name in model:named_parameters() do result.gradient[name] = numbers(train:gradient(name)) end
  end
  ms.log(step, m)
end
for name in model:named_parameters() do result.after[name] = numbers(train:parameter(name)) end
if cfg.out ~= "" and ms.world().rank == 0 then
  local written = assert(io.open(cfg.out, "w"))
  written:write(json.encode(result))
  written:close()
end
