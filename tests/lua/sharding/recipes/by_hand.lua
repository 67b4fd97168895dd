-- A small model with layers that exchange values between ranks themselves: along tensor between to_local and
-- from_local, along data dimensions anywhere. On one rank, or without the dimension, every call is the identity, so
-- `moonshard check` compares each way with a plain layer. way=rules has the rules' collectives.

local ms = require "moonshard"
local re = ms.re

local cfg = ms.args {
  way = "mlp", mesh = "1x1x2", steps = 3, batch = 4, micro_batches = 1, recompute = false, dtype = "f32", seq = 8,
  hidden = 24, places = true, dropout = ms.args.real(0), mistake = "", out = "",
  last = "tensor", local_steps = 0,
}
local DIM, VOCAB = 16, 256
local mesh = ms.init_device_mesh(nil, cfg.mesh, { "replicate", "shard", cfg.last })

local Layer = ms.module "Layer"
function Layer:init()
  self.gain = ms.parameter { DIM, init = ms.init.normal(1, 0.1) }
  self.up, self.up_bias = ms.parameter { cfg.hidden, DIM, init = ms.init.normal(0, 0.2) }, ms.parameter { cfg.hidden }
  self.down, self.down_bias = ms.parameter { DIM, cfg.hidden, init = ms.init.normal(0, 0.2) }, ms.parameter { DIM }
end

local function times(x, w) return ms.ops.matmul(x, w, { trans_b = 1 }) end
local function drop(x) return cfg.dropout > 0 and ms.ops.dropout(x, { p = cfg.dropout }) or x end

-- What a rank computes of the layer's middle: a summand.
function Layer:middle(x)
  local up = self.up:to_local { tensor = ms.Shard(0) }
  local bias = self.up_bias:to_local { tensor = ms.Shard(0) }
  return times(drop((times(x, up) + bias):gelu()), self.down:to_local { tensor = ms.Shard(1) })
end

local ways = {}

function ways.rules(self, x)
  return x + times(drop((times(ms.ops.rms_norm(x, self.gain), self.up) + self.up_bias):gelu()), self.down)
    + self.down_bias
end

-- Megatron's f and g.
function ways.mlp(self, x)
  local own = ms.ops.rms_norm(x, self.gain):to_local { tensor = "replicate" }:copy_to("tensor")
  return x + (self:middle(own):all_reduce("tensor") + self.down_bias):from_local { tensor = "replicate" }
end

-- The engine sums the gradient where a recipe does not say so; the norm is computed by each rank as well.
function ways.without_f(self, x)
  local own = ms.ops.rms_norm(x:to_local { tensor = ms.Replicate() }, self.gain)
  return x + (self:middle(own):all_reduce("tensor", "sum") + self.down_bias):from_local { tensor = "replicate" }
end

function ways.summands(self, x)
  local own = ms.ops.rms_norm(x, self.gain):to_local { tensor = "replicate" }
  return x + self:middle(own):from_local { tensor = "partial" } + self.down_bias
end

-- Summands are read again when their sum has been made.
function ways.reread(self, x)
  local y = self:middle(ms.ops.rms_norm(x, self.gain):to_local { tensor = "replicate" })
  local sum = (y:all_reduce("tensor") + self.down_bias):from_local { tensor = "replicate" }
  return x + sum:tanh() + (y * 2):from_local { tensor = "partial" }
end

function ways.sequence(self, x)
  local own = x:to_local { tensor = ms.Shard(1) }
  local all = ms.ops.rms_norm(own, self.gain):all_gather("tensor", 1)
  local y = self:middle(all):reduce_scatter("tensor", -2) + self.down_bias
  return (own + y):from_local { tensor = ms.Shard(1) }
end

-- Positions to features and back, around an op that needs all positions.
function ways.exchange(self, x)
  local own = ms.ops.rms_norm(x, self.gain):to_local { tensor = ms.Shard(1) }:all_to_all("tensor", -1, 1)
  local y = (own * own):softmax(1):all_to_all("tensor", 1, -1)
  return x + times(y:from_local { tensor = ms.Shard(1) }, self.up):gelu():matmul(self.up) + self.down_bias
