-- Our side of the checkpoint benchmark, the twin of peer_checkpoint.py: the GPT of train.lua, with AdamW's state.
--
--   moonshard run tests/bench/checkpoint.lua -n 2 dir=build/bench/checkpoints
--
-- Rank 0 prints one JSON line, of the best of `rounds`: save_s and load_s, from the first rank's beginning to the last
-- one's end, files on disk; and the same bytes from and to memory of that size by plain calls of 1 MiB, one file a
-- rank, without a look at them: write_s, written and then synced; begun_s, where the disk is told to begin every 4 MiB,
-- which is faster; cached_s, to the page cache alone; read_s. load_s and read_s are from the page cache, load_cold_s
-- and read_cold_s from the disk. The same as medians, save_median_s and so on, and with _cpu_s in seconds of the first
-- rank's processor, which other work on the machine hardly changes; bytes of all ranks together.
-- With `saves` in the background also held_ms, step_ms and step_cpu_ms, and of as many pairs of windows of steps, one
-- of which begins with a save that is on disk at its end, by how much that one takes longer, the median with the
-- quartiles: added_ms, and added_cpu_ms of the first rank's processor. save_cpu_ms is what a save itself takes of the
-- latter, while training is held and in its thread (with one thread a rank there is no other), which other work hardly
-- changes.

local ffi = require("ffi")
local clock = require("moonshard.base.clock")
local ms = require("moonshard")
local re = ms.re
local world = ms.world()

ffi.cdef [[
int open(const char *path, int flags, ...);
int64_t pwrite(int file, const void *data, size_t bytes, int64_t at);
int64_t pread(int file, void *data, size_t bytes, int64_t at);
int fsync(int file);
int sync_file_range(int file, int64_t at, int64_t bytes, unsigned flags);
int close(int file);
int posix_fadvise(int file, int64_t at, int64_t bytes, int advice);
]]

local cfg = ms.args {
  dir = "build/bench/checkpoints", layers = 6, dim = 384, heads = 6, seq = 256, batch = 8, vocab = 256, mesh = "1x2",
  rounds = 7, window = 8, saves = 24,
}

local model = ms.models.gpt2 {
  vocab = cfg.vocab, layers = cfg.layers, dim = cfg.dim, heads = cfg.heads, seq = cfg.seq,
}
ms.fully_shard(model, {
  mesh = ms.init_device_mesh(cfg.device, cfg.mesh, { "replicate", "shard" }), units = { re[[^layers\.\d+$]] },
})
local train = ms.trainer {
  model = model, loss = ms.loss.cross_entropy, optimizer = ms.optim.adamw { lr = 1e-3, weight_decay = 0.1 },
}

local count = cfg.batch * cfg.seq
local tokens = ffi.new("int32_t[?]", count)
for i = 0, count - 1 do tokens[i] = (i * 7 + world.rank) % cfg.vocab end
local array = { data = tokens, dtype = "i32", shape = { cfg.batch, cfg.seq } }
local batch = { tokens = array, targets = array }

-- ---- seconds from the first rank's beginning to the last one's end ------------------------------------------------

-- And seconds of this rank's processor.
local function timed(call)
  train.session:gather_numbers(0)
  local began, worked = clock.now(), os.clock()
  call()
  worked = os.clock() - worked
  train.session:gather_numbers(0)
  return clock.now() - began, worked
end

local O_WRONLY_CREAT_TRUNC, SYNC_FILE_RANGE_WRITE, PIECE, STRETCH = 577, 2, 2 ^ 20, 2 ^ 22
local memory -- as much as this rank saves

-- how: "synced", "begun" or "cached"
local function plain_write(path, bytes, how)
  local file = ffi.C.open(path, O_WRONLY_CREAT_TRUNC, ffi.cast("int", 420))
  for at = 0, bytes - 1, PIECE do
    local n = math.min(PIECE, bytes - at)
    assert(tonumber(ffi.C.pwrite(file, memory + at, n, at)) == n, "a plain write")
    if how == "begun" and (at + n) % STRETCH == 0 then ffi.C.sync_file_range(file, 0, 0, SYNC_FILE_RANGE_WRITE) end
  end
  if how ~= "cached" then assert(ffi.C.fsync(file) == 0) end
  ffi.C.close(file)
end

local function plain_read(path, bytes)
  local file = ffi.C.open(path, 0)
  for at = 0, bytes - 1, PIECE do
    local n = math.min(PIECE, bytes - at)
    assert(tonumber(ffi.C.pread(file, memory + at, n, at)) == n, "a plain read")
  end
  ffi.C.close(file)
end

-- Out of the page cache; the file is on disk.
local POSIX_FADV_DONTNEED = 4
local function evict(path)
  local file = ffi.C.open(path, 0)
  assert(ffi.C.posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED) == 0)
  ffi.C.close(file)
end

local function best(list) return math.min(unpack(list)) end

