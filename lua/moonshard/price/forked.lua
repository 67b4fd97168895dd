-- A list of plans that is divided among copies of this process, one per core: each compiles every n-th plan and sends
-- what it found, and what it printed, as a line of JSON. Results come in the order of the list, and nothing that a
-- caller or a user sees depends on the number of copies.
--
-- A copy has all that was read so far, such as the recipe and the cluster. Only the calling thread is copied, so a
-- process with other threads makes no copies. Linux only.

local engine = require("moonshard.base.ffi")
local errors = require("moonshard.base.error")
local input_file = require("moonshard.base.files.input_file")
local json = require("moonshard.base.text.json")
local plans = require("moonshard.engine.plan")
local posix = require("moonshard.base.posix")
local recipe = require("moonshard.recipe.file")
local refuse = require("moonshard.base.exit_status").refuse
local world = require("moonshard.distributed.world")
local ffi, C = engine.ffi, engine.C

local forked = {}

local STANDARD_OUTPUT, STANDARD_ERROR = 1, 2

local TICK_MS = 100
local BUFFER_BYTES = 65536
-- A copy first interprets what this process would have compiled to machine code by then: fewer plans are no faster.
local MIN_PLANS = 8

---The number of processes that a list is divided among unless told.
---@param count integer length of the list
---@return integer at least 1
function forked.processes(count)
  local in_executable, host = pcall(require, "moonshard.host")
  local cores = in_executable and host.cores().usable or 1
  return math.max(1, math.min(cores, math.floor(count / MIN_PLANS)))
end

local function has_threads()
  local status = input_file.text("/proc/self/status")
  return not status or status:match("Threads:%s*(%d+)") ~= "1"
end

-- ---- a copy -----------------------------------------------------------------------------------------------------

