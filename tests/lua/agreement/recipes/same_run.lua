-- Ranks that are given batches of other fields, types or lengths, after all have bound the plans of both; or that pad
-- theirs to the longest of all ranks.
--
--   moonshard run tests/lua/agreement/recipes/same_run.lua -n 2 what=lengths in=train
--
-- Rank `on` differs: in what=lengths, dtype, field, footnote (forward does not read it), rows, argument, batches (one
-- more to evaluate), skip (it leaves out a step), numbers (so, too, with batches of its own), and in what forward
-- reads: factor (a field), layers (how many), upvalue, constant (a tensor's shape); or in nothing (none). on=-1: in
-- these all ranks change alike, though each has another clock. alike=2: pairs of ranks have the same rows. pad=true
-- pads, and prints what came out.

local ms = require "moonshard"

local cfg = ms.args {
  mesh = "1x2", names = "replicate shard", what = "none", ["in"] = "train", on = 1, pad = false, warm = true,
  micro = 1, rows_of = 0, alike = 1,
}

local VOCAB, ROWS = 11, 4
local world = ms.world()
local is_on, place = world.rank == cfg.on or cfg.on == -1, math.floor(world.rank / cfg.alike)

local Net = ms.module "Net"
function Net:init()
  self.embed = ms.nn.embedding(VOCAB, 8)
  self.first, self.second = ms.nn.linear(8, 16), ms.nn.linear(16, VOCAB)
  self._reads = { factor = 1, layers = 1, constant = ms.ones(16), clock = 0 }
end
local upvalue = 1
function Net:forward(x, scale)
  local reads, h = self._reads, self.first(self.embed(x)):gelu() * (scale or 1)
  reads.clock = reads.clock + 0.25 * (world.rank + 1)
  for _ = 1, reads.layers do h = h * reads.factor * upvalue end
  return self.second(h * reads.constant)
end

local names = {}
for name in cfg.names:gmatch("%S+") do names[#names + 1] = name end
local model = Net()
ms.fully_shard(model, {
  mesh = ms.init_device_mesh("cpu", cfg.mesh, names), units = { ms.re[[^(first|second)$]] },
})
local train = ms.trainer {
  model = model, optimizer = ms.optim.adamw { lr = 0.01 }, micro_batches = cfg.micro,
  pad = cfg.pad and { tokens = 0, targets = -100 } or nil,
  forward = function(net, b)
    local logits = net(b.tokens)
    if b.extra then logits = logits + b.extra:cast("f32"):mean() end
    return ms.loss.cross_entropy(logits, b.targets)
  end,
}

-- Rows of a step, in which every third token has no target; a rank's are among those of one rank that has all.
local function rows_of(step, first, count, length, padded)
  local tokens, targets = { dtype = "i32" }, { dtype = "i32" }
  for i = 1, count do
    local row, to = {}, {}
    for t = 1, padded or length(first + i) do
      local inside = t <= length(first + i)
      row[t] = inside and (3 * t + 5 * (first + i) + step) % VOCAB or 0
      to[t] = inside and t % 3 ~= 0 and (7 * t + first + i + step) % VOCAB or -100
    end
    tokens[i], targets[i] = row, to
  end
  return { tokens = ms.tensor(tokens), targets = ms.tensor(targets) }
end

local function batch(step, length, extra)
  local b = rows_of(step, place * ROWS, extra == "rows" and 2 * ROWS or ROWS, function() return length end)
  if extra == "field" then b.extra = ms.randn { ROWS, 2, seed = step } end
  if extra == "dtype" then b.extra = ms.randn { ROWS, 2, seed = step }:cast("bf16") end
  if cfg.what == "footnote" then b.footnote = ms.randn { ROWS, extra == "footnote" and 3 or 2, seed = step } end
  return b
end

local function both(one, other)
  if cfg.what == "none" then return one end
  return is_on and other or one
end

local function once(...)
  local list, i = { ... }, 0
  return function()
    i = i + 1
    if list[i] then return i, list[i] end
  end
end

local KINDS = { lengths = true, dtype = true, field = true, rows = true, footnote = true }

-- A batch of the usual kind, or of the other one.
local function made(step, other)
  if not other or not KINDS[cfg.what] then return batch(step, 6, cfg.what == "dtype" and "field" or nil) end
  if cfg.what == "lengths" then return batch(step, 9) end
  return batch(step, 6, cfg.what)
end

local run = {
  train = function(b) return train:step(b) end,
  evaluate = function(b) return train:evaluate(once(b)) end,
  call = function(b) return model(b.tokens) end,
}

local function ends(text)
  if world.rank == 0 then print(text) end
end

if cfg.pad then
  -- Rows of rank r are as long as the longest of its own; one rank has all, and pads them to the longest of all.
  local ranks = cfg.rows_of > 0 and cfg.rows_of or world.size
  local function length(row) return 4 + (5 * (math.ceil(row / ROWS) - 1)) % 7 end
  local lines, longest = {}, 0
  for row = 1, ranks * ROWS do longest = math.max(longest, length(row)) end
  for step = 1, 3 do
    local alone = world.size < ranks
    local b = rows_of(step, alone and 0 or place * ROWS, alone and ranks * ROWS or ROWS, length, alone and longest)
    local m = train:step(b)
    lines[#lines + 1] = ("%.6f %.5f %.6f"):format(m.loss, m.grad_norm, train:evaluate(once(b)))
    if step == 3 then lines[#lines + 1] = ("padding %.4f"):format(m.padding) end
  end
  lines[#lines + 1] = ("weight %.6f"):format(model:parameter("first.weight")[3]:tolist()[2])
  ends(table.concat(lines, "\n"))
elseif cfg.what == "batches" then
  local mine = { made(1), made(2), both(nil, made(3)) }
  ends(train:evaluate(once(unpack(mine))))
elseif cfg.what == "skip" or cfg.what == "numbers" then
  local data = ms.data.text { files = "README.md", seq = 8, batch = ROWS }
  for step, from_file in data:batches(5) do
    local b = rows_of(step, place * ROWS, ROWS, function() return 6 end)
    b.batch_number = cfg.what == "numbers" and step or from_file.batch_number
    b.shared_by = cfg.what == "skip" and from_file.shared_by or nil
    if step ~= 3 or not is_on then train:step(b) end
  end
elseif cfg.what == "factor" or cfg.what == "layers" or cfg.what == "constant" or cfg.what == "upvalue" then
  local x = batch(1, 6).tokens
  local before = model(x):sum():item()
  assert(model(x):sum():item() == before)
  if is_on then
    if cfg.what == "upvalue" then upvalue = 2
    else model._reads[cfg.what] = cfg.what == "constant" and ms.full({ 1, 16 }, 2) or 2 end
    if cfg.what == "layers" then model._reads.factor = 3 end
  end
  local after = model(x):sum():item()
  assert(after ~= before, "forward is the same")
  ends("changed")
elseif cfg.what == "argument" then
  local x = batch(1, 6).tokens
  model(x, 2)
  model(x, 3)
  model(x, both(2, 3))
else
  if cfg.warm then
    run[cfg["in"]](made(1))
    run[cfg["in"]](made(2, true))
  end
  local before = model:parameter("first.weight"):tolist()
  local ok, raised = pcall(run[cfg["in"]], both(made(3), made(3, true)))
  local after = model:local_parameter("first.weight")
  if not ok then error(raised, 0) end
  ends(("trained %s %d"):format(tostring(before ~= nil), after:numel()))
end
