-- Trains a small network with tied and frozen parameters, holds its units in full, edits its weights and trains on, in
-- every layout and precision. What must hold on each rank is asserted here; losses and parameters are written, for
-- specs that compare meshes.

local ms = require "moonshard"
local json = require "moonshard.base.text.json"
local has = dofile("tests/lua/support/message.lua").has
local re = ms.re

local cfg = ms.args { mesh = "1x1", out = "" }
local world = ms.world()

local Block = ms.module "Block"

function Block:init()
  self.fc1, self.fc2 = ms.nn.linear(7, 5), ms.nn.linear(5, 7)
end

function Block:forward(x) return x + self.fc2(self.fc1(x):gelu()) end

local Net = ms.module "Net"

function Net:init()
  self.first, self.last = ms.nn.linear(3, 7), ms.nn.linear(7, 2)
  self.layers = { Block(), Block(), Block() }
  self.layers[2].fc1.weight = self.layers[1].fc1.weight
end

function Net:forward(x)
  x = self.first(x)
  for _, layer in ipairs(self.layers) do x = layer(x) end
  return self.last(x)
end

local function batch_of(step)
  local x, y = ms.randn { 24, 3, seed = step }, ms.randn { 24, 2, seed = 1000 + step }
  local rows = 24 / world.size
  local first = rows * world.rank
  return { inputs = x:slice(0, first, first + rows), targets = y:slice(0, first, first + rows) }
end

local function values(x) return table.concat(x:reshape(-1):tolist(), " ") end

local function assert_fails(facts, call, ...)
  local ok, raised = pcall(call, ...)
  assert(not ok)
  has(tostring(raised), facts)
end

local function count(t)
  local n = 0
  for _ in pairs(t) do n = n + 1 end
  return n
end

local function expect_held(model, expected)
  local held = model:unsharded()
  for unit, bytes in pairs(expected) do assert(held[unit] == bytes, unit) end
  assert(count(held) == count(expected))
end

local BLOCK_BYTES = 4 * (5 * 7 + 5 + 7 * 5 + 7)
local PAIR_BYTES = 2 * BLOCK_BYTES - 4 * 5 * 7 -- of two with a weight in common

-- Held units are copies that every rank can look at alone, until a step or reshard.
local function look(model, train)
  local before = {}
  for name in model:named_parameters() do before[name] = values(model:parameter(name)) end
  local held = model:unshard("layers.0")
  assert(count(held) == 7)
  assert(held["layers.1.fc1.weight"] == held["layers.0.fc1.weight"])
  for name, value in pairs(held) do assert(value.dtype == "f32" and values(value) == before[name], name) end
  assert_fails("layers.2.fc1.bias", function() return held["layers.2.fc1.bias"] end)
  expect_held(model, { ["layers.0"] = PAIR_BYTES })
  local inner = model.layers[3]:unshard()
  assert(values(inner["fc2.bias"]) == before["layers.2.fc2.bias"])
  expect_held(model, { ["layers.0"] = PAIR_BYTES, ["layers.2"] = BLOCK_BYTES })
  if world.rank == 0 then -- alone
    assert(values(model:parameter("layers.2.fc1.weight")) == before["layers.2.fc1.weight"])
  end
  model:set_parameter("layers.2.fc1.bias", { 1, 2, 3, 4, 5 })
  assert(values(model:parameter("layers.2.fc1.bias")) == "1 2 3 4 5")
  model:reshard(re[[^layers\.2$]])
  assert(values(model:parameter("layers.2.fc1.bias")) == "1 2 3 4 5")
  expect_held(model, { ["layers.0"] = PAIR_BYTES })
  assert_fails("unit root", function() model.first:unshard() end)
  assert_fails('"layer" | none', function() model:unshard("layer") end)
  train:step(batch_of(2))
  expect_held(model, {})
  assert(values(model:parameter("layers.0.fc2.bias")) ~= before["layers.0.fc2.bias"])
end

