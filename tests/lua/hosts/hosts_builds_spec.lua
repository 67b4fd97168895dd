-- Hosts with another build of the same version are refused at the start: it can compute other bits.

local has = require("lua.support.message").has
local program = require("lua.support.program")
local scratch = require("lua.support.scratch")

local BIN = assert(os.getenv("MOONSHARD_BIN"), "MOONSHARD_BIN names the executable under test")

-- On host b the copy runs in place of the executable.
local AGENT = [==[#!/bin/sh
  host=$1; shift
  if [ $host = b ]; then
    shift
    exec %s "$@"
  fi
  exec "$@"
]==]

local function run(agent)
  local recipe = program.recipe('if require("moonshard").world().rank == 0 then print("together") end')
  local ended = program.run({ "run", recipe, "--hosts", "a:1,b:1", "--agent", agent, "--rendezvous",
    "tcp://127.0.0.1", "--timeout", "60" })
  os.remove(recipe)
  return ended
end

local function executable(content)
  local path = scratch.path()
  scratch.write(path, content)
  assert(os.execute("chmod +x " .. path) == 0)
  return path
end

describe("hosts", function()
  teardown(scratch.clear)

  it("U1 with the same build, from another file, run together", function()
    local ended = run(executable(AGENT:format(executable(scratch.read(BIN)))))
    assert.equal(0, ended.status, ended.err)
    assert.equal("together\n", ended.out)
  end)

  it("U1 of which one has another build of the same version are named", function()
    local id = ("0"):rep(16)
    local other, changed = scratch.read(BIN):gsub("moonshard build %x+", "moonshard build " .. id)
    assert.equal(1, changed)
    local ended = run(executable(AGENT:format(executable(other))))
    assert.not_equal(0, ended.status)
    has(ended.err, "rank 0 on a | rank 1 on b | moonshard build " .. id .. " | same")
    assert.equal("", ended.out)
  end)
end)
