-- A run that resumes takes the batches that were left of the call of data:batches in which it was saved, however a
-- recipe makes its calls; and it saves at its end whatever was loaded or written since the last save.

local breadth = require("lua.support.breadth")
local has = require("lua.support.message").has
local program = require("lua.support.program")
local scratch = require("lua.support.scratch")

local folder = scratch.folder()
local recipe, text = folder .. "/recipe.lua", folder .. "/text"

-- Makes its steps by `calls`, and ends after `stop` of them as if it had crashed. Prints the numbers of its batches.
local CALLS = [[
local ms = require "moonshard"
local cfg = ms.args { kind = "text", drop = true, calls = "all", steps = 24, stop = 0, every = 3, batch = 4 }
local model = ms.models.gpt2 { vocab = 256, layers = 1, dim = 8, heads = 2, seq = 8 }
ms.fully_shard(model, { mesh = ms.world().size })
local o = { files = "TEXT", seq = 8, global_batch = cfg.batch, seed = 1, valid_fraction = 0, drop_last = cfg.drop }
local data = ms.data.text(o)
if cfg.kind == "mix" then data = ms.data.mix { { data }, { ms.data.text(o), weight = 2 }, drop_last = cfg.drop } end
if cfg.kind == "masked" then data = ms.data.masked { data, mask = 255, vocab = 255 } end
local train = ms.trainer { model = model, optimizer = ms.optim.sgd { lr = 1e-3 },
  forward = function(net, b) return ms.loss.cross_entropy(net(b.tokens), b.targets) end,
  checkpoint = { dir = "FOLDER/kept", every = cfg.every, resume = "auto", data = data } }
local function run(batches)
  local n = 0
  for _, batch in batches do
    n = n + 1
    train:step(batch)
    print("batch", batch.batch_number)
    if train.steps_done == cfg.stop then
      ms.checkpoint.finish(train)
      error("stop")
    end
  end
  return n
end
if cfg.calls == "all" then run(data:batches(cfg.steps)) end
if cfg.calls == "rest" then run(data:batches(cfg.steps - train.steps_done)) end
if cfg.calls == "more" then run(data:batches { more = cfg.steps - train.steps_done }) end
if cfg.calls == "total" then run(data:batches { total = cfg.steps }) end
if cfg.calls == "rounds" then while train.steps_done < cfg.steps do run(data:batches(6)) end end
if cfg.calls == "epochs" then
  while train.steps_done < cfg.steps do print("epoch", run(data:batches())) end
end
print("steps", train.steps_done)
]]

