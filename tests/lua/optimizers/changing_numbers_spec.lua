-- Numbers that change during training: as a field of the batch they are right in every step, on any mesh and with any
-- number of micro-batches; a forward that reads one elsewhere is refused, and what changes without an effect is not.

local ffi = require("ffi")
local fixture = require("lua.support.fixture")
local has = require("lua.support.message").has
local ms = require("moonshard")
local program = require("lua.support.program")
local message = fixture.message

-- Weights of 1 and inputs of 0.5 give outputs of 1, so the mean square is 1.
local function new_model()
  local model = ms.nn.linear(2, 2, { bias = false, init = 1 })
  ms.fully_shard(model, { mesh = "1x1" })
  return model
end

local function trainer(forward, model, micro_batches)
  return ms.trainer { model = model or new_model(), optimizer = ms.optim.sgd { lr = 0 }, forward = forward,
    micro_batches = micro_batches }
end

local function loss_of(net, b) return (net(b.x) ^ 2):mean() end

local function batch(more)
  local b = { x = ms.full({ 4, 2 }, 0.5) }
  for name, value in pairs(more or {}) do b[name] = value end
  return b
end

local function once(b)
  local given = false
  return function()
    if given then return nil end
    given = true
    return 1, b
  end
end

local MESHES = [[
local ms = require "moonshard"
local cfg = ms.args { mesh = "1x2", micro = 1, tensor = false }
local model = ms.nn.linear(2, 2, { bias = false, init = 1 })
local dims = cfg.tensor and { "shard", "tensor" } or { "replicate", "shard" }
local mesh = ms.init_device_mesh("cpu", cfg.mesh, dims)
ms.fully_shard(model, { mesh = mesh, placements = cfg.tensor and { { "weight", { tensor = "colwise" } } } or nil })
local train = ms.trainer { model = model, optimizer = ms.optim.sgd { lr = 0 }, micro_batches = cfg.micro,
  forward = function(net, b) return b.alpha * (net(b.x) ^ 2):mean() + b.beta:mean() end }
for step = 1, 3 do
  local b = { x = ms.full({ 4, 2 }, 0.5), alpha = 0.5 ^ step, beta = ms.tensor { step } }
  print(train:step(b).loss, train:evaluate(coroutine.wrap(function() coroutine.yield(1, b) end)))
end
]]

