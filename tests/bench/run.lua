-- Measures Moonshard and its peers: luajit tests/bench/run.lua BUILD
--
-- Writes BUILD/bench.jsonl, one line a figure: {"name", "unit", "ours", "peer", "ratio"}, where ratio is how many times
-- better ours is, or {"name", "unit", "ours", "target"} for one that is to stay below its target, and prints the same
-- as a table. Both sides of a ratio are measured in this run, one right after the other. A peer that is not installed
-- (make bench-peers) leaves its columns empty and says so. The parts are in parts/.

package.path = "lua/?.lua;tests/bench/parts/?.lua;" .. package.path
local checkpoints = require("checkpoints")
local commands = require("commands")
local programs = require("programs")
local report = require("report")
local training = require("training")

os.execute("mkdir -p " .. report.build .. "/bench")
training.write_tokens()
programs.collectives()
programs.all()
programs.plans()
commands.tokenizers()
commands.generation()
commands.data()
training.start()
training.two_jobs("f32")
training.two_jobs("bf16")
commands.prompt()
commands.sweep()
checkpoints.all()
for _, dtype in ipairs({ "f32", "bf16" }) do
  for _, model in ipairs({ "gpt", "llama" }) do
    training.model(model, dtype)
    training.memory(model, dtype, 1, 2)
  end
  training.memory("gpt", dtype, 2, 2)
  training.tensor_parallel(dtype)
  training.hybrid(dtype)
  training.windows(dtype)
  training.families(dtype)
end
programs.hosts()
report.close()
