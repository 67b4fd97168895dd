-- Token files as data: streams across files, the order of samples, validation, states, and what is refused.

local ffi = require("ffi")
local errors = require("moonshard.base.error")
local json = require("moonshard.base.text.json")
local permutation = require("moonshard.base.permutation")
local has = require("lua.support.message").has
local scratch = require("lua.support.scratch")
local program = require("lua.support.program")
local tokens = require("moonshard.data.tokens")
local fixture = require("lua.support.fixture")

local folder

local function int32(...)
  local numbers = { ... }
  return ffi.string(ffi.new("int32_t[?]", #numbers, numbers), 4 * #numbers)
end

-- A token file by the format's words, with tokens first, first + 1, ...
local function write(name, count, first, magic)
  local path = folder .. "/" .. name
  local values = ffi.new(magic == 20240801 and "uint32_t[?]" or "uint16_t[?]", count)
  for i = 0, count - 1 do values[i] = first + i end
  local file = assert(io.open(path, "wb"))
  file:write(int32(magic or 20240520, magic == 20240801 and 7 or 1, count), ("\0"):rep(1012),
    ffi.string(values, ffi.sizeof(values)))
  file:close()
  return path
end

local function refused(options)
  local ok, raised = pcall(tokens, options)
  assert.is_false(ok)
  assert.is_true(errors.is(raised))
  assert.equal("MS_EINVAL", raised.status)
  return raised.message
end

-- The first token of every sample, ranks after one another in each step.
local function samples(data, steps)
  local found = {}
  for _, batch in data:batches(steps) do
    for row = 0, batch.tokens.shape[1] - 1 do
      local at = row * batch.tokens.shape[2]
      for i = 0, batch.tokens.shape[2] - 1 do
        assert.equal(batch.tokens.data[at] + i, batch.tokens.data[at + i])
        assert.equal(batch.tokens.data[at] + i + 1, batch.targets.data[at + i])
      end
      found[#found + 1] = batch.tokens.data[at]
    end
  end
  return found
end

describe("token files", function()
  setup(function()
    folder = scratch.folder()
  end)

  teardown(scratch.clear)

  it("K7 are one stream by pattern, by folder and by name, across borders of files", function()
    write("train_1.bin", 30, 0)
    write("train_2.bin", 7, 30, 20240801)
    write("train_3.bin", 64, 37)
    write("other.bin", 12, 5000)
    assert.equal(0, os.execute("echo words > " .. folder .. "/notes.txt"))
    local list = {}
    for i = 1, 3 do list[i] = folder .. "/train_" .. i .. ".bin" end
    for _, files in ipairs({ folder .. "/train_*.bin", list, table.concat(list, ",") }) do
      local data = tokens({ files = files, seq = 10, batch = 1, shuffle = false, valid_fraction = 0 })
      assert.equal(101, data.tokens)
      assert.equal(10, data.n)
      assert.same({ 0, 10, 20, 30, 40, 50, 60, 70, 80, 90 }, samples(data, 10))
      assert.is_nil(data.valid)
    end
    assert.equal(113, tokens({ files = folder, seq = 10, batch = 1, valid_fraction = 0 }).tokens)
  end)

  it("K7 come in an order of seed and epoch alone, on any number of ranks, from any state", function()
    local options = { files = write("big.bin", 4001, 0), seq = 20, seed = 11, global_batch = 12 }
    local whole = samples(tokens(options), 40) -- more than two epochs
    for _, size in ipairs({ 2, 3, 4 }) do
      local merged, states = {}, {}
      for rank = 0, size - 1 do
        fixture.as_rank(rank, size, function()
          local data, step = tokens(options), 0
          for _, batch in data:batches(19) do
            for row = 0, 12 / size - 1 do
              merged[step * 12 + rank * 12 / size + row + 1] = batch.tokens.data[row * 20]
            end
            step = step + 1
          end
          states[rank] = data:state()
        end)
      end
      for rank = 1, size - 1 do assert.same(states[0], states[rank]) end
      local resumed = tokens(options)
      resumed:load_state(states[0])
      for _, sample in ipairs(samples(resumed, 21)) do merged[#merged + 1] = sample end
      assert.same(whole, merged)
    end
    options.seed = 12
    assert.are_not.same(whole, samples(tokens(options), 40))
  end)

  it("read ahead gives the same samples when batches is left in the middle and begun again", function()
    local options = { files = write("again.bin", 901, 0), seq = 9, batch = 2, valid_fraction = 0 }
    local whole, data = samples(tokens(options), 30), tokens(options)
    local found = {}
    for _, steps in ipairs({ 1, 7, 2, 20 }) do
      for step, batch in data:batches(50) do
        for row = 0, 1 do found[#found + 1] = batch.tokens.data[9 * row] end
        if step == steps then break end
      end
    end
    assert.same(whole, found)
    data:load_state(tokens(options):state())
    assert.same(whole, samples(data, 30))
  end)

  it("are held out for validation by a part, or by files of their own", function()
    local files = write("train.bin", 2001, 0)
    local data = tokens({ files = files, seq = 10, batch = 1, valid_fraction = 0.1 })
    local trained = {}
    for _, sample in ipairs(samples(data, data.n)) do trained[sample] = true end
    local held_out = samples(data.valid, data.valid.n)
    assert.equal(200, data.n + #held_out)
    for _, sample in ipairs(held_out) do assert.is_nil(trained[sample]) end
    data = tokens({ files = files, valid_files = write("val.bin", 41, 7000), seq = 10, batch = 1 })
    assert.equal(200, data.n)
    local first = samples(data.valid, 4)
    table.sort(first)
    assert.same({ 7000, 7010, 7020, 7030 }, first)
    assert.equal(4, #samples(data.valid, 4))
    has(refused({ files = files, valid_files = files, valid_fraction = 0.1 }), "both")
    has(refused({ files = files, valid_files = "", seq = 10, batch = 1 }), "valid_files is empty")
  end)

  it("K7 are in a list once, and not in both lists", function()
    local a, b = write("once_a.bin", 40, 0), write("once_b.bin", 41, 40)
    local all = folder .. "/once_*.bin"
    os.execute(("ln -s '%s' '%s/second.bin'"):format(a, folder))
    local function with(o)
      o.seq, o.batch, o.valid_fraction = 8, 1, not o.valid_files and 0 or nil
      return o
    end
    for _, case in ipairs({
      { { a, b, a }, a .. " | " .. a }, { a .. "," .. all .. "," .. b, b .. " | " .. all },
      { { a, folder .. "/second.bin" }, "second.bin | " .. a },
      { { all, folder .. "/./once_b.bin" }, "once_b.bin | " .. all }, { { all, folder .. "/*_b.bin" }, "1 match" },
    }) do
      has(refused(with { files = case[1] }), "files | " .. case[2])
    end
    for _, case in ipairs({
      { all, { b } }, { { a }, all }, { { b, a }, { folder .. "/second.bin" } },
    }) do
      local trained, valid = unpack(case)
      has(refused(with { files = trained, valid_files = valid }), "ms.data.tokens | valid_files | files")
    end
    tokens(with { files = { a }, valid_files = { b } })
    local recipe = program.recipe [[
      local ms = require "moonshard"
      local cfg = ms.args { files = "" }
      print("tokens", ms.data.tokens { files = cfg.files, seq = 8, batch = 1, valid_fraction = 0 }.tokens)
    ]]
    for _, first in ipairs({ a, folder .. "/*e_a.bin" }) do
      local ended = program.run({ "run", recipe, "-n", "2", "files=" .. first .. "," .. all })
      has(ended.out, "tokens\t81")
      has(ended.err, "files: " .. a .. " | " .. first .. " and " .. all)
      assert.equal(1, select(2, ended.err:gsub("files: ", "")))
    end
    os.remove(recipe)
  end)

  it("K7 may hold more tokens than 31 bits, or 32, count, in any order and from any position", function()
    local path, count = folder .. "/large.bin", 2 ^ 32 + 2 ^ 20
    local number = ffi.new("int64_t[1]", count)
    local file = assert(io.open(path, "wb"))
    file:setvbuf("no")
    file:write(int32(20240520, 1, -1), ffi.string(number, 8))
    file:seek("set", 1024 + 2 * count - 1) -- holes but for this
    file:write("\0")
    local seq = 64
    local function put(first) -- the sample that begins there
      local values = ffi.new("uint16_t[?]", seq + 1)
      for i = 0, seq do values[i] = (first + i) % 2 ^ 16 end
      file:seek("set", 1024 + 2 * first)
      file:write(ffi.string(values, ffi.sizeof(values)))
    end
    local data = tokens { files = path, seq = seq, batch = 1, seed = 5, valid_fraction = 0 }
    assert.equal(count, data.tokens)
    local order, beyond = permutation.new(data.n, 5, 0), 0
    for position = 0, 7 do
      local first = order(position) * seq
      put(first)
      if first >= 2 ^ 31 then beyond = beyond + 1 end
    end
    local last = math.floor((count - 1) / seq) - 3
    for sample = last, last + 2 do put(sample * seq) end
    file:close()
    assert.is_true(beyond > 0)
    for i, token in ipairs(samples(data, 8)) do assert.equal(order(i - 1) * seq % 2 ^ 16, token) end
    data = tokens { files = path, seq = seq, batch = 1, valid_fraction = 0, shuffle = false }
    data:load_state(json.decode(json.encode({
      seed = 0, epoch = 0, position = last, samples = data.n, shuffle = false,
    })))
    local found = samples(data, 3)
    for i = 0, 2 do assert.equal((last + i) * seq % 2 ^ 16, found[i + 1]) end
    assert.equal(last + 3, data:state().position)
  end)

  it("and a tokenizer are not needed to plan; a run without them names the command that makes them", function()
    local ended = program.run({ "plan", "recipes/tokens.lua", "-n", "2", "vocab=512",
      "tokenizer=/proc/nowhere/t.json" })
    assert.equal(0, ended.status, ended.err)
    ended = program.run({ "run", "recipes/tokens.lua", "tokenizer=/proc/nowhere/t.json" })
    assert.equal(2, ended.status)
    has(ended.err, "/proc/nowhere/t.json: No such file | tokenizer.json")
    ended = program.run({ "run", "recipes/tokens.lua", "vocab=512", "files=/proc/nowhere/t.bin" })
    assert.equal(2, ended.status)
    has(ended.err, "No such file | `moonshard tokenize`")
  end)

  it("K7 say which file and which field is wrong", function()
    local path = write("cut.bin", 100, 0)
    local file = assert(io.open(path, "rb"))
    local content = file:read("*a")
    file:close()
    file = assert(io.open(path, "wb"))
    file:write(content:sub(1, -2))
    file:close()
    local message = refused({ files = path, seq = 8, batch = 1 })
    has(message, path .. " | tokens: | 100 | 2 bytes | 1224 | 1223")
    local text = folder .. "/text.bin"
    file = assert(io.open(text, "wb"))
    file:write(("plain text "):rep(200))
    file:close()
    message = refused({ files = folder .. "/text.bin", seq = 8, batch = 1 })
    has(message, text .. " | magic | 1767992432")
    message = refused({ files = write("few.bin", 20, 0), seq = 8, batch = 4 })
    has(message, "few.bin | 20 tokens | seq=8 | 4 | 161 tokens")
  end)
end)
