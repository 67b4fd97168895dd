-- A unit whose one gather has all kinds of parameters: codes of f8e4m3, trainable and frozen, bf16, f32, and stored in
-- i8 and nf4; with blocks=true also one that trains and is gathered in blocks of i8. Writes what the ranks multiply,
-- next to the weights that it is made of, in several states of the model.

local ffi = require("ffi")
local json = require("moonshard.base.text.json")
local ms = require("moonshard")
local re = ms.re

local cfg = ms.args {
  mesh = "1x1", dtype = "bf16", fp8 = "tensorwise", layout = "rows", reshard = 0, sliced = false, shared = true,
  keep = true, micro = 1, steps = 2, rows = 64, ema = false, out = "", blocks = false,
}

local INPUTS, HIDDEN = 64, 48
local Block = ms.module "Block"

function Block:init()
  self.up = ms.nn.linear(INPUTS, HIDDEN, { bias = false })
  self.down = ms.nn.linear(HIDDEN, INPUTS, { bias = false })
  self.plain = ms.nn.linear(INPUTS, INPUTS)
  self.gain = ms.parameter { INPUTS, init = "ones" }
  self.few = ms.nn.linear(INPUTS, INPUTS, { bias = false })
  self.fewer = ms.nn.linear(INPUTS, INPUTS, { bias = false })
end

function Block:forward(x)
  x = self.plain(self.down(self.up(x):relu()) + x)
  return (self.fewer(self.few(x)):cast("f32") * self.gain):cast(x.dtype)
end

local Net = ms.module "Net"

function Net:init()
  self.block = Block()
  self.head = ms.nn.linear(INPUTS, 16, { bias = false })
end

function Net:forward(x) return self.head(self.block(x)) end

local mesh = ms.init_device_mesh(cfg.device, cfg.mesh, { "replicate", "shard" })
local model = ms.fully_shard(Net(), {
  mesh = mesh, units = { "block" }, layout = cfg.layout, reshard_after_forward = cfg.reshard > 0 and cfg.reshard or nil,
  mp_policy = { param_dtype = cfg.dtype, reduce_dtype = "f32", output_dtype = "f32" },
  param_dtype = { { re"gain", "f32" } }, freeze = { re"down|few" },
  storage = { { re"few\\.", "i8" }, { re"fewer", "nf4" } },
  fp8 = cfg.fp8 ~= "" and { { re"up|down", cfg.fp8 }, { "head", cfg.fp8 } } or nil,
  gather_dtype = cfg.blocks and { { "block.plain", "i8" } } or nil,
  shard_optimizer_over_replicate = cfg.sliced, shared_masters = cfg.shared,
})
local train = ms.trainer {
  model = model, loss = ms.loss.mse, optimizer = ms.optim.adamw { lr = 1e-2 }, micro_batches = cfg.micro,
  ema = cfg.ema and 0.5 or nil, reshard_after_backward = cfg.keep,
}

local mine = cfg.rows / mesh:size()
local function tensor_of(columns, step)
  local data, first = ffi.new("float[?]", mine * columns), (step * cfg.rows + mesh:get_index() * mine) * columns
  for i = 0, mine * columns - 1 do data[i] = math.sin(0.37 * (first + i)) end
  return { data = data, dtype = "f32", shape = { mine, columns } }
end

-- The values of the codes of a weight, divided by their scale: the product with the identity, whose own code is exact.
local function seen(module, inputs)
  local rows = {}
  for i = 1, inputs do
    rows[i] = {}
    for k = 1, inputs do rows[i][k] = i == k and 1 or 0 end
  end
  return module(ms.tensor(rows)):t():reshape(-1):tolist()
end

local states = {}
local function note(state)
  local function pair(name, module, inputs)
    return { weight = model:parameter(name):reshape(-1):tolist(), seen = seen(module, inputs) }
  end
  states[state] = {
    up = pair("block.up.weight", model.block.up, INPUTS), down = pair("block.down.weight", model.block.down, HIDDEN),
    head = pair("head.weight", model.head, INPUTS),
  }
end

local result = { losses = {}, norms = {}, states = states }
if cfg.out ~= "" then note("initial") end
for step = 1, cfg.steps do
  local m = train:step { inputs = tensor_of(INPUTS, step), targets = tensor_of(16, step) }
  ms.log(step, m)
  table.insert(result.losses, m.loss)
  table.insert(result.norms, m.grad_norm)
  result.comm_bytes = m.comm_bytes
end
if cfg.out ~= "" then
  note("trained")
  if cfg.ema then train:with_ema(function() note("averaged") end) end
  local values = model:parameter("block.up.weight")
  model:set_parameter("block.up.weight", values * 3)
  note("set")
  if ms.world().rank == 0 then
    local file = assert(io.open(cfg.out, "w"))
    file:write(json.encode(result))
    file:close()
  end
end
