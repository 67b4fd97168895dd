-- Event files, read back by a decoder that knows the format's words alone and shares nothing with what wrote them.

local bit = require("bit")
local ffi = require("ffi")
local scratch = require("lua.support.scratch")
local program = require("lua.support.program")
local tensorboard = require("moonshard.metrics.tensorboard")

-- CRC-32C bit by bit.
local function crc32c(text)
  local crc = 0xffffffff
  for i = 1, #text do
    crc = bit.bxor(crc, text:byte(i))
    for _ = 1, 8 do
      crc = bit.band(crc, 1) == 1 and bit.bxor(bit.rshift(crc, 1), 0x82f63b78) or bit.rshift(crc, 1)
    end
  end
  return bit.bnot(crc) % 2 ^ 32
end

local function masked(text)
  local crc = crc32c(text)
  local rotated = math.floor(crc / 2 ^ 15) + crc % 2 ^ 15 * 2 ^ 17
  return (rotated + 0xa282ead8) % 2 ^ 32
end

local function number(text, at, bytes)
  local value = 0
  for i = bytes, 1, -1 do value = value * 256 + text:byte(at + i - 1) end
  return value
end

local function records(content)
  local list, at = {}, 1
  while at <= #content do
    local length = number(content, at, 8)
    assert.equal(masked(content:sub(at, at + 7)), number(content, at + 8, 4))
    local data = content:sub(at + 12, at + 11 + length)
    assert.equal(length, #data)
    assert.equal(masked(data), number(content, at + 12 + length, 4))
    list[#list + 1] = data
    at = at + 16 + length
  end
  return list
end

-- A message as { field, value } pairs: numbers of varints, raw bytes of everything else.
local function fields(message)
  local list, at = {}, 1
  local function varint()
    local value, scale = 0, 1
    repeat
      local byte = message:byte(at)
      at = at + 1
      value, scale = value + byte % 128 * scale, scale * 128
    until byte < 128
    return value
  end
  while at <= #message do
    local head = varint()
    local kind, value = head % 8
    if kind == 0 then
      value = varint()
    else
      local bytes = kind == 1 and 8 or kind == 5 and 4 or kind == 2 and varint()
      assert(bytes, "kind " .. kind)
      value = message:sub(at, at + bytes - 1)
      at = at + bytes
    end
    list[#list + 1] = { math.floor(head / 8), value }
  end
  return list
end

local function as(kind, bytes)
  local value = ffi.new(kind .. "[1]")
  ffi.copy(value, bytes, ffi.sizeof(value))
  return tonumber(value[0])
end

local function events(path)
  local file = assert(io.open(path, "rb"))
  local content = file:read("*a")
  file:close()
  local list = {}
  for i, data in ipairs(records(content)) do
    local found = { scalars = {} }
    for _, field in ipairs(fields(data)) do
      if field[1] == 1 then found.time = as("double", field[2]) end
      if field[1] == 2 then found.step = field[2] end
      if field[1] == 3 then found.version = field[2] end
      for _, value in ipairs(field[1] == 5 and fields(field[2]) or {}) do
        assert.equal(1, value[1])
        local entry = fields(value[2])
        assert.equal(1, entry[1][1])
        assert.equal(2, entry[2][1])
        found.scalars[entry[1][2]] = as("float", entry[2][2])
      end
    end
    list[i] = found
  end
  return list
end

local function only_file(folder)
  local path = io.popen("ls " .. folder .. "/events.out.tfevents.*"):read("*l")
  return assert(path, "no event file in " .. folder)
end

describe("tensorboard", function()
  local folder

  before_each(function() folder = scratch.path() end)

  after_each(scratch.clear)

  it("checksums as RFC 3720 has them", function()
    assert.equal(0xe3069283, tensorboard.crc32c("123456789"))
    assert.equal(0x8a9136aa, tensorboard.crc32c(("\0"):rep(32)))
    assert.equal(0x62a8ab43, tensorboard.crc32c(("\255"):rep(32)))
    assert.equal(0, tensorboard.crc32c(""))
  end)

  it("writes scalars that a decoder of its own reads back", function()
    local file = tensorboard.open(folder .. "/deep/er")
    local before = os.time()
    file:add(1, { loss = 2.5, lr = 1e-3, tokens = 77, comm_bytes = { shard = 1 }, wire_bytes = { shard = 3 },
      peak_bytes = 2 ^ 33 })
    file:add(300, { loss = 0 / 0, valid_loss = -1.25, ema = 7 })
    file:add(2 ^ 40, { loss = 1 })
    local list = events(only_file(folder .. "/deep/er"))
    assert.equal(4, #list)
    assert.equal("brain.Event:2", list[1].version)
    for _, event in ipairs(list) do assert.is_true(math.abs(event.time - before) < 60) end
    assert.equal(1, list[2].step)
    assert.same({ ["loss/train"] = 2.5, ["train/lr"] = as("float", ffi.string(ffi.new("float[1]", 1e-3), 4)),
      ["memory/peak_bytes"] = 2 ^ 33, ["comm/shard_bytes"] = 1, ["comm/shard_wire_bytes"] = 3 },
      list[2].scalars)
    assert.equal(300, list[3].step)
    assert.is_true(list[3].scalars["loss/train"] ~= list[3].scalars["loss/train"])
    assert.equal(-1.25, list[3].scalars["loss/valid"])
    assert.equal(7, list[3].scalars["train/ema"])
    assert.equal(2 ^ 40, list[4].step)
  end)

  it("has the scalars of further trainers under their numbers", function()
    local file = tensorboard.open(folder)
    file:add(1, { loss = 1, comm_bytes = { shard = 5 } }, 1)
    file:add(1, { loss = 2, comm_bytes = { shard = 6 } }, 2)
    local list = events(only_file(folder))
    assert.same({ ["loss/train"] = 1, ["comm/shard_bytes"] = 5 }, list[2].scalars)
    assert.same({ ["trainer_2/loss/train"] = 2, ["trainer_2/comm/shard_bytes"] = 6 }, list[3].scalars)
  end)

  it("has the losses of a run that was asked for it", function()
    local ended = program.run({ "run", "recipes/toy_hsdp.lua", "-n", "2", "mesh=1x2", "steps=5", "--tensorboard",
      folder })
    assert.equal(0, ended.status, ended.err)
    local list = events(only_file(folder))
    assert.equal(6, #list)
    for step = 1, 5 do
      assert.equal(step, list[step + 1].step)
      assert.is_true(list[step + 1].scalars["loss/train"] > 0)
      assert.is_true(list[step + 1].scalars["speed/step_ms"] > 0)
    end
  end)

  it("has a recipe's own metrics, and where the time of a step went", function()
    local ended = program.run({ "run", "tests/lua/recipes/sweep_point.lua", "-n", "2", "mesh=1x2", "steps=3",
      "score=true", "--tensorboard", folder })
    assert.equal(0, ended.status, ended.err)
    local list = events(only_file(folder))
    assert.equal(4, #list)
    for step = 1, 3 do
      local scalars = list[step + 1].scalars
      assert.equal(4 * step, scalars["train/score"])
      assert.is_true(scalars["speed/exposed_ms"] > 0 and scalars["speed/exposed_ms"] < scalars["speed/step_ms"])
    end
  end)
end)
