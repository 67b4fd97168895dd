-- The plan that stands for a published training run: the same model, sharding, recomputation and batch, compiled for
-- CUDA as one rank of a described world.
--
-- GPT models have no biases and share the embedding with the head; Llama models are as published. Each block is a unit
-- that is freed after forward, and weights are gathered in bf16.

local device = require("moonshard.distributed.device")
local ms = require("moonshard")
local world = require("moonshard.distributed.world")
local re = ms.re

local training_plans = {}

local BLOCKS = re[[^layers\.\d+$]]

local function model_of(row)
  if row.gpt then
    return ms.models.gpt2 {
      vocab = row.vocab, layers = row.layers, dim = row.dim, heads = row.heads, ffn = row.ffn, seq = row.seq,
      bias = false, tied = true,
    }
  end
  return ms.models.llama {
    vocab = row.vocab, layers = row.layers, dim = row.dim, heads = row.heads, kv_heads = row.kv_heads, ffn = row.ffn,
    seq = row.seq,
  }
end

-- torchtitan's selective recomputation keeps the results of attention and of every second product.
local ELEMENTWISE = { "rms_norm", "swiglu", "rope" }

local function recompute_of(row)
  if row.recompute == "full" then return { { BLOCKS, true } } end
  if row.recompute == "layer" then return { { re[[^layers\.\d*[13579]$]], true } } end
  if row.recompute == "op" then
    return { { re[[\.(wk|wo|w3)$]], true }, { BLOCKS, ELEMENTWISE } }
  end
  return false
end

-- Tensor parallelism of DTensors, as KempnerForge applies it: norms divide the sequence, each column-wise product
-- gathers its input by itself, although several have the same, and the loss is that of gathered logits.
local COLWISE = { attn = { "wq", "wk", "wv" }, mlp = { "w1", "w3" } }

local function gathered(forward)
  return function(self, x, ...) return forward(self, x:redistribute { tensor = "replicate" }, ...) end
end

local function gather_like_dtensors(model)
  for _, layer in ipairs(model.layers) do
    for part, names in pairs(COLWISE) do
      for _, name in ipairs(names) do
        local product = layer[part][name]
        product.forward = gathered(product.forward)
      end
    end
  end
  local forward = model.forward
  model.forward = function(self, ...) return forward(self, ...):redistribute { tensor = "replicate" } end
end

local function tokens(row)
  return { data = 0, dtype = "i32", shape = { row.grad_accum * row.micro_batch, row.seq } }
end

---@param row moonshard.bench.TrainingRow
---@return moonshard.Plan
function training_plans.compile(row)
  world.describe(0, row.gpus, math.min(row.per_node, row.gpus))
  device.apply_options({ device = "cuda" })
  local model = model_of(row)
  local sizes, names = { row.replicate, row.shard }, { "replicate", "shard" }
  local like_dtensors = row.tensor > 1 and row.gathers_each_input
  if like_dtensors then gather_like_dtensors(model) end
  if row.tensor > 1 then sizes[3], names[3] = row.tensor, "tensor" end
  ms.fully_shard(model, {
    mesh = ms.init_device_mesh("cuda", sizes, names), units = { BLOCKS }, reshard_after_forward = true,
    placements = row.tensor > 1 and ms.rules.tensor_parallel(model) or nil, sequence_parallel = like_dtensors,
    recompute = recompute_of(row), mp_policy = { param_dtype = "bf16", reduce_dtype = row.reduce_dtype },
  })
  local trainer = ms.trainer {
    model = model, loss = ms.loss.cross_entropy, optimizer = ms.optim.adamw { lr = 1e-3 }, clip_grad_norm = 1,
    micro_batches = row.grad_accum,
  }
  return trainer:compile({ tokens = tokens(row), targets = tokens(row) })
end

return training_plans
