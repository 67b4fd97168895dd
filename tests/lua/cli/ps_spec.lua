-- moonshard ps: a run is found while it is there, with what its ranks do, and nothing is found or left afterwards.

local json = require("moonshard.base.text.json")
local has = require("lua.support.message").has
local program = require("lua.support.program")

local function read(command)
  local pipe = assert(io.popen(command))
  local text = pipe:read("*a")
  pipe:close()
  return text
end

local function find_run(pid)
  local ended = program.run({ "ps", "--json" })
  assert.equal(0, ended.status, ended.err)
  for _, run in ipairs(json.decode(ended.out)) do
    if run.pid == pid and run.ranks then return run end
  end
end

local function wait_for(condition)
  for _ = 1, 300 do
    local value = condition()
    if value then return value end
    os.execute("sleep 0.1")
  end
end

-- Starts a run in the background; gives the launcher's process id.
local function start(arguments)
  local command = ("%s run tests/lua/recipes/trouble.lua %s </dev/null >/dev/null 2>&1 & echo $!"):format(
    os.getenv("MOONSHARD_BIN"), arguments)
  return tonumber(read(command))
end

describe("moonshard ps", function()
  it("shows the ranks of a run, their steps, speed and place, and forgets it when it ends", function()
    local pid = start("-n 2 pause_ms=200 steps=100000")
    local ok, raised = pcall(function()
      local run = wait_for(function()
        local found = find_run(pid)
        return found and found.ranks[1].step >= 2 and found.ranks[2].step >= 2 and found
      end)
      assert.truthy(run, "the run did not show two steps")
      assert.equal(2, #run.ranks)
      has(run.command, "run tests/lua/recipes/trouble.lua -n 2")
      assert.truthy(run.seconds > 0)
      for i, rank in ipairs(run.ranks) do
        assert.equal(i - 1, rank.rank)
        assert.equal("joined", rank.state)
        assert.truthy(rank.pid > 0 and rank.pid ~= pid)
        assert.truthy(rank.tokens_per_s > 0)
        assert.truthy(rank.last.kind)
      end
      local text = program.run({ "ps" }).out
      has(text, ("run %d  "):format(pid))
      has(text, ("\n      1 %8d "):format(run.ranks[2].pid))
    end)
    os.execute(("kill -INT %d"):format(pid))
    assert.truthy(wait_for(function() return not find_run(pid) end), "the run did not go away")
    if not ok then error(raised, 0) end
  end)

  it("shows which collective a rank waits in, and for which ranks", function()
    local pid = start("-n 2 how=sleep where=middle")
    local ok, raised = pcall(function()
      local run = wait_for(function()
        local found = find_run(pid)
        return found and found.ranks[1].waits and found.ranks[1].step == 3 and found
      end)
      assert.truthy(run, "rank 0 was not seen to wait")
      assert.equal("all_gather_bytes", run.ranks[1].waits.kind)
      assert.same({ 1 }, run.ranks[1].waits.ranks)
      assert.is_nil(run.ranks[2].activity)
      has(program.run({ "ps" }).out, "all_gather_bytes of | for rank 1")
    end)
    os.execute(("kill -TERM %d"):format(pid))
    assert.truthy(wait_for(function() return not find_run(pid) end), "the run did not go away")
    if not ok then error(raised, 0) end
  end)

  it("prints what others named their processes without what moves the cursor", function()
    local pid = tonumber(read(([[bash -c 'exec -a "$(printf "\033[31mred\nrun 1  \302\2332J")" %s run ]]
      .. [[tests/lua/recipes/trouble.lua -n 2 pause_ms=200 steps=100000 </dev/null >/dev/null 2>&1' & echo $!]])
      :format(os.getenv("MOONSHARD_BIN"))))
    local ok, raised = pcall(function()
      assert.truthy(wait_for(function() return find_run(pid) end), "the run was not found")
      local text = program.run({ "ps" }).out
      has(text, ([[run %d | \x1b[31mred\nrun 1  \xc2\x9b2J | trouble]]):format(pid))
      assert.is_nil(text:find("\27", 1, true))
      assert.is_nil(text:find("\194\155", 1, true))
    end)
    os.execute(("kill -INT %d"):format(pid))
    if not ok then error(raised, 0) end
  end)

  it("is not taken in by what only has the name of a run's memory", function()
    local ffi = require("ffi")
    require("moonshard.base.machine") -- declares memfd_create
    require("moonshard.base.posix") -- getpid
    for _, content in ipairs({ "", "moonshard", ("x"):rep(100000) }) do
      local fd = ffi.C.memfd_create("moonshard-job", 0)
      local file = assert(io.open(("/proc/self/fd/%d"):format(fd), "wb"))
      file:write(content)
      file:close()
      local ended = program.run({ "ps", "--json" })
      ffi.C.close(fd)
      assert.equal(0, ended.status, ended.err)
      local found
      for _, run in ipairs(json.decode(ended.out)) do found = run.pid == ffi.C.getpid() and run or found end
      has(found.unreadable, "control segment")
    end
  end)

  it("refuses arguments", function()
    local ended = program.run({ "ps", "now" })
    assert.equal(2, ended.status)
    has(ended.err, "argument now")
  end)
end)