local function run(...)
  local ended = program.run({ "run", recipe, ... })
  local batches = {}
  for number in ended.out:gmatch("batch\t(%d+)") do batches[#batches + 1] = tonumber(number) end
  return ended, batches
end

local function clear() os.execute("rm -rf " .. folder .. "/kept") end

local EVERY = { "all", "rest", "rounds", "more", "total" }
local CALLS_OF = breadth.all and { text = EVERY, mix = EVERY, masked = EVERY }
  or { text = EVERY, mix = { "rounds" }, masked = { "rest" } }

local function counted(from, to)
  local list = {}
  for i = from, to do list[#list + 1] = i end
  return list
end

describe("a run that resumes", function()
  setup(function()
    scratch.write(recipe, (CALLS:gsub("TEXT", text):gsub("FOLDER", folder)))
    -- 33 windows: eight steps of four, and one more.
    scratch.write(text, ("0123456"):rep(38))
  end)

  local function resumes(stop, saved, steps, ...)
    clear()
    local settings = { "steps=" .. steps, ... }
    local before = run("stop=" .. stop, unpack(settings))
    assert.equal(3, before.status, before.err)
    local after, batches = run(unpack(settings))
    assert.equal(0, after.status, after.err)
    local left = steps - saved
    local rest = ("%d steps of a call of %d | batches(%d) makes %d now"):format(saved, steps, left, left)
    if table.concat({ ... }):find("calls=rest") then has(after.out, rest) else assert.falsy(after.out:find("now;")) end
    assert.equal("", after.err)
    assert.same(counted(saved + 1, steps), batches)
    return after
  end

  it("makes the steps that were left of all, also from the middle of rounds, and none once it is done", function()
    for _, kind in ipairs({ "text", "mix", "masked" }) do
      for _, calls in ipairs(CALLS_OF[kind]) do
        resumes(11, 9, 24, "kind=" .. kind, "calls=" .. calls)
      end
    end
    resumes(13, 12, 24, "calls=rounds") -- saved where a round ended
    local again, batches = run("calls=rounds", "steps=24")
    assert.same({ 0, {} }, { again.status, batches })
    clear()
    run("calls=all", "steps=6")
    again, batches = run("calls=all", "steps=6")
    assert.same({ 0, {} }, { again.status, batches })
    assert.same(counted(7, 9), select(2, run("calls=all", "steps=9"))) -- a longer run
  end)

  it("makes the steps that were left of an epoch, and then whole ones", function()
    assert.truthy(resumes(11, 9, 24, "calls=epochs").out:find("epoch\t7\n.*epoch\t8\n"))
    assert.truthy(resumes(4, 3, 24, "calls=epochs").out:find("epoch\t5\n.*epoch\t8\n.*epoch\t8\n"))
    assert.truthy(resumes(9, 8, 16, "calls=epochs", "every=8").out:find("epoch\t8\n"))
    -- An epoch of nine steps, of which the last has one sample.
    assert.truthy(resumes(11, 9, 27, "calls=epochs", "drop=false").out:find("epoch\t9\n.*epoch\t9\n"))
    assert.truthy(resumes(14, 12, 27, "calls=epochs", "drop=false").out:find("epoch\t6\n.*epoch\t9\n"))
  end)

  it("makes the rest of an epoch in steps of another batch", function()
    for _, drop in ipairs({ "drop=true", "drop=false" }) do
      -- Stopped after 8 + 3 steps, or 9 + 5 where the ninth is padded.
      local stop = drop == "drop=true" and 11 or 14
      clear()
      assert.equal(3, run("stop=" .. stop, "calls=epochs", "every=1", drop).status)
      local left = drop == "drop=true" and 66 - 11 * 4 or 66 - 33 - 5 * 4
      local rest = (drop == "drop=true" and math.floor or math.ceil)(left / 7)
      local after = run("steps=" .. stop + rest, "calls=epochs", drop, "batch=7")
      assert.equal(0, after.status, after.err)
      assert.truthy(after.out:find(("epoch\t%d\nsteps\t%d\n$"):format(rest, stop + rest)), after.out)
    end
  end)

  it("is refused on other data of the same length, and warned of data that begins again", function()
    clear()
    run("stop=4")
    local file = scratch.read(text)
    scratch.write(text, (file:gsub("0", "9", 1)))
    for _, kind in ipairs({ "text", "mix", "masked" }) do
      clear()
      scratch.write(text, file)
      run("stop=4", "kind=" .. kind)
      scratch.write(text, (file:gsub("0", "9", 1)))
      local other = run("kind=" .. kind)
      assert.equal(2, other.status)
      has(other.err, "contents | files")
    end
    scratch.write(text, file)
    clear()
    local without = folder .. "/without.lua"
    scratch.write(without, (scratch.read(recipe):gsub(", data = data }", " }")))
    assert.equal(3, program.run({ "run", without, "stop=4" }).status)
    has(program.run({ "run", without }).err, "warning | after step 3 | batch 1 | checkpoint = { data = data }")
    -- The other way round: what was saved has no position that data could go on from.
    clear()
    assert.equal(3, program.run({ "run", without, "stop=4" }).status)
    local with = run()
    assert.equal(2, with.status)
    has(with.err, "no data position | ms.checkpoint.load(train")
  end)

  it("warns of data that begins again, also where nothing is saved or a call loads", function()
    local resumed, path = scratch.path(), scratch.path()
    scratch.write(path, ([[
      local ms = require "moonshard"
      local how = ms.args { how = "" }.how
      local model = ms.nn.linear(2, 2)
      ms.fully_shard(model, { mesh = 1 })
      local data = ms.data.random { inputs = 2, targets = 2, length = 16 }
      local sampler = ms.data.sampler { length = 16 }
      local train = ms.trainer { model = model, optimizer = ms.optim.sgd { lr = 0.1 }, loss = ms.loss.mse,
        checkpoint = how == "option" and { resume = %q } or nil }
      local saved = how == "with data" and data or nil
      if how:find("data") then ms.checkpoint.load(train, %q, { data = saved }) end
      local steps = 0
      for _, batch in data:batches(sampler, 2) do
        if steps < 3 then train:step(batch) end
        steps = steps + 1
      end
      if how == "" then ms.checkpoint.save(train, %q, { data = data }) end
    ]]):format(resumed, resumed, resumed))
    local function errors_of(how) return program.run({ "run", path, "how=" .. how }).err end
    assert.equal("", errors_of(""))
    for _, how in ipairs { "option", "without data" } do has(errors_of(how), "warning | after step 3 | batch 1") end
    assert.equal("", errors_of("with data"))
  end)

  it("warns of data whose position is not kept, next to that which is", function()
    local path, file = scratch.path(), scratch.path()
    scratch.write(file, ("some text. "):rep(99))
    scratch.write(path, ([[
      local ms = require "moonshard"
      local how = ms.args { how = "" }.how
      local model = ms.models.gpt2 { vocab = 256, layers = 1, dim = 8, heads = 1, seq = 8 }
      ms.fully_shard(model, { mesh = 1 })
      local function text(seed) return ms.data.text { files = %q, seq = 8, batch = 1, seed = seed } end
      local first, second = text(0), text(1)
      local both = { state = function() return { first:state(), second:state() } end }
      function both.load_state() end
      local train = ms.trainer { model = model, optimizer = ms.optim.sgd { lr = 0.1 }, loss = ms.loss.cross_entropy,
        checkpoint = { dir = %q .. how, every = 2, data = how == "both" and both or first } }
      for _, batch in first:batches(4) do
        train:step(batch)
        if how ~= "one" then for _, more in second:batches(1) do train:step(more) end end
      end
    ]]):format(file, scratch.path()))
    local function errors_of(how) return program.run({ "run", path, "how=" .. how }).err end
    local told = errors_of("two")
    has(told, "warning | seed 1 | state() | load_state()")
    assert.equal(1, select(2, told:gsub("warning", "")))
    for _, how in ipairs { "one", "both" } do assert.equal("", errors_of(how)) end
  end)

  it("go back inside of a loop, where a recipe loads a checkpoint there", function()
    local path, file = scratch.path(), scratch.path()
    scratch.write(file, ("some text. "):rep(99))
    scratch.write(path, ([[
      local ms = require "moonshard"
      local kind = ms.args { kind = "" }.kind
      local model = kind:find("rand") and ms.nn.linear(2, 2)
        or ms.models.gpt2 { vocab = 256, layers = 1, dim = 8, heads = 1, seq = 8 }
      ms.fully_shard(model, { mesh = 1 })
      local function text(seed) return ms.data.text { files = %q, seq = 8, batch = 1, seed = seed } end
      local random, sampler = ms.data.random { inputs = 2, targets = 2, length = 6 }, ms.data.sampler { length = 6 }
      local data = kind == "text" and text(0) or kind == "mix" and ms.data.mix { { text(0) }, { text(1), weight = 2 } }
        or kind == "random" and random or sampler
      local train = ms.trainer { model = model, optimizer = ms.optim.sgd { lr = 0.1 },
        loss = kind:find("rand") and ms.loss.mse or ms.loss.cross_entropy }
      local saved, went_back
      local function take(batch)
        print(train.steps_done, train:step(batch).loss)
        if train.steps_done == 2 and not saved then saved = ms.checkpoint.save(train, %q .. kind, { data = data }) end
        if train.steps_done ~= 4 or went_back then return end
        went_back = true
        ms.checkpoint.load(train, saved, { data = data })
      end
      if kind == "text" or kind == "mix" then for _, batch in data:batches(6) do take(batch) end
      elseif kind == "random" then for _, batch in random:batches(sampler, 1) do take(batch) end
      else for _, sample in sampler:samples() do take(random:read { sample }) end end
    ]]):format(file, scratch.path()))
    for _, kind in ipairs { "text", "mix", "random", "own rand" } do
      local ended, lines = program.run({ "run", path, "kind=" .. kind }), {}
      assert.equal(0, ended.status, kind .. ended.err)
      for line in ended.out:gmatch("[^\n]+") do lines[#lines + 1] = line end
      assert.equal(8, #lines, kind)
      assert.same({ lines[3], lines[4] }, { lines[5], lines[6] }, kind)
      assert.not_equal(lines[3], lines[7])
    end
  end)

  it("warns of tensors that a recipe writes into, which no checkpoint has", function()
    local path = scratch.path()
    scratch.write(path, ([[
      local ms = require "moonshard"
      local how = ms.args { how = "" }.how
      local Net = ms.module "Net"
      function Net:init()
        self.linear, self.mean = ms.nn.linear(2, 2), ms.zeros(2)
        self.kept = ms.parameter { 2, init = "zeros", frozen = true }
      end
      function Net:forward(x) return self.linear(x - self.mean - self.kept) end
      local model = Net()
      ms.fully_shard(model, { mesh = 1 })
      local data = { state = function() return { model.mean } end, load_state = function() end }
      local train = ms.trainer { model = model, optimizer = ms.optim.sgd { lr = 0.1 }, loss = ms.loss.mse,
        checkpoint = { dir = %q .. how, every = 2, data = how == "in data" and data or nil } }
      for step = 1, 4 do
        train:step { inputs = ms.ones(1, 2), targets = ms.ones(1, 2) }
        if how == "parameter" then train:set_parameter("kept", ms.full({ 2 }, step)) end
        if how == "field" or how == "in data" then model.mean.data[0] = step end
      end
    ]]):format(scratch.path()))
    local function errors_of(how) return program.run({ "run", path, "how=" .. how }).err end
    local told = errors_of("field")
    has(told, "warning | model.mean f32 [2] | frozen = true | train:set_parameter")
    assert.equal(1, select(2, told:gsub("warning", "")))
    for _, how in ipairs { "nothing", "parameter", "in data" } do assert.equal("", errors_of(how)) end
  end)

  it("says what a call makes where the recipe gives another number than before", function()
    for _, case in ipairs({ -- saved after 9 of 24: how the loop is written, the new total, and the last step then
      { "all", 30, 30 }, { "all", 12, 12 }, { "all", 15, 24 }, { "total", 15, 15 }, { "total", 30, 30 },
      { "rest", 30, 21 }, { "more", 30, 30 }, { "more", 33, 33 }, { "more", 12, 12 }, { "more", 18, 18 } }) do
      local calls, total, last = unpack(case)
      clear()
      run("stop=9", "calls=" .. calls)
      local ended, batches = run("calls=" .. calls, "steps=" .. total)
      assert.same({ 0, counted(10, last) }, { ended.status, batches }, calls .. total)
      local given = calls == "all" and total or total - 9
      if calls == "all" or calls == "rest" then
        has(ended.out, ("9 steps | 24 | batches(%d) makes %d now | total | more"):format(given, last - 9))
      else
        assert.falsy(ended.out:find("now;"), calls .. total)
      end
    end
    clear()
    run("calls=all", "steps=9")
    local ended, batches = run("calls=all", "steps=5")
    assert.same({ 0, {} }, { ended.status, batches })
    has(ended.out, "9 steps | batches(5) makes 0 now")
    ended, batches = run("calls=all", "steps=9")
    assert.same({ 0, {} }, { ended.status, batches })
    has(ended.out, "9 steps | batches(9) makes 0 now")
  end)
end)

-- Steps 1 to 4 with one salt, from which a checkpoint is saved at every second step, and then what is given.
local GOING_BACK = [[
local ms = require "moonshard"
local model = ms.nn.linear(8, 4)
ms.fully_shard(model, { mesh = "1x2", seed = 3 })
local train = ms.trainer { model = model, optimizer = ms.optim.sgd { lr = 0.1 }, loss = ms.loss.mse,
  checkpoint = { dir = "FOLDER/kept", every = 2, keep_last = 9, async = ASYNC } }
local function to(last, salt)
  while train.steps_done < last do
    train:step { inputs = ms.randn { 4, 8, seed = salt + train.steps_done }, targets = ms.zeros(4, 4) }
  end
end
to(4, 100)
ACTION
print(model:parameter("bias"):values())
]]

describe("the save at the end", function()
  teardown(scratch.clear)

  local look = folder .. "/look.lua"

  local function bias_in(path)
    scratch.write(look, ([[
local ms = require "moonshard"
local model = ms.nn.linear(8, 4)
ms.fully_shard(model, { mesh = "1x2", seed = 3 })
ms.checkpoint.load(model, %q)
print(model:parameter("bias"):values())
]]):format(path))
    return program.run({ "run", look, "-n", "2" }).out
  end

  local function ends_with(action, async)
    clear()
    scratch.write(recipe, (GOING_BACK:gsub("FOLDER", folder):gsub("ASYNC", tostring(async))
      :gsub("ACTION", function() return (action:gsub("FOLDER", folder)) end)))
    local ended = program.run({ "run", recipe, "-n", "2" })
    assert.equal(0, ended.status, ended.err)
    return ended.out:match(".*(%[[^\n]*\n)"), ended.out
  end

  it("has the weights after a run went back to the step that it had saved", function()
    for _, async in ipairs({ true, false }) do
      local bias = ends_with('ms.checkpoint.load(train, "FOLDER/kept/step-00000002") to(4, 500)', async)
      assert.equal(bias, bias_in(folder .. "/kept/step-00000004"))
      assert.not_equal(bias, bias_in(folder .. "/kept/step-00000004.aside-1"))
    end
  end)

  it("has weights that were written after the step was saved", function()
    for _, action in ipairs({
      'train:set_parameter("bias", { 1, 2, 3, 4 })',
      'local d = model:state_dict { full = true } if ms.world().rank == 0 then d.bias = d.bias * 2 end '
        .. 'model:load_state_dict(d, { full = true })',
      'ms.with_full_params(model, function(params) params.bias = params.bias + 1 end)',
    }) do
      local bias, said = ends_with(action, true)
      has(said, "changed | kept/step-00000004 | step-00000004.aside-1")
      assert.equal(bias, bias_in(folder .. "/kept/step-00000004"), action)
      assert.not_equal(bias, bias_in(folder .. "/kept/step-00000004.aside-1"), action)
    end
  end)

  it("is the save by hand where the step and the folder are the same", function()
    local save = ' ms.checkpoint.save(train, "FOLDER/kept") '
    local bias = ends_with(save .. "to(5, 100)" .. save, true)
    assert.equal(bias, bias_in(folder .. "/kept/step-00000005"))
    assert.is_nil(io.open(folder .. "/kept/step-00000004.aside-1/manifest.json"))
  end)

  it("takes data that is given by hand, or says that the step is there without it", function()
    local give = "local data = ms.data.sampler { length = 4 } "
      .. 'local ok, why = pcall(ms.checkpoint.save, train, "FOLDER/kept", { data = data }) '
    ends_with(give .. "assert(not ok and tostring(why):find('already exists'))", true)
    ends_with("to(5, 100) " .. give .. "assert(ok, why)", true)
    has(scratch.read(folder .. "/kept/step-00000005/manifest.json"), "length")
  end)
end)