local function write_all(descriptor, text)
  local at = 0
  while at < #text do
    local n = tonumber(C.write(descriptor, ffi.cast("const char *", text) + at, #text - at))
    if n < 0 and ffi.errno() ~= posix.EINTR then C._exit(1) end
    at = at + math.max(0, n)
  end
end

-- What was written to a file from a position on, and the next position.
local function written(descriptor, from)
  local to = tonumber(C.lseek(descriptor, 0, posix.SEEK_CUR))
  if to <= from then return nil, from end
  local buffer = ffi.new("char[?]", to - from)
  return ffi.string(buffer, tonumber(C.pread(descriptor, buffer, to - from, from))), to
end

-- Errors of the Lua layer keep their fields; others become text.
local function describe(raised)
  if not errors.is(raised) then return { text = tostring(raised) } end
  local fields = {}
  for name, value in pairs(raised) do fields[name] = value end
  return { fields = fields }
end

-- Sends a line with what was printed since the last one.
local function sender(descriptor)
  local out, err = 0, 0
  return function(line)
    io.stdout:flush()
    line.out, out = written(STANDARD_OUTPUT, out)
    line.err, err = written(STANDARD_ERROR, err)
    write_all(descriptor, json.encode(line) .. "\n")
  end
end

-- Calls `work` for every n-th item, and sends what came of it, until one raises or calls os.exit.
local function be_copy(descriptor, first, o)
  local send = sender(descriptor)
  recipe.exit = function(status)
    send({ exit = status })
    C._exit(0)
  end
  plans.listed(function()
    for i = first, o.count, o.processes do
      local ok, result = pcall(o.work, i)
      send(ok and { result = result } or { raised = describe(result) })
      if not ok then return end
    end
  end)
end

-- What a copy prints goes to files, so that it can be printed in order.
local function become_copy(descriptor, first, parent, o)
  C.prctl(posix.PR_SET_PDEATHSIG, ffi.cast("unsigned long", posix.SIGKILL))
  for _, stream in ipairs({ STANDARD_OUTPUT, STANDARD_ERROR }) do
    local file = C.memfd_create("moonshard-printed", 0)
    if file < 0 or C.dup2(file, stream) < 0 then return end
  end
  if C.getppid() == parent then be_copy(descriptor, first, o) end
end

local function start(first, o)
  local ends, parent = ffi.new("int[2]"), C.getpid()
  if C.pipe2(ends, posix.O_CLOEXEC) ~= 0 then refuse("MS_EIO", "cannot make a pipe (errno %d)", ffi.errno()) end
  local pid = C.fork()
  if pid == 0 then
    pcall(become_copy, ends[1], first, parent, o)
    C._exit(0)
  end
  local number = ffi.errno()
  C.close(ends[1])
  if pid < 0 then
    C.close(ends[0])
    refuse("MS_EIO", "cannot start a process (errno %d)", number)
  end
  return { pid = pid, descriptor = ends[0], text = "" }
end

-- ---- this process -----------------------------------------------------------------------------------------------

local function stop(copies)
  for _, copy in ipairs(copies) do
    if not copy.ended then
      C.kill(copy.pid, posix.SIGKILL)
      C.waitpid(copy.pid, nil, 0)
    end
    C.close(copy.descriptor)
  end
end

local function died(copy)
  local status = ffi.new("int[1]")
  C.waitpid(copy.pid, status, 0)
  copy.ended = true
  local signal = status[0] % 128
  refuse("MS_EPEER", "a process that compiled plans ended too early, with %s: divide the list if memory ran out",
    signal ~= 0 and "signal " .. signal or "exit status " .. math.floor(status[0] / 256))
end

-- The next line of a copy.
local function next_line(copy, buffer, wanted)
  while true do
    local line, rest = copy.text:match("^([^\n]*)\n(.*)$")
    if line then
      copy.text = rest
      return assert(json.decode(line))
    end
    world.check_interrupt()
    wanted[0].descriptor, wanted[0].events = copy.descriptor, posix.POLLIN
    if C.poll(wanted, 1, TICK_MS) > 0 then
      local n = tonumber(C.read(copy.descriptor, buffer, BUFFER_BYTES))
      if n == 0 then died(copy) end
      if n > 0 then copy.text = copy.text .. ffi.string(buffer, n) end
    end
  end
end

-- Takes the results in order; returns the exit status if a recipe called os.exit instead.
local function take_all(copies, o)
  local buffer, wanted = ffi.new("char[?]", BUFFER_BYTES), ffi.new("ms_lua_pollfd[1]")
  for i = 1, o.count do
    local line = next_line(copies[(i - 1) % o.processes + 1], buffer, wanted)
    if line.out then io.write(line.out) end
    if line.err then io.stderr:write(line.err) end
    local raised = line.raised
    if raised then error(raised.fields and errors.new(raised.fields) or raised.text, 0) end
    if line.exit then return line.exit end
    o.take(i, line.result)
  end
end

-- Percent of the memory in use after a collection at which the next one begins. Each plan makes a model and drops it:
-- collecting less often saves a quarter of the time and costs some 20 MB.
local COLLECT_AT = 400
-- How much a step of a collection does, in percent of what was allocated since the last one. LuaJIT takes a step after
-- each kilobyte: with its 200 percent, starting them is a part of the time.
local COLLECT_BY = 1000
-- Of LuaJIT, which forgets all machine code at these limits. By default a list of plans reaches them again and again.
local MACHINE_CODE = { "maxtrace=8000", "maxmcode=16384" }

---@class moonshard.ForkedList
---@field count integer
---@field work fun(i: integer): table? returns what JSON can hold
---@field take fun(i: integer, result: table?)
---@field processes integer? default: forked.processes

---Calls `work` for the numbers 1 to `count`, and `take` with each result, in order. An error of `work` ends the list
---and is raised when all results before it were taken.
---@param o moonshard.ForkedList
function forked.each(o)
  collectgarbage("setpause", COLLECT_AT)
  collectgarbage("setstepmul", COLLECT_BY)
  jit.opt.start(unpack(MACHINE_CODE))
  o.processes = math.min(o.processes or forked.processes(o.count), o.count)
  if o.processes <= 1 or has_threads() then
    plans.listed(function()
      for i = 1, o.count do o.take(i, o.work(i)) end
    end)
    return
  end
  io.stdout:flush()
  io.flush()
  local copies = {}
  local ok, result = pcall(function()
    for first = 1, o.processes do copies[first] = start(first, o) end
    return take_all(copies, o)
  end)
  stop(copies)
  if not ok then error(result, 0) end
  if result then recipe.exit(result) end
end

return forked
