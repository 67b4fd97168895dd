-- Signals to a run on several hosts whose output has no reader: its end comes after the output, and must come.

local launched = require("lua.support.launched")
local message = require("lua.support.message")
local scratch = require("lua.support.scratch")

local BIN = assert(os.getenv("MOONSHARD_BIN"), "MOONSHARD_BIN names the executable under test")

-- Every rank prints so many KiB, and leaves its launcher's pid.
local PRINTS = [==[
  local world, ffi = require "moonshard.distributed.world", require "ffi"
  ffi.cdef "int getppid(void);"
  local function leave(what)
    local file = assert(io.open(os.getenv("MOONSHARD_FOLDER") .. "/" .. what .. world.rank, "wb"))
    file:write(ffi.C.getppid(), "\n")
    file:close()
  end
  leave("begun")
  for _ = 1, tonumber(os.getenv("MOONSHARD_KIB")) do print(("x"):rep(1023)) end
  leave("printed")
]==]

describe("a run on hosts whose output is not read", function()
  teardown(scratch.clear)

  -- Signals the run when `ready`, a command of a shell, says so; standard output is a pipe that nothing reads.
  local function signalled(number, kib, ready)
    local folder, ended = scratch.folder(), nil
    launched.with_recipe(PRINTS, function(recipe)
      local script = folder .. "/script"
      scratch.write(script, ([==[
        D=%s; mkfifo $D/pipe; exec 9<>$D/pipe
        MOONSHARD_FOLDER=$D MOONSHARD_KIB=%d %s run --hosts a,b --agent "sh -c 'exec \"\$@\"'" \
          --rendezvous tcp://127.0.0.1 --log-ranks all %s >$D/pipe 9<&- & pid=$!
        until { %s; } 2>/dev/null; do kill -0 $pid || break; sleep 0.02; done
        kill -%d $pid
        wait $pid
      ]==]):format(folder, kib, BIN, recipe, ready, number))
      ended = launched.together({ "bash " .. script })[1]
    end)
    return ended
  end

  it("H9 end by a signal", function()
    -- Ranks print more than all buffers on the way hold.
    local ended = signalled(15, 8000, "[ -e $D/begun0 ] && [ -e $D/begun1 ]")
    assert.equal(143, ended.status, ended.err)
    message.has(ended.err, "terminated")
  end)

  it("H9 say that output was not read when a signal ends the wait for its reader", function()
    local over = "[ -e $D/printed0 ] && [ -e $D/printed1 ] && "
      .. "! kill -0 $(cat $D/printed0) && ! kill -0 $(cat $D/printed1)" -- the launchers of both hosts have ended
    local ended = signalled(15, 150, over)
    assert.equal(143, ended.status, ended.err)
    message.line_has(ended.err, "ranks | ended | printed | read")
  end)
end)
