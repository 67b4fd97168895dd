-- Checkpoints of ranks on several hosts, and what else they write and read together. The hosts are this machine under
-- other names; where each has a disk of its own, its processes have a mount namespace in which one folder is another.

local breadth = require("lua.support.breadth")
local has = require("lua.support.message").has
local json = require("moonshard.base.text.json")
local launched = require("lua.support.launched")
local ms = require("moonshard")
local program = require("lua.support.program")
local scratch = require("lua.support.scratch")
local read = scratch.read

local BIN = assert(os.getenv("MOONSHARD_BIN"), "MOONSHARD_BIN names the executable under test")
local RECIPE = "tests/lua/recipes/checkpointed.lua"

-- %s: a folder with the disks, of which each host sees its own as `disk`.
local AGENT = [==[#!/bin/sh
  host=$1; shift
  exec unshare -mu sh -c 'hostname "$0" && mount --bind "%s/$0" "%s/disk" && exec "$@"' "$host" "$@"
]==]

local agent, disks, why_not

local function make_disks()
  disks, agent = scratch.folder(), scratch.path()
  os.execute(("cd %s && mkdir disk a b c"):format(disks))
  scratch.write(agent, AGENT:format(disks, disks))
  os.execute("chmod +x " .. agent)
  if not launched.can(agent .. " a true") then why_not = "namespaces need root" end
end

-- Removes what earlier tests left; gives the folder that every host sees as its own.
local function clean_disks()
  for _, host in ipairs({ "a", "b", "c" }) do os.execute(("cd %s/%s && rm -rf * .??*"):format(disks, host)) end
  return disks .. "/disk"
end

local function on(host) return disks .. "/" .. host end

-- Runs the recipe; hosts: a number of ranks of this host, or a list for --hosts. own: each with a disk of its own.
local function run(hosts, own, ...)
  if type(hosts) == "number" then return program.run({ "run", RECIPE, "-n", tostring(hosts), ... }) end
  return program.run({ "run", RECIPE, "--hosts", hosts, "--agent", own and agent or "tests/fuzz/agent.sh",
    "--rendezvous", "tcp://127.0.0.1", ... })
end

local function ended_well(ended)
  assert.equal(0, ended.status, ended.err)
  return ended
end

