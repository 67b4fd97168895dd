-- TensorBoard event files: the scalars of every step, as protocol buffer records.
--
-- A file is a list of TFRecords: length (64 bits), checksum of the length, data, checksum of the data; little-endian.
-- Checksums are CRC-32C (Castagnoli), masked as the format requires. The data is an Event message (tensorboard's
-- event.proto): field 1 wall_time (double), 2 step (int64), 3 file_version (string), 5 summary, 7 session_log. A
-- Summary has Values in field 1, each with 1 tag (string) and 2 simple_value (float); a SessionLog has 1 status.

local bit = require("bit")
local ffi = require("ffi")
local clock = require("moonshard.base.clock")
local errors = require("moonshard.base.error")
local output_file = require("moonshard.base.files.output_file")

ffi.cdef "int gethostname(char *name, size_t bytes); int getpid(void);"

local tensorboard = {}

-- The tag of each metric of a step.
local TAGS = {
  loss = "loss/train", valid_loss = "loss/valid", grad_norm = "train/grad_norm", lr = "train/lr",
  tokens_per_s = "speed/tokens_per_s", step_ms = "speed/step_ms", exposed_ms = "speed/exposed_ms", mfu = "speed/mfu",
  data_ms = "speed/data_ms", peak_bytes = "memory/peak_bytes",
}

-- ---- records --------------------------------------------------------------------------------------------------------

local table_of_bytes

local function make_table()
  local made = ffi.new("uint32_t[256]")
  for byte = 0, 255 do
    local rest = byte
    for _ = 1, 8 do
      local low = bit.band(rest, 1)
      rest = bit.rshift(rest, 1)
      if low == 1 then rest = bit.bxor(rest, 0x82f63b78) end
    end
    made[byte] = rest
  end
  return made
end

---CRC-32C of a text (RFC 3720, section B.4).
---@param text string
---@return integer from 0 to 2^32 - 1
function tensorboard.crc32c(text)
  table_of_bytes = table_of_bytes or make_table()
  local crc = -1
  for i = 1, #text do
    local entry = bit.tobit(table_of_bytes[bit.band(bit.bxor(crc, text:byte(i)), 255)])
    crc = bit.bxor(bit.rshift(crc, 8), entry)
  end
  return bit.bnot(crc) % 2 ^ 32
end

local function little_endian(number, bytes)
  local list = {}
  for i = 1, bytes do
    list[i] = string.char(number % 256)
    number = math.floor(number / 256)
  end
  return table.concat(list)
end

-- Rotated and offset, so that checksums of data that itself contains checksums stay strong.
local function masked_crc(text)
  local crc = bit.tobit(tensorboard.crc32c(text))
  return little_endian((bit.ror(crc, 15) % 2 ^ 32 + 0xa282ead8) % 2 ^ 32, 4)
end

local function record(data)
  local length = little_endian(#data, 8)
  return length .. masked_crc(length) .. data .. masked_crc(data)
end

-- ---- protocol buffers -----------------------------------------------------------------------------------------------

local VARINT, SIXTY_FOUR_BITS, BYTES, THIRTY_TWO_BITS = 0, 1, 2, 5

local function varint(number)
  local list = {}
  while number >= 128 do
    list[#list + 1] = string.char(number % 128 + 128)
    number = math.floor(number / 128)
  end
  return table.concat(list) .. string.char(number)
end

local function key(field, kind) return varint(8 * field + kind) end

local function bytes_field(field, text) return key(field, BYTES) .. varint(#text) .. text end

local function double_field(field, number)
  return key(field, SIXTY_FOUR_BITS) .. ffi.string(ffi.new("double[1]", number), 8)
end

local function float_field(field, number)
  return key(field, THIRTY_TWO_BITS) .. ffi.string(ffi.new("float[1]", number), 4)
end

local function event(seconds, rest) return record(double_field(1, seconds) .. rest) end

-- ---- files ----------------------------------------------------------------------------------------------------------

---@class moonshard.EventFile
---@field path string
---@field file file*
local EventFile = {}
EventFile.__index = EventFile

local function write(self, data)
  local ok, why = self.file:write(data)
  if ok then
    ok, why = self.file:flush()
  end
  if not ok then errors.raise("MS_EIO", "event file %s: %s", self.path, why) end
end
jit.off(write) -- as in log.lua: if a compiled flush fails, the interpreter repeats it

-- Seconds since 1970 with fractions; the system clock of Lua returns whole seconds.
local function wall_time(self) return self.began + clock.now() - self.began_at end

---Creates an event file in a folder, and the folder if it does not exist. Runs that resume in the same folder add
---files, and TensorBoard shows them as one.
---@param folder string
---@return moonshard.EventFile
function tensorboard.open(folder)
  local host = ffi.new("char[256]")
  ffi.C.gethostname(host, 255)
  local began = os.time()
  output_file.make_folders("event file", folder .. "/")
  local path = ("%s/events.out.tfevents.%010d.%s.%d.0"):format(folder, began, ffi.string(host), ffi.C.getpid())
  local file, why = io.open(path, "wb")
  if not file then errors.raise("MS_EINVAL", "event file %s", why) end
  local self = setmetatable({ path = path, file = file, began = began, began_at = clock.now() }, EventFile)
  write(self, event(wall_time(self), bytes_field(3, "brain.Event:2")))
  return self
end

local SESSION_STARTS = 1

---The run resumes at a step: TensorBoard drops this and later steps from the folder's earlier files.
---@param step integer
function EventFile:restart(step)
  write(self, event(wall_time(self), key(2, VARINT) .. varint(step)
    .. bytes_field(7, key(1, VARINT) .. varint(SESSION_STARTS))))
end

---Adds the scalars of a step.
---@param step integer
---@param m table metrics returned by train:step; further numbers appear as train/NAME, and the entries of comm_bytes,
---  wire_bytes and waits_ms, one per mesh dimension, as comm/DIMENSION_bytes, ..._wire_bytes and ..._waits_ms
---@param trainer integer? its number; those of further trainers, from 2, are under trainer_2/
function EventFile:add(step, m, trainer)
  local under = trainer and trainer > 1 and ("trainer_%d/"):format(trainer) or ""
  local tags, scalars, values = {}, {}, {}
  local function take(tag, value) tags[#tags + 1], scalars[tag] = tag, value end
  for name, value in pairs(m) do
    if type(value) == "number" and name ~= "tokens" then take(TAGS[name] or "train/" .. name, value) end
  end
  for dimension, bytes in pairs(m.comm_bytes or {}) do take("comm/" .. dimension .. "_bytes", bytes) end
  for dimension, bytes in pairs(m.wire_bytes or {}) do take("comm/" .. dimension .. "_wire_bytes", bytes) end
  for dimension, ms in pairs(m.waits_ms or {}) do take("comm/" .. dimension .. "_waits_ms", ms) end
  table.sort(tags)
  for i, tag in ipairs(tags) do
    values[i] = bytes_field(1, bytes_field(1, under .. tag) .. float_field(2, scalars[tag]))
  end
  write(self, event(wall_time(self), key(2, VARINT) .. varint(step) .. bytes_field(5, table.concat(values))))
end

return tensorboard
