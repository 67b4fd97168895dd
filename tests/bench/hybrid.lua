-- Two meshes of the same ranks compared: the GPT of train.lua is sharded over both, and they train in turns.
--
--   moonshard run tests/bench/hybrid.lua -n 4 mesh=2x2 against=1x4 dtype=bf16
--
-- Rank 0 prints one JSON line: the result of pairs.lua, with the names mesh and against.

local ms = require("moonshard")
local in_turn = dofile("tests/bench/pairs.lua")

local cfg = ms.args {
  layers = 6, dim = 384, heads = 6, seq = 256, batch = 4, vocab = 256, mesh = "2x2", against = "1x4", dtype = "f32",
  pairs = 20, window = 1, warmup = 2,
}

local function trainer(mesh)
  return in_turn.trainer(ms.models.gpt2 {
    vocab = cfg.vocab, layers = cfg.layers, dim = cfg.dim, heads = cfg.heads, seq = cfg.seq,
  }, cfg, mesh)
end

local train = { mesh = trainer(cfg.mesh), against = trainer(cfg.against) }
local result = in_turn.compare({ "mesh", "against" }, train, in_turn.tokens(cfg), cfg)
if ms.world().rank == 0 then
  result.mesh, result.against, result.dtype = cfg.mesh, cfg.against, cfg.dtype
  print(require("moonshard.base.text.json").encode(result))
end
