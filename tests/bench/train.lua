-- Our side of the training benchmark, the twin of peer_fsdp2.py: same model, optimizer, weights and tokens.
--
--   moonshard run tests/bench/train.lua -n 2 model=gpt mesh=1x2 dtype=bf16 weights=F tokens=F
--
-- model: gpt or llama. weights: raw f32, all parameters in PyTorch's order, which is listed below; tokens: raw int32
-- [steps][ranks][batch][seq + 1] of ranks with different rows, read round and round. mesh: replicate x shard, then x
-- tensor or x context x tensor. Without weights the model's own initial ones are taken. Rank 0 prints one JSON line:
-- tokens_per_s and step_ms (median after the warm-up), the losses of the first steps, peak_rss_mib and resident_mib
-- of rank 0, and plan_mib, compile_ms, other_share (of the steps, what was not kernels, moving data or waiting),
-- instructions and collectives of a step's plan, and start_ms (from the launcher's start to the end of the first
-- step, less that step).

local ffi = require("ffi")
local ms = require("moonshard")
local re = ms.re

local cfg = ms.args {
  model = "gpt", layers = 6, dim = 384, heads = 6, ffn = 1024, seq = 256, batch = 8, vocab = 256, mesh = "1x2",
  dtype = "f32", steps = 25, warmup = 5, report = 20, weights = "", tokens = "", lr = 1e-3, shard_optimizer = false,
  sequence_parallel = false, replicate = "", -- replicate: i8 or i4: the type in which replicas sum gradients
}
local NAMES = { [2] = { "replicate", "shard" }, [3] = { "replicate", "shard", "tensor" },
  [4] = { "replicate", "shard", "context", "tensor" } }
local mesh = ms.init_device_mesh(cfg.device, cfg.mesh, NAMES[select(2, cfg.mesh:gsub("x", "")) + 1])

local makers = {
  gpt = function(sizes) return ms.models.gpt2(sizes) end,
  llama = function(sizes)
    sizes.kv_heads, sizes.ffn = cfg.heads / 2, cfg.ffn
    return ms.models.llama(sizes)
  end,
}
local make = assert(makers[cfg.model], "model: gpt or llama")
local model = make { vocab = cfg.vocab, layers = cfg.layers, dim = cfg.dim, heads = cfg.heads, seq = cfg.seq }
ms.fully_shard(model, {
  mesh = mesh,
  placements = mesh:has("tensor") and ms.rules.tensor_parallel(model) or nil,
  sequence_parallel = cfg.sequence_parallel,
  units = { re[[^layers\.\d+$]] },
  mp_policy = {
    param_dtype = cfg.dtype, reduce_dtype = cfg.replicate == "" and "f32" or { replicate = cfg.replicate },
  },
  shard_optimizer_over_replicate = cfg.shard_optimizer,
})
local train = ms.trainer {
  model = model, loss = ms.loss.cross_entropy, optimizer = ms.optim.adamw { lr = cfg.lr, weight_decay = 0.1 },
}

local MODULES = { -- of a layer; ! has no bias
  gpt = "norm1 attn.wq attn.wk attn.wv attn.wo norm2 mlp.fc1 mlp.fc2",
  llama = "attn_norm! attn.wq! attn.wk! attn.wv! attn.wo! ffn_norm! mlp.w1! mlp.w3! mlp.w2!",
}