describe("a number that changes during training", function()
  it("U7 is a field of the batch, with any number of micro-batches", function()
    for _, micro_batches in ipairs({ 1, 2, 4 }) do
      local train = trainer(function(net, b) return (b.alpha * loss_of(net, b)):mean() end, nil, micro_batches)
      for step = 1, 3 do
        local alpha = 0.5 ^ step
        assert.equal(alpha, train:step(batch { alpha = alpha }).loss)
        assert.equal(2 * alpha, train:evaluate(once(batch { alpha = 2 * alpha })))
      end
    end
  end)

  it("U7 can be a tensor without axes, or of one element", function()
    for _, shape in ipairs({ "none", "one" }) do
      local train = trainer(function(net, b) return (b.alpha * loss_of(net, b)):mean() end, nil, 2)
      for step = 1, 3 do
        local alpha = 0.5 ^ step
        assert.equal(alpha, train:step(batch { alpha = ms.tensor(shape == "none" and alpha or { alpha }) }).loss)
      end
    end
  end)

  it("U7 scales gradients as it scales the loss", function()
    local model = new_model()
    local train = trainer(function(net, b) return b.alpha * loss_of(net, b) end, model, 2)
    for _, alpha in ipairs({ 1, 3, 0 }) do
      train:step(batch { alpha = alpha })
      assert.equal(0.5 * alpha, train:gradient("weight"):tolist()[1][1])
    end
  end)

  it("U7 is the same on every mesh", function()
    local path, runs = program.recipe(MESHES), {}
    for name, given in pairs({ sharded = "mesh=1x2", replicated = "mesh=2x1", divided = "mesh=1x2 tensor=true" }) do
      for _, micro in ipairs({ 1, 2 }) do
        local run = { "run", path, "-n", "2", "micro=" .. micro }
        for word in given:gmatch("%S+") do run[#run + 1] = word end
        runs[name .. micro] = run
      end
    end
    for name, ended in pairs(program.run_all(runs)) do
      assert.equal(0, ended.status, name .. ended.err)
      assert.equal("1.5\t1.5\n2.25\t2.25\n3.125\t3.125\n", ended.out, name)
    end
    os.remove(path)
  end)

  it("U7 must be one that f32 holds, and have a use where the trainer has a loss", function()
    local train = trainer(function(net, b) return b.alpha * loss_of(net, b) end)
    has(message(function() train:step(batch { alpha = 1e300 }) end), "batch.alpha | 1e+300 | f32")
    local plain = ms.trainer { model = new_model(), optimizer = ms.optim.sgd { lr = 0 }, loss = ms.loss.mse }
    has(message(function()
      plain:step { inputs = ms.full({ 4, 2 }, 0.5), targets = ms.zeros { 4, 2 }, alpha = 1 }
    end), "alpha | loss | forward")
  end)

  it("U7 is refused in an upvalue, a field of the model, a table, a global or a tensor, which are named", function()
    local scale, table_of, model = 1, { weight = 1 }, new_model()
    local inner = function(loss) return scale * loss end
    local made = ms.tensor { 1 }
    local globals = getfenv(0) -- busted gives specs an environment of their own
    globals.GLOBAL_SCALE = 1
    model.scale = 1
    local cases = {
      upvalue = { function(net, b) return inner(loss_of(net, b)) end, function() scale = 0.5 end, "scale" },
      table = { function(net, b) return table_of.weight * loss_of(net, b) end,
        function() table_of.weight = 0.5 end, "table_of.weight" },
      field = { function(net, b) return net.scale * loss_of(net, b) end, function() model.scale = 0.5 end,
        "model.scale", model },
      global = { setfenv(function(net, b) return GLOBAL_SCALE * loss_of(net, b) end, globals), -- luacheck: ignore 113
        function() globals.GLOBAL_SCALE = 0.5 end, "global GLOBAL_SCALE" },
      tensor = { function(net, b) return (made * loss_of(net, b)):sum() end, function() made = ms.tensor { 0.5 } end,
        "made" },
    }
    for name, case in pairs(cases) do
      local train = trainer(case[1], case[4])
      assert.equal(1, train:step(batch()).loss, name)
      assert.equal(1, train:step(batch()).loss, name)
      case[2]()
      has(message(function() train:step(batch()) end), "train:step | batch.alpha | " .. case[3])
      assert.equal(0.5, train:evaluate(once(batch())), name) -- was not traced before
      assert.equal(1, train.steps_done - 1)
    end
    globals.GLOBAL_SCALE = nil
  end)

  it("U7 is refused where 0 becomes -0, by which forward divides", function()
    local zero = 0
    local train = trainer(function(net, b) return loss_of(net, b) * (1 / zero > 0 and 1 or 2) end)
    for _ = 1, 5 do train:step(batch()) end -- forward runs again by itself before the 8th
    zero = -0.0
    has(message(train.step, train, batch()), "zero, an upvalue | alpha was 1 and is 2")
  end)

  it("U7 is refused where a function, a table or a method is another one, or was not there before", function()
    local half, same, holder, options, list = function(x) return 0.5 * x end, function(x) return x end, {}, {}, { 1 }
    local weigh, table_of = same, { weight = 1 }
    holder.weigh = same
    local Half = ms.module "Half"
    function Half:init() self.linear = ms.nn.linear(2, 2, { bias = false, init = 1 }) end
    function Half:weigh(x) return x end
    function Half:forward(x) return self:weigh(self.linear(x)) end
    local function doubled(self, x) return 0.5 ^ 0.5 * self.linear(x) end
    local cases = {
      ["weigh, an upvalue"] = { function() weigh = half end, function() weigh = same end },
      ["holder.weigh"] = { function() holder.weigh = half end, function() holder.weigh = same end },
      ["table_of, an upvalue"] = { function() table_of = { weight = 0.5 } end,
        function() table_of = { weight = 1 } end },
      ["options.halves"] = { function() options.halves = true end, function() options.halves = nil end },
      ["list.2"] = { function() list[2] = 1 end, function() list[2] = nil end },
      ["model.weigh"] = { function() Half.weigh = function(_, x) return 0.5 ^ 0.5 * x end end,
        function() Half.weigh = function(_, x) return x end end },
      ["model.forward"] = { function(model) model.forward = doubled end, function() end },
      ["model.scale"] = { function(model) model.scale = 0.5 end, function() end },
    }
    for place, case in pairs(cases) do
      local model = Half()
      ms.fully_shard(model, { mesh = "1x1" })
      local train = trainer(function(net, b)
        local loss = table_of.weight / #list * (net.scale or 1) * holder.weigh(weigh(loss_of(net, b)))
        return options.halves and half(loss) or loss
      end, model)
      assert.equal(1, train:step(batch()).loss, place)
      assert.equal(1, train:step(batch()).loss, place)
      case[1](model)
            has(message(function() train:step(batch()) end), "train:step | " .. place)
      case[2]()
    end
  end)

  it("U7 is not reported where another function or table makes no difference, and later ones are", function()
    local made, weigh, model = { weight = 1 }, nil, new_model()
    local train = trainer(function(net, b) return (weigh or 1) * made.weight * loss_of(net, b) end, model)
    for _ = 1, 4 do assert.equal(1, train:step(batch()).loss) end
    made = { weight = 1 }
    assert.equal(1, train:step(batch()).loss)
    made.weight = 0.5
    has(message(function() train:step(batch()) end), "train:step | made.weight")
    made.weight = 1
    weigh = 0.5
    has(message(function() train:step(batch()) end), "train:step | weigh, an upvalue")
  end)

  it("U7 is refused in the step in which a counter reaches a threshold, however often it made no difference", function()
    local now = 0
    local train = trainer(function(net, b) return (now > 8 and 0.5 or 1) * loss_of(net, b) end)
    for step = 1, 8 do
      now = step
      assert.equal(1, train:step(batch()).loss)
    end
    now = 9
    has(message(function() train:step(batch()) end), "train:step | now, an upvalue | was 8 and is 9")
    has(message(function() train:step(batch()) end), "train:step | now, an upvalue | was 8 and is 9")
    now = 7
    assert.equal(1, train:step(batch()).loss)
  end)

  it("U7 is refused where a closure is made in every step and then computes something else", function()
    local weigh
    local train = trainer(function(net, b) return weigh(loss_of(net, b)) end)
    for step = 1, 6 do
      local by = step > 5 and 0.5 or 1
      weigh = function(x) return by * x end
      if step <= 5 then assert.equal(1, train:step(batch()).loss) end
    end
    has(message(function() train:step(batch()) end), "weigh, an upvalue | another function")
  end)

  it("U7 is refused where new rules run a graph that was traced before", function()
    local alpha, model = 1, new_model()
    local train = trainer(function(net, b) return alpha * loss_of(net, b) end, model)
    local two = { x = ms.full({ 2, 2 }, 0.5) }
    train:step(batch())
    train:step(two)
    assert.equal(1, train:evaluate(once(batch())))
    ms.set_rules(model, { reshard_after_forward = false })
    alpha = 0.5
    has(message(function() train:evaluate(once(batch())) end), "train:evaluate | alpha, an upvalue")
    has(message(function() train:step(two) end), "train:step | alpha, an upvalue")
    alpha = 1
    assert.equal(1, train:step(two).loss)
    assert.equal(1, train:evaluate(once(batch())))
  end)

  it("U7 is refused wherever forward reads another module, parameter or table than it did", function()
    local Two = ms.module "Two"
    function Two:init()
      self.a = ms.nn.linear(2, 2, { bias = false, init = 1 })
      self.b = ms.nn.linear(2, 2, { bias = false, init = 0.5 })
      self._active = self.a
    end
    Two.scale, Two.config = 1, { scale = 1 }
    local globals = getfenv(0)
    globals.GLOBAL_SCALE = 1
    local active, order, weight, open, bare, key = nil, {}, nil, {}, {}, "scale"
    local function mean(x) return (x ^ 2):mean() end
    local cases = {
      ["active, an upvalue | another module"] = { function(_, b) return mean(active(b.x)) end,
        function(net) active = net.b end },
      ["order.1 is another module"] = { function(_, b) return mean(order[1](b.x)) end,
        function() order[1], order[2] = order[2], order[1] end },
      ["weight, an upvalue | another parameter"] = { function(_, b) return mean(b.x:matmul(weight)) end,
        function(net) weight = net.b.weight end },
      ["model._active is another module"] = { function(net, b) return mean(net._active(b.x)) end,
        function(net) net._active = net.b end },
      ["global GLOBAL_SCALE was 1 and is 0.5"] = { setfenv(function(net, b)
        local function scaled(x) return GLOBAL_SCALE * x end -- luacheck: ignore 113
        return scaled(mean(net.a(b.x)))
      end, globals), function() globals.GLOBAL_SCALE = 0.5 end },
      ["model.scale was 1 and is 0.5"] = { function(net, b) return net.scale * mean(net.a(b.x)) end,
        function() Two.scale = 0.5 end },
      ["config.scale was 1 and is 0.5"] = { function(net, b) return net.config.scale * mean(net.a(b.x)) end,
        function() Two.config.scale = 0.5 end },
      ["Linear.late, which was added later"] = { function(net, b) return (net.a.late or 1) * mean(net.a(b.x)) end,
        function(net) net.a.late = 0.5 end },
      ["open, which has other fields"] = { function(net, b) return (open[key] or 1) * mean(net.a(b.x)) end,
        function() open[key] = 0.5 end },
      ["bare, which has another metatable"] = { function(net, b) return (bare[key] or 1) * mean(net.a(b.x)) end,
        function() setmetatable(bare, { __index = function() return 0.5 end }) end },
    }
    for place, case in pairs(cases) do
      local model = Two()
      active, order, weight = model.a, { model.a, model.b }, model.a.weight
      ms.fully_shard(model, { mesh = "1x1" })
      local train = trainer(case[1], model)
      for _ = 1, 3 do assert.equal(1, train:step(batch()).loss, place) end
      case[2](model)
      has(message(function() train:step(batch()) end), "train:step | " .. place)
    end
    globals.GLOBAL_SCALE = nil
  end)

  it("U7 is refused in an evaluation, where only a second trace finds it", function()
    local count = 0
    local function hidden() -- what no upvalue, global or field has
      return tonumber(os.getenv("HOME") and ("%d"):format(count > 0 and 2 or 1))
    end
    local weigh = coroutine.wrap(function()
      while true do coroutine.yield(hidden()) end
    end)
    local train = trainer(function(net, b) return weigh() * loss_of(net, b) end)
    assert.equal(1, train:evaluate(once(batch())))
    count = 1
    has(message(function() train:evaluate(once(batch())) end), "train:evaluate | scale | alpha | 1 | 2")
  end)

  it("U7 is refused in all steps after one in which only a second trace found it, until it is as before", function()
    local factor = ffi.new("double[1]", 2)
    local train = trainer(function(net, b) return factor[0] * loss_of(net, b) end)
    for _ = 1, 3 do assert.equal(2, train:step(batch()).loss) end
    factor[0] = 3
    for _ = 4, 7 do has(message(train.step, train, batch()), "scale") end
    factor[0] = 2
    assert.equal(2, train:step(batch()).loss)
    assert.equal(2, train:step(batch()).loss)
  end)

  it("U7 is not reported where it has no effect", function()
    local calls, logged, recreated, flag = 0, nil, nil, true
    local train = trainer(function(net, b)
      calls = calls + 1
      logged = logged or os.time()
      recreated = function() return calls end
      if flag == nil then return recreated() end
      local noise = ms.rand { 4, 2, seed = 1 }
      return (net((b.x + noise):dropout { p = 0.5 }) ^ 2):mean()
    end)
    ms.manual_seed(5)
    train:step(batch())
    local after_one = ms.randn({ 1 }):tolist()[1]
    for step = 2, 20 do
      flag = step % 2 == 0
      train:step(batch())
      assert.equal(step, train.steps_done)
    end
    assert.is_true(calls > 1 and calls <= 40, calls) -- once more in every step: the flag has another value
    ms.manual_seed(5)
    assert.equal(after_one, ms.randn({ 1 }):tolist()[1]) -- tracing again draws nothing
  end)

  it("U7 is not drawn in a forward, which would draw it once for all steps", function()
    for name, draw in pairs { ["ms.randn"] = ms.randn, ["ms.rand"] = ms.rand } do
      local train = trainer(function(net, b) return (net(b.x + draw { 4, 2 }) ^ 2):mean() end)
      has(message(function() train:step(batch()) end), name .. " | batch.noise | seed")
      assert.equal(0, train.steps_done)
    end
    local Noisy = ms.module "Noisy"
    function Noisy:init() self.weight = ms.parameter { 1 } end
    function Noisy:forward(x) return x * self.weight + ms.randn { 1 } end
    has(message(function() Noisy()(ms.tensor { 3 }) end), "ms.randn | batch.noise")
  end)

  it("U7 in a call of a module takes effect, as an argument or a field", function()
    local Scaled = ms.module "Scaled"
    function Scaled:init() self.weight, self.alpha = ms.parameter { 1, init = "ones" }, 1 end
    function Scaled:forward(x, beta) return x * self.weight * self.alpha * beta end
    local model, x = Scaled(), ms.tensor { 3 }
    for _, i in ipairs({ 1, 2, 2, 3, 1, 3, 3, 2 }) do
      model.alpha = i
      assert.equal(6 * i, model(x, 2):item())
      assert.equal(15 * i, model(x, ms.tensor { 5 }):item())
    end
  end)

  it("U7 in a table of a module takes effect, also where the table is another one", function()
    local Scaled = ms.module "Scaled"
    function Scaled:init() self.weight, self.config = ms.parameter { 1, init = "ones" }, { alpha = 1 } end
    function Scaled:forward(x) return x * self.weight * self.config.alpha end
    local model = Scaled()
    ms.fully_shard(model, { mesh = "1x1" })
    assert.equal(3, model(ms.tensor { 3 }):item())
    model.config = { alpha = 2 }
    assert.equal(6, model(ms.tensor { 3 }):item())
    model.config.alpha = 5
    assert.equal(15, model(ms.tensor { 3 }):item())
  end)

  it("U7 in what a teacher reads takes effect", function()
    local scale = 1
    local train = ms.trainer { model = new_model(), optimizer = ms.optim.sgd { lr = 0 }, ema = 0.9,
      teacher = function(net, b) return net(b.x) * scale end,
      forward = function(net, b) return ((net(b.x) - b.teacher) ^ 2):mean() end }
    for _, by in ipairs({ 1, 2, 2, 3, 3, 1 }) do
      scale = by
      assert.equal((by - 1) ^ 2, train:step(batch()).loss)
    end
  end)
end)
