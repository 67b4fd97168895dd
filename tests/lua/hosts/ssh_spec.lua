-- The default agent with a real sshd on this machine, at a loopback port with keys of its own: what no script that
-- stands for ssh shows. Without an sshd, or one that does not start, these are pending.

local launched = require("lua.support.launched")
local message = require("lua.support.message")
local scratch = require("lua.support.scratch")
local together, with_recipe = launched.together, launched.with_recipe
local has = message.has

local BIN = assert(os.getenv("MOONSHARD_BIN"), "MOONSHARD_BIN names the executable under test")
-- Both are this machine, but neither is a name under which moonshard takes it for this one.
local HOSTS = "127.0.0.1:2,127.0.0.2:1"

local function output_of(command)
  local pipe = io.popen(command)
  local text = pipe:read("*a")
  pipe:close()
  return text
end

-- A folder with sshd's keys and settings, and `ssh` for PATH, which adds what reaches it. A sanitizer's options go with
-- the commands.
local function write_settings(folder, port, ssh)
  for _, name in ipairs({ "host", "key", "stranger" }) do
    assert(launched.can(("ssh-keygen -q -t ed25519 -N '' -f %s/%s"):format(folder, name)))
  end
  scratch.write(folder .. "/config", ("Port %d\nListenAddress 127.0.0.1\nListenAddress 127.0.0.2\nHostKey %s/host\n"
    .. "AuthorizedKeysFile %s/key.pub\nPidFile none\nStrictModes no\nUsePAM no\nPasswordAuthentication no\n"
    .. "KbdInteractiveAuthentication no\nPermitRootLogin prohibit-password\nAcceptEnv *SAN_OPTIONS\n"):format(port,
    folder, folder))
  scratch.write(folder .. "/ssh", ([==[#!/bin/sh
    exec %s -F none -p %d -i "${KEY:-%s/key}" -o IdentitiesOnly=yes -o IdentityAgent=none -o LogLevel=ERROR \
      -o SendEnv='*SAN_OPTIONS' -o StrictHostKeyChecking=no -o UserKnownHostsFile=%s/known "$@"
  ]==]):format(ssh, port, folder, folder))
  os.execute("chmod +x " .. folder .. "/ssh")
end

describe("ssh", function()
  local folder, daemon, why_not

  -- why_not: sshd does not run.
  local function start()
    local sshd = output_of("PATH=$PATH:/usr/sbin:/usr/local/sbin command -v sshd"):match("%S+")
    local ssh = output_of("command -v ssh"):match("%S+")
    if not sshd or not ssh then return (sshd and "ssh" or "sshd") .. " is not installed" end
    folder = scratch.folder()
    write_settings(folder, launched.find_port(), ssh)
    launched.can("mkdir -p /run/sshd") -- which sshd wants as root
    daemon = output_of(("%s -D -f %s/config -E %s/log </dev/null >/dev/null 2>&1 & echo $!"):format(sshd, folder,
      folder)):match("%d+")
    for _ = 1, 50 do
      if launched.can(("grep -q 'listening on 127.0.0.2' %s/log"):format(folder)) then
        local tried = ("%s/ssh -o BatchMode=yes 127.0.0.2 true"):format(folder)
        return not launched.can(tried) and "sshd refuses the login: " .. output_of(tried .. " 2>&1") or nil
      end
      os.execute("sleep 0.1")
    end
    return "sshd does not start: " .. output_of(("cat %s/log"):format(folder))
  end

  setup(function() why_not = start() end)
  teardown(function()
    if daemon then os.execute("kill " .. daemon) end
    scratch.clear()
  end)

  -- Of `together`; the file of the token is read by the command alone.
  local function command(recipe, options, variables)
    return ("PATH=%s:$PATH MOONSHARD_TOKEN_FILE=%s/token %s %s run --hosts %s %s %s"):format(folder, folder,
      variables or "", BIN, HOSTS, options or "", recipe)
  end

  it("H14 runs ranks on its hosts, with their streams, variables and a token that no process shows", function()
    if why_not then return pending(why_not) end
    scratch.write(folder .. "/token", "correct-horse-battery-staple")
    os.execute(("chmod 600 %s/token"):format(folder))
    with_recipe(launched.SUM .. ([==[
      local function count(command)
        local pipe = io.popen(command .. " 2>/dev/null | wc -l")
        local n = pipe:read("*n")
        pipe:close()
        return n
      end
      if world.rank == 0 then
        io.stderr:write("warned\n")
        print(count("grep -alF -f %s/token /proc/[0-9]*/cmdline /proc/[0-9]*/environ"), os.getenv("GIVEN"),
          os.getenv("OTHER"))
        print(count("grep -alF MOONSHARD_JOB_ID=ssh-seen /proc/[0-9]*/environ") > 6)
      end
      world.barrier()
    ]==]):format(folder), function(recipe)
      local ended = together({ command(recipe, "--env GIVEN", "GIVEN=g OTHER=o MOONSHARD_JOB_ID=ssh-seen") })[1]
      assert.equal("", ended.err:gsub("^warned\n$", ""))
      assert.equal("rank 0 of 3, sum 6\n0\tg\tnil\ntrue\n", ended.out)
      assert.equal(0, ended.status)
    end)
  end)

  it("H14 passes the lines of a prompt", function()
    if why_not then return pending(why_not) end
    local lines = scratch.path()
    scratch.write(lines, "rank\nms.world().barrier() or 'met'\n")
    local ended = together({ ("PATH=%s:$PATH sh -c '%s repl --hosts %s <%s'"):format(folder, BIN, HOSTS, lines) })[1]
    assert.same({ status = 0, out = "rank 0: 0\nrank 1: 1\nrank 2: 2\nmet\n", err = "" }, ended)
  end)

  it("H14 leaves nothing when the command is interrupted or killed", function()
    if why_not then return pending(why_not) end
    for signal, status in pairs({ INT = 130, KILL = 137 }) do
      local ready, mark = scratch.path(), "ssh-" .. signal
      with_recipe(("local world = require 'moonshard.distributed.world'\nif world.rank == 2 then io.open('%s', 'w')"
        .. ":close() end\nwhile true do world.barrier() end"):format(ready), function(recipe)
        local ended = together({ ("MOONSHARD_JOB_ID=%s bash -c '%s & while [ ! -e %s ]; do sleep 0.05; done; "
          .. "kill -%s $!; wait $!; exit $?'"):format(mark, command(recipe), ready, signal) })[1]
        assert.equal(status, ended.status, ended.err)
        assert.is_true(launched.is_over(mark))
      end)
    end
  end)

  it("H14 says what to do about a host that refuses the key, or lacks moonshard", function()
    if why_not then return pending(why_not) end
    with_recipe("print('started')", function(recipe)
      local function refused(options, variables, facts)
        local ended = together({ command(recipe, options, variables) })[1]
        assert.equal(3, ended.status, ended.err)
        assert.equal("", ended.out)
        has(ended.err, facts)
      end
      refused("", ("KEY=%s/stranger"):format(folder), "Permission denied | host 127.0.0. | without a password | "
        .. "try `ssh -o BatchMode=yes 127.0.0. | true`")
      refused("--remote-moonshard /nowhere/moonshard", "", "/nowhere/moonshard: No such file | host 127.0.0. | "
        .. "expected there at /nowhere/moonshard | --remote-moonshard")
    end)
  end)
end)