end

-- Each position with the one before it and the one after it: ranks send their neighbours what these need.
function ways.neighbours(self, x)
  local own = (x * self.gain):to_local { tensor = ms.Shard(1) }
  local n = own:size(1)
  local before = ms.ops.concat(own:slice(1, n - 1, n):shift("tensor"), own:slice(1, 0, n - 1), { axis = 1 })
  local after = ms.ops.concat(own:slice(1, 1, n), own:slice(1, 0, 1):shift("tensor", -1), { axis = 1 })
  return x + ((own * before):tanh() - before * after * after):from_local { tensor = ms.Shard(1) } + self.down_bias
end

-- A sum in a ring, of which the engine does not know that it is equal on all ranks.
function ways.ring(self, x)
  local turn = self:middle(ms.ops.rms_norm(x, self.gain):to_local { tensor = "replicate" })
  local sum, ranks = turn, mesh:size("tensor")
  for _ = 2, ranks do
    turn = turn:shift("tensor", 1)
    sum = sum + turn
  end
  return x + (sum * (1 / ranks)):from_local { tensor = "partial" } + self.down_bias
end

-- Numbers that depend on no parameter: the largest token of each sample.
function ways.largest(self, x, tokens)
  local own = tokens:cast("f32"):to_local { tensor = ms.Shard(1) }
  local most = own:max(1, true):all_reduce("tensor", "max")
  return x * (most * (1 / VOCAB)):unsqueeze(-1):from_local { tensor = "replicate" } * self.gain
end

-- A softmax over features that the ranks have parts of.
function ways.softmax(self, x)
  local scores = times(x:to_local { tensor = "replicate" }, self.up:to_local { tensor = ms.Shard(0) })
  local most = scores:detach():max(-1, true):all_reduce("tensor", "max")
  local e = (scores - most):exp()
  local share = e / e:sum(-1, true):all_reduce("tensor")
  local y = times(share, self.down:to_local { tensor = ms.Shard(1) })
  return x + y:from_local { tensor = "partial" } * self.gain + self.down_bias
end
function ways.softmax_by_rules(self, x)
  return x + times(times(x, self.up):softmax(), self.down) * self.gain + self.down_bias
end

-- Statistics of all rows of all data ranks, which share the work of a sum in three ways.
local function of_all(x, dimension)
  if dimension == "replicate" then return x:all_reduce(dimension) end
  return x:reduce_scatter(dimension):all_gather(dimension)
end

function ways.batch_norm(self, x)
  local count = ms.tensor(x:size(0) * x:size(1)):all_reduce("shard"):all_reduce("replicate")
  local function mean(y) return of_all(of_all(y:sum { 0, 1 }, "shard"), "replicate") / count end
  local centred = x - mean(x)
  return x + centred * (mean(centred * centred) + 1e-3) ^ -0.5 * self.gain -- a bias would have no gradient
end

-- Each sample against those of all ranks. The largest similarity does not depend on parameters here.
function ways.contrast(self, x)
  local z = (x * self.gain):mean(1)
  local all = z:copy_to("shard"):all_gather("shard"):all_gather("replicate", -2)
  local likeness = times(z, all):exp():sum(1):log() - (z * z):sum(1)
  return x + likeness:unsqueeze(-1):unsqueeze(-1) * self.down_bias:tanh() + self.down_bias
end

-- Features of all samples, instead of all features of some, around an op that needs all samples.
function ways.data_exchange(self, x)
  local z = (x * self.gain):mean(1)
  local y = z:all_to_all("shard", 1, 0)
  return x + (y * y):softmax(0):all_to_all("shard", 0, 1):unsqueeze(1) + self.down_bias
end

function Layer:forward(x, tokens)
  return ways[cfg.way](self, x, tokens)
end

