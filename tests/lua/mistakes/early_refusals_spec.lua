-- What would go wrong later, or after a long time, is refused at once: data that ends an epoch with what cannot be
-- trained on, sizes that no machine has, a data object that trains while it is saved, and arguments that are missing.

local ms = require("moonshard")
local fixture = require("lua.support.fixture")
local has = require("lua.support.message").has
local program = require("lua.support.program")
local scratch = require("lua.support.scratch")
local message = fixture.message

-- Of bytes, with the loss that is given.
local function text_trainer(loss, more)
  local o = { model = ms.fully_shard(ms.nn.embedding(256, 256)), loss = loss, optimizer = ms.optim.sgd { lr = 0.1 } }
  for name, value in pairs(more or {}) do o[name] = value end
  return ms.trainer(o)
end

local function all_rows(y, targets) return ms.loss.mse(y:mean(-1), targets:cast("f32")) end

local function text(more)
  local o = { files = "LICENSE", seq = 64, batch = 64, valid_fraction = 0, drop_last = false }
  for name, value in pairs(more or {}) do o[name] = value end
  return ms.data.text(o)
end

describe("data that ends an epoch with an incomplete step", function()
  it("is refused at the first step by a loss that counts all rows", function()
    local train, data = text_trainer(all_rows), text()
    local _, batch = data:batches()()
    assert.is_nil(batch.is_padded)
    has(message(train.step, train, batch), "train:step | padded | drop_last")
    assert.equal(0, train.steps_done)
  end)

  it("is taken where no step of the call is padded, or the loss counts targets", function()
    local train, data = text_trainer(all_rows), text()
    for _, batch in data:batches(2) do train:step(batch) end
    local counts = text_trainer(ms.loss.cross_entropy)
    for _, batch in text():batches() do counts:step(batch) end
    assert.same({ 2, 3 }, { train.steps_done, counts.steps_done })
    local _, later = data:batches(2)()
    assert.is_true(later.will_be_padded) -- the third step ends the epoch
    local _, whole = text({ batch = 59 }):batches()() -- 3 of 177 samples
    assert.is_nil(whole.will_be_padded)
  end)

  it("is refused at the first step by micro-batches that do not divide its last rows", function()
    local data, sampler = ms.data.random { inputs = 3, targets = 2, length = 19 }, ms.data.sampler { length = 19 }
    local train = fixture.small_trainer { micro_batches = 2 }
    local _, batch = data:batches(sampler, 8, { drop_last = false })()
    has(message(train.step, train, batch), "3 rows | 2 micro_batches | drop_last = true")
    for _, given in data:batches(ms.data.sampler { length = 18 }, 8, { drop_last = false }) do train:step(given) end
    for _, given in data:batches(sampler, 8) do train:step(given) end
    assert.equal(5, train.steps_done)
  end)
end)

describe("sizes", function()
  it("that no array can hold are refused without counting to them", function()
    for _, o in ipairs { { batch = 1e9 }, { seq = 1e300 }, { global_batch = 1e9 }, { batch = 1e300 } } do
      if o.global_batch then o.batch, o.seq = nil, 8 end
      local given = { files = "LICENSE" }
      for name, value in pairs(o) do given[name] = value end
      has(message(ms.data.text, given), "ms.data.text | fewer")
    end
    has(message(ms.data.text, { files = "LICENSE", seq = 4, valid_fraction = 1e-12 }), "4,000,000,000,001 bytes")
    has(message(ms.data.random, { inputs = 1e9, targets = 1e9 }), "ms.data.random | inputs=1e+09 | fewer")
  end)

  it("that need the least count of windows need as many as counting finds", function()
    local windows = require("moonshard.data.windows")
    -- By fraction: blocks of a cycle, how many of them are held out, and the least number of cycles.
    local SHARES = { [0.5] = { 2, 1, 4 }, [0.3] = { 10, 3, 32 }, [0.4] = { 5, 2, 32 }, [0.05] = { 20, 1, 4 },
      [0.01] = { 100, 1, 4 } }
    -- The least count whose training windows, all but some blocks of each cycle, are enough.
    local function counted(o)
      local period, held, wanted = unpack(SHARES[o.valid_fraction])
      local count = o.batch
      while true do
        local block = math.max(1, math.min(16, math.floor(count / (wanted * period))))
        local cycles = math.floor(count / (block * period))
        if count - cycles * block * held >= o.batch and cycles >= 1 then return count + 1 end
        count = count + 1
      end
    end
    for batch = 1, 700 do
      for _, fraction in ipairs { 0.5, 0.3, 0.4, 0.05, 0.01 } do
        local o = { batch = batch, share = { ranks = 1 }, seq = 1, valid_fraction = fraction, drop_last = true }
        assert.equal(counted(o), windows.tokens_needed(o), batch .. " " .. fraction)
      end
    end
  end)
end)

