-- Measures Moonshard and its peers: luajit tests/bench/run.lua BUILD
--
-- Writes BUILD/bench.jsonl, one line a figure: {"name", "unit", "ours", "peer", "ratio"}, where ratio is how many times
-- better ours is, or {"name", "unit", "ours", "target"} for one that is to stay below its target, and prints the same
-- as a table. Both sides of a ratio are measured in this run, one right after the other. A peer that is not installed
-- (make bench-peers) leaves its columns empty and says so.

package.path = "lua/?.lua;" .. package.path
local json = require("moonshard.base.json")

local build = arg[1] or "build"
local peer_python = build .. "/peers/venv/bin/python"
local mpi_program = build .. "/peers/mpi_collectives"

local results = assert(io.open(build .. "/bench.jsonl", "w"))

local function exists(path)
  local file = io.open(path)
  if file then file:close() end
  return file ~= nil
end

-- Every line of JSON that a command prints.
local function json_lines(command)
  local pipe = assert(io.popen(command .. "; echo status $?"))
  local lines, status = {}, nil
  for line in pipe:lines() do
    status = line:match("^status (%d+)$") or status
    if line:find("^{.*}$") then lines[#lines + 1] = json.decode(line) end
  end
  pipe:close()
  if status ~= "0" then io.stderr:write("bench: failed with status ", status or "?", ": ", command, "\n") end
  return lines, status == "0"
end

local function number(value)
  return value and (value >= 1000 and "%.0f" or "%.4g"):format(value) or "null"
end

-- better: "lower" or "higher", of the figure itself.
local function report(name, unit, ours, peer, better)
  local ratio = ours and peer and (better == "lower" and peer / ours or ours / peer)
  results:write(('{"name":"%s","unit":"%s","ours":%s,"peer":%s,"ratio":%s}\n'):format(name, unit, number(ours),
    number(peer), number(ratio)))
  results:flush()
  print(("%-36s %10s %-9s peer %10s %9s"):format(name, number(ours), unit, number(peer),
    ratio and ("%.2fx"):format(ratio) or ""))
end

-- A figure that is to stay at or below a target.
local function report_target(name, unit, ours, target)
  results:write(('{"name":"%s","unit":"%s","ours":%s,"target":%g}\n'):format(name, unit, number(ours), target))
  results:flush()
  print(("%-36s %10s %-9s target %7g %9s"):format(name, number(ours), unit, target, ours <= target and "" or "missed"))
end

local function collective_name(line)
  return ("%s/%d ranks/%d KiB"):format(line.name, line.ranks, line.bytes / 1024)
end

local function collectives()
  local peer = {}
  for _, ranks in ipairs({ 2, 4 }) do
    local command = ("mpirun --allow-run-as-root --oversubscribe -n %d %s"):format(ranks, mpi_program)
    local lines = exists(mpi_program) and json_lines(command) or {}
    for _, line in ipairs(lines) do peer[collective_name(line)] = line.us end
  end
  if not next(peer) then print("Open MPI's side is missing: make bench-peers") end
  for _, line in ipairs((json_lines(build .. "/release/bench/bench_collectives"))) do
    report(collective_name(line), "us", line.us, peer[collective_name(line)], "lower")
  end
end

-- The other programs of tests/bench compare with a peer of their own and print finished lines.
local recorder_ns = {} -- by what is recorded

local function programs()
  for name in io.popen("ls tests/bench/bench_*.c"):read("*a"):gmatch("(bench_[%w_]+)%.c") do
    if name ~= "bench_collectives" then
      for _, line in ipairs((json_lines(("OMP_NUM_THREADS=1 %s/release/bench/%s"):format(build, name)))) do
        recorder_ns[line.name:match("^flight_recorder/(.*)") or ""] = line.ns
        if line.ns then report(line.name, "ns", line.ns, nil, "lower")
        elseif line.target then report_target(line.name, line.unit, line.ours, line.target)
        else report(line.name, line.unit, line.ours, line.peer, "higher") end
      end
    end
  end
end

local function plans()
  local paths = ("LUA_PATH='lua/?.lua;lua/?/init.lua;%s/gen/?.lua;;' MOONSHARD_LIB=%s/release/libmoonshard.so"):format(
    build, build)
  for _, command in ipairs({ "luajit tests/bench/plans.lua", "luajit tests/bench/price_list.lua " .. build }) do
    for _, line in ipairs((json_lines("OMP_NUM_THREADS=1 " .. paths .. " " .. command))) do
      report_target(line.name, line.unit, line.ours, line.target)
    end
  end
end

-- The models of peer_fsdp2.py, from the same weights and tokens when the peer is there to write them.
local steps, warmup = 25, 5
local tokens_path = build .. "/bench/tokens.i32"

local function peer_training(model, dtype, weights)
  if not exists(peer_python) then
    print("PyTorch's side is missing: make bench-peers")
    return nil
  end
  local save = weights and " --save-weights " .. weights or ""
  local command = ("%s tests/bench/peer_fsdp2.py --model %s --shard 2 --dtype %s --steps %d --warmup %d"):format(
    peer_python, model, dtype, steps, warmup) .. " --tokens " .. tokens_path .. save
  return json_lines(command)[1]
end

-- 8 steps of 2 ranks of 8 rows of 257 tokens below 256, drawn by the Park-Miller generator.
local function write_tokens(path)
  local state, bytes = 1, {}
  local file = assert(io.open(path, "wb"))
  for _ = 1, 8 * 2 * 8 * 257 do
    state = state * 16807 % 2147483647
    bytes[#bytes + 1] = string.char(math.floor(state / 2 ^ 12) % 256) .. "\0\0\0"
  end
  file:write(table.concat(bytes))
  file:close()
end

local function largest_difference(a, b)
  local largest = 0
  for i = 1, math.min(#a, #b) do largest = math.max(largest, math.abs(a[i] - b[i])) end
  return largest
end

local function our_command(model, ranks, mesh, dtype)
  return ("OMP_NUM_THREADS=1 %s/release/moonshard run tests/bench/train.lua -n %d model=%s mesh=%s dtype=%s tokens=%s ")
    :format(build, ranks, model, mesh, dtype, tokens_path)
end

local function our_training(model, dtype, ranks, weights)
  local command = our_command(model, ranks, "1x" .. ranks, dtype) .. ("steps=%d warmup=%d"):format(steps, warmup)
  if exists(weights) then command = command .. " weights=" .. weights end
  return json_lines(command)[1]
end

local function training(model, dtype)
  local weights = ("%s/bench/weights-%s.f32"):format(build, model)
  local peer = peer_training(model, dtype, weights) or { losses = {} }
  local ours = our_training(model, dtype, 2, weights)
  if not ours then return end
  local name = model .. " 6x384 " .. dtype
  report(name .. "/1x2", "tokens/s", ours.tokens_per_s, peer.tokens_per_s, "higher")
  report(name .. "/peak memory of a rank", "MiB", ours.peak_rss_mib, peer.peak_rss_mib, "lower")
  if #peer.losses > 0 then
    report(name .. "/largest loss difference", "nats", largest_difference(ours.losses, peer.losses), nil, "lower")
  end
  report(name .. "/resident over the plan", "MiB", ours.resident_mib - ours.plan_mib, nil, "lower")
  report(name .. "/outside kernels and waits", "fraction", ours.other_share, nil, "lower")
  -- Three phases and the all-gather of bytes before them; taking every instruction for a kernel overstates it.
  local ns = ours.instructions * recorder_ns.kernel + ours.collectives * recorder_ns.collective
    + 4 * recorder_ns.activity + recorder_ns.collective
  report(name .. "/flight_recorder", "of step", ns / (1e6 * ours.step_ms), nil, "lower")
  report(name .. "/compile", "ms", ours.compile_ms, nil, "lower")
  local alone = our_training(model, dtype, 1, weights)
  if alone then
    report(name .. "/1x2 of twice 1x1", "fraction", ours.tokens_per_s / (2 * alone.tokens_per_s), nil, "higher")
  end
end

-- Layers divided over two ranks, beside PyTorch's parallelize_module, and beside the same ranks as shards: all with as
-- many rows a step. With sequence parallelism our ranks also divide what lies between the layers, as users should.
local function tensor_parallel(dtype)
  local weights = build .. "/bench/weights-gpt.f32"
  local function ours(mesh, batch, more)
    local command = our_command("gpt", 2, mesh, dtype) .. ("steps=%d warmup=%d batch=%d "):format(steps, warmup, batch)
    return json_lines(command .. (exists(weights) and "weights=" .. weights .. " " or "") .. more)[1]
  end
  local peer = exists(peer_python) and json_lines(("%s tests/bench/peer_fsdp2.py --shard 1 --tensor 2 --batch 16 "
    .. "--dtype %s --steps %d --warmup %d --tokens %s --weights %s"):format(peer_python, dtype, steps, warmup,
    tokens_path, weights))[1] or { losses = {} }
  local plain, sequence, shards = ours("1x1x2", 16, ""), ours("1x1x2", 16, "sequence_parallel=true"), ours("1x2", 8, "")
  if not (plain and sequence and shards) then return end
  local name = ("gpt 6x384 %s/tensor 2"):format(dtype)
  report(name, "tokens/s", plain.tokens_per_s, peer.tokens_per_s, "higher")
  if #peer.losses > 0 then
    report(name .. "/largest loss difference", "nats", largest_difference(plain.losses, peer.losses), nil, "lower")
  end
  report_target(name .. "/step over that of 1x2", "x", sequence.step_ms / shards.step_ms, 1.05)
  local context = ours("1x1x2x1", 16, "")
  if context then report_target(("gpt 6x384 %s/context 2/step over that of 1x2"):format(dtype), "x",
    context.step_ms / shards.step_ms, 1.05) end
end

-- What both allocate for the same model, mesh and batch. Our arenas, and the most that PyTorch's allocator holds at
-- once in steps after the first: neither counts code, libraries, what lies idle between allocations, or gloo's buffers.
-- By how much FSDP2's processes grow counts those too; all of our process is compared with it.
local function memory(model, dtype, replicate, shard)
  if not exists(peer_python) then return end
  local mesh = ("%dx%d"):format(replicate, shard)
  local function peer(options)
    local command = ("%s tests/bench/peer_fsdp2.py --model %s --replicate %d --shard %d --dtype %s"):format(peer_python,
      model, replicate, shard, dtype)
    return json_lines(command .. " --steps 4 --warmup 1" .. options)[1]
  end
  local ours = json_lines(our_command(model, replicate * shard, mesh, dtype) .. "steps=4 warmup=1")[1]
  local allocated, grown = peer(" --memory"), peer("")
  if not (allocated and grown and ours) then return end
  local name, unit = ("%s 6x384 %s/%s/memory of FSDP2's "):format(model, dtype, mesh), "fraction"
  report_target(name .. "allocator", unit, ours.plan_mib / allocated.allocated_mib, 0.85)
  report_target(name .. "growth", unit, ours.resident_mib / grown.grown_mib, 0.85)
end

-- Four ranks on one host: replicas cost an all-reduce and a second update more, and save half of what is gathered and
-- scattered. The median of pairs of steps.
local function hybrid(dtype)
  local line = json_lines(("OMP_NUM_THREADS=1 %s/release/moonshard run tests/bench/hybrid.lua -n 4 dtype=%s"):format(
    build, dtype))[1]
  if not line then return end
  local name = "gpt 6x384 " .. dtype .. "/2x2 beside 1x4"
  report(name, "ms", line.mesh_ms, line.beside_ms, "lower")
  report(name .. "/processor time", "ms", line.mesh_cpu_ms, line.beside_cpu_ms, "lower")
  report_target(name .. "/time of pairs", "fraction", line.ratio, 1)
end

-- Attention in windows, by the op and by ops that store scores.
local function windows(dtype)
  local line = json_lines(("OMP_NUM_THREADS=1 %s/release/moonshard run tests/bench/windows.lua dtype=%s"):format(build,
    dtype))[1]
  if not line then return end
  report("attention in windows " .. dtype .. "/against stored scores", "ms", line.op_ms, line.composed_ms, "lower")
end

-- Tokenizers on one core (MB a second of processor time), over the text of `fortunes`; trained by the peer, or without
-- it those of the tests.
local function tokenizers()
  local text, folder = build .. "/bench/text.txt", build .. "/bench"
  os.execute(("cat $(ls /usr/share/games/fortunes/* | grep -vE '\\.(dat|u8)$') >%s"):format(text))
  local peer = {}
  if exists(peer_python) and os.execute(peer_python .. " -c 'import tokenizers' 2>/dev/null") == 0 then
    for _, line in ipairs((json_lines(("%s tests/bench/peer_tokenizer.py %s %s"):format(peer_python, text, folder)))) do
      peer[line.name] = line
    end
  else
    print("The tokenizers' side is missing: make bench-peers")
  end
  for _, name in ipairs({ "gpt2", "llama3" }) do
    local tokenizer = peer[name] and ("%s/%s.json"):format(folder, name)
      or ("tests/fixtures/tokenizer/good/%s.json"):format(name)
    local best, tokens
    for _ = 1, 5 do
      local line = json_lines(("%s/release/moonshard tokenize -j1 --json --tokenizer %s --out %s/tokens.bin %s"):format(
        build, tokenizer, folder, text))[1]
      local rate = line and line.bytes / 1e6 / line.cpu_seconds
      best, tokens = math.max(best or 0, rate or 0), line and line.tokens
    end
    report("tokenize/" .. name, "MB/s", best, peer[name] and peer[name].mb_per_s, "higher")
    if peer[name] and tokens ~= peer[name].tokens then
      print(("tokenize/%s: %d tokens, and the peer has %d"):format(name, tokens, peer[name].tokens))
    end
  end
end

-- What waiting for token files takes of the steps of a small model, of one rank.
local function data()
  local line = json_lines(("OMP_NUM_THREADS=1 %s/release/moonshard run tests/bench/data.lua files=%s/bench/tokens.bin")
    :format(build, build))[1]
  if line then report("data/share of a step", "fraction", line.data_share, nil, "lower") end
end

-- Four ranks of the quickstart's model: from the launcher's start to the end of the first step, less that step.
local function start()
  local command = build .. "/release/moonshard run tests/bench/train.lua -n 4 mesh=2x2 layers=4 dim=256 heads=4 seq=128"
  local ours = json_lines(command .. " batch=2 steps=2 warmup=1 tokens=" .. tokens_path)[1]
  if ours then report("start to first step, 4 ranks", "ms", ours.start_ms, nil, "lower") end
end

-- A rank on all cores, alone and then two such jobs that know nothing of each other: half of the cores' time is fair.
local function two_jobs(dtype)
  local job = ("env -u OMP_NUM_THREADS %s/release/moonshard run tests/bench/train.lua -n 1 mesh=1x1 layers=2 dtype=%s "
    .. "steps=40 warmup=5 tokens=%s"):format(build, dtype, tokens_path)
  local alone = json_lines(job)[1]
  local slower
  for _, line in ipairs((json_lines(("(%s & %s; wait)"):format(job, job)))) do
    slower = math.min(slower or math.huge, line.tokens_per_s)
  end
  if alone and slower then
    report_target("two jobs at once " .. dtype .. "/a step of each", "of alone", alone.tokens_per_s / slower, 1 / 0.45)
  end
end

local function output_of(command)
  local pipe = assert(io.popen(command))
  local text = pipe:read("*a")
  pipe:close()
  return text
end

-- From the line that rank 0 has read to the value that came back from all ranks.
local function prompt()
  local told, times = output_of(('(echo ":time on"; yes "1 + 1" | head -500) | %s/release/moonshard repl -n 4')
    :format(build)), {}
  for ms in told:gmatch("%((%S+) ms%)") do times[#times + 1] = tonumber(ms) end
  table.sort(times)
  if not times[1] then return end
  report("a line of the prompt, 4 ranks, least", "ms", times[1], nil, "lower")
  report("a line of the prompt, 4 ranks, median", "ms", times[math.ceil(#times / 2)], nil, "lower")
end

-- Plan, start, metrics and results of a point; the least of several sweeps.
local function sweep()
  local least
  for _ = 1, 3 do
    local told = output_of(build .. "/release/moonshard sweep tests/bench/sweep.lua 2>/dev/null")
    local seconds = tonumber(told:match("\na point [^%d\n]*([%d.]+) s"))
    if seconds and (not least or seconds < least) then least = seconds end
  end
  if least then report("a point of a sweep, 4 ranks", "s", least, nil, "lower") end
end

-- What a save in the background of the GPT above adds to the steps around it, with a core for its thread (one rank
-- on a machine of two) and without, where a save comes every 8 steps of one row of tokens, which what it takes does not
-- depend on. The target is for the processor's time: what windows differ by is mostly other work on the machine.
local function background_saves(ranks)
  local command = "OMP_NUM_THREADS=1 %s/release/moonshard run tests/bench/checkpoint.lua -n %d mesh=1x%d dir=%s "
  command = command .. "rounds=1 batch=1 window=8"
  local line = json_lines(command:format(build, ranks, ranks, build .. "/bench/checkpoints"))[1]
  if not line then return end
  local name = ("checkpoint in the background/%d rank%s/"):format(ranks, ranks == 1 and "" or "s")
  report(name .. "processor time of a save", "ms", line.save_cpu_ms, nil, "lower")
  report(name .. "held", "ms", line.held_ms, nil, "lower")
  report(name .. "a step", "ms", line.step_ms, nil, "lower")
  report(name .. "8 steps longer by, median of pairs", "ms", line.added_ms, nil, "lower")
  report(name .. "8 steps longer by, first quartile", "ms", line.added_ms_quartiles[1], nil, "lower")
  report(name .. "8 steps longer by, third quartile", "ms", line.added_ms_quartiles[2], nil, "lower")
  -- What runs in parallel to training where a core is free for it, and what does not.
  local paid = ranks == 1 and line.held_ms or line.save_cpu_ms
  report_target(name .. "share of 8 steps", "fraction", paid / (8 * line.step_cpu_ms), 0.03)
end

-- Checkpoints of a wider GPT with AdamW: compared with plain writes and reads of as many bytes, and with PyTorch.
local function checkpoints()
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
    local line = ("%s tests/bench/peer_checkpoint.py --dim 768 --heads 12 --dir %s%s"):format(peer_python,
      folder .. "-peer", options)
    return exists(peer_python) and json_lines(line)[1] or {}
  end
  local peer, cached_peer = dcp(""), dcp(" --cached")
  local gib = ours.bytes / 2 ^ 30
  report("checkpoint save/1x2, both on disk", "GiB/s", gib / ours.save_s, peer.save_s and gib / peer.save_s, "higher")
  report("checkpoint save/1x2, both on disk, medians", "GiB/s", gib / ours.save_median_s,
    peer.save_median_s and gib / peer.save_median_s, "higher")
  report("checkpoint save/1x2, both in the page cache", "GiB/s", cached.save_s and gib / cached.save_s,
    cached_peer.save_s and gib / cached_peer.save_s, "higher")
  report("checkpoint load/1x2", "GiB/s", gib / ours.load_s, peer.load_s and gib / peer.load_s, "higher")
  report("checkpoint load/1x2, from the disk", "GiB/s", gib / ours.load_cold_s,
    peer.load_cold_s and gib / peer.load_cold_s, "higher")
  report("checkpoint load/of plain reads from the disk", "GiB/s", gib / ours.load_cold_s, gib / ours.read_cold_s,
    "higher")
  report("checkpoint save/of plain writes, then synced", "GiB/s", gib / ours.save_s, gib / ours.write_s, "higher")
  report("checkpoint save/of plain writes, the disk told to begin", "GiB/s", gib / ours.save_s, gib / ours.begun_s,
    "higher")
  report("checkpoint load/of plain reads", "GiB/s", gib / ours.load_s, gib / ours.read_s, "higher")
  report("checkpoint save/processor time of plain writes", "s", ours.save_cpu_s, ours.write_cpu_s, "lower")
  report("checkpoint load/processor time of plain reads", "s", ours.load_cpu_s, ours.read_cpu_s, "lower")
  background_saves(1)
  background_saves(2)
end

-- Tokens a second of texts that are continued, one alone and eight together.
local function generation()
  local has_peer = exists(peer_python)
    and os.execute(peer_python .. " -c 'from transformers import Qwen3ForCausalLM' 2>/dev/null") == 0
  if not has_peer then print("transformers' side of generation is missing: make bench-peers") end
  for _, family in ipairs({ "gpt2", "qwen3" }) do
    for _, batch in ipairs({ 1, 8 }) do
      local line = json_lines(("%s/release/moonshard run tests/bench/generate.lua family=%s batch=%d"):format(build,
        family, batch))[1] or {}
      local peer = has_peer and json_lines(("%s tests/bench/peer_generate.py %s %d 64 64"):format(peer_python, family,
        batch))[1] or {}
      report(("generate/%s/%d texts"):format(family, batch), "tokens/s", line.kept_tokens_per_s, peer.tokens_per_s,
        "higher")
    end
  end
end

-- Two hosts are network namespaces, which need root; the command says so where they cannot be.
local function hosts()
  for _, line in ipairs((json_lines(("recipes/two_hosts.sh luajit tests/bench/hosts.lua %s"):format(build)))) do
    report(line.name, line.unit, line.ours, line.peer, "lower")
    if line.ours then report_target(line.name .. ", of the wire", "x", line.ours / line.wire, 1.1) end
  end
end

os.execute("mkdir -p " .. build .. "/bench")
write_tokens(tokens_path)
collectives()
programs()
plans()
tokenizers()
generation()
data()
start()
two_jobs("f32")
two_jobs("bf16")
prompt()
sweep()
checkpoints()
for _, dtype in ipairs({ "f32", "bf16" }) do
  for _, model in ipairs({ "gpt", "llama" }) do
    training(model, dtype)
    memory(model, dtype, 1, 2)
  end
  memory("gpt", dtype, 2, 2)
  tensor_parallel(dtype)
  hybrid(dtype)
  windows(dtype)
end
hosts()
results:close()
