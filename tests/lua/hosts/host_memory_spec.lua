-- What a host has no memory for is refused before anything of it is written, and goes on where there is enough.

local has = require("lua.support.message").has
local memory = require("moonshard.engine.memory")
local ms = require("moonshard")
local program = require("lua.support.program")

local MIB = 2 ^ 20
local WIDE = 2048 -- 16 MiB of weights a layer

local function resident()
  local file = assert(io.open("/proc/self/statm"))
  local pages = tonumber(file:read("*a"):match("^%d+ (%d+)"))
  file:close()
  return 4096 * pages
end

local function model_of(layers)
  local list = {}
  for i = 1, layers do list[i] = ms.nn.linear(WIDE, WIDE, { bias = false }) end
  return ms.fully_shard(ms.nn.sequential(list), { mesh = "1x1" })
end

local function trainer(model)
  return ms.trainer { model = model, loss = ms.loss.mse, optimizer = ms.optim.adamw { lr = 1e-3 } }
end

local batch = { inputs = ms.zeros(1, WIDE), targets = ms.zeros(1, WIDE) }

-- Calls while a host has so many bytes left; gives the message of the error.
local function refused(bytes, call, ...)
  local available = memory.available
  memory.available = function() return bytes end
  local before = resident()
  local ok, raised = pcall(call, ...)
  local growth = resident() - before
  memory.available = available
  assert.is_false(ok)
  assert.equal("MS_ENOMEM", raised.status, tostring(raised))
  assert.is_true(growth < 8 * MIB, growth)
  return tostring(raised)
end

-- The MiB that a message says are needed: those of the values, and at most half as many more, because kernels of some
-- builds and processors keep what they pack.
local function needs(mib, message)
  local said = assert(tonumber(message:match("needs at least (%S+) MiB more")), message)
  assert.is_true(said >= mib and said <= 1.5 * mib + 0.1, message)
end

describe("memory of a host", function()
  it("R4 is compared with a plan and the values that it needs, before those are written", function()
    local train = trainer(model_of(2))
    -- Masters, gradients and two moments: 4 * 32 MiB.
    local message = refused(100 * MIB, train.step, train, batch)
    needs(128, message)
    has(message, "the plan | rank 0 | 100.0 MiB")
    assert.is_nil(train.session.state)
    assert.equal(0, train:step(batch).loss)
    assert.is_true(train.session.train_exec:arena_bytes() >= 4 * 32 * MIB)
  end)

  it("R4 is compared when a model is only called, or its values are read", function()
    local model = model_of(2)
    for what, message in pairs({
      ["the plan"] = refused(20 * MIB, model, batch.inputs),
      ["the model"] = refused(20 * MIB, model.parameter, model, "1.weight"),
    }) do
      needs(32, message)
      has(message, what .. " | rank 0")
    end
    assert.equal(0, model(batch.inputs):tolist()[1][1])
  end)

  it("R4 leaves a later trainer of the model the room that its optimizer needs", function()
    local model = model_of(1)
    refused(10 * MIB, model, batch.inputs)
    local train = trainer(model)
    refused(40 * MIB, train.step, train, batch)
    assert.equal(0, train:step(batch).loss)
  end)

  it("R4 is that of all ranks of the host, of which each says the same", function()
    local path = program.recipe [[
local ms = require "moonshard"
require("moonshard.engine.memory").available = function() return 1e6 end
local model = ms.nn.linear(512, 512)
ms.fully_shard(model, { mesh = "1x2" })
local train = ms.trainer { model = model, loss = ms.loss.mse, optimizer = ms.optim.sgd { lr = 1 } }
local batch = { inputs = ms.zeros(1, 512), targets = ms.zeros(1, 512) }
local ok, raised = pcall(train.step, train, batch)
print(ms.world().rank, ok, raised)
]]
    local ended = program.run({ "run", path, "-n", "2", "--log-ranks", "all" })
    os.remove(path)
    assert.equal(0, ended.status, ended.err)
    local said = {}
    for line in ended.out:gmatch("[^\n]+") do
      local rank, message = line:match("^%[rank (%d)%] %d\tfalse\t.-: (the plan .*)$")
      said[tonumber(rank)] = message
    end
    needs(2, said[0]) -- half of the weights and of the gradients for each of both, 1 MiB
    has(said[0], "the plan | rank 0 | KiB")
    assert.equal(said[0], said[1])
  end)
end)