describe("a missing argument", function()
  for name, case in pairs({
    ["ms.parameter"] = { function() ms.parameter { init = "ones" } end, "shape" },
    ["ms.data.random"] = { function() ms.data.random {} end, "inputs and targets are" },
    ["ms.trainer"] = { function() ms.trainer {} end, "model and optimizer are" },
    ["ms.nn.linear"] = { function() ms.nn.linear(3) end, "argument 2 (outputs)" },
    ["ms.nn.dropout"] = { function() ms.nn.dropout() end, "argument 1 (p)" },
    ["ms.init_device_mesh"] = { function() ms.init_device_mesh("cpu") end, "sizes" },
  }) do
    it("of " .. name .. " is named", function() has(message(case[1]), name .. " | missing | " .. case[2]) end)
  end

  it("of an initializer is no 0", function()
    has(message(ms.init.uniform, 1), "ms.init.uniform | 2 numbers | nil")
    has(message(ms.init.uniform, 1, -1), "ms.init.uniform | 1 and -1")
    has(message(ms.init.normal, 0, -1), "ms.init.normal | deviation | 0 and -1")
    has(message(ms.init.constant, 1 / 0), "ms.init.constant | 1 number | inf")
    has(message(ms.init.constant), "ms.init.constant | 1 number | nil")
  end)
end)

describe("a part of a sharded model", function()
  local whole = ms.nn.sequential { ms.nn.linear(2, 3), ms.models.gpt2 { vocab = 256, layers = 1, dim = 8, heads = 2,
    seq = 16 } }

  setup(function() ms.fully_shard(whole) end)

  for name, call in pairs({
    trainer = function(part)
      ms.trainer { model = part, optimizer = ms.optim.sgd { lr = 1 }, loss = ms.loss.mse }
    end,
    generate = function(part) ms.generate(part, { prompt = "a" }) end,
    set_rules = function(part) ms.set_rules(part, { reshard_after_forward = false }) end,
    load = function(part) ms.checkpoint.load(part, "none") end,
  }) do
    it("is no model for " .. name, function()
      local said = message(call, whole[2])
      has(said, "1 | part | whole model")
      assert.is_nil(said:find("ms.fully_shard", 1, true))
    end)
  end
end)

describe("a data object", function()
  after_each(scratch.clear)

  it("that trains, evaluates or saves in its state or load_state is refused", function()
    local folder, train = scratch.folder(), fixture.small_trainer()
    train:step(fixture.small_batch())
    local acts = {
      function() train:step(fixture.small_batch()) end,
      function() ms.checkpoint.save(train, folder) end,
      function() train:set_rules { prefetch = 2 } end,
    }
    for _, act in ipairs(acts) do
      local data = { state = function() act() return { at = 1 } end, load_state = function() end }
      has(message(ms.checkpoint.save, train, folder, { data = data }), "data:state() | before or after")
      assert.equal(1, train.steps_done)
    end
    local data = { state = function() return { at = 1 } end, load_state = acts[1] }
    local path = ms.checkpoint.save(train, folder, { data = data })
    has(message(ms.checkpoint.load, train, path, { data = data }), "data:load_state() | before or after")
    data.load_state = function() end
    ms.checkpoint.load(train, path, { data = data })
    train:step(fixture.small_batch())
  end)
end)

describe("ranks whose plans differ by a number in the forward", function()
  for title, case in pairs({
    ["a factor"] = { "self.a(x) * (2 + r)", "scale | alpha 2 | alpha 3" },
    ["a probability"] = { "ms.ops.dropout(self.a(x), { p = 0.1 * (1 + r) })", "dropout | p 0.1 | p 0.2" },
  }) do
    it("name both values of " .. title, function()
      local path = program.recipe(([==[
        local ms = require "moonshard"
        local r = ms.world().rank
        local Net = ms.module "Net"
        function Net:init() self.a = ms.nn.linear(8, 4) end
        function Net:forward(x) return %s end
        local model = ms.fully_shard(Net(), { mesh = 2 })
        local train = ms.trainer { model = model, optimizer = ms.optim.sgd { lr = 1 }, loss = ms.loss.mse }
        train:step { inputs = ms.randn { 6, 8, seed = 1 + r }, targets = ms.zeros(6, 4) }
      ]==]):format(case[1]))
      local ended = program.run({ "run", path, "-n", "2" })
      os.remove(path)
      assert.equal(2, ended.status, ended.err)
      has(ended.err, "rank 0 | rank 1 | " .. case[2])
      assert.is_nil(ended.err:find("hash", 1, true))
    end)
  end
end)

describe("gradients whose squares overflow", function()
  it("of one micro-batch are not said to be in another", function()
    local path = program.recipe([==[
      local ms = require "moonshard"
      local model = ms.fully_shard(ms.nn.linear(2, 2))
      local train = ms.trainer { model = model, optimizer = ms.optim.sgd { lr = 1 }, micro_batches = MICRO,
        loss = function(y, targets) return (y * 1e30):mean() + targets:mean() end }
      train:step { inputs = ms.ones { 4, 2 }, targets = ms.ones { 4, 2 } }
    ]==])
    local source = scratch.read(path)
    local ended = {}
    for micro = 1, 2 do
      local recipe = program.recipe((source:gsub("MICRO", micro)))
      ended[micro] = program.run({ "run", recipe })
      assert.equal(3, ended[micro].status, ended[micro].out)
      os.remove(recipe)
    end
    os.remove(path)
    has(ended[1].err, "squares | too large")
    assert.is_nil(ended[1].err:find("micro-batch", 1, true))
    has(ended[2].err, "another micro-batch")
  end)
end)