local function parameter_names()
  local names = { "embed.weight" }
  local function add(prefix, modules)
    for name, no_bias in modules:gmatch("([%w%._]+)(!?)") do
      names[#names + 1] = prefix .. name .. ".weight"
      if no_bias == "" then names[#names + 1] = prefix .. name .. ".bias" end
    end
  end
  if cfg.model == "gpt" then add("", "pos!") end
  for layer = 0, cfg.layers - 1 do add(("layers.%d."):format(layer), MODULES[cfg.model]) end
  add("", cfg.model == "gpt" and "norm head!" or "norm! head!")
  return names
end

local function read_all(path)
  local file = assert(io.open(path, "rb"))
  local text = file:read("*a")
  file:close()
  return text
end

local function set_weights(path)
  local text, shapes, at = read_all(path), {}, 0
  local values = ffi.cast("const float *", text)
  for name, parameter in model:named_parameters() do shapes[name] = parameter.shape end
  for _, name in ipairs(parameter_names()) do
    local whole = ms.zeros(shapes[name])
    ffi.copy(whole.data, values + at, 4 * whole:numel())
    model:set_parameter(name, whole)
    at = at + whole:numel()
  end
  assert(4 * at == #text, path .. " does not have the size of the model")
end

-- One rank's rows of a step: tokens i32 [batch, seq] and the same rows one token later.
local function batch_of(words, steps, step, rank, ranks)
  local function rows(shift)
    local data = ffi.new("int32_t[?]", cfg.batch * cfg.seq)
    for row = 0, cfg.batch - 1 do
      local first = (((step - 1) % steps * ranks + rank) * cfg.batch + row) * (cfg.seq + 1) + shift
      ffi.copy(data + row * cfg.seq, words + first, 4 * cfg.seq)
    end
    return { data = data, dtype = "i32", shape = { cfg.batch, cfg.seq } }
  end
  return { tokens = rows(0), targets = rows(1) }
end

local function median(values)
  table.sort(values)
  local n = #values
  return (values[math.floor((n + 1) / 2)] + values[math.floor(n / 2) + 1]) / 2
end

local function peak_rss_mib()
  return tonumber(read_all("/proc/self/status"):match("VmHWM:%s*(%d+)")) / 1024
end

-- What this rank adds to the host's memory: a page that ranks share counts once among them. Arenas stay, so the end
-- of a run is its peak.
local function resident_mib()
  return tonumber(read_all("/proc/self/smaps_rollup"):match("\nPss:%s*(%d+)")) / 1024
end

-- Since the launcher began, from the kernel's own clock of processes: ticks of 10 ms.
local function ms_since_launch()
  local parent = read_all("/proc/self/stat"):match("^%d+ %b() %S (%d+)")
  local process = tonumber(os.getenv("WORLD_SIZE") or 1) > 1 and parent or "self"
  local fields, position = read_all("/proc/" .. process .. "/stat"):match("^%d+ %b() (.*)$"), 0
  for field in fields:gmatch("%S+") do
    position = position + 1
    if position == 20 then return 1e3 * tonumber(read_all("/proc/uptime"):match("^(%S+)")) - 10 * tonumber(field) end
  end
end

local world = ms.world()
if cfg.weights ~= "" then set_weights(cfg.weights) end
collectgarbage() -- the file as text is no part of what training needs
local text = read_all(cfg.tokens)
local words = ffi.cast("const int32_t *", text)
local readers, reader = train.session:data_ranks() -- ranks with rows of their own, and which one this is
local steps_in_file = math.floor(#text / 4 / (readers * cfg.batch * (cfg.seq + 1)))

local losses, step_ms, start_ms = {}, {}, nil
for step = 1, cfg.steps do
  local m = train:step(batch_of(words, steps_in_file, step, reader, readers))
  start_ms = start_ms or ms_since_launch() - m.step_ms
  if step <= cfg.report then losses[step] = ("%.6f"):format(m.loss) end
  if step > cfg.warmup then step_ms[#step_ms + 1] = m.step_ms end
end
if world.rank == 0 then
  local ms_a_step, summary = median(step_ms), train:plan():summary()
  local seconds = train.session:counters("train").seconds
  local other = 1 - (seconds.kernels + seconds.waits + seconds.collectives) / seconds.total
  local format = '{"name":"moonshard_%s_%s_%s","tokens_per_s":%.1f,"step_ms":%.3f,"losses":[%s],"peak_rss_mib":%.1f,'
    .. '"resident_mib":%.1f,"plan_mib":%.1f,"compile_ms":%.1f,"other_share":%.5f,"start_ms":%.0f,'
    .. '"instructions":%d,"collectives":%d}'
  print(format:format(cfg.model, cfg.dtype, cfg.mesh, readers * cfg.batch * cfg.seq / ms_a_step * 1e3, ms_a_step,
    table.concat(losses, ","), peak_rss_mib(), resident_mib(), summary.peak_bytes / 2 ^ 20, summary.compile_ms, other,
    start_ms, summary.instructions, summary.collectives.first + summary.collectives.norm))
end
