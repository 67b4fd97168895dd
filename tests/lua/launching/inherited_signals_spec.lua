-- What a program inherits of signals must not make it lose a request to end. The shell of a script has its background
-- jobs ignore SIGINT, which a launcher receives all the same: only while its ranks run, if it left that as it is.

local has = require("lua.support.message").has
local launched = require("lua.support.launched")
local program = require("lua.support.program")
local with_recipe = launched.with_recipe

local BIN = assert(os.getenv("MOONSHARD_BIN"), "MOONSHARD_BIN names the executable under test")
local IGNORING = [[sh -c 'trap "" INT TERM; exec "$@"' sh ]]
local AGENT = [[ --agent "sh -c 'exec \"\$@\"'" --rendezvous tcp://127.0.0.1 ]]

-- Prints which of SIGINT and SIGTERM the processes above this rank ignore.
local IGNORED = [==[
  local bit = require "bit"
  local function read(path) local f = assert(io.open(path, "rb")) local t = f:read("*a") f:close() return t end
  local world = require "moonshard.distributed.world"
  local pid = "self"
  for level = 1, tonumber(os.getenv("MOONSHARD_LEVELS")) do
    pid = read("/proc/" .. pid .. "/stat"):match("^%d+ %b() %a (%d+)")
    local ignored = tonumber(read("/proc/" .. pid .. "/status"):match("SigIgn:%s*%x*(%x%x%x%x)\n"), 16)
    if world.rank == 0 then print(level, bit.band(ignored, 2 ^ 1), bit.band(ignored, 2 ^ 14)) end
  end
  world.barrier()
]==]

describe("a program that was started with signals ignored", function()
  it("L5 hears SIGINT and SIGTERM in all its processes, from their start", function()
    with_recipe(IGNORED, function(recipe)
      for command, levels in pairs({ [" -n 2 "] = 1, [" --hosts a,b" .. AGENT] = 3 }) do
        local ended = launched.together({
          ("MOONSHARD_LEVELS=%d %s%s run%s%s"):format(levels, IGNORING, BIN, command, recipe) })[1]
        assert.equal(0, ended.status, ended.err)
        local expected = {}
        for level = 1, levels do expected[level] = level .. "\t0\t0\n" end
        assert.equal(table.concat(expected), ended.out)
      end
    end)
  end)

  it("L5 ends a rank that waits in Lua, instead of ending well after its work", function()
    with_recipe([==[
      local ffi = require "ffi"
      ffi.cdef "int kill(int, int); int getppid(void); int usleep(unsigned);"
      jit.off() -- signals interrupt a loop
      ffi.C.kill(ffi.C.getppid(), 15)
      for _ = 1, 3000 do ffi.C.usleep(10000) end
    ]==], function(recipe)
      local ended = launched.together({ IGNORING .. BIN .. " run " .. recipe })[1]
      assert.equal(143, ended.status, ended.err)
      assert.equal("moonshard: terminated\n", ended.err)
    end)
  end)
end)

describe("Ctrl-C", function()
  it("L7 ends a rank that waits for others to join, and is reported once", function()
    with_recipe("", function(recipe)
      local script = program.recipe(([==[
        %s run -n 1 --nodes 2 --node-rank 0 --rendezvous tcp://127.0.0.1:%d %s & pid=$!
        caught() { grep -qs 'SigCgt:.*[2367abef]$' /proc/$1/status; } # the bit of SIGINT
        until rank=$(cat /proc/$pid/task/$pid/children 2>/dev/null) && [ "$rank" ] && caught ${rank%%%% *}; do
          kill -0 $pid 2>/dev/null || break
          sleep 0.02
        done
        kill -INT $pid
        wait $pid
      ]==]):format(BIN, launched.find_port(), recipe))
      local ended = launched.together({ "bash " .. script })[1]
      os.remove(script)
      assert.equal(130, ended.status, ended.err)
      has(ended.err, "interrupted")
      assert.equal("moonshard: interrupted\n", ended.err)
    end)
  end)
end)
