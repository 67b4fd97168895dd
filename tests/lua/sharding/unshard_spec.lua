-- Parameters in full: held by unshard, lent by ms.with_full_params. On real ranks by
-- tests/lua/sharding/recipes/unshard.lua, which asserts what holds on each rank, and the rest in this process, a world
-- of one.

local compare = require("moonshard.check.tolerance")
local json = require("cjson")
local ms = require("moonshard")
local dtypes = require("moonshard.base.dtypes")
local memory = require("moonshard.engine.memory")
local breadth = require("lua.support.breadth")
local has = require("lua.support.message").has
local program = require("lua.support.program")
local message = require("lua.support.fixture").message
local re = ms.re

local MESHES = breadth.few { { 2, "2x1" }, { 3, "1x3" }, { 4, "2x2" }, { 2, "1x2" } }

local function run_all(meshes)
  local runs, results, out = {}, {}, {}
  for _, mesh in ipairs(meshes) do
    out[mesh[2]] = os.tmpname()
    runs[mesh[2]] = { "run", "tests/lua/sharding/recipes/unshard.lua", "-n", tostring(mesh[1]), "mesh=" .. mesh[2],
      "out=" .. out[mesh[2]] }
  end
  for name, ended in pairs(program.run_all(runs)) do
    assert(ended.status == 0, name .. ": " .. ended.err)
    local file = assert(io.open(out[name]))
    results[name] = json.decode(file:read("*a"))
    file:close()
    os.remove(out[name])
  end
  return results
end

