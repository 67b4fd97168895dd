-- Arguments after the last one that a function takes, which Lua would drop: an error that names the call.

local has = require("lua.support.message").has
local message = require("lua.support.fixture").message
local ms = require("moonshard")

local scratch = require("lua.support.scratch")

local folder = scratch.folder()
scratch.write(folder .. "/text", ("words and words\n"):rep(99))

local X = ms.randn { 2, 3, seed = 1 }

local function model()
  local layer = ms.nn.linear(3, 2)
  ms.fully_shard(layer, { mesh = ms.init_device_mesh("cpu", 1, { "shard" }) })
  return layer
end

local function trainer()
  return ms.trainer { model = model(), optimizer = ms.optim.sgd { lr = 1 }, loss = ms.loss.mse }
end

local function data()
  return ms.data.text { files = folder .. "/text", seq = 8, batch = 1, seed = 1 }
end

local CALLS = {
  ["x:transpose(a, b)"] = function() X:transpose(0, 1, 2) end,
  ["x:slice(axis, start, stop)"] = function() X:slice(0, 0, 1, 5) end,
  ["x:clamp(min, max)"] = function() X:clamp(0, 1, 2) end,
  ["x:item()"] = function() X:item(0) end,
  ["ms.arange(start, stop, step)"] = function() ms.arange(0, 4, 1, 7) end,
  ["ms.init_device_mesh(device, sizes, names)"] = function() ms.init_device_mesh("cpu", 1, { "shard" }, 7) end,
  ["ms.world()"] = function() ms.world(7) end,
  ["ms.fully_shard(model, config)"] = function() ms.fully_shard(ms.nn.linear(3, 2), {}, "shard") end,
  ["ms.optim.sgd(o)"] = function() ms.optim.sgd({ lr = 1 }, 0.9) end,
  ["ms.schedule.cosine(o)"] = function() ms.schedule.cosine({ peak = 1, total = 9 }, 3) end,
  ["ms.nn.sequential(layers)"] = function() ms.nn.sequential({}, ms.nn.linear(3, 2)) end,
  ["ms.loss.mse(prediction, target)"] = function() ms.loss.mse(X, X, "sum") end,
  ["model:parameter(name)"] = function() model():parameter("weight", true) end,
  ["mesh:size(dim)"] = function() ms.init_device_mesh("cpu", 1, { "shard" }):size("shard", 1) end,
  ["train:evaluate(batches, o)"] = function() trainer():evaluate({}, {}, 3) end,
  ["train:step(batch)"] = function()
    trainer():step({ inputs = ms.randn { 2, 3, seed = 1 }, targets = ms.zeros { 2, 2 } }, 3)
  end,
  ["data:batches(steps)"] = function() data():batches(3, 4) end,
}

describe("arguments after the last", function()
  teardown(scratch.clear)

  for called, call in pairs(CALLS) do
    it("of " .. called .. " are refused", function()
      local text = message(call)
      has(text, called .. ": ", "no place")
      has(text, "further_arguments_spec.lua:")
    end)
  end

  it("may be nil", function()
    assert.are.same({ 3, 2 }, X:transpose(0, 1, nil, nil).shape)
  end)
end)
