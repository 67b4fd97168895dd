-- moonshard calibrate: its description loads, and another calibration measures about the same. The bound is wide: other
-- tests run at the same time. tests/bench/price/measured.lua measures how good it is. Hosts are this one, reached by a
-- script that stands for ssh.

local busy = require("moonshard.calibrate.busy")
local cluster = require("moonshard.price.cluster")
local engine = require("moonshard.base.ffi")
local fit = require("moonshard.calibrate.fit")
local fit_between = require("moonshard.calibrate.fit_between")
local breadth = require("lua.support.breadth")
local has = require("lua.support.message").has
local program = require("lua.support.program")
local scratch = require("lua.support.scratch")
local trainings = require("moonshard.calibrate.trainings")
local C, ffi = engine.C, engine.ffi

local function quick(path)
  local ended = program.run { "calibrate", "--quick", "-n", "2", "--out", path }
  assert.equal(0, ended.status, ended.err)
  return cluster.load(path), ended
end

-- An agent that runs the command on this host, and fails for the host "gone".
local function agent()
  local path = scratch.path()
  scratch.write(path, [==[#!/bin/sh
    [ "$1" = gone ] && { echo "ssh: Could not resolve hostname gone" >&2; exit 255; }
    shift
    exec "$@"
]==])
  os.execute("chmod +x " .. path)
  return path
end

local function over(list, ...)
  return { "calibrate", "--quick", "--hosts", list, "--agent", agent(), "--rendezvous", "tcp://127.0.0.1", ... }
end

local function seconds(described, work)
  local out = ffi.new("double[1]")
  engine.check(C.ms_cluster_kernel_time(described:struct(), work, ffi.sizeof("ms_kernel_work"), out))
  return out[0]
end

-- For each kernel of one description, by what factor the two differ; sorted.
local function ratios(a, b)
  local list = {}
  for i = 0, a:struct().points - 1 do
    local work = a.points[i]
    local one, other = seconds(a, work), seconds(b, work)
    list[i + 1] = math.max(one, other) / math.min(one, other)
  end
  table.sort(list)
  return list
end

