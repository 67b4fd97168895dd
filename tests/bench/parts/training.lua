-- Parts of `make bench` that train: the models of peer_fsdp2.py against PyTorch, from the same weights and tokens when
-- the peer is there to write them; meshes and models against each other.

local programs = require("programs")
local report = require("report")

local build, peer_python = report.build, report.peer_python
local compare, exists, json_lines, target = report.compare, report.exists, report.json_lines, report.target
local recorder_ns = programs.recorder_ns

local training = {}

local steps, warmup = 25, 5
local tokens_path = build .. "/bench/tokens.i32"

local function peer_training(model, dtype, weights)
  if not exists(peer_python) then
    print("PyTorch's side is missing: make bench-peers")
    return nil
  end
  local save = weights and " --save-weights " .. weights or ""
  local command = ("%s tests/bench/peers/peer_fsdp2.py --model %s --shard 2 --dtype %s --steps %d --warmup %d"):format(
    peer_python, model, dtype, steps, warmup) .. " --tokens " .. tokens_path .. save
  return json_lines(command)[1]
end

-- 8 steps of 2 ranks of 8 rows of 257 tokens below 256, drawn by the Park-Miller generator.
function training.write_tokens()
  local state, bytes = 1, {}
  local file = assert(io.open(tokens_path, "wb"))
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

function training.model(model, dtype)
  local weights = ("%s/bench/weights-%s.f32"):format(build, model)
  local peer = peer_training(model, dtype, weights) or { losses = {} }
  local ours = our_training(model, dtype, 2, weights)
  if not ours then return end
  local name = model .. " 6x384 " .. dtype
  compare(name .. "/1x2", "tokens/s", ours.tokens_per_s, peer.tokens_per_s, "higher")
  compare(name .. "/peak memory of a rank", "MiB", ours.peak_rss_mib, peer.peak_rss_mib, "lower")
  if #peer.losses > 0 then
    compare(name .. "/largest loss difference", "nats", largest_difference(ours.losses, peer.losses), nil, "lower")
  end
  compare(name .. "/resident over the plan", "MiB", ours.resident_mib - ours.plan_mib, nil, "lower")
  compare(name .. "/outside kernels and waits", "fraction", ours.other_share, nil, "lower")
  -- Three phases and the all-gather of bytes before them; taking every instruction for a kernel overstates it.
  local ns = ours.instructions * recorder_ns.kernel + ours.collectives * recorder_ns.collective
    + 4 * recorder_ns.activity + recorder_ns.collective
  compare(name .. "/flight_recorder", "of step", ns / (1e6 * ours.step_ms), nil, "lower")
  compare(name .. "/compile", "ms", ours.compile_ms, nil, "lower")
  local alone = our_training(model, dtype, 1, weights)
  if alone then
    compare(name .. "/1x2 of twice 1x1", "fraction", ours.tokens_per_s / (2 * alone.tokens_per_s), nil, "higher")
  end
end

-- Layers divided over two ranks, against PyTorch's parallelize_module, and against the same ranks as shards: all with
-- as many rows a step. With sequence parallelism our ranks also divide what lies between the layers, as users should.
function training.tensor_parallel(dtype)
  local weights = build .. "/bench/weights-gpt.f32"
  local function ours(mesh, batch, more)
    local command = our_command("gpt", 2, mesh, dtype) .. ("steps=%d warmup=%d batch=%d "):format(steps, warmup, batch)
    return json_lines(command .. (exists(weights) and "weights=" .. weights .. " " or "") .. more)[1]
  end
  local peer = exists(peer_python) and json_lines(("%s tests/bench/peers/peer_fsdp2.py --shard 1 --tensor 2 --batch 16 "
    .. "--dtype %s --steps %d --warmup %d --tokens %s --weights %s"):format(peer_python, dtype, steps, warmup,
    tokens_path, weights))[1] or { losses = {} }
  local plain, sequence, shards = ours("1x1x2", 16, ""), ours("1x1x2", 16, "sequence_parallel=true"), ours("1x2", 8, "")
  if not (plain and sequence and shards) then return end
  local name = ("gpt 6x384 %s/tensor 2"):format(dtype)
  compare(name, "tokens/s", plain.tokens_per_s, peer.tokens_per_s, "higher")
  if #peer.losses > 0 then
    compare(name .. "/largest loss difference", "nats", largest_difference(plain.losses, peer.losses), nil, "lower")
  end
  target(name .. "/step over that of 1x2", "x", sequence.step_ms / shards.step_ms, 1.05)
  local context = ours("1x1x2x1", 16, "")
  if context then target(("gpt 6x384 %s/context 2/step over that of 1x2"):format(dtype), "x",
    context.step_ms / shards.step_ms, 1.05) end