local mistakes = {}
function mistakes.outside(x) return x:all_reduce("tensor") end
function mistakes.twice(x) return x:to_local { tensor = "replicate" }:to_local { tensor = "replicate" } end
function mistakes.endless(x) return x:to_local { tensor = "partial" } end
function mistakes.unequal(x) return x:to_local { tensor = "partial" }:from_local { tensor = "replicate" } end
function mistakes.parameter(x, layer)
  return times(x:to_local { tensor = "replicate" }, layer.up):matmul(layer.up):from_local { tensor = "replicate" }
end
function mistakes.axis(x, layer)
  return x + layer.up:to_local { tensor = ms.Shard(1) }:sum():from_local { tensor = "partial" }
end
function mistakes.size(x) return x:to_local { tensor = "partial" }:reduce_scatter("tensor", 0) end
function mistakes.no_axis(x) return x:to_local { tensor = "partial" }:all_gather("tensor", 3) end
function mistakes.largest(x) return (x:to_local { tensor = "replicate" }):all_reduce("tensor", "max"):from_local {
  tensor = "replicate" } end
function mistakes.name(x) return x:all_reduce("tensr") end
function mistakes.foreign(x) return x:all_reduce("tp") end
function mistakes.no_name(x) return x:all_reduce() end
function mistakes.megatron(x) return x:reduce_from_tensor_model_parallel_region() end
function mistakes.pytorch(x) return x:redistribute { ms.Replicate() } end
function mistakes.context(x) return x:all_gather("context", 1) end
function mistakes.border(x) return x:to_local { shard = ms.Shard(0) } end
function mistakes.kind(x) return x:to_local { tensor = "colwise" } end
function mistakes.reduction(x) return x:all_reduce("tensor", "mean") end
function mistakes.scalar(x) return x:sum():to_local { tensor = "replicate" }:all_gather("tensor") end
function mistakes.tensor(x) return x:to_local { tensor = x } end
function mistakes.places(x) return x:shift("tensor", 0.5) end

local Net = ms.module "Net"
function Net:init()
  self.embed = ms.nn.embedding(VOCAB, DIM)
  self.layers = { Layer(), Layer() }
  self.head = ms.nn.linear(DIM, VOCAB, { bias = false })
end
function Net:forward(tokens)
  local x = self.embed(tokens)
  for _, layer in ipairs(self.layers) do x = layer(x, tokens) end
  if cfg.mistake ~= "" then x = mistakes[cfg.mistake](x, self.layers[1]) end
  return self.head(x)
end

local model = Net()
ms.fully_shard(model, {
  mesh = mesh, units = { re[[^layers\.\d+$]] }, recompute = cfg.recompute, mp_policy = { param_dtype = cfg.dtype },
  replicate_sync = cfg.local_steps > 0 and { every = cfg.local_steps, outer = ms.optim.sgd { lr = 0.7 } } or nil,
  placements = cfg.places and {
    { re[[\.up]], { tensor = ms.Shard(0) } },
    { re[[\.down$]], { tensor = ms.Shard(-1) } }, -- from the end: axis 1
  } or nil,
})
local data = ms.data.text { files = "tests/lua/recipes/text.txt", seq = cfg.seq,
  batch = cfg.batch * cfg.micro_batches, mesh = mesh }
local train = ms.trainer {
  model = model, optimizer = ms.optim.adamw { lr = 1e-2 }, loss = ms.loss.cross_entropy,
  micro_batches = cfg.micro_batches,
}
for step, batch in data:batches(cfg.steps) do ms.log(step, train:step(batch)) end
if cfg.out ~= "" then
  local lines = {}
  for name in model:named_parameters() do
    for i, value in ipairs(model:parameter(name):reshape(-1):tolist()) do
      lines[#lines + 1] = ("%s %d %.9g"):format(name, i, value)
    end
  end
  if ms.world().rank == 0 then
    local file = assert(io.open(cfg.out, "wb"))
    file:write(table.concat(lines, "\n"), "\n")
    file:close()
  end
end