local function median(list)
  local sorted = { unpack(list) }
  table.sort(sorted)
  return sorted[math.ceil(#sorted / 2)]
end

-- ---- saving and loading --------------------------------------------------------------------------------------------

if world.rank == 0 then os.execute(("rm -rf %s; mkdir -p %s"):format(cfg.dir, cfg.dir)) end
train:step(batch)
local KINDS = { "save", "load", "load_cold", "write", "begun", "cached", "read", "read_cold" }
local seconds, worked = {}, {}
for _, kind in ipairs(KINDS) do seconds[kind], worked[kind] = {}, {} end
local plain = ("%s/plain-%d"):format(cfg.dir, world.rank)
local root = cfg.dir .. "/saved"
local bytes
for round = 1, cfg.rounds do
  local path
  local function measure(kind, call) seconds[kind][round], worked[kind][round] = timed(call) end
  measure("save", function() path = ms.checkpoint.save(train, root) end)
  if round == 1 then
    bytes = train.session.saver.bytes
    memory = ffi.new("uint8_t[?]", bytes)
    local words = ffi.cast("uint32_t *", memory)
    for i = 0, bytes / 4 - 1 do words[i] = i * 2654435761 % 2 ^ 32 end
  end
  measure("cached", function() plain_write(plain, bytes, "cached") end)
  os.remove(plain)
  measure("write", function() plain_write(plain, bytes, "synced") end)
  os.remove(plain)
  measure("begun", function() plain_write(plain, bytes, "begun") end)
  evict(("%s/rank-%05d.safetensors"):format(path, world.rank))
  for _, from in ipairs({ "load_cold", "load" }) do
    measure(from, function() ms.checkpoint.load(train, path) end)
  end
  evict(plain)
  for _, from in ipairs({ "read_cold", "read" }) do measure(from, function() plain_read(plain, bytes) end) end
  os.remove(plain)
  train.session:gather_numbers(0)
  if world.rank == 0 then os.execute("rm -r " .. path) end
end

-- ---- in the background ---------------------------------------------------------------------------------------------

local CLOCK_PROCESS_CPUTIME_ID, CLOCK_THREAD_CPUTIME_ID = 2, 3
local time = ffi.new("ms_lua_timespec") -- of moonshard.clock, with its clock_gettime
local function cpu_seconds(of)
  ffi.C.clock_gettime(of, time)
  return tonumber(time.seconds) + 1e-9 * tonumber(time.nanoseconds)
end
local function of_other_threads()
  return cpu_seconds(CLOCK_PROCESS_CPUTIME_ID) - cpu_seconds(CLOCK_THREAD_CPUTIME_ID)
end

-- Seconds, and those of the processor with the writing thread's, of `window` steps, the first of which begins with a
-- save or does not; it is on disk at the end.
local held, save_cpu = {}, {}
local function window(saves)
  return timed(function()
    local began, here, elsewhere = clock.now(), cpu_seconds(CLOCK_THREAD_CPUTIME_ID), of_other_threads()
    if saves then
      ms.checkpoint.save(train, root, { async = true, keep_last = 1 })
      held[#held + 1], here = clock.now() - began, cpu_seconds(CLOCK_THREAD_CPUTIME_ID) - here
    end
    for _ = 1, cfg.window do train:step(batch) end
    ms.checkpoint.finish(train)
    if saves then save_cpu[#save_cpu + 1] = here + of_other_threads() - elsewhere end
  end)
end

if cfg.saves > 0 then window(true) end -- takes the memory of the copy
-- Both of a pair meet the same other work on the machine, which comes and goes.
local spent, cpu = { [false] = {}, [true] = {} }, { [false] = {}, [true] = {} }
for i = 1, cfg.saves do
  for _, saves in ipairs({ i % 2 == 0, i % 2 == 1 }) do spent[saves][i], cpu[saves][i] = window(saves) end
end

local function at(list, share)
  table.sort(list)
  return list[math.max(1, math.ceil(share * #list))]
end

-- In ms: the median, and the quartiles around it.
local function added(by)
  local more = {}
  for i = 1, cfg.saves do more[i] = 1e3 * (by[true][i] - by[false][i]) end
  return at(more, 0.5), { at(more, 0.25), at(more, 0.75) }
end

table.remove(held, 1)
table.remove(save_cpu, 1)
local total = 0
for _, mine in ipairs(train.session:gather_numbers(bytes)) do total = total + mine end
if world.rank == 0 then
  os.execute("rm -rf " .. cfg.dir)
  local result = { bytes = total }
  for what in pairs(seconds) do
    result[what .. "_s"], result[what .. "_cpu_s"] = best(seconds[what]), best(worked[what])
    result[what .. "_median_s"] = median(seconds[what])
  end
  if cfg.saves > 0 then
    result.added_ms, result.added_ms_quartiles = added(spent)
    result.added_cpu_ms, result.added_cpu_ms_quartiles = added(cpu)
    result.held_ms, result.step_ms = 1e3 * at(held, 0.5), 1e3 * at(spent[false], 0.5) / cfg.window
    result.save_cpu_ms = 1e3 * at(save_cpu, 0.5)
    result.step_cpu_ms = 1e3 * at(cpu[false], 0.5) / cfg.window
  end
  print(require("moonshard.base.text.json").encode(result))
end