local function assert_close(expected, got, tolerance, what)
  local worst = compare.arrays(expected, got, { count = #expected, tolerance = tolerance })
  assert(not worst.differs, ("%s: %.9g and %.9g"):format(what, worst.expected, worst.got))
end

describe("unshard and with_full_params", function()
  it("I3 hold, lend and write back on any mesh, layout and precision, and training goes on with parity", function()
    local meshes = { { 1, "1x1" }, unpack(MESHES) }
    local results = run_all(meshes)
    for _, mesh in ipairs(MESHES) do
      for name, expected in pairs(results["1x1"]) do
        local got = results[mesh[2]][name]
        local tolerance = dtypes.uses[name:match("%S+$")].tolerance
        local what = ("%s on %s"):format(name, mesh[2])
        assert_close(expected.losses, got.losses, tolerance, "losses, " .. what)
        for fqn, values in pairs(expected.parameters) do
          assert_close(values, got.parameters[fqn], compare.PARAMETERS * tolerance, fqn .. ", " .. what)
        end
      end
    end
  end)

  it("I3 work at the prompt, where a line that fails on one rank leaves all usable", function()
    local lines = {
      [[model = ms.nn.sequential { ms.nn.linear(3, 4), ms.nn.linear(4, 2) };]],
      [[ms.fully_shard(model, { mesh = "2x2", units = { re"^0$" } });]],
      [[held = model:unshard("0");]],
      [[model:unsharded()["0"] ]],
      [[@2 model:parameter("0.weight") == held["0.weight"] ]],
      [[ms.with_full_params(model, function(p) p["1.bias"] = { 1, 2 } if rank == 3 then error("here") end end)]],
      [[ms.with_full_params(model, function(p) p["1.bias"] = { 3, 4 } end)]],
      [[ms.show(model:parameter("1.bias"))]],
    }
    local ended = program.run({ "repl", "-n", "4" }, nil, table.concat(lines, "\n") .. "\n")
    assert.equal(2, ended.status)
    assert.equal("64\nrank 2: true\ntensor f32 [2], replicated\n[3, 4]\n", ended.out)
    has(ended.err, "rank 3: stdin:6: here")
  end)

  it("I3 free values that a state dict or a checkpoint replaces", function()
    local folder = os.tmpname()
    os.remove(folder)
    local lines = {
      [[model = ms.nn.linear(2, 1);]],
      [[ms.fully_shard(model, { mesh = "1x2" });]],
      [[train = ms.trainer { model = model, optimizer = ms.optim.adamw { lr = 0.1 }, loss = ms.loss.mse };]],
      [[model:set_parameter("weight", { { 1, 2 } });]],
      ([[ms.checkpoint.save(train, %q);]]):format(folder),
      [[saved = model:state_dict { full = true };]],
      [[model:set_parameter("weight", { { 3, 4 } });]],
      [[model:unshard();]],
      [[ms.show(model:parameter("weight"))]],
      ([[ms.checkpoint.load(train, %q);]]):format(folder),
      [[ms.show(model:parameter("weight"))]],
      [[next(model:unsharded())]],
      [[model:set_parameter("weight", { { 3, 4 } });]],
      [[model:unshard();]],
      [[model:load_state_dict(saved, { full = true });]],
      [[ms.show(model:parameter("weight"))]],
    }
    local ended = program.run({ "repl", "-n", "2" }, nil, table.concat(lines, "\n") .. "\n")
    os.execute("rm -rf " .. folder)
    assert.equal("", ended.err)
    local function shown(values) return "tensor f32 [1,2], replicated\n[[" .. values .. "]]\n" end
    assert.equal(shown("3, 4") .. shown("1, 2") .. "nil\n" .. shown("1, 2"), ended.out)
  end)

  it("I3 are nothing where only a plan is made", function()
    local recipe = program.recipe([==[
      local ms = require "moonshard"
      local model = ms.fully_shard(ms.nn.linear(3, 4))
      ms.with_full_params(model, function(params) params.bias = params.bias + 1 end)
      local train = ms.trainer { model = model, optimizer = ms.optim.sgd { lr = 1 }, loss = ms.loss.mse }
      train:step { inputs = ms.ones { 2, 3 }, targets = ms.ones { 2, 4 } }
    ]==])
    local ended = program.run({ "plan", recipe, "-n", "2" })
    os.remove(recipe)
    assert.equal(0, ended.status, ended.err)
    has(ended.out, "plan | rank 0 of 2")
  end)
end)

-- ---- a world of one -----------------------------------------------------------------------------------------------

local function small(options)
  local model = ms.nn.sequential { ms.nn.linear(3, 4), ms.nn.linear(4, 2) }
  ms.fully_shard(model, { units = { re[[^\d$]] } })
  local settings = { model = model, loss = ms.loss.mse, optimizer = ms.optim.sgd { lr = 0.1 } }
  for name, value in pairs(options or {}) do settings[name] = value end
  return model, ms.trainer(settings)
end

local batch = { inputs = ms.randn { 6, 3, seed = 1 }, targets = ms.randn { 6, 2, seed = 2 } }

describe("memory of parameters in full", function()
  it("I3 counts against memory_limit, and is refused before it is taken", function()
    local _, plain = small()
    local peak = plain:step(batch).peak_bytes
    local model, train = small { memory_limit = peak + 100 }
    train:step(batch)
    local text = message(model.unshard, model)
    has(text, "unshard | rank 0 | 4 B | memory_limit")
    assert.same({}, model:unsharded())
    model:unshard("0") -- 64 bytes
    assert.same({ ["0"] = 64 }, model:unsharded())
    has(message(model.unshard, model, "1"), "memory_limit") -- 40 more
    has(message(ms.with_full_params, model, print, { units = "1" }), "memory_limit")
    model:reshard()
    model:unshard("1")
    has(tostring(model), "1: Linear(4 -> 2) | 10 | [unit, f32, unsharded]")
  end)

  it("I3 counts against the host's", function()
    local model = small()
    model:parameter("0.weight") -- the model itself has room
    local available = memory.available
    memory.available = function() return 63 end
    local text = message(model.unshard, model, "0")
    memory.available = available
    has(text, "unshard | 64 B | rank 0")
    assert.same({}, model:unsharded())
  end)
end)

describe("with_full_params", function()
  for title, case in pairs({
    ["what is no module"] = { function() ms.with_full_params({}, print) end, "module | function" },
    ["no function"] = { function() ms.with_full_params(ms.nn.linear(2, 2)) end, "module | function" },
    ["writing back from one rank"] = { function() ms.with_full_params(small(), print, { rank0_only = true }) end,
      "writeback = false" },
    ["an option that does not exist"] = { function() ms.with_full_params(small(), print, { write_back = true }) end,
      "writeback?" },
    ["a model that is not sharded"] = { function() ms.with_full_params(ms.nn.linear(2, 2), print) end,
      "shard" },
    ["a parameter that is not there"] = { function()
      ms.with_full_params(small(), function(params) params["0.wieght"] = 1 end)
    end, "0.weight?" },
    ["a parameter's declaration for its values"] = { function()
      local model = small()
      ms.with_full_params(model, function(params) params["0.bias"] = model[2].bias end)
    end, "not parameter [2], uniform" },
    ["a parameter taken away"] = { function()
      ms.with_full_params(small(), function(params) params["0.weight"] = nil end)
    end, "0.weight | removed" },
  }) do
    it("I3 refuses " .. title, function()
      local text = message(case[1])
      has(text, case[2])
      assert.truthy(text:find("tests/lua/sharding/unshard_spec.lua:%d+: "), text)
    end)
  end

  it("I3 refuses a parameter that is too large for a tensor on all ranks, also on those that get none", function()
    local path = program.recipe([==[
      local ms = require "moonshard"
      local model = ms.fully_shard(ms.nn.linear(3, 4))
      local values = require "moonshard.tensor.values"
      local check_size = values.check_size
      values.check_size = function() error("too large") end
      local ok, raised = pcall(ms.with_full_params, model, print, { rank0_only = true, writeback = false })
      assert(not ok and tostring(raised):find("too large"), tostring(raised))
      values.check_size = check_size
      assert(model:unshard().bias.shape[1] == 4)
    ]==])
    local ended = program.run({ "run", path, "-n", "2", "--timeout", "20" })
    os.remove(path)
    assert.equal(0, ended.status, ended.err)
  end)

  it("I3 shows a model that is not sharded yet, when nothing is written", function()
    local model = ms.nn.linear(2, 3)
    local shape = ms.with_full_params(model, function(params) return params.weight.shape end, { writeback = false })
    assert.same({ 3, 2 }, shape)
  end)
end)