describe("moonshard calibrate", function()
  teardown(scratch.clear)

  it("E6 writes a description that loads", function()
    local path = scratch.path() .. ".lua"
    local first, ended = quick(path)
    assert.truthy(ended.out:find("kernels measured"))
    has(ended.err, "calibrate: measuring on 1 rank | calibrate: measuring on 2 ranks | calibrate: fitting")
    assert.equal("cpu", first.device)
    assert.equal(2, first.ranks_per_node)
    assert.truthy(first.peak.f32 > 1e8)
    assert.truthy(first:struct().points > 20)
    assert.is_nil(scratch.read(path):find("rounds", 1, true)) -- each training once
  end)

  it("E6 measures the same kernels in about the same times again #all", function()
    local folder = scratch.folder()
    local first, second = quick(folder .. "/first.lua"), quick(folder .. "/second.lua")
    local list = ratios(first, second)
    assert.truthy(#list > 20)
    assert.truthy(list[math.ceil(#list / 2)] < 2, "half of the kernels differ twofold between two calibrations")
  end)

  it("E6 warns of a machine that other programs use, and not of an idle one", function()
    has(busy.warning("6.24 3.10 1.00 7/512 1234\n", 2), "busy | 6.2 | 2 cores")
    has(busy.warning("0.30 0 0 1/9 1\n", 1), "1 core")
    assert.is_nil(busy.warning("0.30 3.10 9.00 1/512 1234\n", 2))
    assert.is_nil(busy.warning("", 2))
  end)

  it("E6 measures shards and replicas, also in a quick one: only replicas measure large all-reduces", function()
    for _, is_quick in ipairs(breadth.few({ false, true })) do
      local meshes = {}
      for _, training in ipairs(trainings.of(2, { dtypes = { "f32" }, device = "cpu", quick = is_quick })) do
        meshes[training.mesh] = true
      end
      assert.truthy(meshes["1x2"] and meshes["2x1"])
    end
  end)

  it("E6 leaves no file behind if TERM ends it: its ranks write to one without a name", function()
    local script = scratch.path()
    scratch.write(script, ([==[
      "$MOONSHARD_BIN" calibrate --quick -n 1 --out %s >/dev/null 2>&1 & own=$!
      for tick in $(seq 100); do
        for child in $(cat /proc/$own/task/*/children 2>/dev/null); do
          to=$(readlink /proc/$child/fd/1)
          case $to in /dev/null|pipe*) ;; *) echo "$to"; kill -TERM $own; wait $own; echo "status $?"; exit;; esac
        done
        sleep 0.1
      done]==]):format(scratch.path()))
    local pipe = assert(io.popen("sh " .. script))
    local text = pipe:read("*a")
    pipe:close()
    has(text, "memfd:moonshard-calibrate | status 143")
  end)

  it("E6 measures a GPU, too: what its host takes to issue, and prices of plans for it #all", function()
    local path = scratch.path() .. ".lua"
    local emulated = program.emulated_cuda()
    local ended = program.run({ "calibrate", "--device", "cuda", "--quick", "-n", "1", "--out", path }, emulated)
    assert.equal(0, ended.status, ended.err)
    local one = cluster.load(path)
    assert.equal("cuda", one.device)
    assert.truthy(one:struct().issue > 0)
    assert.truthy(one:struct().points > 20)
    local priced = program.run({ "price", "recipes/toy_hsdp.lua", "-n", "1", "--cluster", path, "mesh=1x1",
      "device=cuda", "--json" }, emulated)
    assert.equal(0, priced.status, priced.err)
  end)

  it("E6 takes what a profile's events add from the times of a GPU's kernels, but not all of one", function()
    -- Three trainings of 100 kernels each, profiled at 6 us and 40 us; without events their steps take 2 us less each.
    local function record(us)
      local function kernel(op, measured)
        return { op = op, dtype = 0, variant = 0, threads = 1, size = { us, 1, 1, 1 }, seconds = measured, runs = 50 }
      end
      return { ranks = 1, nodes = 1, total_seconds = 1e-6 * (50 * us + 50 * 2 - 100 * 2), kernel_seconds = 0,
        kernels = { kernel("add", 1e-6 * us), kernel("cast", 2e-6) } }
    end
    local function times(device)
      local list = {}
      for _, point in ipairs(fit.points({ record(6), record(6), record(40) }, 4, device)) do
        list[#list + 1] = ("%s %d: %.3f us"):format(point.op, point.size[1], 1e6 * point.seconds)
      end
      table.sort(list)
      return list
    end
    assert.same({ "add 40: 38.000 us", "add 6: 4.000 us", "cast 40: 0.500 us", "cast 6: 0.500 us" }, times("cuda"))
    assert.same({ "add 40: 40.000 us", "add 6: 6.000 us", "cast 40: 2.000 us", "cast 6: 2.000 us" }, times("cpu"))
  end)

  it("E6 measures the links between hosts, whose constants are in the description with their sources", function()
    local path = scratch.path() .. ".lua"
    local ended = program.run(over("a:2,b:2", "--out", path))
    assert.equal(0, ended.status, ended.err)
    has(ended.out, "between hosts | processor time")
    local one, found = cluster.load(path), {}
    assert.is_true(one.has_network)
    assert.equal(2, one.ranks_per_node)
    for _, constant in ipairs(one.constants) do found[constant.path] = constant end
    has(found["network.rail"].source, "hosts a, b")
    for i, kind in ipairs({ "all_gather", "all_reduce", "reduce_scatter" }) do
      local link = one:struct().link[i - 1]
      assert.equal(kind, one.link_names[i])
      for _, field in ipairs({ "start_between", "between", "processor" }) do
        has(found[("links.%s.%s"):format(kind, field)].source, "hosts a, b")
      end
      assert.equal(0, link.max_nodes)
      assert.truthy(link.start_between >= 0 and link.start_between < 0.1)
      assert.truthy(link.between > 1e6 and link.between <= found["network.rail"].value * 1.001)
      assert.truthy(link.processor >= 0 and link.processor < 1e-6)
    end
    -- For another network only its rate changes, and the links follow.
    local slower = scratch.path() .. ".lua"
    scratch.write(slower, ("return { extends = %q, network = { rail = { %q, 'here' } } }"):format(path,
      ("%.9g KB/s"):format(1e-5 * found["network.rail"].value)))
    for i = 0, 2 do
      local factor = one:struct().link[i].between / cluster.load(slower):struct().link[i].between
      assert.truthy(math.abs(factor - 100) < 1e-3, factor)
    end
    local priced = program.run({ "price", "recipes/toy_hsdp.lua", "-n", "4", "--cluster", path, "mesh=2x2", "--json" })
    assert.equal(0, priced.status, priced.err)
  end)

  it("E6 refuses hosts that have no links between them, or cannot be reached, before it measures", function()
    local path = scratch.path() .. ".lua"
    local function refused(words, facts)
      words[#words + 1] = "--out"
      words[#words + 1] = path
      program.refused(2, words, facts)
    end
    refused(over("a:2"), "--hosts a:2 | two of them | a:4,b:4")
    refused(over("a:2,b:2", "--device", "cuda"), "--hosts | --device cuda | CPUs only | network")
    refused(over("a:2,b:2", "-n", "2"), "-n 2 | a:2,b:2 | omit -n")
    refused(over("a:1000,b:1000"), "1000 | at most 64 ranks")
    refused(over("a,b", "--transport", "infiniband"), "--transport infiniband | tcp")
    refused({ "calibrate", "--agent", "ssh" }, "--agent needs --hosts")
    refused({ "calibrate", "--transport", "tcp" }, "--transport needs --hosts")
    local ended = program.run(over("a,gone", "--out", path))
    assert.equal(3, ended.status, ended.err)
    has(ended.err, "ranks on 2 hosts | host gone | Could not resolve")
    assert.is_nil(io.open(path))
  end)

  it("E6 refuses links that are too slow for two large sizes, of which no rate follows", function()
    local links, collectives = {}, {}
    for i, kind in ipairs({ "all_gather", "reduce_scatter", "all_reduce" }) do
      links[i] = { kind = kind, start = 0, inside = 1e9 }
      collectives[i] = { kind = kind, inside = 0, wire = 256, seconds = 3 }
    end
    local ok, raised = pcall(fit_between.add, { { processor = 1e-3, collectives = collectives } }, links)
    assert.is_false(ok)
    has(tostring(raised), "256 bytes of all_gather | two large sizes | network")
  end)

  it("E6 refuses what it cannot measure before it measures", function()
    local ended = program.run({ "calibrate", "--out", "/proc/none/cluster.lua" })
    assert.equal(2, ended.status)
    has(ended.err, "--out | no folder /proc/none")
    program.refused(2, { "calibrate", "-n", "1000" }, "-n 1000 | at most 64 ranks")
    ended = program.run({ "calibrate", "--device", "gpu" })
    assert.equal(2, ended.status)
    has(ended.err, "--device gpu")
  end)
end)