-- What the function changes is what all owners have; its gradients are those of the step.
local function edit(model, train)
  local gradient = values(train:gradient("layers.1.fc2.weight"))
  local x = ms.randn { 4, 3, seed = 9 }
  local result = model(x)
  local a, b = ms.with_full_params(model, function(params, grads)
    assert(count(params) == 15 and count(grads) == 12 and values(grads["layers.1.fc2.weight"]) == gradient)
    assert_fails("ms.with_full_params", function() train:step(batch_of(3)) end)
    assert_fails("nested", ms.with_full_params, model, print)
    params["layers.1.fc1.weight"] = params["layers.0.fc1.weight"] * 0.5
    params["layers.1.fc1.bias"] = { 0.5, 0.25, 0, -0.25, -0.5 }
    params["first.weight"] = params["first.weight"] + 1
    params["last.bias"].data[1] = 0.75
    return nil, "returned"
  end, { with_grads = true })
  assert(a == nil and b == "returned")
  assert(values(model:parameter("layers.1.fc1.bias")) == "0.5 0.25 0 -0.25 -0.5")
  assert(model:parameter("last.bias")[1]:item() == 0.75)
  assert(values(model(x)) ~= values(result))
end

-- Nothing is written where a rank fails, or ranks give different values; all go on.
local function fail(model)
  local before = {}
  for name in model:named_parameters() do before[name] = values(model:parameter(name)) end
  local zeros = ms.zeros(2)
  local last = world.size - 1
  local where = world.rank == last and "" or ("rank %d | "):format(last)
  assert_fails(where .. "stopped here", ms.with_full_params, model,
    function(params)
      params["last.bias"] = zeros
      if world.rank == last then error("stopped here") end
    end)
  assert_fails("last.bias | [2] | [3]", ms.with_full_params, model,
    function(params) params["last.bias"] = { 1, 2, 3 } end)
  if world.size > 1 then
    assert_fails("last.bias | values | rank", ms.with_full_params, model,
      function(params) params["last.bias"] = zeros + world.rank end)
    assert_fails("units", model.unshard, model, "layers." .. 2 * math.min(world.rank, 1))
  end
  ms.with_full_params(model, function(params) params["last.bias"] = zeros end, { writeback = false })
  ms.with_full_params(model, function(params)
    assert(count(params) == (world.rank == 0 and 4 or 0))
  end, { rank0_only = true, writeback = false, units = "layers.2" })
  for name in model:named_parameters() do assert(values(model:parameter(name)) == before[name], name) end
  expect_held(model, {})
end

local function train_one(layout, dtype)
  local model = Net()
  ms.fully_shard(model, {
    mesh = cfg.mesh, units = { { "layers.0", "layers.1" }, "layers.2" }, layout = layout,
    mp_policy = { { re[[^layers]], { param_dtype = dtype } } }, freeze = { re[[^first\.|layers\.2\.fc1\.bias]] },
    reshard_after_forward = true,
  })
  local train = ms.trainer {
    model = model, loss = ms.loss.mse, optimizer = ms.optim.sgd { lr = 0.05, momentum = 0.9 }, micro_batches = 2,
  }
  assert_fails("gradient | step", ms.with_full_params, model, print, { with_grads = true })
  local result = { losses = { train:step(batch_of(1)).loss }, parameters = {} }
  look(model, train)
  edit(model, train)
  fail(model)
  for step = 3, 4 do result.losses[step - 1] = train:step(batch_of(step)).loss end
  for name in model:named_parameters() do result.parameters[name] = model:parameter(name):reshape(-1):tolist() end
  return result
end

local results = {}
for _, layout in ipairs({ "rows", "ragged" }) do
  for _, dtype in ipairs({ "f32", "bf16" }) do results[layout .. " " .. dtype] = train_one(layout, dtype) end
end
if world.rank == 0 then
  local file = assert(io.open(cfg.out, "w"))
  file:write(json.encode(results))
  file:close()
end
