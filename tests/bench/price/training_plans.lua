-- The plan that stands for a published training run: the same model, sharding, recomputation and batch, compiled for
-- CUDA as one rank of a described world.
--
-- GPT models have no biases and share the embedding with the head; Llama models are as published. Each block is a unit
-- that is freed after forward. Runs mix precision in two ways. "PURE" and plain bf16 gather and reduce in bf16;
-- Composer's "DEFAULT" reduces in f32.

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
  if row.tensor > 1 then sizes[3], names[3] = row.tensor, "tensor" end
  ms.fully_shard(model, {
    mesh = ms.init_device_mesh("cuda", sizes, names), units = { BLOCKS }, reshard_after_forward = true,
    placements = row.tensor > 1 and ms.rules.tensor_parallel(model) or nil, recompute = recompute_of(row),
    mp_policy = { param_dtype = "bf16", reduce_dtype = row.precision:find("DEFAULT") and "f32" or "bf16" },
  })
  local trainer = ms.trainer {
    model = model, loss = ms.loss.cross_entropy, optimizer = ms.optim.adamw { lr = 1e-3 }, clip_grad_norm = 1,
    micro_batches = row.grad_accum,
  }
  return trainer:compile({ tokens = tokens(row), targets = tokens(row) })
end

return training_plans
