-- A GPT-2 with its published vocabulary, trained with a fused loss and with whole logits, in turns.
--
--   moonshard run tests/bench/fused_loss.lua -n 2 mesh=1x2 dtype=bf16
--
-- Rank 0 prints one JSON line: the result of pairs.lua, with the names fused and whole; tokens/s of each, and the bytes
-- of a rank's arenas.

local ffi = require("ffi")
local ms = require("moonshard")
local re = ms.re
local compare = dofile("tests/bench/pairs.lua").compare

local cfg = ms.args {
  size = "124M", layers = 0, seq = 256, batch = 2, mesh = "1x2", dtype = "f32", chunk = 0, pairs = 5, window = 1,
  warmup = 1,
}

local function trainer(fused)
  local shape = { cfg.size, pad_vocab_to_multiple_of = 64 }
  if cfg.layers > 0 then shape.layers = cfg.layers end
  local model = ms.models.gpt2(shape)
  ms.fully_shard(model, {
    mesh = ms.init_device_mesh(cfg.device, cfg.mesh, { "replicate", "shard" }), units = { re[[^layers\.\d+$]] },
    mp_policy = { param_dtype = cfg.dtype, reduce_dtype = "f32" },
  })
  return ms.trainer {
    model = model, optimizer = ms.optim.adamw { lr = 1e-3, weight_decay = 0.1 },
    loss = ms.loss.cross_entropy { fused = fused, chunk = fused and cfg.chunk > 0 and cfg.chunk or nil },
  }
end

local count = cfg.batch * cfg.seq
local tokens = ffi.new("int32_t[?]", count)
for i = 0, count - 1 do tokens[i] = (i * 7 + ms.world().rank) % 50257 end
local array = { data = tokens, dtype = "i32", shape = { cfg.batch, cfg.seq } }
local batch = { tokens = array, targets = array }

local train = { fused = trainer(true), whole = trainer(false) }
local peak = {}
for name, each in pairs(train) do peak[name] = each:compile(batch):summary().peak_bytes end
local result = compare({ "fused", "whole" }, train, batch, cfg)
if ms.world().rank == 0 then
  for name in pairs(train) do
    result[name .. "_tokens_per_s"] = 1e3 * count * ms.world().size / result[name .. "_ms"]
    result[name .. "_peak_bytes"] = peak[name]
  end
  print(require("moonshard.base.text.json").encode(result))
end
