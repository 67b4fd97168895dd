-- Trains a Hugging Face folder as its reference did (tests/fixtures/huggingface/make.py), or adapters of it
-- (tests/fixtures/lora/make.py), and writes what came out in the same names: out/before, out/after, out/gradient
-- (folders), and out/result.json; out/merged: what the adapters make of the model.

local ms = require "moonshard"
local ffi = require "ffi"
local json = require "moonshard.base.text.json"
local re = ms.re

local cfg = ms.args {
  mesh = "1x1", folder = "", reference = "", out = "", padding = 1, layout = "rows", shard_size = "5GB", steps = 10,
  micro = 1, adapters = "", sequence_parallel = false, checkpoint = "",
}

local tensor = select(2, cfg.mesh:gsub("x", "")) == 2
local mesh = ms.init_device_mesh(cfg.device, cfg.mesh, { "replicate", "shard", tensor and "tensor" or nil })
local model = ms.huggingface.model(cfg.folder, {
  pad_vocab_to_multiple_of = cfg.padding > 1 and cfg.padding or nil,
})
if cfg.adapters ~= "" then ms.lora.load(model, cfg.adapters) end
ms.fully_shard(model, {
  mesh = mesh, units = { re[[^layers\.\d+$]] }, layout = cfg.layout, sequence_parallel = cfg.sequence_parallel,
  placements = tensor and ms.rules.tensor_parallel(model) or nil,
})
local train = ms.trainer {
  model = model, micro_batches = cfg.micro,
  forward = function(net, batch)
    return ms.loss.cross_entropy(net(batch.tokens or batch.inputs, batch.types), batch.targets)
  end,
  optimizer = ms.optim.adamw { lr = 1e-2, betas = { 0.9, 0.95 }, eps = 1e-5, weight_decay = 0.1 },
}

local reference = ms.safetensors.open(cfg.reference)
local of_images = pcall(reference.tensor, reference, "images")
local has_types = pcall(reference.tensor, reference, "types")
local rows = reference:tensor(of_images and "images" or "tokens").shape[2]
-- The ranks that divide a layer train on the same rows.
local apart = tensor and mesh:slice { "replicate", "shard" } or mesh
local mine = rows / apart:size()

-- `count` rows of a step's batch, from row `first` on.
local function array(name, step, first, count)
  local found = reference:tensor(name)
  local shape = { count, unpack(found.shape, 3) }
  local x = ms.zeros(shape, { dtype = found.dtype == "I32" and "i32" or "f32" })
  local per_row = x:numel() / count
  reference:read(name, 4 * ((step - 1) * rows + first) * per_row, 4 * x:numel(), x.data)
  return x
end

local function rows_of(step, first, count)
  local function read(name) return array(name, step, first, count) end
  if of_images then return { inputs = read("images"), targets = read("classes") } end
  return { tokens = read("tokens"), targets = read("targets"), types = has_types and read("types") or nil }
end

local function batch_of(step) return rows_of(step, apart:get_index() * mine, mine) end

-- All rows' logits, on every rank.
local function logits_of_all()
  local batch = rows_of(1, 0, rows)
  return model(batch.tokens or batch.inputs, batch.types)
end

local function write_gradients_of_adapters()
  local gradients, parameters = {}, {}
  for name, parameter in model:named_parameters() do
    if not parameter.frozen then gradients[name] = train:gradient(name) end
    parameters[#parameters + 1] = { name = name, shape = parameter.shape, trained = not parameter.frozen }
  end
  require("moonshard.huggingface.adapter_writer").write(cfg.out .. "/gradient", {
    records = require("moonshard.nn.adapter").records(model), layout = ms.huggingface.config(model),
    tokens = require("moonshard.nn.adapters.trainable_tokens").records(model), parameters = parameters,
    writes = mesh:get_index() == 0,
    read = function(name, first) return ffi.cast("const float *", gradients[name].data) + first end,
  })
end

-- Gradients in the names and the layout of the folder.
local function write_gradients()
  local parameters = {}
  for name, parameter in model:named_parameters() do
    local gradient = parameter.frozen and ms.zeros(parameter.shape) or train:gradient(name)
    parameters[#parameters + 1] = { name, parameter.shape, gradient }
  end
  local i = 0
  ms.huggingface.write(cfg.out .. "/gradient", {
    config = ms.huggingface.config(model), writes = mesh:get_index() == 0, folder = cfg.folder,
    parameters = function()
      i = i + 1
      local name, shape, gradient = unpack(parameters[i] or {})
      return name, shape, function(first) return ffi.cast("const float *", gradient.data) + first end
    end,
  })
end

local logits = logits_of_all()
local result = {
  losses = {}, shape = logits.shape, logits = logits:reshape(-1):tolist(), bytes_read = train.session.loaded.bytes,
}
local function save(name)
  if cfg.adapters ~= "" then return ms.lora.save(train, cfg.out .. name) end
  return ms.huggingface.save(train, cfg.out .. name, { max_shard_size = cfg.shard_size })
end

result.saved = save("/before")
for step = 1, cfg.steps do
  result.losses[step] = train:step(batch_of(step)).loss
  if step == 1 and cfg.adapters == "" then write_gradients() elseif step == 1 then write_gradients_of_adapters() end
end
save("/after")
if cfg.checkpoint ~= "" then ms.checkpoint.save(train, cfg.checkpoint) end
if cfg.adapters ~= "" then ms.huggingface.save(train, cfg.out .. "/merged") end
if mesh:get_index() == 0 then
  local file = assert(io.open(cfg.out .. "/result.json", "w"))
  file:write(json.encode(result))
  file:close()
end
