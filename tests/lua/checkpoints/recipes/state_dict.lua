-- State dicts of a model on a 2x2 mesh: taken by one rank alone, put back, and moved to models on other meshes. Fails
-- where something differs.

local ms = require "moonshard"
local has = dofile("tests/lua/support/message.lua").has
local re = ms.re

local function new_model(mesh, seed, layout)
  local model = ms.nn.sequential { ms.nn.linear(7, 13), ms.nn.layer_norm(13), ms.ops.relu, ms.nn.linear(13, 5) }
  ms.fully_shard(model, { mesh = mesh, units = { re[[^\d$]] }, seed = seed, layout = layout })
  return model, ms.trainer { model = model, optimizer = ms.optim.adamw { lr = 1e-2 }, loss = ms.loss.mse }
end

local function values_of(model)
  local values = {}
  for name in model:named_parameters() do values[name] = model:parameter(name):reshape(-1):tolist() end
  return values
end

local function assert_equal(expected, got, what)
  for name, list in pairs(expected) do
    assert(#list == #got[name], name)
    for i, value in ipairs(list) do assert(value == got[name][i], ("%s: %s[%d] differs"):format(what, name, i)) end
  end
end

local rank = ms.world().rank
local batch = { inputs = ms.randn { 6, 7, seed = 1 }, targets = ms.zeros(6, 5) }
local model, train = new_model({ 2, 2 }, 1, "rows")
train:step(batch)

-- One rank asks for its parts while the others are elsewhere.
if rank == 2 then
  local part = model:state_dict()["0.weight"]
  assert(part.shape[1] == 7 and part.shape[2] == 7, "shard 0 of 2 has 7 of 13 rows")
end
local before, parts = values_of(model), model:state_dict()
train:step(batch)
model:load_state_dict(parts)
assert_equal(before, values_of(model), "sharded")

local full = model:state_dict { full = true }
assert(rank == 0 or next(full) == nil, "other ranks than the first have none")
for i, other in ipairs({ { { 1, 4 }, "ragged" }, { { 4, 1 }, "rows" }, { { 1, 4 }, "rows" } }) do
  local copy, trainer = new_model(other[1], 1 + i, other[2])
  trainer:step(batch)
  copy:load_state_dict(full, { full = true })
  assert_equal(before, values_of(copy), "mesh " .. table.concat(other[1], "x"))
  trainer:step(batch)
end

-- Whichever rank is wrong, all ranks get the error, and nothing has changed.
local wrong = {}
for name, value in pairs(parts) do wrong[name] = value end
if rank == 3 then wrong["0.weight"], wrong["9.weight"], wrong["3.bias"] = nil, ms.zeros(2), ms.zeros(9) end
local kept = values_of(model)
local ok, message = pcall(model.load_state_dict, model, wrong)
message = tostring(message)
assert(not ok)
has(message, "0.weight | missing | 3.bias | [9] | [2] | 9.weight")
if rank ~= 3 then has(message, "rank 3 | load_state_dict") end
assert_equal(kept, values_of(model), "after an error")
if rank == 0 then full["3.weight"] = ms.zeros(5, 14) end
ok, message = pcall(model.load_state_dict, model, full, { full = true })
assert(not ok)
has(tostring(message), "3.weight | [5,14] | [5,13]")
