-- Data: which bytes and samples a rank gets, in which order, and what is said of files that will not do.

local ffi = require("ffi")
local errors = require("moonshard.base.error")
local json = require("moonshard.base.text.json")
local permutation = require("moonshard.base.permutation")
local random = require("moonshard.data.random")
local sampler = require("moonshard.data.sampler")
local text = require("moonshard.data.text")
local fixture = require("lua.support.fixture")
local has = require("lua.support.message").has

local paths = {}

local function write_file(content, name)
  local path = name or os.tmpname()
  local file = assert(io.open(path, "wb"))
  file:write(content)
  file:close()
  paths[#paths + 1] = path
  return path
end

-- Text in which every window of `seq` bytes is different: numbers of three digits.
local function numbered(count)
  local parts = {}
  for i = 1, count do parts[i] = ("%03d "):format(i) end
  return table.concat(parts)
end

local function row(array, index)
  local length = array.shape[2]
  local bytes = {}
  for i = 0, length - 1 do bytes[i + 1] = string.char(array.data[index * length + i]) end
  return table.concat(bytes)
end

-- The windows of `steps` steps in the global order: ranks after one another in each step.
local function global_order(size, per_step, steps, options)
  local order = {}
  for rank = 0, size - 1 do
    fixture.as_rank(rank, size, function()
      options.batch, options.global_batch = nil, per_step
      local data = text(options)
      for step, batch in data:batches(steps) do
        for i = 0, per_step / size - 1 do
          order[(step - 1) * per_step + rank * per_step / size + i + 1] = row(batch.tokens, i)
        end
      end
    end)
  end
  return order
end

local function message_of(action)
  local ok, raised = pcall(action)
  assert.is_false(ok)
  assert.is_true(errors.is(raised))
  assert.equal("MS_EINVAL", raised.status)
  return raised.message
end

describe("data", function()
  teardown(function()
    for _, path in ipairs(paths) do os.remove(path) end
  end)

  it("permutes every element exactly once, in another order for every epoch and seed", function()
    for _, n in ipairs({ 1, 2, 3, 17, 64, 1000 }) do
      local order, seen = permutation.new(n, 5, 1), {}
      for i = 0, n - 1 do
        local element = order(i)
        assert.is_true(element >= 0 and element < n and not seen[element])
        seen[element] = true
      end
    end
    local same, epoch, seed = 0, permutation.new(1000, 1, 2), permutation.new(1000, 2, 1)
    local first = permutation.new(1000, 1, 1)
    for i = 0, 999 do
      if first(i) == epoch(i) or first(i) == seed(i) then same = same + 1 end
    end
    assert.is_true(same < 20)
  end)

  it("gives tokens, and as targets the bytes after them", function()
    local path = write_file(numbered(200))
    local data = text({ files = path, seq = 12, batch = 3, valid_fraction = 0 })
    assert.equal(800, data.bytes)
    for step, batch in data:batches(4) do
      assert.same({ 3, 12 }, batch.tokens.shape)
      assert.equal("i32", batch.targets.dtype)
      assert.is_true(batch.data_ms >= 0)
      for i = 0, 2 do
        local tokens, targets = row(batch.tokens, i), row(batch.targets, i)
        assert.equal(tokens:sub(2), targets:sub(1, -2))
        local at = numbered(200):find(tokens, 1, true)
        assert.equal(1, at % 12)
        assert.equal(numbered(200):sub(at + 12, at + 12), targets:sub(-1))
      end
      assert.is_true(step <= 4)
    end
  end)

  it("reads windows across the borders of files", function()
    local content = numbered(50)
    local files = { write_file(content:sub(1, 37)), write_file(content:sub(38, 41)), write_file(content:sub(42)) }
    local parts = text({ files = files, seq = 10, batch = 1, valid_fraction = 0, shuffle = false })
    local joined = {}
    for _, batch in parts:batches() do joined[#joined + 1] = row(batch.tokens, 0) end
    assert.equal(content:sub(1, 190), table.concat(joined))
  end)

  it("S15 gives the same global order of samples on any number of ranks", function()
    local path = write_file(numbered(400))
    local options = { files = path, seq = 16, seed = 3 }
    local one = global_order(1, 12, 20, options)
    for _, size in ipairs({ 2, 3, 4, 6 }) do
      assert.same(one, global_order(size, 12, 20, options))
    end
  end)

  it("S15 visits every training sample once an epoch, in an order of seed and epoch", function()
    local path = write_file(numbered(250))
    local function epochs(seed)
      local data = text({ files = path, seq = 10, batch = 1, seed = seed, valid_fraction = 0 })
      local first, second = {}, {}
      for step, batch in data:batches(2 * data.n) do
        table.insert(step <= data.n and first or second, row(batch.tokens, 0))
      end
      return first, second
    end
    local first, second = epochs(1)
    local again = epochs(1)
    local other = epochs(2)
    assert.same(first, again)
    assert.are_not.same(first, second)
    assert.are_not.same(first, other)
    table.sort(first)
    table.sort(second)
    assert.same(first, second)
    for i = 2, #first do assert.are_not.equal(first[i - 1], first[i]) end
  end)

  it("holds windows out for validation that training never sees", function()
    for _, count in ipairs({ 120, 900 }) do
      local data = text({ files = write_file(numbered(count)), seq = 8, batch = 1, valid_fraction = 0.1 })
      local trained, held_out = {}, 0
      for _, batch in data:batches(data.n) do trained[row(batch.tokens, 0)] = true end
      for _, batch in data.valid:batches(data.valid.n) do
        held_out = held_out + 1
        assert.is_nil(trained[row(batch.tokens, 0)])
      end
      assert.equal(math.floor((4 * count - 1) / 8), data.n + data.valid.n)
      assert.is_true(math.abs(held_out / (data.n + held_out) - 0.1) < 0.05)
    end
  end)

  it("begins every validation from the start", function()
    local data = text({ files = write_file(numbered(300)), seq = 8, batch = 2 })
    local function first_of(batches)
      local _, batch = batches()
      return row(batch.tokens, 0)
    end
    assert.equal(first_of(data.valid:batches(2)), first_of(data.valid:batches(2)))
    assert.are_not.equal(first_of(data:batches(2)), first_of(data:batches(2)))
  end)

  it("K1 text goes on from a state in the middle of an epoch, on any number of ranks", function()
    local options = { files = write_file(numbered(300)), seq = 8, batch = 2, seed = 4 }
    local data = text(options)
    for _ in data:batches(data.n / 2 + 5) do end -- the second epoch
    local state = json.decode(json.encode(data:state()))
    local steps = data.n / 2 + 5
    assert.same({ seed = 4, epoch = 1, position = data.position, samples = data.n, shuffle = true, call_steps = steps,
      call_done = steps, contents = data:contents(), seq = 8, valid_fraction = 1 / 20 }, state)
    local expected = {}
    for _, batch in data:batches(12) do
      for i = 0, 1 do expected[#expected + 1] = row(batch.tokens, i) end
    end
    for _, ranks in ipairs({ 1, 2 }) do
      local found = {}
      for rank = 0, ranks - 1 do
        fixture.as_rank(rank, ranks, function()
          options.batch = 2 / ranks
          local resumed = text(options)
          resumed:load_state(state)
          for step, batch in resumed:batches(12) do
            for i = 0, 2 / ranks - 1 do found[2 * (step - 1) + rank + i + 1] = row(batch.tokens, i) end
          end
        end)
      end
      assert.same(expected, found)
    end
  end)

  it("K1 a state is after the batch at hand, and of other data it is refused", function()
    local options = { files = write_file(numbered(300)), seq = 8, batch = 2, seed = 4 }
    local data, seen, states = text(options), {}, {}
    for step, batch in data:batches(6) do
      seen[step], states[step] = row(batch.tokens, 0), data:state()
    end
    local resumed = text(options)
    resumed:load_state(states[3])
    assert.equal(seen[4], row(select(2, resumed:batches(1)()).tokens, 0))
    has(message_of(function() resumed:load_state(nil) end), "state | table | nil")
    for _, seed in ipairs({ 2 ^ 52 + 1, 123456789012345, 3707117805726712 }) do -- two that are equal in 14 digits
      local far = text { files = options.files, seq = 8, batch = 1, seed = seed }
      local state = far:state()
      state.seed = seed + 1
      has(message_of(function() far:load_state(state) end), ("seed=%.0f | seed=%.0f"):format(seed + 1, seed))
    end
    states[3].position = 1.5
    has(message_of(function() resumed:load_state(states[3]) end), "0 | 1.5")
    for name, value in pairs({ seed = 5, shuffle = false, seq = 9 }) do
      local other = {}
      for key, own in pairs(options) do other[key] = own end
      other[name] = value
      local message = message_of(function() text(other):load_state(states[2]) end)
      has(message, name == "seq" and "samples=" or name .. "=")
      has(message, "files | seq | seed | shuffle")
    end
  end)

  it("K1 a sampler, and random data with it, go on from a state in the middle of an epoch", function()
    local function batches(data, order, resume_state, steps)
      local found, states = {}, {}
      if resume_state then data:load_state(resume_state) end
      while #found < steps do
        for _, batch in data:batches(order, 3) do
          found[#found + 1] = ffi.string(batch.inputs.data, ffi.sizeof(batch.inputs.data))
          states[#found] = json.decode(json.encode(data:state()))
          if #found == steps then break end
        end
        order:set_epoch(order.epoch + 1)
      end
      return found, states
    end
    local function source() return random({ length = 20, inputs = 2, targets = 1, seed = 3 }) end
    local function order() return sampler({ length = 20, seed = 9, rank = 1, world = 2 }) end
    local whole, states = batches(source(), order(), nil, 12) -- four epochs of three batches
    assert.same({ seed = 9, epoch = 1, position = 12, length = 20, shuffle = true }, states[5].sampler)
    for stop = 1, 8 do
      local rest = batches(source(), order(), states[stop], 12 - stop)
      for i, inputs in ipairs(rest) do assert.equal(whole[stop + i], inputs) end
    end
    assert.is_nil(source():state().sampler)
    local chosen = order()
    chosen:set_epoch(0)
    has(message_of(function() chosen:load_state(states[5].sampler) end)
      , "epoch 1 | epoch 0")
    local wider = random({ length = 20, inputs = 3, targets = 1, seed = 3 })
    has(message_of(function() wider:load_state(states[1]) end)
      , "inputs=2 | inputs=3")
  end)

  it("K1 an epoch that one rank began is ended by two", function()
    local function visit(rank, size, state, count)
      local s, list = sampler({ length = 24, seed = 7, rank = rank, world = size }), {}
      if state then s:load_state(state) end
      for _, sample in s:samples() do
        list[#list + 1] = sample
        if #list == count then break end
      end
      return list, s:state()
    end
    local whole = visit(0, 1)
    local _, state = visit(0, 1, nil, 9)
    local first, second = visit(0, 2, state), visit(1, 2, state)
    assert.equal(8, #first)
    for i, sample in ipairs(first) do assert.equal(whole[9 + 2 * i - 1], sample) end
    for i = 1, 7 do assert.equal(whole[9 + 2 * i], second[i]) end
  end)

  it("takes folders and patterns, without binary files and second names", function()
    local folder = os.tmpname()
    os.remove(folder)
    assert.equal(0, os.execute("mkdir " .. folder))
    write_file(numbered(100), folder .. "/b.txt")
    write_file("first " .. numbered(10), folder .. "/a.txt")
    write_file("binary\0data", folder .. "/a.dat")
    write_file("hidden", folder .. "/.hidden")
    assert.equal(0, os.execute(("ln -s a.txt %s/c.txt && mkdir %s/sub"):format(folder, folder)))
    paths[#paths + 1] = folder .. "/c.txt"
    for _, files in ipairs({ folder, folder .. "/*", folder .. "/?.txt", folder .. "/a.txt," .. folder .. "/b.txt" }) do
      local data = text({ files = files, seq = 8, batch = 1, shuffle = false, valid_fraction = 0 })
      assert.equal(446, data.bytes)
      local _, batch = data:batches(1)()
      assert.equal("first 00", row(batch.tokens, 0))
    end
    os.remove(folder .. "/sub")
    for i = #paths, 1, -1 do
      if paths[i]:sub(1, #folder) == folder then os.remove(table.remove(paths, i)) end
    end
    os.remove(folder)
  end)

  it("reports wrong files, and how many bytes are needed", function()
    local function with(files, more)
      local options = { files = files, seq = 16, batch = 4 }
      for key, value in pairs(more or {}) do options[key] = value end
      return message_of(function() text(options) end)
    end
    has(with("/proc/nowhere/a.txt"), "/proc/nowhere/a.txt: No such file")
    has(with("/proc/nowhere/*.txt"), "matches")
    local empty, tiny = write_file(""), write_file("tiny")
    has(with(empty), "empty | seq=16 | 4 | 321 bytes")
    has(with(tiny), "4 bytes | seq=16")
    has(with(tiny, { valid_fraction = 0 }), "65 bytes")
    has(with(tiny, { valid_fraction = 2 }), "0 | 0.5")
    has(with(tiny, { global_batch = 4 }), "both")
  end)

  it("says which file was cut shorter during a run, and goes on with one that was replaced", function()
    local path = write_file(numbered(100))
    local data = text({ files = path, seq = 8, batch = 1, shuffle = false, valid_fraction = 0 })
    local before = row(select(2, data:batches(1)()).tokens, 0)
    assert.is_true(os.rename(write_file("new"), path))
    data:load_state({ position = 0, samples = data.n, seed = 0, shuffle = false })
    assert.equal(before, row(select(2, data:batches(1)()).tokens, 0))

    data = text({ files = write_file(numbered(100), path), seq = 8, batch = 1 })
    write_file("short", path)
    local ok, raised = pcall(data:batches(1))
    assert.is_false(ok)
    assert.equal("MS_EIO", raised.status)
    has(raised.message, path .. " | 5 bytes | 400")
  end)

  it("is content with exactly the bytes it asks for", function()
    local data = text({ files = write_file(("x"):rep(321)), seq = 16, batch = 4 })
    assert.is_true(data.n >= 4 and data.valid.n >= 1)
    assert.is_false(pcall(text, { files = write_file(("x"):rep(320)), seq = 16, batch = 4 }))
  end)

  it("S19 a sampler shards a dataset over the ranks and reshuffles by epoch", function()
    local function samples(rank, size, epoch, options)
      options.rank, options.world = rank, size
      local s = sampler(options)
      s:set_epoch(epoch)
      local list = {}
      for _, sample in s:samples() do list[#list + 1] = sample end
      assert.equal(s:count(), #list)
      return list
    end
    local function union(size, epoch, options)
      local merged = {}
      for rank = 0, size - 1 do
        for i, sample in ipairs(samples(rank, size, epoch, options)) do merged[(i - 1) * size + rank + 1] = sample end
      end
      return merged
    end
    local alone = samples(0, 1, 2, { length = 24, seed = 7 })
    for _, size in ipairs({ 2, 3, 4 }) do
      assert.same(alone, union(size, 2, { length = 24, seed = 7 }))
    end
    assert.are_not.same(alone, samples(0, 1, 3, { length = 24, seed = 7 }))
    assert.same({ 1, 3, 5 }, samples(1, 2, 0, { length = 6, shuffle = false }))
  end)

  it("S19 a sampler pads with the beginning, or drops the tail on request", function()
    local function list(rank, drop_last)
      local found = {}
      for _, sample in sampler({ length = 10, shuffle = false, rank = rank, world = 4, drop_last = drop_last })
        :samples() do
        found[#found + 1] = sample
      end
      return found
    end
    assert.same({ 0, 4, 8 }, list(0, false))
    assert.same({ 2, 6, 0 }, list(2, false))
    assert.same({ 3, 7, 1 }, list(3, false))
    assert.same({ 0, 4 }, list(0, true))
    assert.same({ 3, 7 }, list(3, true))
    has(message_of(function() sampler({ length = 3, world = 4, rank = 0, drop_last = true }) end)
      , "none")
  end)

  it("makes random samples that depend on seed and number alone", function()
    local data = random({ length = 100, inputs = 6, targets = 3, seed = 2 })
    local whole, part = data:read({ 0, 7, 99 }), data:read({ 7 })
    for i = 0, 5 do assert.equal(whole.inputs.data[6 + i], part.inputs.data[i]) end
    for i = 0, 2 do assert.equal(whole.targets.data[3 + i], part.targets.data[i]) end
    local sum, squares, n = 0, 0, 0
    for first = 0, 99 do
      local batch = data:read({ first })
      for i = 0, 5 do
        local x = batch.inputs.data[i]
        sum, squares, n = sum + x, squares + x * x, n + 1
      end
    end
    assert.is_true(math.abs(sum / n) < 0.15 and math.abs(squares / n - 1) < 0.2)
    assert.equal(4 * 6, ffi.sizeof(part.inputs.data))
  end)
end)
