-- Draws dropout in several places of a network, and makes the masks visible: the loss is linear in a weight for each,
-- with an element for every element of the global batch, so that one step of SGD leaves the masks in the weights.
--
-- Rank 0 writes one JSON object: by place the weight's rows, and what moved in each.

local ms = require "moonshard"
local json = require "moonshard.base.text.json"

local cfg = ms.args { mesh = "1x1", rows = 8, micro = 1, out = "", by = "place", seed = 0 }

local mesh = ms.init_device_mesh(cfg.device, cfg.mesh, { "replicate", "shard" })
local SEQ, WIDTH, P = 3, 6, 0.5

-- What is dropped, of x [rows, SEQ, WIDTH] of ones, given back in that shape.
local PLACES = {
  plain = function(x, drop) return drop(x) end,
  flat = function(x, drop) return drop(x:reshape(-1, WIDTH)):reshape(-1, SEQ, WIDTH) end,
  transposed = function(x, drop) return drop(x:permute(2, 0, 1)):permute(1, 2, 0) end,
  heads = function(x, drop) -- [rows, 2, SEQ, WIDTH / 2], as attention's scores lie
    local heads = x:reshape(-1, SEQ, 2, WIDTH / 2):permute(0, 2, 1, 3)
    return drop(heads):permute(0, 2, 1, 3):reshape(-1, SEQ, WIDTH)
  end,
  product = function(x, drop) return drop(x:matmul(ms.ones(WIDTH, WIDTH) * ms.tensor(1 / WIDTH))) end,
  broadcast = function(x, drop) return drop(ms.ones(SEQ, WIDTH) * x) end,
  per_row = function(x, drop) return x * drop(x:mean(2, true)) end,
  twice = function(x, drop)
    local both = drop(ms.ops.concat(x, x, { axis = 0 }))
    local rows = x.shape[1]
    return both:slice(0, rows)
  end,
  constant = function(x, drop) return x * drop(ms.ones(SEQ, WIDTH)) end,
}

local Net = ms.module "Net"

function Net:init()
  for name in pairs(PLACES) do self[name] = ms.parameter { cfg.rows, SEQ * WIDTH, init = "zeros" } end
end

function Net:forward(batch)
  local x, loss = batch.inputs, nil
  local names = {}
  for name in pairs(PLACES) do names[#names + 1] = name end
  table.sort(names)
  for _, name in ipairs(names) do
    local dropped = PLACES[name](x, function(y) return y:dropout({ p = P }) end):reshape(-1, SEQ * WIDTH)
    local term = (batch.row_of:matmul(dropped, { trans_a = true }) * self[name]):sum()
    loss = loss and loss + term or term
  end
  return loss
end

local model = Net()
ms.fully_shard(model, { mesh = mesh })
local train = ms.trainer {
  model = model, optimizer = ms.optim.sgd { lr = 1 }, micro_batches = cfg.micro, seed = cfg.seed,
  forward = function(net, batch) return net(batch) end,
}

-- by "place": the rows of the ranks follow one another; "step": as a sampler deals them.
local place, ranks = mesh:get_index(), mesh:size()
local mine = cfg.rows / ranks

local function row_of(i) return cfg.by == "place" and place * mine + i or i * ranks + place end

local function batch_of()
  local which = {}
  for i = 0, mine - 1 do
    which[i + 1] = {}
    for row = 0, cfg.rows - 1 do which[i + 1][row + 1] = row == row_of(i) and 1 or 0 end
  end
  return {
    inputs = ms.ones(mine, SEQ, WIDTH), row_of = ms.tensor(which),
    first_row = cfg.by == "step" and place or nil, row_step = cfg.by == "step" and ranks or nil,
  }
end

train:step(batch_of())
local result = {}
for name in pairs(PLACES) do
  local rows = train:parameter(name):tolist()
  for _, row in ipairs(rows) do
    for i, value in ipairs(row) do row[i] = -value * ranks * cfg.micro end
  end
  result[name] = rows
end
if place == 0 then
  local file = assert(io.open(cfg.out, "w"))
  file:write(json.encode(result))
  file:close()
end
