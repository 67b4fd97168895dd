-- A complete recipe with its own model, batches and validation loop, on two replicas of two shards.
--
--   moonshard run recipes/own_data.lua -n 4 checkpoint=build/own_data
--   moonshard run recipes/own_data.lua -n 4 checkpoint=build/own_data resume=auto steps=400
--
-- The model sees eight characters and predicts the next one.

local ms = require "moonshard"
local re = ms.re

local cfg = ms.args {
  text = "LICENSE", context = 8,   -- context: characters that the model sees
  dim = 16, hidden = 128,
  batch = 32, steps = 200, lr = 3e-3, eval_every = 50,
  mesh = "2x2",                    -- replicas x shards
  checkpoint = "", resume = "",    -- resume=auto continues from the newest checkpoint
}

-- ---- data: characters as numbers from 0; the last tenth is for validation -------------------------------------------

local file = assert(io.open(cfg.text))
local codes, numbers, vocab = {}, {}, 0
for character in file:read("*a"):gmatch(".") do
  if not numbers[character] then
    numbers[character], vocab = vocab, vocab + 1
  end
  codes[#codes + 1] = numbers[character]
end
file:close()
local windows = #codes - cfg.context
local trained = math.floor(0.9 * windows)

-- A batch is a table of tensors; each rank creates its own rows.
local function batch_of(starts)
  local inputs, targets = { dtype = "i32" }, { dtype = "i32" }
  for row, start in ipairs(starts) do
    inputs[row] = { unpack(codes, start + 1, start + cfg.context) }
    targets[row] = codes[start + cfg.context + 1]
  end
  return { inputs = ms.tensor(inputs), targets = ms.tensor(targets) }
end

-- Iterates without end over batches of the samples that a sampler assigns to this rank.
local function batches(sampler)
  local next_sample, n = sampler:samples(), 0
  return function()
    local starts = {}
    while #starts < cfg.batch do
      local _, sample = next_sample()
      if sample then
        starts[#starts + 1] = sample
      else
        sampler:set_epoch(sampler.epoch + 1)
        next_sample = sampler:samples()
      end
    end
    n = n + 1
    return n, batch_of(starts)
  end
end

-- ---- model ----------------------------------------------------------------------------------------------------------

local Net = ms.module "Net"

function Net:init()
  local width = cfg.context * cfg.dim
  self.embed = ms.nn.embedding(vocab, cfg.dim)
  self.blocks = {}
  for i = 1, 2 do
    self.blocks[i] = ms.nn.sequential { ms.nn.linear(width, cfg.hidden), ms.ops.relu, ms.nn.linear(cfg.hidden, width) }
  end
  self.head = ms.nn.linear(width, vocab)
end

function Net:forward(x)                                    -- x [batch, context], i32
  x = self.embed(x):reshape(-1, cfg.context * cfg.dim)
  for _, block in ipairs(self.blocks) do x = x + block(x) end
  return self.head(x)                                      -- [batch, vocab]
end

-- ---- sharding and training ------------------------------------------------------------------------------------------

local mesh = ms.init_device_mesh(cfg.device, cfg.mesh, { "replicate", "shard" })
local model = Net()
ms.fully_shard(model, {
  mesh = mesh,
  units = { re[[^blocks\.\d+$]] },
  mp_policy = { param_dtype = "bf16", reduce_dtype = "f32" },
})

-- The checkpoint saves the position of the sampler; any object with state() and load_state(state) works.
local sampler = ms.data.sampler { length = trained, mesh = mesh }
local train = ms.trainer {
  model = model, optimizer = ms.optim.adamw { lr = cfg.lr }, loss = ms.loss.cross_entropy, clip_grad_norm = 1.0,
  checkpoint = { dir = cfg.checkpoint, every = 50, resume = cfg.resume, data = sampler },
}

-- Iterates over the same samples at every call; each rank visits its share.
local function validation()
  local others = ms.data.sampler { length = windows - trained, mesh = mesh, shuffle = false, drop_last = true }
  local next_sample, n, count = others:samples(), 0, math.floor(others:count() / cfg.batch)
  return function()
    if n == count then return nil end
    local starts = {}
    for row = 1, cfg.batch do
      local _, sample = next_sample()
      starts[row] = trained + sample
    end
    n = n + 1
    return n, batch_of(starts)
  end
end

ms.log.expect(cfg.steps)
local next_batch = batches(sampler)
for step = train.steps_done + 1, cfg.steps do
  local _, batch = next_batch()
  local m = train:step(batch)
  if step % cfg.eval_every == 0 then m.valid_loss = train:evaluate(validation()) end
  ms.log(step, m)
end
