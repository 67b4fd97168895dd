-- Parts of `make bench`: checkpoints, as they are saved and loaded, and saved in the background of training.

local report = require("report")

local build, peer_python = report.build, report.peer_python
local compare, exists, json_lines, target = report.compare, report.exists, report.json_lines, report.target

local checkpoints = {}

-- What a save in the background of the GPT above adds to the steps around it, with a core for its thread (one rank
-- on a machine of two) and without, where a save comes every 8 steps of one row of tokens, which what it takes does not
-- depend on. The target is for the processor's time: what windows differ by is mostly other work on the machine.
local function background_saves(ranks)
  local command = "OMP_NUM_THREADS=1 %s/release/moonshard run tests/bench/checkpoint.lua -n %d mesh=1x%d dir=%s "
  command = command .. "rounds=1 batch=1 window=8"
  local line = json_lines(command:format(build, ranks, ranks, build .. "/bench/checkpoints"))[1]
  if not line then return end
  local name = ("checkpoint in the background/%d rank%s/"):format(ranks, ranks == 1 and "" or "s")
  compare(name .. "processor time of a save", "ms", line.save_cpu_ms, nil, "lower")
  compare(name .. "held", "ms", line.held_ms, nil, "lower")
  compare(name .. "a step", "ms", line.step_ms, nil, "lower")
  compare(name .. "8 steps longer by, median of pairs", "ms", line.added_ms, nil, "lower")
  compare(name .. "8 steps longer by, first quartile", "ms", line.added_ms_quartiles[1], nil, "lower")
  compare(name .. "8 steps longer by, third quartile", "ms", line.added_ms_quartiles[2], nil, "lower")
  -- What runs in parallel to training where a core is free for it, and what does not.
  local paid = ranks == 1 and line.held_ms or line.save_cpu_ms
  target(name .. "share of 8 steps", "fraction", paid / (8 * line.step_cpu_ms), 0.03)
end

-- Checkpoints of a wider GPT with AdamW: compared with plain writes and reads of as many bytes, and with PyTorch.
function checkpoints.all()
  local folder = build .. "/bench/checkpoints"
  local command = ("OMP_NUM_THREADS=1 %s/release/moonshard run tests/bench/checkpoint.lua -n 2 dir=%s "):format(build,
    folder)
  local wide = "dim=768 heads=12 batch=1 saves=0"
  local ours = json_lines(command .. wide)[1]
  if not ours then return end
  -- Both once more without a wait for the disk: ours by a library that says of every sync that it is done.
  local no_sync = build .. "/bench/no_sync.so"
  os.execute(("cc -O2 -shared -fPIC -o %s tests/bench/no_sync.c"):format(no_sync))
  local cached = json_lines(("LD_PRELOAD=%s %s%s"):format(no_sync, command, wide))[1] or {}
  local function dcp(options)
    local line = ("%s tests/bench/peers/peer_checkpoint.py --dim 768 --heads 12 --dir %s%s"):format(peer_python,
      folder .. "-peer", options)
    return exists(peer_python) and json_lines(line)[1] or {}
  end
  local peer, cached_peer = dcp(""), dcp(" --cached")
  local gib = ours.bytes / 2 ^ 30
  compare("checkpoint save/1x2, both on disk", "GiB/s", gib / ours.save_s, peer.save_s and gib / peer.save_s, "higher")
  compare("checkpoint save/1x2, both on disk, medians", "GiB/s", gib / ours.save_median_s,
    peer.save_median_s and gib / peer.save_median_s, "higher")
  compare("checkpoint save/1x2, both in the page cache", "GiB/s", cached.save_s and gib / cached.save_s,
    cached_peer.save_s and gib / cached_peer.save_s, "higher")
  compare("checkpoint load/1x2", "GiB/s", gib / ours.load_s, peer.load_s and gib / peer.load_s, "higher")
  compare("checkpoint load/1x2, from the disk", "GiB/s", gib / ours.load_cold_s,
    peer.load_cold_s and gib / peer.load_cold_s, "higher")
  compare("checkpoint load/of plain reads from the disk", "GiB/s", gib / ours.load_cold_s, gib / ours.read_cold_s,
    "higher")
  compare("checkpoint save/of plain writes, then synced", "GiB/s", gib / ours.save_s, gib / ours.write_s, "higher")
  compare("checkpoint save/of plain writes, the disk told to begin", "GiB/s", gib / ours.save_s, gib / ours.begun_s,
    "higher")
  compare("checkpoint load/of plain reads", "GiB/s", gib / ours.load_s, gib / ours.read_s, "higher")
  compare("checkpoint save/processor time of plain writes", "s", ours.save_cpu_s, ours.write_cpu_s, "lower")
  compare("checkpoint load/processor time of plain reads", "s", ours.load_cpu_s, ours.read_cpu_s, "lower")
  background_saves(1)
  background_saves(2)
end

return checkpoints
