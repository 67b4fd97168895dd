-- Trains a Hugging Face folder as its reference did (tests/fixtures/huggingface/make.py), or adapters of it
-- (tests/fixtures/lora/make.py), and writes what came out in the same names: out/before, out/after, out/gradient
-- (folders), and out/result.json; out/merged: what the adapters make of the model.

local ms = require "moonshard"
local ffi = require "ffi"
local json = require "moonshard.base.json"
local re = ms.re

local cfg = ms.args {
  mesh = "1x1", folder = "", reference = "", out = "", padding = 1, layout = "rows", shard_size = "5GB", steps = 10,
  micro = 1, adapters = "", sequence_parallel = false, checkpoint = "",
}

local tensor = select(2, cfg.mesh:gsub("x", "")) == 2
local mesh = ms.init_device_mesh(cfg.device, cfg.mesh, { "replicate", "shard", tensor and "tensor" or nil })
local model = ms.huggingface.model(cfg.folder, { pad_vocab_to_multiple_of = cfg.padding })
if cfg.adapters ~= "" then ms.lora.load(model, cfg.adapters) end
ms.fully_shard(model, {
  mesh = mesh, units = { re[[^layers\.\d+$]] }, layout = cfg.layout, sequence_parallel = cfg.sequence_parallel,
  placements = tensor and ms.rules.tensor_parallel(model) or nil,
})
local train = ms.trainer {
  model = model, loss = ms.loss.cross_entropy, micro_batches = cfg.micro,
  optimizer = ms.optim.adamw { lr = 1e-2, betas = { 0.9, 0.95 }, eps = 1e-5, weight_decay = 0.1 },
}

local reference = ms.safetensors.open(cfg.reference)
local _, rows, length = unpack(reference:tensor("tokens").shape)
-- The ranks that divide a layer train on the same rows.
local apart = tensor and mesh:slice { "replicate", "shard" } or mesh
local mine = rows / apart:size()

-- This rank's rows of a step's batch.
local function array(name, step)
  local data = ffi.new("int32_t[?]", mine * length)
  local first = ((step - 1) * rows + apart:get_index() * mine) * length
  reference:read(name, 4 * first, 4 * mine * length, data)
  return { data = data, dtype = "i32", shape = { mine, length } }
end

local function batch_of(step)
  return { tokens = array("tokens", step), targets = array("targets", step) }
end

-- All rows' logits, on every rank.
local function logits_of_all()
  local tokens = {}
  for i = 0, rows * length - 1 do tokens[i + 1] = ffi.cast("const int32_t *", reference:data("tokens"))[i] end
  return model(ms.tensor(tokens, { dtype = "i32" }):reshape(rows, length))
end

local function write_gradients_of_adapters()
  local gradients = {}
  for name, parameter in model:named_parameters() do
    if not parameter.frozen then gradients[name] = train:gradient(name) end
  end
  require("moonshard.huggingface.adapter_writer").write(cfg.out .. "/gradient", {
    records = require("moonshard.nn.adapter").records(model), layout = ms.huggingface.config(model),
    writes = mesh:get_index() == 0,
    read = function(name, first) return ffi.cast("const float *", gradients[name].data) + first end,
  })
end

-- Gradients in the names and the layout of the folder.
local function write_gradients()
  local parameters = {}
  for name, parameter in model:named_parameters() do
    parameters[#parameters + 1] = { name, parameter.shape, train:gradient(name) }
  end
  local i = 0
  ms.huggingface.write(cfg.out .. "/gradient", {
    config = ms.huggingface.config(model), writes = mesh:get_index() == 0,
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
