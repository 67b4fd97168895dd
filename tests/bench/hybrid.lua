-- Two meshes of the same ranks compared: the GPT of train.lua is sharded over both, and they train in turns.
--
--   moonshard run tests/bench/hybrid.lua -n 4 mesh=2x2 beside=1x4 dtype=bf16
--
-- Rank 0 prints one JSON line: the result of pairs.lua, with the names mesh and beside.

local ffi = require("ffi")
local ms = require("moonshard")
local compare = dofile("tests/bench/pairs.lua").compare
local re = ms.re

local cfg = ms.args {
  layers = 6, dim = 384, heads = 6, seq = 256, batch = 4, vocab = 256, mesh = "2x2", beside = "1x4", dtype = "f32",
  pairs = 20, window = 1, warmup = 2,
}

local function trainer(mesh)
  local model = ms.models.gpt2 {
    vocab = cfg.vocab, layers = cfg.layers, dim = cfg.dim, heads = cfg.heads, seq = cfg.seq,
  }
  ms.fully_shard(model, {
    mesh = ms.init_device_mesh(cfg.device, mesh, { "replicate", "shard" }), units = { re[[^layers\.\d+$]] },
    mp_policy = { param_dtype = cfg.dtype, reduce_dtype = "f32" },
  })
  return ms.trainer {
    model = model, loss = ms.loss.cross_entropy, optimizer = ms.optim.adamw { lr = 1e-3, weight_decay = 0.1 },
  }
end

local count = cfg.batch * cfg.seq
local tokens = ffi.new("int32_t[?]", count)
for i = 0, count - 1 do tokens[i] = (i * 7 + ms.world().rank) % cfg.vocab end
local array = { data = tokens, dtype = "i32", shape = { cfg.batch, cfg.seq } }
local batch = { tokens = array, targets = array }

local train = { mesh = trainer(cfg.mesh), beside = trainer(cfg.beside) }
local result = compare({ "mesh", "beside" }, train, batch, cfg)
if ms.world().rank == 0 then
  result.mesh, result.beside, result.dtype = cfg.mesh, cfg.beside, cfg.dtype
  print(require("moonshard.base.json").encode(result))
end
