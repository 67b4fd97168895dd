-- Several sources of samples as one: shares, order, epochs, states, and what is refused.

local ffi = require("ffi")
local has = require("lua.support.message").has
local message = require("lua.support.fixture").message
local ms = require("moonshard")
local program = require("lua.support.program")
local read_by_ranks = require("lua.data.read_by_ranks")
local scratch = require("lua.support.scratch")

teardown(scratch.clear)

local function int32(...)
  local numbers = { ... }
  return ffi.string(ffi.new("int32_t[?]", #numbers, numbers), 4 * #numbers)
end

-- A token file with tokens first, first + 1, ...
local function token_file(count, first)
  local path, values = scratch.path() .. ".bin", ffi.new("uint16_t[?]", count)
  for i = 0, count - 1 do values[i] = first + i end
  scratch.write(path, int32(20240520, 1, count) .. ("\0"):rep(1012) .. ffi.string(values, 2 * count))
  return path
end

local MANY, FEW = token_file(4001, 0), token_file(401, 10000)

local function source(path, more)
  local o = { files = path, seq = 20, global_batch = 12, seed = 5, valid_fraction = 0 }
  for key, value in pairs(more or {}) do o[key] = value end
  if o.batch then o.global_batch = nil end
  return ms.data.tokens(o)
end

local function mixed(weights, more)
  return ms.data.mix { { source(MANY, more), weight = weights[1] }, { source(FEW, more), weight = weights[2] } }
end

-- The first token of every sample.
local function samples(data, steps)
  local found = {}
  for _, batch in data:batches(steps) do
    local columns = batch.tokens.shape[2]
    for row = 0, batch.tokens.shape[1] - 1 do
      local at = row * columns
      for i = 0, columns - 1 do
        assert.equal(batch.tokens.data[at] + i, batch.tokens.data[at + i])
        assert.equal(batch.tokens.data[at] + i + 1, batch.targets.data[at + i])
      end
      found[#found + 1] = batch.tokens.data[at]
    end
  end
  return found
end

describe("ms.data.mix", function()
  it("G5 gives each source its share of the samples, at every point", function()
    for _, weights in ipairs({ { 3, 1 }, { 0.5, 0.5 }, { 1, 7 }, { 2, 3 } }) do
      local of_few, share = 0, weights[2] / (weights[1] + weights[2])
      for i, token in ipairs(samples(mixed(weights), 25)) do
        of_few = of_few + (token >= 10000 and 1 or 0)
        assert.is_true(math.abs(of_few - share * i) <= 1)
      end
    end
  end)

  it("G5 visits each source in the order that it has alone, epoch by epoch", function()
    local many, few = {}, {}
    for _, token in ipairs(samples(mixed { 3, 1 }, 8)) do table.insert(token >= 10000 and few or many, token) end
    local function beginning(path, count) return { unpack(samples(source(path), 8), 1, count) } end
    assert.same(beginning(MANY, 72), many)
    assert.same(beginning(FEW, 24), few) -- 20 samples an epoch
    assert.equal(24, #few)
    local seen = {}
    for i = 1, 20 do seen[few[i]] = true end
    for i = 21, 24 do assert.is_true(seen[few[i]]) end
  end)

  it("G5 has the same samples on any number of ranks, and from any state", function()
    local function make() return mixed { 2, 1 } end
    local whole = samples(make(), 30)
    for _, size in ipairs({ 2, 3, 4 }) do
      local merged, states = read_by_ranks(size,
        { make = make, rows = samples, steps = 30, stop = 11, global_batch = 12 })
      assert.same(whole, merged)
      assert.equal(states[1], states[size])
    end
  end)

  it("G5 continues far positions without counting to them", function()
    local state = mixed({ 3, 1 }):state()
    state.position, state.used = 4e12, "3000000000000 1000000000000"
    local far, near = mixed { 3, 1 }, mixed { 3, 1 }
    far:load_state(state)
    samples(far, 2)
    assert.equal("3000000000018 1000000000006", far:state().used)
    samples(near, 2)
    assert.equal("18 6", near:state().used)
    -- The sources take turns as after any multiple of four samples.
    local function turns(data)
      local list = {}
      for i, token in ipairs(samples(data, 3)) do list[i] = token >= 10000 end
      return list
    end
    assert.same(turns(near), turns(far))
    state.used = nil -- as states were once
    state.position = 24
    local old = mixed { 3, 1 }
    old:load_state(state)
    assert.equal("18 6", old:state().used)
    local function refused(used)
      state.position, state.used = 24, used
      return message(function() mixed({ 3, 1 }):load_state(state) end)
    end
    has(refused "6 18", "used=6 18 | 24 samples | 0.75 0.25")
    has(refused "24", "used=24")
    has(refused "18 5", "used=18 5")
    has(refused "x 6", "used=x 6")
  end)

  it("G5 says that its sources have the validation data", function()
    local function valid(data) return data.valid end
    local mix = ms.data.mix { { source(MANY, { valid_fraction = 0.1 }) } }
    has(message(valid, mix), "mix | valid | data.sources[1].valid")
    has(message(valid, ms.data.masked { mix, mask = 1, vocab = 2 }), "mix | valid | data.sources[1].valid")
    assert.truthy(mix.sources[1].valid)
  end)

  it("G5 has an epoch that ends with the first source, or with the last", function()
    local function steps(strategy)
      local count = 0
      local data = ms.data.mix { { source(MANY), weight = 3 }, { source(FEW) }, stopping_strategy = strategy }
      for _ in data:batches() do count = count + 1 end
      return count
    end
    assert.equal(6, steps()) -- 20 samples of FEW are a quarter of 80: six whole steps of 12
    assert.equal(22, steps("all_exhausted")) -- 200 of MANY are three quarters of 267
  end)

  it("G5 makes the rest of an epoch in a call without a number, as all data does", function()
    local makes = {
      mix = function(o)
        local sources = { { source(MANY), weight = 2 }, { source(FEW) } }
        for name, value in pairs(o) do sources[name] = value end
        return ms.data.mix(sources)
      end,
      tokens = function(o) return source(FEW, o) end,
    }
    function makes.masked(o) return ms.data.masked { makes.tokens(o), mask = 256, vocab = 256 } end
    local function count(data, stop)
      local steps = 0
      for step in data:batches() do
        steps = steps + 1
        if step == stop then break end
      end
      return steps
    end
    for kind, make in pairs(makes) do
      local samples_in = kind == "mix" and 60 or 20
      for _, drop_last in ipairs { true, false } do
        local function open() return make { batch = 7, drop_last = drop_last } end
        local round = drop_last and math.floor or math.ceil
        local whole, rest = round(samples_in / 7), round((samples_in - 7) / 7)
        local begun = drop_last and whole * 7 - samples_in or 0 -- the next epoch begins with what was left over
        for _, left_by in ipairs { "number", "break" } do
          local data = open()
          if left_by == "number" then for _ in data:batches(1) do end else count(data, 1) end
          assert.same({ rest, round((samples_in - begun) / 7) }, { count(data), count(data) }, kind)
          if kind ~= "mix" then assert.equal(2, data:state().epoch) end
        end
        -- A state of the first epoch that is loaded in the second.
        local data, steps = open(), 0
        for _ in data:batches(1) do end
        local state = data:state()
        count(data)
        for step in data:batches() do
          steps = steps + 1
          if step == 1 and steps == 1 then data:load_state(state) end
        end
        assert.equal(1 + rest, steps, kind)
      end
    end
    local mix, seen = makes.mix { batch = 12 }, {}
    for _, steps in ipairs { 3, 2 } do
      for _, first in ipairs(samples(mix, steps == 3 and 3 or nil)) do
        assert.is_nil(seen[first])
        seen[first] = true
      end
    end
  end)

  it("G5 mixes what is in memory with files, and goes back to a position", function()
    local path = scratch.path() .. ".jsonl"
    scratch.write(path, ('{"prompt": "q", "completion": "a"}\n'):rep(5))
    local chats = ms.data.chat { files = path, seq = 20, batch = 1, template = "plain" }
    local function both() return ms.data.mix { { source(MANY, { batch = 2 }) }, { chats }, global_batch = 12 } end
    local function chat_rows(data)
      local count = 0
      for _, batch in data:batches(3) do
        for row = 0, 11 do
          local is_chat = batch.targets.data[20 * row] == -100
          assert.equal(is_chat and ("u"):byte() or batch.tokens.data[20 * row], batch.tokens.data[20 * row])
          count = count + (is_chat and 1 or 0)
        end
      end
      return count
    end
    local data = both()
    local state = data:state()
    assert.equal(18, chat_rows(data))
    local first = samples(mixed { 1, 1 }, 2)
    local again = mixed { 1, 1 }
    local next_batch = again:batches(10)
    next_batch()
    next_batch()
    again:load_state(mixed({ 1, 1 }):state())
    assert.same(first, samples(again, 2))
    data:load_state(state)
    assert.equal(18, chat_rows(data))
  end)

  it("G5 refuses what makes no sense, by the source", function()
    local a = source(MANY)
    has(message(ms.data.mix, {}), "ms.data.mix | source")
    has(message(ms.data.mix, { a }), "source 1 | { data, weight = 1 }")
    has(message(ms.data.mix, { { a }, { source(FEW, { seq = 10 }) } }),
      "source 2 | seq=10 | source 1 | seq=20 | same seq")
    has(message(ms.data.mix, { { a }, { source(FEW, { global_batch = 6 }) } }),
      "source 2 | batch=6 | batch=12 | global_batch")
    has(message(ms.data.mix, { { a, weight = 0 } }), "weight of source 1 | 0 | leave out")
    has(message(ms.data.mix, { { a }, { ms.data.masked { a, mask = 1, vocab = 9 } } }),
      "source 2 is masked | mask the mix")
    local path = scratch.path() .. ".jsonl"
    scratch.write(path, ('{"prompt": "q", "chosen": "a", "rejected": "b"}\n'):rep(20))
    local of_pairs = ms.data.preferences { files = path, seq = 20, global_batch = 12, template = "plain" }
    has(message(ms.data.mix, { { a }, { of_pairs } }), "source 2 | pairs | source 1 | rows | one kind")
    has(message(ms.data.mix, { { a, wieght = 1 } }), "source 1 | wieght | weight")
    has(message(ms.data.mix, { { ms.data.mix { { a } } } }), "source 1 is a mix")
    has(message(ms.data.mix, { { {} } }), "source 1 | ms.data.text")
    has(message(ms.data.mix, { { a }, stopping_strategy = "never" }), "stopping_strategy | never")
    local state = mixed({ 3, 1 }):state()
    has(message(function() mixed({ 1, 1 }):load_state(state) end), "shares=0.75 0.25 | shares=0.5 0.5 | weights")
    has(message(function() mixed({ 3, 1 }, { seed = 6 }):load_state(state) end), "seed=5 5 | seed=6 6")
  end)

  it("G5 trains alike on meshes, resumes from a checkpoint bit for bit, and can be planned", function()
    local recipe = program.recipe([[
      local ms = require "moonshard"
      local cfg = ms.args { mesh = "1x1", steps = 6, checkpoint = "", resume = "" }
      local mesh = ms.init_device_mesh(cfg.device, cfg.mesh, { "replicate", "shard" })
      local model = ms.models.gpt2 { vocab = 256, layers = 1, dim = 16, heads = 2, seq = 16 }
      ms.fully_shard(model, { mesh = mesh })
      local function text(files)
        return ms.data.text { files = files, seq = 16, global_batch = 4, mesh = mesh, valid_fraction = 0 }
      end
      local data = ms.data.mix { { text "README.md", weight = 2 }, { text "lua/moonshard/init.lua" } }
      local train = ms.trainer { model = model, optimizer = ms.optim.adamw { lr = 1e-2 }, loss = ms.loss.cross_entropy,
        checkpoint = { dir = cfg.checkpoint, resume = cfg.resume, data = data } }
      for step, batch in data:batches(cfg.steps) do
        local m = train:step(batch)
        if ms.world().rank == 0 then print(step, ("%.4f"):format(m.loss)) end
      end
    ]])
    local function run(...)
      local ended = program.run { "run", recipe, ... }
      assert.equal(0, ended.status, ended.err)
      return ended.out
    end
    local one = run("-n", "1")
    assert.equal(one, run("-n", "2", "mesh=1x2"))
    assert.equal(one, run("-n", "4", "mesh=2x2"))
    local folder = scratch.path()
    run("-n", "1", "steps=4", "checkpoint=" .. folder)
    local resumed = run("-n", "2", "mesh=1x2", "checkpoint=" .. folder, "resume=auto")
    assert.equal(one:match("5\t.*"), resumed:match("5\t.*"))
    assert.equal(0, program.run({ "plan", recipe, "-n", "2", "mesh=1x2" }).status)
    os.remove(recipe)
  end)

  it("G5 has a batch of its own, for which its sources need not be large enough for theirs", function()
    local text, chats, pairs_of = scratch.path(), scratch.path(), scratch.path()
    scratch.write(text, ("abcdefgh"):rep(3) .. "a")
    scratch.write(chats, ('{"prompt":"abcde","completion":"fgh"}\n'):rep(3))
    scratch.write(pairs_of, ('{"prompt":"ab","chosen":"c","rejected":"d"}\n'):rep(2))
    local short = { default = { "", "." } }
    for name, o in pairs({
      text = { files = text, valid_fraction = 0 }, chat = { files = chats, template = short },
      preferences = { files = pairs_of, template = short },
    }) do
      local function small(more)
        local given = { seq = 8 }
        for _, from in ipairs({ o, more or {} }) do
          for key, value in pairs(from) do given[key] = value end
        end
        return ms.data[name](given)
      end
      for batch = 1, 2 do
        local steps = 0
        for _, of in ms.data.mix({ { small() }, { small(), weight = 2 }, global_batch = batch }):batches(3) do
          steps = steps + 1
          assert.equal(batch * (name == "preferences" and 2 or 1), of.tokens.shape[1])
        end
        assert.equal(3, steps)
      end
      local needs = o.files .. " | 8 | per step | at least"
      has(message(function() small():batches(1) end), needs)
      has(message(ms.data.mix, { { small() }, { small() } }), "source 1 | " .. needs)
      has(message(small, { batch = 8 }), needs) -- the recipe gave a batch: at once
      has(message(small, { global_batch = 8 }), needs)
      assert.equal(3 - (name == "preferences" and 1 or 0), small({ drop_last = false }).n)
    end
    scratch.write(text, "abc")
    has(message(ms.data.text, { files = text, seq = 8, valid_fraction = 0 }), text .. " | 3 bytes | at least")
  end)
end)