local function list(folder)
  local names = {}
  for name in io.popen(("ls -A %s"):format(folder)):lines() do names[#names + 1] = name end
  return table.concat(names, " ")
end

local function steps_on(host)
  local steps = {}
  for i, one in ipairs(ms.checkpoint.list(on(host))) do steps[i] = one.step end
  return table.concat(steps, " ")
end

-- What a run wrote about its steps after `step` and its parameters at the end.
local function after(path, step)
  local text = read(path)
  return text:sub((assert(text:find(("\n%d "):format(step + 1), 1, true))) + 1)
end

-- The losses of these steps, to be compared with those on another mesh.
local function losses(path)
  local found = {}
  for step, loss in read(path):gmatch("(%d+) (%d%.%d+) %d%S+ %S+ %S+\n") do found[tonumber(step)] = tonumber(loss) end
  return found
end

local function assert_parity(whole, rest, first, last)
  local expected, got = losses(whole), losses(rest)
  for step = first, last do
    assert.truthy(math.abs(expected[step] - got[step]) < 1e-4 * expected[step], ("step %d"):format(step))
  end
end

-- The step's checkpoint of all hosts, copied together.
local function merge(step, ...)
  local merged = scratch.folder()
  for _, host in ipairs({ ... }) do os.execute(("cp -r %s/step-%08d %s"):format(on(host), step, merged)) end
  return merged
end

local function verify(folder)
  local checkpoint = ms.checkpoint.open(folder)
  checkpoint:verify()
  checkpoint:close()
end

describe("checkpoints of several hosts", function()
  setup(make_disks)
  teardown(scratch.clear)

  it("H10 in a folder that hosts share load on one host and back, and go on bit for bit", function()
    local whole, rest, folder = scratch.path(), scratch.path(), scratch.path()
    ended_well(run("a:2,b:2", false, "out=" .. whole))
    ended_well(run("a:2,b:2", false, "stop=7", "checkpoint=" .. folder))
    assert.equal(".lock step-00000003 step-00000006", list(folder))
    assert.equal("manifest.json rank-00000.safetensors rank-00001.safetensors rank-00002.safetensors "
      .. "rank-00003.safetensors", list(folder .. "/step-00000006"))
    verify(folder)
    local copy = scratch.path()
    os.execute(("cp -r %s %s"):format(folder, copy))
    local ended = ended_well(run("a:2,b:2", false, "resume=auto", "checkpoint=" .. folder, "out=" .. rest))
    assert.equal(("resumed from %s/step-00000006, after step 6\n"):format(folder), ended.out)
    assert.is_true(after(whole, 6) == read(rest))
    assert.equal(".lock step-00000006 step-00000009", list(folder))

    ended_well(run(3, false, "mesh=1x3", "resume=" .. copy, "out=" .. rest))
    assert_parity(whole, rest, 7, 9)
    if not breadth.all then return end
    ended_well(run(3, false, "mesh=1x3", "resume=auto", "checkpoint=" .. copy, "stop=8", "save_every=1"))
    ended_well(run("a,b,c", false, "mesh=1x3", "resume=auto", "checkpoint=" .. copy, "out=" .. rest))
    assert_parity(whole, rest, 9, 9)
  end)

  local function it_with_disks(name, call)
    it(name, function()
      if why_not then return pending(why_not) end
      call(clean_disks())
    end)
  end

  it_with_disks("H10 on a disk of each host go on bit for bit, from what each host wrote", function(folder)
    for _, async in ipairs(breadth.few({ "false", "true" })) do
      clean_disks()
      local whole, rest = scratch.path(), scratch.path()
      ended_well(run("a:2,b:2", true, "out=" .. whole))
      ended_well(run("a:2,b:2", true, "stop=7", "checkpoint=" .. folder, "async=" .. async))
      assert.equal("manifest.json rank-00000.json rank-00000.safetensors rank-00001.json rank-00001.safetensors",
        list(on("a") .. "/step-00000006"))
      assert.equal("manifest.json rank-00002.json rank-00002.safetensors rank-00003.json rank-00003.safetensors",
        list(on("b") .. "/step-00000006"))
      assert.equal(read(on("a") .. "/step-00000006/manifest.json"), read(on("b") .. "/step-00000006/manifest.json"))
      local ended = ended_well(run("a:2,b:2", true, "resume=auto", "checkpoint=" .. folder, "out=" .. rest))
      has(ended.out, folder .. " | a, b | step-00000006, after step 6")
      assert.is_true(after(whole, 6) == read(rest))
      assert.same({ "6 9", "6 9" }, { steps_on("a"), steps_on("b") })
      assert.equal(".lock step-00000006 step-00000009", list(on("b")))
    end
    -- Each host has all shards of this mesh, so one of them can go on alone.
    ended_well(run("b:2", true, "mesh=1x2", "resume=auto", "checkpoint=" .. folder, "steps=10"))
  end)

  it_with_disks("H10 on a disk of each host load anywhere once copied; missing parts are named", function(folder)
    local whole, rest = scratch.path(), scratch.path()
    ended_well(run("a:2,b:2", true, "mesh=1x4", "out=" .. whole))
    ended_well(run("a:2,b:2", true, "mesh=1x4", "stop=7", "checkpoint=" .. folder))
    local lacks = "lacks rank-00002, rank-00003 of host b: copy"
    local ended = run(1, false, "mesh=1x1", "resume=" .. on("a"))
    assert.equal(2, ended.status, ended.err)
    has(ended.err, "step-00000006 | " .. lacks)
    ended = program.run({ "export", on("a"), scratch.path() })
    assert.equal(2, ended.status)
    has(ended.err, lacks)
    ended = program.run({ "inspect", on("a") })
    has(ended.out, "2 files | 2 parts | rank-00002 | missing | on b")
    ended = run("b:2,a:2", true, "mesh=1x4", "resume=auto", "checkpoint=" .. folder)
    assert.equal(2, ended.status)
    local rank, host = ended.err:match("^moonshard: rank (%d) on ([ab]) failed: ")
    assert.equal(rank < "2" and "b" or "a", host, ended.err)
    has(ended.err, host == "a" and lacks or "lacks rank-00000, rank-00001 of host a")

    local merged = merge(6, "a", "b")
    verify(merged)
    ended_well(run(1, false, "mesh=1x1", "resume=" .. merged, "out=" .. rest))
    assert_parity(whole, rest, 7, 9)
    if breadth.all then
      ended_well(run("a,b,c", false, "mesh=1x3", "resume=" .. merged, "out=" .. rest))
      assert_parity(whole, rest, 7, 9)
    end

    local part = merged .. "/step-00000006/rank-00002.json"
    os.execute(("cp %s/step-00000003/rank-00002.json %s"):format(on("b"), part))
    has(assert(select(2, pcall(ms.checkpoint.open, merged))).message, "rank-00002.json | another save")
    scratch.write(part, read(part):gsub("embed", "embad", 1))
    has(assert(select(2, pcall(ms.checkpoint.open, merged))).message, "rank-00002.json | damaged")
  end)

  it_with_disks("H10 on a disk of each host go on from the newest that all have; others are named", function(folder)
    ended_well(run("a:2,b:2", true, "mesh=1x4", "stop=7", "checkpoint=" .. folder))
    local function refused(hosts, facts, ...)
      local ended = run(hosts, true, "checkpoint=" .. folder, ...)
      assert.equal(2, ended.status, ended.err)
      has(ended.err, facts)
    end
    refused("a,b,c", "step-00000006 | on a, b | not on c", "mesh=1x3", "resume=auto")
    refused("a,c", "disk | on a, | not on c | copy", "mesh=1x2", "resume=" .. folder)
    -- As when the run was killed after a had committed, and before b had; and another one when it had just begun.
    scratch.write(on("b") .. "/.rank-2.12345", "")
    os.execute(("rm -r %s/step-00000006"):format(on("b")))
    local ended = ended_well(run("a:2,b:2", true, "mesh=1x4", "resume=auto", "checkpoint=" .. folder))
    has(ended.out, "step-00000003, after step 3 | step-00000006 is newer | not on b")
    assert.same({ "6 9", "6 9" }, { steps_on("a"), steps_on("b") })
    verify(merge(6, "a", "b"))
    assert.equal(".lock step-00000006 step-00000009", list(on("b")))
    os.execute(("rm -r %s/step-*"):format(on("b")))
    refused("a:2,b:2", "step-00000009 | on a | not on b", "mesh=1x4", "resume=auto")
    -- One that a host has by itself is not replaced.
    clean_disks()
    ended_well(run("a", true, "mesh=1x1", "stop=3", "checkpoint=" .. folder))
    ended_well(run("a", true, "mesh=1x1", "resume=auto", "stop=6", "checkpoint=" .. folder))
    os.execute(("mv %s/step-00000003 %s/elsewhere"):format(on("a"), on("a")))
    refused("a,b", "on a failed | step-00000006 | resume=auto", "mesh=1x2")
    -- Steps of one number, of two runs.
    clean_disks()
    for host, folder_of in pairs({ a = "first", b = "other" }) do
      ended_well(run(host, true, "mesh=1x1", "stop=3", "checkpoint=" .. folder .. "/" .. folder_of))
      os.execute(("mv %s/%s/step-* %s"):format(on(host), folder_of, on(host)))
    end
    refused("a,b", "step-00000003 | another save | on each | a, b", "mesh=1x2", "resume=auto")
    refused("a,b", "checkpoint | step 3 | rank 0 on a | rank 1 on b", "mesh=1x2",
      "resume=" .. folder .. "/step-00000003")
  end)

  it_with_disks("H10 a host that cannot write leaves no checkpoint on any", function(folder)
    for _, failure in ipairs(breadth.few({ "rename:2:EIO", "mkdir:1:ENOSPC", "sync:1:EIO", "write:1:ENOSPC" })) do
      local ended = run("a,b", true, "mesh=1x2", "checkpoint=" .. folder, "save_every=1", "inject=" .. failure,
        "victim=1")
      assert.equal(3, ended.status, ended.err)
      has(ended.err, "on b")
      assert.same({ ".lock", ".lock" }, { list(on("a")), list(on("b")) }, failure)
    end
  end)

  it_with_disks("H10 a kill at any moment of saving leaves a checkpoint that all hosts have", function(folder)
    local whole, rest, step = scratch.path(), scratch.path(), 0
    ended_well(run("a,b", true, "mesh=1x2", "out=" .. whole, "steps=30"))
    local arguments = { "mesh=1x2", "steps=30", "save_every=1", "resume=auto", "keep_last=1", "checkpoint=" .. folder }
    local killed = 0
    local calls = breadth.all and { 60, 150, 90, 230, 40, 290, 120 } or { 60, 150, 90, 230 }
    for i, call in ipairs(calls) do
      local ended = run("a,b", true, "inject=any:" .. call .. ":kill", "victim=" .. i % 2, "more=4",
        "async=" .. tostring(i % 3 == 0), unpack(arguments))
      if ended.status ~= 0 then killed = killed + 1 end
      assert(ended.status == 0 or ended.err:find("killed by signal 9", 1, true), ended.err)
      local found
      for _, one in ipairs(ms.checkpoint.list(on("a"))) do
        local path = ("%s/step-%08d"):format(on("b"), one.step)
        if launched.can(("cmp %s/manifest.json %s/manifest.json"):format(path, one.path)) then found = one.step end
      end
      if found then verify(merge(found, "a", "b")) end
      assert((found or 0) >= step, ("%s after step %d, kill %d"):format(tostring(found), step, i))
      step = found or 0
    end
    assert(killed > #calls / 2 and step > 3, killed .. " killed, step " .. step)
    ended_well(run("a,b", true, "out=" .. rest, unpack(arguments)))
    assert.is_true(after(whole, step) == read(rest))
  end)

  it_with_disks("H10 another run on one of the hosts is refused while the first saves there", function(folder)
    local recipe, ready = program.recipe([==[
      local ms = require "moonshard"
      local cfg = ms.args { dir = "", ready = "" }
      local model = ms.nn.linear(4, 2)
      ms.fully_shard(model)
      local optimizer = ms.optim.sgd { lr = 1 }
      ms.trainer { model = model, optimizer = optimizer, loss = ms.loss.mse, checkpoint = { dir = cfg.dir } }
      if cfg.ready ~= "" then
        require("moonshard.distributed.world").barrier()
        io.open(cfg.ready, "w"):close()
        while true do ms.world().check_interrupt() end
      end
    ]==]), scratch.path()
    local command = ("%s run %s --agent %s --rendezvous tcp://127.0.0.1 dir=%s"):format(BIN, recipe, agent, folder)
    local pid_file, err = scratch.path(), scratch.path()
    os.execute(("%s --hosts a,b ready=%s >/dev/null 2>&1 & echo $! >%s"):format(command, ready, pid_file))
    for _ = 1, 600 do
      if io.open(ready) then break end
      os.execute("sleep 0.05")
    end
    local status = os.execute(("%s --hosts b 2>%s"):format(command, err))
    os.execute("kill " .. read(pid_file))
    os.remove(recipe)
    assert.truthy(status ~= 0)
    has(read(err), "another run | " .. folder)
  end)

  it("H10 a trace of several hosts holds all ranks, in one order of time", function()
    local path, marks = scratch.path(), {}
    -- The clock of host b is a day ahead where that can be.
    local ahead = scratch.path()
    scratch.write(ahead, "#!/bin/sh\nhost=$1; shift\n[ $host = b ] && unshare -T --monotonic 86400 true 2>/dev/null && "
      .. "exec unshare -T --monotonic 86400 \"$@\"\nexec \"$@\"\n")
    os.execute("chmod +x " .. ahead)
    ended_well(program.run({ "run", "tests/lua/recipes/trouble.lua", "mesh=1x4", "--hosts", "a:2,b:2", "--agent", ahead,
      "--rendezvous", "tcp://127.0.0.1", "--trace", path, "--trace-steps", "3-4" }))
    local error_us, names, finish = {}, {}, 0
    for _, event in ipairs(json.decode(read(path)).traceEvents) do
      if event.name == "process_name" then names[event.pid] = event.args.name end
      if event.name == "process_labels" then
        error_us[event.pid] = tonumber(event.args.labels:match("^clock within (%S+) us of rank 0's$"))
      end
      if event.ph == "X" then finish = math.max(finish, event.ts + event.dur) end
      if event.ph == "X" and event.cat:find("^collective") then
        local key = ("%s %s %d %d"):format(event.name, event.args.phase, event.args.step, event.args.sequence)
        marks[key] = marks[key] or {}
        table.insert(marks[key], { pid = event.pid, first = event.ts, last = event.ts + event.dur })
      end
    end
    for rank = 0, 3 do has(names[100 * (rank + 1)], ("rank %d on "):format(rank)) end
    assert.is_nil(error_us[100] or error_us[200])
    assert.truthy(error_us[300] and error_us[300] == error_us[400])
    assert.truthy(finish < 3600e6)
    -- No rank leaves a collective of all ranks before each has entered it.
    local compared = 0
    for key, ranks in pairs(marks) do
      for _, one in ipairs(ranks) do
        for _, other in ipairs(ranks) do
          local apart = (one.pid > 200) ~= (other.pid > 200) and error_us[300] or 0
          assert(#ranks ~= 4 or one.first <= other.last + apart + 0.01, key)
          compared = compared + (#ranks == 4 and 1 or 0)
        end
      end
    end
    assert.truthy(compared > 100)
    ended_well(program.run({ "trace", path }))
  end)

  it_with_disks("H10 a file that one host lacks is reported by its rank and host", function(folder)
    local text, model = folder .. "/text.txt", folder .. "/model"
    os.execute(("cp LICENSE %s/text.txt; cp -r tests/fixtures/huggingface/gpt2_base %s/model"):format(on("a"), on("a")))
    local sources = {
      [("ms.data.text { files = %q, seq = 8, batch = 1 }"):format(text)] = text .. ": No such file",
      [("ms.huggingface.model(%q)"):format(model)] = model .. "/config.json: No such file",
      [("ms.safetensors.open(%q)"):format(model .. "/model.safetensors")] = "model.safetensors: No such file",
    }
    for source, facts in pairs(sources) do
      local recipe = program.recipe("local ms = require 'moonshard'\nlocal _ = ms.world().rank\n" .. source)
      local ended = program.run({ "run", recipe, "--hosts", "a:2,b", "--agent", agent, "--rendezvous",
        "tcp://127.0.0.1" })
      os.remove(recipe)
      assert.equal(2, ended.status, ended.err)
      has(ended.err, "rank 2 on b failed | " .. facts)
    end
  end)
end)
