-- The file of --metrics: what a run that goes on makes of it, and what a full disk leaves.

local ffi = require("ffi")
local json = require("cjson")
local metrics_file = require("moonshard.metrics.metrics_file")
local has = require("lua.support.message").has
local output_file = require("moonshard.base.files.output_file")
local program = require("lua.support.program")
local scratch = require("lua.support.scratch")

ffi.cdef [[
typedef struct { unsigned long soft, hard; } ms_spec_rlimit;
int setrlimit(int resource, const ms_spec_rlimit *limit);
int getrlimit(int resource, ms_spec_rlimit *limit);
void (*signal(int number, void (*handler)(int)))(int);
]]
local RLIMIT_FSIZE, SIGXFSZ = 1, 25

local read, write = scratch.read, scratch.write

local function line(step, loss) return ('{"step":%d,"loss":%g}\n'):format(step, loss or 0.5) end

local function steps_of(path)
  local steps = {}
  for text in io.lines(path) do steps[#steps + 1] = json.decode(text).step end
  return steps
end

local function range(first, last)
  local list = {}
  for i = first, last do list[#list + 1] = i end
  return list
end

-- Opens the file, as the run that comes when the one before has ended.
local opened
local function open(path)
  if opened then opened:close() end
  opened = nil
  opened = metrics_file.open(path)
  return opened
end

describe("the metrics file", function()
  local path

  before_each(function() path = os.tmpname() end)
  after_each(function() os.remove(path) end)

  it("is started again by the first step of a run, and not before", function()
    write(path, line(1) .. line(2))
    local file = open(path)
    assert.equal(line(1) .. line(2), read(path))
    file:add(1, { loss = 2 }, 1)
    file:add(2, { loss = 3 }, 1)
    assert.equal(line(1, 2) .. line(2, 3), read(path))
  end)

  it("goes on after the step of a checkpoint, each step once", function()
    write(path, line(1) .. line(2) .. line(3) .. line(4))
    local file = open(path)
    has(file:resume(2, 1), ("metrics: %s | step 2 | 2 later lines"):format(path))
    assert.equal(line(1) .. line(2), read(path))
    file:add(3, { loss = 9 }, 1)
    assert.equal(line(1) .. line(2) .. line(3, 9), read(path))
    -- Nothing came later, and what a crash cut off goes.
    local resumed = open(path):resume(7, 1)
    has(resumed, ("metrics: %s | step 7"):format(path))
    assert.is_nil(resumed:find("line", 1, true))
    write(path, line(1) .. '{"step":2,"lo')
    has(open(path):resume(2, 1), ("metrics: %s | step 2 | 1 later line"):format(path))
    assert.equal(line(1), read(path))
    -- A recipe that counts the steps of all its stages: the trainer's own step decides.
    write(path, "")
    local stages = open(path)
    for step = 11, 14 do stages:add(step, { loss = step }, 1, step - 10) end
    local lines = read(path)
    has(lines, '{"step":12,"loss":12 | "trainer_step":2')
    has(open(path):resume(3, 1), ("metrics: %s | step 3 | 1 later line"):format(path))
    assert.equal(lines:match("^(.-\n){\"step\":14"), read(path))
    -- A recipe that went back to step 3 by hand, or logs a step twice: what came last counts.
    local function kept(steps, step)
      local text = {}
      for i, at in ipairs(steps) do text[i] = line(at, i) end
      write(path, table.concat(text))
      open(path):resume(step, 1)
      local list = {}
      for loss in read(path):gmatch('"loss":(%d+)') do list[#list + 1] = tonumber(loss) end
      return list
    end
    assert.same({ 1, 2, 3, 7, 8 }, kept({ 1, 2, 3, 4, 5, 6, 4, 5, 6 }, 5))
    assert.same({ 1, 2, 3, 7, 8, 9 }, kept({ 1, 2, 3, 4, 5, 6, 4, 5, 6 }, 9))
    assert.same({ 1, 2, 3, 4 }, kept({ 1, 2, 2, 2, 3, 3 }, 2))
    -- What was logged before the first step stays, too.
    write(path, line(0) .. line(1) .. line(2))
    has(open(path):resume(1, 1), ("metrics: %s | step 1 | 1 later line"):format(path))
    assert.equal(line(0) .. line(1), read(path))
    write(path, "")
    assert.is_nil(open(path):resume(5, 1))
  end)

  it("keeps the lines of other trainers, wherever they are", function()
    local function second(step, loss) return (line(step, loss):gsub("}\n$", ',"trainer":2}\n')) end
    write(path, line(1) .. line(2) .. second(1) .. line(3) .. second(2) .. second(3) .. line(4))
    has(open(path):resume(2, 1), "step 2 | 2 later lines")
    assert.equal(line(1) .. line(2) .. second(1) .. second(2) .. second(3), read(path))
    local file = open(path)
    has(file:resume(1, 2), "step 1 | 2 later lines")
    file:add(2, { loss = 4 }, 2)
    file:add(3, { loss = 5 }, 1)
    assert.equal(line(1) .. line(2) .. second(1) .. second(2, 4) .. line(3, 5), read(path))
  end)

  it("goes on before the zeros that a power cut left, at the end or between lines", function()
    for _, rest in ipairs({ ("\0"):rep(5000), ("\0"):rep(100) .. line(3) .. line(4), '{"step":3,\0\n' .. line(4) }) do
      write(path, line(1) .. line(2) .. rest)
      local said = open(path):resume(4, 1)
      has(said, "step 4 | line")
      assert.equal(line(1) .. line(2), read(path))
    end
  end)

  it("never replaces a file that contains something else", function()
    for _, text in ipairs({ "hello\n", "{}", "\n", " " .. line(1), '{"steps":[' }) do
      write(path, text)
      local ok, raised = pcall(open, path)
      assert.is_false(ok)
      has(tostring(raised), path .. " | metrics | another name | delete")
      assert.equal(text, read(path))
    end
    write(path, '{"st') -- cut off by a crash
    open(path):add(1, { loss = 2 }, 1)
    assert.equal(line(1, 2), read(path))
  end)

  it("is of one run alone, and so are a trace and the logs of ranks", function()
    local folder = scratch.path()
    os.execute("mkdir " .. folder)
    local recipe = program.recipe('print("started")')
    local others = {
      [output_file.claim("metrics file", folder .. "/metrics")] = { "--metrics", folder .. "/metrics" },
      [output_file.claim("trace", folder .. "/trace")] = { "--trace", folder .. "/trace" },
      [output_file.claim("log file", folder .. "/rank-1.log")] = { "-n", "2", "--log-dir", folder },
    }
    for file, options in pairs(others) do
      file:write('{"step":')
      local ended = program.run({ "run", recipe, unpack(options) })
      assert.equal(2, ended.status, ended.err)
      assert.equal("", ended.out)
      has(ended.err, folder .. " | another run")
      file:close()
    end
    for _, name in ipairs({ "metrics", "trace", "rank-1.log" }) do
      assert.equal('{"step":', read(folder .. "/" .. name))
    end
    os.remove(recipe)
    local one, other = output_file.claim("metrics file", "/dev/null"), output_file.claim("metrics file", "/dev/null")
    one:close()
    other:close()
    open(path):add(1, { loss = 2 }, 1)
    has(select(2, pcall(metrics_file.open, path)).message, path .. " | another run")
  end)

  it("has whole lines or none of them on a disk that is full", function()
    local limit, old = ffi.new("ms_spec_rlimit"), ffi.new("ms_spec_rlimit")
    local file = open(path)
    file:add(1, { loss = 0.5 }, 1)
    ffi.C.getrlimit(RLIMIT_FSIZE, old)
    limit.soft, limit.hard = #line(1) + 10, old.hard
    local handler = ffi.C.signal(SIGXFSZ, ffi.cast("void (*)(int)", 1))
    ffi.C.setrlimit(RLIMIT_FSIZE, limit)
    local ok, raised = pcall(file.add, file, 2, { loss = 0.25 }, 1)
    ffi.C.setrlimit(RLIMIT_FSIZE, old)
    ffi.C.signal(SIGXFSZ, handler)
    assert.is_false(ok)
    assert.equal("MS_EIO", raised.status)
    has(tostring(raised), "File too large")
    assert.equal(line(1), read(path))
    file:add(2, { loss = 0.25 }, 1)
    assert.equal(line(1) .. line(2, 0.25), read(path))
  end)

  it("contains every step once when a run is started again", function()
    local folder = os.tmpname()
    os.remove(folder)
    local function run(settings)
      return program.run({ "run", "recipes/quickstart.lua", "-n", "2", "mesh=1x2", "layers=1", "dim=16", "heads=2",
        "seq=16", "steps=9", "sample=0", "svg=", "eval_every=100", "files=LICENSE", "checkpoint=" .. folder,
        "save_every=4", "resume=auto", "--metrics", path, "--tensorboard", folder .. ".events", unpack(settings) })
    end
    -- What was saved then is step 4.
    local first = run({ "steps=7" })
    assert.equal(0, first.status, first.err)
    os.execute("rm -r " .. folder .. "/step-00000007")
    assert.same(range(1, 7), steps_of(path))
    local again = run({})
    assert.equal(0, again.status, again.err)
    assert.same(range(1, 9), steps_of(path))
    local said = "resumed from .-, after step 4\nmetrics: [^\n]* continues after step 4, 3 later lines removed"
    assert.truthy(again.out:find(said), again.out)
    local events = io.popen("cat $(ls -t " .. folder .. ".events/* | head -1)"):read("*a")
    has(events, "\16\5\58\2\8\1") -- step 5, and a session log that says START
    os.execute("rm -r " .. folder .. " " .. folder .. ".events")
  end)

  it("charges waits to the mesh dimension whose collectives are late", function()
    local late = {}
    for dimension, point in pairs({ replicate = "replicate", shard = "gather" }) do
      os.remove(path)
      local ended = program.run({ "run", "recipes/toy_hsdp.lua", "-n", "4", "steps=3", "--metrics", path,
        "--inject-delay", point .. ":300ms" })
      assert.equal(0, ended.status, ended.err)
      late[dimension] = { replicate = 0, shard = 0 }
      for text in io.lines(path) do
        local step = json.decode(text)
        local sum = step.waits_ms.replicate + step.waits_ms.shard
        assert.is_true(sum <= step.exposed_ms + 0.01, text)
        for of, waited in pairs(step.waits_ms) do late[dimension][of] = late[dimension][of] + waited end
      end
    end
    -- Other work on the machine makes ranks wait too, for whichever collective comes next.
    for _, of in ipairs { "replicate", "shard" } do
      local other = of == "shard" and "replicate" or "shard"
      assert.is_true(late[of][of] > 600, of)
      assert.is_true(late[of][of] > late[other][of] + 300, of)
    end
  end)
end)
