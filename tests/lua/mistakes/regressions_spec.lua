-- Mistakes that a user found and that must not come back. Each was silent, misleading, or without the recipe's line.

local has = require("lua.support.message").has
local program = require("lua.support.program")

local SMALL = [==[
local ms = require "moonshard"
local data = ms.data.random { inputs = 4, targets = 2 }
local sampler = ms.data.sampler { length = data.length }
local model = ms.nn.linear(4, 2)
local function trainer(o)
  o.model, o.optimizer = model, o.optimizer or ms.optim.sgd { lr = 0.1 }
  o.loss = o.loss or ms.loss.mse
  return ms.trainer(o)
end
]==]

-- Runs a recipe; SMALL comes before it, on lines 1 to 9.
local function run(source, arguments, environment)
  local path = program.recipe(SMALL .. source)
  local ended = program.run({ "run", path, unpack(arguments or {}) }, environment)
  os.remove(path)
  return ended, path
end

-- The one line that a recipe is refused with, without "moonshard: "; it starts with the recipe's tenth line.
local function refused(source, arguments)
  local ended, path = run(source, arguments)
  assert.equal(2, ended.status, ended.err)
  local line = ended.err:match("^moonshard: ([^\n]*)\n$")
  assert.is_truthy(line, "one line was expected, but there is: " .. ended.err)
  assert.equal(path .. ":10: ", line:sub(1, #path + 5), line)
  return line:sub(#path + 6)
end

describe("a trainer", function()
  it("does not compute the loss of another trainer of its model", function()
    local ended = run([==[
      local sgd = ms.optim.sgd { lr = 0 }
      local one = trainer { optimizer = sgd }
      local two = trainer { optimizer = sgd, loss = function(y, t) return ms.loss.mse(y, t) * 1000 end }
      for _, batch in data:batches(sampler, 8) do
        local function alone() return coroutine.wrap(function() coroutine.yield(1, batch) end) end
        print(one:step(batch).loss, two:step(batch).loss, one:evaluate(alone()), two:evaluate(alone()))
        break
      end
    ]==])
    assert.equal("", ended.err)
    local loss, scaled, evaluated, evaluated_scaled = ended.out:match("(%S+)\t(%S+)\t(%S+)\t(%S+)")
    assert.near(1000, scaled / loss, 1e-2)
    assert.near(1000, evaluated_scaled / evaluated, 1e-2)
  end)

  it("clips by its own norm", function()
    local ended = run([==[
      local sgd = ms.optim.sgd { lr = 1 }
      local one, two = trainer { optimizer = sgd }, trainer { optimizer = sgd, clip_grad_norm = 1e-6 }
      for i, batch in data:batches(sampler, 8) do
        if i == 1 then one:step(batch) end
        local before = model:parameter("weight")[0][0]:item()
        two:step(batch)
        print(math.abs(model:parameter("weight")[0][0]:item() - before))
        if i == 2 then break end
      end
    ]==])
    assert.equal("", ended.err)
    for moved in ended.out:gmatch("%S+") do assert.is_true(tonumber(moved) < 2e-6, moved) end
  end)

  it("says that everything is frozen", function()
    local text = refused('ms.fully_shard(model, { freeze = { ms.re "." } }) local t = trainer {} '
      .. "for _, b in data:batches(sampler, 8) do t:step(b) end")
    has(text, "train:step | 2 parameters | frozen")
  end)

  it("refuses a learning rate that is no number, at the recipe's line", function()
    for what, shown in pairs({ ["0/0"] = "nan", ['"x"'] = '"x"', ["nil"] = "nil", ["1/0"] = "inf" }) do
      local text = refused(("local t = trainer { optimizer = ms.optim.sgd { lr = function() return %s end } }"
        .. " for _, b in data:batches(sampler, 8) do t:step(b) end"):format(what))
      has(text, "learning rate | step 1")
      assert.is_truthy(text:find(" %-?" .. shown), text)
    end
  end)

  it("refuses half a row", function()
    local text = refused("local t = trainer {} local b = data:read { 0 } b.inputs.shape[1] = 0.5 t:step(b)")
    has(text, "batch.inputs | 0.5 rows | 1")
  end)

  it("ends after Ctrl-C on one rank, whatever the batches come from", function()
    local ended = run([==[
      local ffi = require "ffi"
      ffi.cdef "int getpid(void); int kill(int, int);"
      local t = trainer {}
      ffi.C.kill(ffi.C.getpid(), 2)
      for _ = 1, 1e5 do t:step(data:read { 0, 1, 2, 3 }) end
    ]==])
    assert.equal(130, ended.status)
    assert.equal("moonshard: interrupted\n", ended.err)
  end)
end)

describe("a model", function()
  it("is printed when a part of it holds the whole", function()
    local ended = run("model.whole = model print(model)")
    assert.equal("", ended.err)
    assert.equal("Linear(4 -> 2)  10 parameters\n", ended.out)
  end)
end)

describe("an error", function()
  it("has the recipe's line whatever was raised", function()
    has(refused("error()"), "error | nil")
    has(refused("error({})"), "error | table")
    has(refused("error(setmetatable({}, { __tostring = function() error('inner', 0) end }))"), "__tostring")
    has(refused("error(setmetatable({}, { __tostring = function() return 5 end }))"), "__tostring | number")
    has(refused("error(function() end)"), "error | function")
    has(refused("error(true)"), "error | boolean")
    assert.equal("without a place", refused("error('without a place', 0)"))
    has(refused("dofile 'nowhere.lua'"), "cannot open nowhere.lua")
  end)

  it("has the recipe's line where Lua refuses a value within this layer", function()
    has(refused("local t = trainer {} rawset(t, 'session', 5) t:step(data:read { 0 })"), "session")
    has(refused("trainer { optimizer = {} }"), "ms.optim.adamw")
  end)

  it("explains wrong sizes", function()
    has(refused("for _ in data:batches(sampler, 0) do end"), "batch | whole")
    has(refused("ms.init_device_mesh('cpu', { 99999999999, 1 })"), "size 99999999999")
    has(refused("ms.args { mesh = { 2, 2 } }", { "mesh=2x" }), "mesh=2x | 2,2")
    local many = program.run({ "plan", "recipes/toy_hsdp.lua", "-n", "99999999999" })
    assert.equal(2, many.status)
    has(many.err, "moonshard: | -n 99999999999")
  end)

  it("is raised for a pipe without a writer, instead of waiting", function()
    local pipe = os.tmpname()
    os.remove(pipe)
    assert(os.execute("mkfifo " .. pipe) == 0)
    for _, of in ipairs({
      "ms.data.text { files = %q, seq = 4, batch = 1 }", "ms.data.chat { files = %q, seq = 4, batch = 1 }",
      "ms.data.preferences { files = %q, seq = 4, batch = 1 }", "ms.tokenizer(%q)",
      "ms.evaluate.perplexity(ms.models.gpt2 { vocab = 256, layers = 1, dim = 8, heads = 1, seq = 4 }, { files = %q })",
      "ms.safetensors.open(%q)",
    }) do
      has(refused(of:format(pipe)), pipe)
    end
    os.remove(pipe)
  end)
end)

describe("ranks that would drift apart", function()
  it("are stopped when they disagree on the learning rate", function()
    local path = program.recipe([[
      local ms = require "moonshard"
      local model = ms.nn.linear(4, 2)
      ms.fully_shard(model, { mesh = { 2, 1 } })
      local data = ms.data.random { inputs = 4, targets = 2 }
      local train = ms.trainer {
        model = model, loss = ms.loss.mse,
        optimizer = ms.optim.sgd { lr = function() return ms.world().rank == 1 and 0.5 or 0.25 end },
      }
      train:step(data:read { 0, 1 })
    ]])
    local ended = program.run({ "run", path, "-n", "2" })
    os.remove(path)
    assert.equal(2, ended.status, ended.err)
    has(ended.err, "step 1")
  end)
end)

describe("plan", function()
  it("passes an evaluation before the first step", function()
    local path = program.recipe([[
      local ms = require "moonshard"
      local model = ms.nn.linear(4, 2)
      ms.fully_shard(model, { mesh = 2 })
      local data = ms.data.random { inputs = 4, targets = 2 }
      local train = ms.trainer { model = model, loss = ms.loss.mse, optimizer = ms.optim.sgd { lr = 0.5 } }
      train:evaluate(coroutine.wrap(function() coroutine.yield(1, data:read { 0 }) end))
      train:step(data:read { 0, 1 })
    ]])
    local ended = program.run({ "plan", path, "-n", "2" })
    os.remove(path)
    assert.equal(0, ended.status, ended.err)
    has(ended.out, "plan | rank 0 of 2")
  end)
end)