end

-- What both allocate for the same model, mesh and batch. Our arenas, and the most that PyTorch's allocator holds at
-- once in steps after the first: neither counts code, libraries, what lies idle between allocations, or gloo's buffers.
-- By how much FSDP2's processes grow counts those too; all of our process is compared with it.
function training.memory(model, dtype, replicate, shard)
  if not exists(peer_python) then return end
  local mesh = ("%dx%d"):format(replicate, shard)
  local function peer(options)
    local command = ("%s tests/bench/peers/peer_fsdp2.py --model %s --replicate %d --shard %d --dtype %s"):format(
      peer_python, model, replicate, shard, dtype)
    return json_lines(command .. " --steps 4 --warmup 1" .. options)[1]
  end
  local ours = json_lines(our_command(model, replicate * shard, mesh, dtype) .. "steps=4 warmup=1")[1]
  local allocated, grown = peer(" --memory"), peer("")
  if not (allocated and grown and ours) then return end
  local name, unit = ("%s 6x384 %s/%s/memory of FSDP2's "):format(model, dtype, mesh), "fraction"
  target(name .. "allocator", unit, ours.plan_mib / allocated.allocated_mib, 0.85)
  target(name .. "growth", unit, ours.resident_mib / grown.grown_mib, 0.85)
end

-- Four ranks on one host: replicas cost an all-reduce and a second update more, and save half of what is gathered and
-- scattered. The median of pairs of steps.
function training.hybrid(dtype)
  local line = json_lines(("OMP_NUM_THREADS=1 %s/release/moonshard run tests/bench/hybrid.lua -n 4 dtype=%s"):format(
    build, dtype))[1]
  if not line then return end
  local name = "gpt 6x384 " .. dtype .. "/2x2 against 1x4"
  compare(name, "ms", line.mesh_ms, line.against_ms, "lower")
  compare(name .. "/processor time", "ms", line.mesh_cpu_ms, line.against_cpu_ms, "lower")
  target(name .. "/time of pairs", "fraction", line.ratio, 1)
end

-- Attention in windows, by the op and by ops that store scores.
function training.windows(dtype)
  local line = json_lines(("OMP_NUM_THREADS=1 %s/release/moonshard run tests/bench/windows.lua dtype=%s"):format(build,
    dtype))[1]
  if not line then return end
  compare("attention in windows " .. dtype .. "/against stored scores", "ms", line.op_ms, line.composed_ms, "lower")
end

-- Modern decoders against a plain one of equal flops a token. Tokens a second of both are medians of steps in turn; the
-- target is for the processor's time, which other work on the machine changes less.
local FAMILIES = {
  { "qwen3", "a GPT" }, { "qwen2", "a GPT" }, { "mla", "plain attention" }, { "sinks", "plain attention" },
}

function training.families(dtype)
  for _, row in ipairs(FAMILIES) do
    local family, plain = unpack(row)
    local line = json_lines(("OMP_NUM_THREADS=1 %s/release/moonshard run tests/bench/families.lua family=%s dtype=%s")
      :format(build, family, dtype))[1]
    if not line then return end
    local name = ("%s 6x384 %s/against %s of equal flops"):format(family, dtype, plain)
    local tokens = 1e3 * line.tokens_per_step
    compare(name, "tokens/s", tokens / line.family_ms, tokens / line.plain_ms, "higher")
    target(name .. "/processor time", "of the plain one's", line.cpu_ratio, 1.05)
  end
end

-- Four ranks of the quickstart's model: from the launcher's start to the end of the first step, less that step.
function training.start()
  local command = build .. "/release/moonshard run tests/bench/train.lua -n 4 mesh=2x2 layers=4 dim=256 heads=4 seq=128"
  local ours = json_lines(command .. " batch=2 steps=2 warmup=1 tokens=" .. tokens_path)[1]
  if ours then compare("start to first step, 4 ranks", "ms", ours.start_ms, nil, "lower") end
end

-- A rank on all cores, alone and then two such jobs that know nothing of each other: half of the cores' time is fair.
function training.two_jobs(dtype)
  local job = ("env -u OMP_NUM_THREADS %s/release/moonshard run tests/bench/train.lua -n 1 mesh=1x1 layers=2 dtype=%s "
    .. "steps=40 warmup=5 tokens=%s"):format(build, dtype, tokens_path)
  local alone = json_lines(job)[1]
  local slower
  for _, line in ipairs((json_lines(("(%s & %s; wait)"):format(job, job)))) do
    slower = math.min(slower or math.huge, line.tokens_per_s)
  end
  if alone and slower then
    target("two jobs at once " .. dtype .. "/a step of each", "of alone", alone.tokens_per_s / slower, 1 / 0.45)
  end
end

return training
