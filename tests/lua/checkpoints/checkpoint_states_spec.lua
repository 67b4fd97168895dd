-- What a checkpoint keeps besides tensors: the values of a data object's state, exactly or by an error that names one,
-- and the states of single ranks where these differ.

local json = require("moonshard.base.text.json")
local ms = require("moonshard")
local state_values = require("moonshard.checkpoint.state_values")
local has = require("lua.support.message").has
local program = require("lua.support.program")
local scratch = require("lua.support.scratch")
local ffi = require("ffi")

local RECIPE = "tests/lua/checkpoints/recipes/saved_states.lua"

local function there_and_back(value)
  local text = state_values.encode(value, "state")
  return state_values.decode(json.decode(text), "state"), text
end

local function run(ranks, ...)
  local ended = program.run({ "run", RECIPE, "-n", tostring(ranks), ... })
  assert.equal(0, ended.status, ended.err)
  return ended.out
end

-- The lines of both ranks, from a step on.
local function trained(out, from)
  local lines = {}
  for rank = 0, 1 do
    for line in io.lines(("%s.%d"):format(out, rank)) do
      if tonumber(line:match("^%d+")) >= from then lines[#lines + 1] = line end
    end
  end
  return lines
end

describe("the states in a checkpoint", function()
  teardown(scratch.clear)

  it("U4 numbers, strings and tables of any kind come back equal", function()
    local values = {
      { low = -math.huge, high = math.huge, tiny = 5e-324, big = 2 ^ 53 + 2, third = 1 / 3 },
      { 1, nil, nil, 4 }, { nil, 2 }, { [0] = "a", "b" }, { "a", key = { "b", [10] = 0.5 } },
      { [true] = 1, [false] = 2, [-3] = 3, [1.5] = { {} }, [math.huge] = 5 },
      { text = "\0\1\127 \"\\", latin = "caf\233", cut = "\226\130", long = "\237\160\128", unicode = "\226\130\172" },
      { ["$number"] = "inf", ["\255"] = 1 }, {}, { { {} } }, "text", 7, false,
    }
    for _, value in ipairs(values) do
      local back, text = there_and_back(value)
      assert.same(value, back)
      assert.equal(text, state_values.encode(back, "state"))
    end
    local back = there_and_back({ nan = 0 / 0, zero = -0.0 })
    assert.is_true(back.nan ~= back.nan)
    assert.equal(-math.huge, 1 / back.zero)
    for _, number in ipairs({ 9007199254740993LL, -1LL, -9223372036854775807LL - 1, 18446744073709551615ULL }) do
      back = there_and_back({ number }) [1]
      assert.is_true(ffi.istype(ffi.typeof(number), back) and back == number)
    end
  end)

  it("U4 tensors come back with dtype, shape and bits", function()
    for _, value in ipairs({ ms.tensor { { 1, -2.5 }, { 3, 1e-30 } }, ms.tensor(3),
      ms.full({ 3 }, 1.5, { dtype = "bf16" }), ms.tensor({ 1, -7 }, { dtype = "i32" }) }) do
      local back = there_and_back({ value })[1]
      assert.same({ value.dtype, value.shape, value:tolist() }, { back.dtype, back.shape, back:tolist() })
    end
  end)

  it("U4 what cannot come back is an error with its path", function()
    local function refused(value, facts)
      local ok, raised = pcall(state_values.encode, value, "data:state()")
      assert.is_false(ok)
      has(tostring(raised), facts)
    end
    local circle, deep = {}, {}
    circle.inner = { { circle } }
    for _ = 1, 300 do deep = { deep } end
    refused({ files = { { open = print } } }, "data:state().files[1].open | function")
    refused({ [print] = 1 }, "data:state() | key | function")
    refused({ [5LL] = 1 }, "data:state() | key | cdata")
    refused({ ["a b"] = { [3] = io.stdout } }, 'data:state()["a b"][3] | userdata')
    refused({ co = coroutine.create(print) }, "data:state().co | thread")
    refused({ list = ffi.new("int[2]") }, "data:state().list | int")
    refused({ one = setmetatable({}, {}) }, "data:state().one | metatable")
    refused(circle, "data:state().inner[1][1] | itself")
    refused(deep, "data:state()[1] | deep")
    refused({ x = ms.zeros(1024, 1024) }, "data:state().x | 4194304")
  end)

  it("U4 a damaged value is refused by the manifest's field", function()
    for _, text in ipairs({ '{"$number":"x"}', '{"$int64":"1a"}', '{"$bytes":"abc"}', '{"$table":[[1]]}',
      '{"$table":5}',
      '{"$later":1}', '{"$number":"inf","more":1}', '{"$tensor":{"dtype":"f32","shape":[2],"bytes":"00"}}' }) do
      local ok, raised = pcall(state_values.decode, json.decode(text), "manifest.json: data")
      assert.is_false(ok, text)
      has(tostring(raised), "manifest.json: data")
    end
  end)

  it("U4 a save fails by the value's path, and leaves nothing behind", function()
    local root = scratch.folder()
    local train = ms.trainer { model = ms.nn.linear(4, 2), loss = ms.loss.mse, optimizer = ms.optim.sgd { lr = 1 } }
    local function saved(state)
      local data = { state = function() return state end, load_state = function() end }
      local ok, raised = pcall(ms.checkpoint.save, train, root, { data = data })
      return not ok and tostring(raised) or nil
    end
    has(saved({ open = { print } }), "data:state().open[1] | function")
    has(saved(nil), "data:state() | nil")
    assert.is_nil(ms.checkpoint.latest(root))
    assert.is_nil(saved({ 1, nil, 3 }))
    assert.equal(4, ms.checkpoint.open(root).manifest.version)
  end)

  it("U4 that a trainer could not save are told after its first step, and not at its first save", function()
    local function data_of(state, calls)
      return { state = function() calls.count = calls.count + 1 return state end, load_state = function() end }
    end
    local function after_a_step(state, o)
      local calls, model = { count = 0 }, ms.nn.linear(4, 2)
      ms.fully_shard(model, { mesh = "1x1" })
      local train = ms.trainer { model = model, loss = ms.loss.mse, optimizer = ms.optim.sgd { lr = 1 },
        checkpoint = { dir = o.dir, every = o.every, data = data_of(state, calls) } }
      assert.equal(0, calls.count) -- its data has not been read
      local ok, raised = pcall(train.step, train, { inputs = ms.ones(1, 4), targets = ms.ones(1, 2) })
      if ok then
        train:step { inputs = ms.ones(1, 4), targets = ms.ones(1, 2) }
        assert.equal(o.calls or 1, calls.count)
        return nil
      end
      return tostring(raised)
    end
    local circle = {}
    circle.inner = circle
    for facts, state in pairs({ ["data:state().open | function"] = { open = print },
      ["data:state().inner | itself"] = circle, ["data:state().one | metatable"] = { one = setmetatable({}, {}) },
      ["data:state() | key | cdata"] = { [5LL] = 1 } }) do
      local folder = scratch.folder()
      has(after_a_step(state, { dir = folder, every = 1000 }), facts)
      assert.is_nil(ms.checkpoint.latest(folder))
      assert.is_nil(after_a_step(state, { dir = "", calls = 0 }))
    end
    has(after_a_step(nil, { dir = scratch.folder() }), "data:state() | nil")
    assert.is_nil(after_a_step({ 1, nil, 3 }, { dir = scratch.folder(), every = 1000 }))
    local ended = program.refused(3, { "run", RECIPE, "-n", "2", "dir=" .. scratch.path(), "every=1000", "kept=false" },
      "data:state().open | function")
    has(ended, "rank 1")
  end)

  it("U3 states that differ between ranks go on bit for bit on the same mesh", function()
    local folder, whole, rest = scratch.path(), scratch.path(), scratch.path()
    run(2, "out=" .. whole)
    run(2, "dir=" .. folder, "upto=3")
    run(2, "dir=" .. folder, "resume=auto", "out=" .. rest)
    assert.same(trained(whole, 4), trained(rest, 4))
    local shown = program.run({ "inspect", folder })
    assert.equal(0, shown.status, shown.err)
    has(shown.out, "generator | data | differs | 2 ranks")
    assert.equal(0, program.run({ "export", folder, scratch.path() }).status)
    local read = ms.checkpoint.open(folder).manifest
    assert.same({ 6, 1006 }, { read.data_of_ranks["0"].row, read.data_of_ranks["1"].row })
    assert.is_nil(read.data)
    for i = 0, 1 do
      os.remove(("%s.%d"):format(whole, i))
      os.remove(("%s.%d"):format(rest, i))
    end
  end)

  it("U3 another mesh refuses them with the reason, unless this run's generators stay", function()
    local folder = scratch.path()
    run(2, "dir=" .. folder, "upto=1", "own_rows=false")
    local function refused(...)
      return program.refused(2, { "run", RECIPE, ... }, folder .. " | generators | 2 ranks | generator = false")
    end
    has(refused("-n", "2", "mesh=2x1", "load=" .. folder, "upto=1"), "1x2 (replicate, shard) | 2x1 (replicate, shard)")
    refused("-n", "1", "mesh=1x1", "load=" .. folder, "upto=1")
    run(2, "mesh=2x1", "load=" .. folder, "generator=false", "upto=2")
    folder = scratch.path()
    run(2, "dir=" .. folder, "upto=1", "own_seed=false")
    program.refused(2, { "run", RECIPE, "-n", "2", "mesh=2x1", "dir=" .. folder, "resume=auto" },
      folder .. " | data positions | 1x2 (replicate, shard)")
  end)

  it("U3 equal states stay one copy, which loads on any mesh", function()
    local folder = scratch.path()
    run(2, "dir=" .. folder, "upto=2", "own_seed=false", "own_rows=false")
    local read = ms.checkpoint.open(folder).manifest
    assert.is_nil(read.data_of_ranks or read.generator_of_ranks)
    run(1, "mesh=1x1", "dir=" .. folder, "resume=auto", "upto=3")
  end)

  it("K4 functions of ms.checkpoint refuse what is no path and no trainer by name", function()
    for name, others in pairs({ latest = { 5, {}, true, "" }, list = { 5, {}, true, "" }, open = { 5, {}, true, "" },
      is_one = { 5, {}, true, "" }, save = { 5, {}, true, "x" }, load = { 5, {}, true, "x" },
      finish = { 5, {}, true, "x" } }) do
      for i = 0, 4 do
        local ok, raised = pcall(ms.checkpoint[name], others[i])
        assert.is_false(ok, name)
        has(tostring(raised), "ms.checkpoint." .. name)
        assert.falsy(tostring(raised):find("attempt to", 1, true))
      end
    end
    local train = ms.trainer { model = ms.nn.linear(4, 2), loss = ms.loss.mse, optimizer = ms.optim.sgd { lr = 1 } }
    for _, data in ipairs({ {}, { state = 5 }, ms.ops }) do
      for _, name in ipairs({ "save", "load" }) do
        local ok, raised = pcall(ms.checkpoint[name], train, scratch.path(), { data = data })
        assert.is_false(ok)
        has(tostring(raised), "ms.checkpoint." .. name .. " | data | method")
      end
    end
  end)
end)
