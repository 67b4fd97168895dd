-- What a trace leaves behind, and what other models do, changes no later trace.

local capture = require("moonshard.engine.trace.capture")
local launched = require("lua.support.launched")
local ms = require("moonshard")

local BIN = assert(os.getenv("MOONSHARD_BIN"), "MOONSHARD_BIN names the executable under test")

-- A trainer whose forward gives the model a field, and takes it away again, each time that it is traced.
local function new_trainer(forward)
  local model = ms.nn.sequential { ms.nn.linear(4, 4), ms.nn.dropout(0.5), ms.nn.linear(4, 4) }
  ms.fully_shard(model, { mesh = "1x1", seed = 3 })
  return ms.trainer { model = model, optimizer = ms.optim.sgd { lr = 0.1 }, forward = forward or function(net, b)
    net.scale = 2
    local loss = (net(b.x) * net.scale):mean()
    net.scale = nil
    return loss
  end }
end

local function batch() return { x = ms.full({ 2, 4 }, 0.5) } end

-- How often functions are traced while `work` runs.
local function traces_of(work)
  local traces, graph = 0, capture.graph
  capture.graph = function(...)
    traces = traces + 1
    return graph(...)
  end
  local ok, raised = pcall(work)
  capture.graph = graph
  assert.is_true(ok, raised)
  return traces
end

describe("traces", function()
  it("U7 are not repeated because a module of another model was given a field", function()
    local a, b, other = new_trainer(), new_trainer(), ms.nn.linear(2, 2)
    local steps = 0
    local traces = traces_of(function()
      for _ = 1, 6 do
        steps = steps + 1
        a:step(batch())
        b:step(batch())
        other["late" .. steps] = steps
      end
    end)
    assert.equal(2 * 3, traces) -- of each: the first, and at uses 2 and 4
    assert.is_true(#rawget(a.model, "_order") <= 4) -- nor does a list grow with them
  end)

  it("U7 are repeated because a module of their own model, or its class, was given one", function()
    local Deep = ms.module "Deep"
    function Deep:init(depth) self.inner = depth > 0 and { Deep(depth - 1) } or nil end
    function Deep:forward(x) return self.inner and self.inner[1](x) or x end
    local model = ms.nn.sequential { ms.nn.linear(4, 4), Deep(9) }
    ms.fully_shard(model, { mesh = "1x1" })
    local train = ms.trainer { model = model, optimizer = ms.optim.sgd { lr = 0 },
      forward = function(net, b) return net(b.x):mean() end }
    for _ = 1, 4 do train:step(batch()) end
    assert.equal(0, traces_of(function() train:step(batch()) end))
    local deepest = model[2]
    while deepest.inner do deepest = deepest.inner[1] end
    deepest.late = 1
    assert.equal(1, traces_of(function() train:step(batch()) end))
    Deep.later = 1
    assert.equal(1, traces_of(function() train:step(batch()) end))
  end)

  it("U7 that failed change nothing of the next", function()
    local fails = true
    local failing = new_trainer(function(net, b)
      local loss = (net(b.x) * 2):mean()
      if fails then error("on purpose") end
      return loss
    end)
    assert.is_false(pcall(failing.step, failing, batch()))
    fails = false
    local well = new_trainer()
    for _ = 1, 3 do assert.equal(well:step(batch()).loss, failing:step(batch()).loss) end
  end)

  it("U1 of calls have the same numbers on all ranks, whatever one of them calls alone", function()
    launched.with_recipe([==[
      local ms = require "moonshard"
      local model = ms.nn.sequential { ms.nn.linear(4, 4) }
      ms.fully_shard(model, { mesh = "1x2" })
      if ms.world().rank == 0 then ms.nn.linear(4, 2)(ms.ones(2, 4)) end
      print(unpack(model(ms.ones(2, 4)).shape))
    ]==], function(recipe)
      local ended = launched.together({ ("%s run -n 2 %s"):format(BIN, recipe) })[1]
      assert.equal("2\t4\n", ended.out, ended.err)
    end)
  end)
end)
