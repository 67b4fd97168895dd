-- Models whose layers are divided over the mesh dimension `tensor`, and whose samples over `context`: the presets of
-- GPT-2 and Llama, and modules that no preset knows. The specs compare them with one rank.

local ms = require "moonshard"
local re = ms.re

local cfg = ms.args {
  model = "gpt2", mesh = "1x1x2", steps = 3, batch = 2, micro_batches = 1, sequence_parallel = false, dtype = "f32",
  tied = false, dropout = ms.args.real(0), kv_heads = 2, heads = 4, dim = 32, hidden = 48, layout = "rows",
  recompute = false, vocab = 256, pad = 1, seq = 16, documents = false, ignored = false, forward = 0, names = "",
  hint = "", freeze = "", style = "colwise", dimension = "tensor", shared = true, folder = "", full = "",
  ema = false, averaged = false, sliced = false, loads = "", saves = "", exports = "", restores = false, resume = false,
  regather = "default", facts = "", lora = "", rank = 2, adapter_dropout = ms.args.real(0), adapter_dtype = "",
  chunk = 0, muon = "", own_copies = false, head_bias = false, optimizer = "adamw",
}
local SEQ, DIM, VOCAB, NEWLINE = cfg.seq, cfg.dim, cfg.vocab, 10

local NAMES = { [3] = { "replicate", "shard", "tensor" }, [4] = { "replicate", "shard", "context", "tensor" } }
local names = NAMES[select(2, cfg.mesh:gsub("x", "")) + 1]
if cfg.names ~= "" then
  names = {}
  for name in cfg.names:gmatch("%w+") do names[#names + 1] = name end
end
local mesh = ms.init_device_mesh(cfg.device, cfg.mesh, names)
local linear = ms.nn.linear

-- Mixes tokens, then channels, each behind a gate.
local Mixer = ms.module "Mixer"
function Mixer:init()
  self.norm = ms.nn.rms_norm(DIM)
  self.up, self.gate, self.down = linear(DIM, cfg.hidden), linear(DIM, cfg.hidden), linear(cfg.hidden, DIM)
  self.tokens = linear(SEQ, SEQ)
end
function Mixer:forward(x)
  x = x + self.tokens(x:transpose(1, 2)):transpose(1, 2)
  local h = self.norm(x)
  local y = self.up(h) * self.gate(h):sigmoid()
  if cfg.hint ~= "" then y = y:redistribute { [cfg.hint] = "replicate" } end
  return x + self.down(y)
end

-- The same block twice.
local Shared = ms.module "Shared"
function Shared:init() self.up, self.down = linear(DIM, cfg.hidden), linear(cfg.hidden, DIM) end
function Shared:forward(x)
  for _ = 1, 2 do x = x + self.down(self.up(x):relu()) end
  return x
end

-- Attention from products and softmax.
local ByHand = ms.module "ByHand"
function ByHand:init()
  self.up, self.gate, self.value = linear(DIM, DIM), linear(DIM, DIM), linear(DIM, DIM)
  self.down = linear(DIM, DIM)
end
function ByHand:forward(x)
  local batch, size = x.shape[1], DIM / cfg.heads
  local function heads(y) return y:reshape(batch, SEQ, cfg.heads, size):transpose(1, 2) end
  local q, k, v = heads(self.up(x)), heads(self.gate(x)), heads(self.value(x))
  local scores = ms.ops.matmul(q, k:transpose(2, 3)) * (1 / math.sqrt(size))
  local y = ms.ops.matmul(scores:softmax(), v)
  return x + self.down(y:transpose(1, 2):reshape(batch, SEQ, DIM))
end

local Own = ms.module "Own"
function Own:init(block)
  self.embed = ms.nn.embedding(VOCAB, DIM)
  self.layers = { block(), block() }
  self.head = linear(DIM, VOCAB, { bias = cfg.head_bias })
  if cfg.tied then self.head.weight = self.embed.weight end
end
function Own:forward(tokens)
  local x = self.embed(tokens)
  for _, layer in ipairs(self.layers) do x = layer(x) end
  return self.head(x)
end

local OWN = { mixer = Mixer, shared = Shared, by_hand = ByHand }
local OWN_RULES = {
  { re[[\.(up|gate|value)\.]], { [cfg.dimension] = cfg.style } },
  { re[[\.down\.]], { tensor = "rowwise" } },
  { "embed", { tensor = ms.Shard(cfg.tied and 0 or 1) }, optional = true },
  { "head", { tensor = ms.Shard(0) } },
}

local model, rules
if OWN[cfg.model] then
  model, rules = Own(OWN[cfg.model]), OWN_RULES
else
  local shape = { vocab = VOCAB, layers = 2, dim = DIM, heads = cfg.heads, seq = SEQ, tied = cfg.tied }
  shape.pad_vocab_to_multiple_of = cfg.pad
  shape.document_start = cfg.documents and NEWLINE or nil
  if cfg.model == "llama" then shape.kv_heads, shape.ffn = cfg.kv_heads, cfg.hidden else shape.dropout = cfg.dropout end
  model = cfg.folder ~= "" and ms.huggingface.model(cfg.folder) or ms.models[cfg.model](shape)
  rules = ms.rules.tensor_parallel(model)
end

if cfg.lora ~= "" then ms.lora(model, { { re(cfg.lora), { rank = cfg.rank, dropout = cfg.adapter_dropout } } }) end

ms.fully_shard(model, {
  mesh = mesh, placements = rules, sequence_parallel = cfg.sequence_parallel, units = { re[[^layers\.\d+$]] },
  mp_policy = { param_dtype = cfg.dtype }, layout = cfg.layout, recompute = cfg.recompute,
  regather = cfg.regather,
  freeze = cfg.freeze ~= "" and { { re(cfg.freeze), true } } or nil,
  param_dtype = cfg.adapter_dtype ~= "" and { { re[[\.lora_]], cfg.adapter_dtype } } or nil,
  shard_optimizer_over_replicate = cfg.sliced, shared_masters = not (cfg.sliced or cfg.own_copies),
})
local data = ms.data.text {
  files = "tests/lua/recipes/text.txt", seq = SEQ, batch = cfg.batch * cfg.micro_batches,
  mesh = cfg.shared and mesh or nil,
}

-- Only the first positions of the first sample have a target that counts.
local function ignore(batch)
  local targets, n = batch.targets.data, batch.targets.shape[1] * SEQ
  for i = SEQ / 4, n - 1 do targets[i] = -100 end
  return batch
end

local adamw = ms.optim[cfg.optimizer] { lr = 1e-2 }
local train = ms.trainer {
  model = model, clip_grad_norm = 1,
  optimizer = cfg.muon ~= "" and { { re(cfg.muon), ms.optim.muon { lr = 1e-2 } }, { re".", adamw } } or adamw,
  loss = cfg.chunk > 0 and ms.loss.cross_entropy { fused = true, chunk = cfg.chunk } or ms.loss.cross_entropy,
  micro_batches = cfg.micro_batches, ema = cfg.ema and { decay = 0.9 } or nil,
}
-- On another mesh the ranks are given other samples, so the data's position would mean nothing.
local position = cfg.resume and { data = data } or nil
if cfg.loads ~= "" then ms.checkpoint.load(train, cfg.loads, position) end

-- The weights become their averages, so that what compares weights compares those.
local function take_averages()
  local kept = {}
  train:with_ema(function()
    for name in model:named_parameters() do kept[name] = train:parameter(name) end
  end)
  for name in model:named_parameters() do train:set_parameter(name, kept[name]) end
end

if cfg.steps > 0 then
  for step, batch in data:batches(cfg.steps) do
    ms.log(step, train:step(cfg.ignored and ignore(batch) or batch))
    if cfg.averaged and step == 2 then take_averages() end
  end
end
if cfg.forward > 0 then
  local tokens = {}
  for i = 1, cfg.forward do tokens[i] = i end
  local logits = model(ms.tensor(tokens, { dtype = "i32" }):reshape(1, cfg.forward))
  if ms.world().rank == 0 then print("[" .. table.concat(logits.shape, ",") .. "]") end
end
-- What this rank planned, and what it counted in all steps.
if cfg.facts ~= "" then
  local exec = train.session.train_exec
  local file = assert(io.open(("%s.%d"):format(cfg.facts, ms.world().rank), "w"))
  file:write(require("moonshard.base.text.json").encode { plan = exec.plan:summary(), counted = exec:report() })
  file:close()
end
if cfg.saves ~= "" then ms.checkpoint.save(train, cfg.saves, position) end
if cfg.exports ~= "" then ms.huggingface.save(model, cfg.exports) end
if cfg.full ~= "" then
  local whole, part = model:parameter(cfg.full), model:local_parameter(cfg.full)
  if ms.world().rank == 0 then print(whole, part) end
end

-- State dicts, a rank's parts and the whole, come back bit for bit; copies in full are the values, and edits of them
-- reach the parts.
if cfg.restores then
  local function values()
    local list = {}
    for name in model:named_parameters() do list[name] = model:parameter(name):reshape(-1):tolist() end
    return list
  end
  local before, parts, full = values(), model:state_dict(), model:state_dict { full = true }
  for what, restore in pairs({
    parts = function() model:load_state_dict(parts) end,
    full = function() model:load_state_dict(full, { full = true }) end,
  }) do
    for _, batch in data:batches(1) do train:step(batch) end
    restore()
    for name, list in pairs(values()) do
      for i, value in ipairs(list) do assert(value == before[name][i], what .. ": " .. name) end
    end
  end
  for name, copy in pairs(model:unshard()) do
    for i, value in ipairs(copy:reshape(-1):tolist()) do assert(value == before[name][i], "unshard: " .. name) end
  end
  ms.with_full_params(model, function(params)
    for name in pairs(before) do params[name] = params[name] * 2 end
  end)
  for name, list in pairs(values()) do
    for i, value in ipairs(list) do assert(value == 2 * before[name][i], "edited: " .. name) end
  end
end
