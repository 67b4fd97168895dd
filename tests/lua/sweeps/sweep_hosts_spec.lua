-- Sweeps whose points run on several hosts, and conditions of the machine that are no settings of the recipe. The hosts
-- are this machine under other names.

local has = require("lua.support.message").has
local scratch = require("lua.support.scratch")
local swept = require("lua.sweeps.swept")

local with_sweep = swept.with_sweep
local AGENT = { "--agent", "tests/fuzz/agent.sh", "--rendezvous", "tcp://127.0.0.1" }

local function on(hosts, ...) return "--hosts", hosts, AGENT[1], AGENT[2], AGENT[3], AGENT[4], ... end

describe("moonshard sweep --hosts", function()
  it("H9 runs each point on the first hosts that its ranks fill", function()
    with_sweep(function(sweep)
      sweep.define([[over = { mesh = { "1x2", "2x2", "1x4", "2x4" } }, steps = 3]])
      local ended = sweep.run(on("a:2,b:2"))
      assert.equal(3, ended.status, ended.err)
      local nodes = {}
      for _, record in ipairs(sweep.results().points) do
        nodes[record.key] = record.status == "ok" and record.planned.nodes:match("^%d+ ranks on %d+ nodes?")
          or record.reason
      end
      assert.same({ ["mesh=1x2"] = "2 ranks on 1 node", ["mesh=2x2"] = "4 ranks on 2 nodes",
        ["mesh=1x4"] = "4 ranks on 2 nodes", ["mesh=2x4"] = "needs 8 ranks, but --hosts a:2,b:2 has 4" }, nodes)
      -- The results of other hosts do not belong to these.
      has(sweep.run("--resume").err, "hosts was")
    end)
  end)

  it("H9 refuses what makes no sense on hosts", function()
    with_sweep(function(sweep)
      sweep.define([[over = { mesh = { "1x2" } }, steps = 3]])
      has(sweep.run(on("a:2", "--plan")).err, "--plan | --hosts | --ranks-per-node")
      has(sweep.run("--agent", "x").err, "--agent needs --hosts")
      sweep.define([[over = { mesh = { "1x2" } }, hosts = { "a:2", "b:2" }, steps = 3]])
      has(sweep.run().err, "hosts | command line | --hosts a:4,b:4")
      sweep.define([[over = { mesh = { "1x3" } }, steps = 3]])
      has(sweep.run(on("a:2,b:2")).out, "plan | host | --hosts a:2,b:2")
    end)
  end)

  it("I5 calls prepare before each run, with conditions that the recipe does not get", function()
    with_sweep(function(sweep)
      sweep.define(([[
        over = { mesh = { "1x2", "2x1" } }, conditions = { link = { "slow", "down" } }, steps = 2,
        prepare = function(point)
          local file = io.open(%q, "a")
          file:write(point.mesh, " ", point.link, " ", point.ranks, "\n")
          file:close()
          if point.link == "down" then error("DOWN", 0) end
        end,
      ]]):format(sweep.trace))
      local ended, found = sweep.run(), {}
      assert.equal(3, ended.status, ended.err)
      for _, record in ipairs(sweep.results().points) do found[record.key] = record.reason or record.status end
      assert.same({ ["mesh=1x2 link=slow"] = "ok", ["mesh=2x1 link=slow"] = "ok",
        ["mesh=1x2 link=down"] = "prepare: DOWN", ["mesh=2x1 link=down"] = "prepare: DOWN" },
        found)
      local calls = swept.lines_of(scratch.read(sweep.trace))
      table.sort(calls)
      assert.same({ "1x2 down 2", "1x2 slow 2", "2x1 down 2", "2x1 slow 2" }, calls)
      sweep.define([[over = { mesh = { "1x2" } }, conditions = { link = { "slow" } }, steps = 2]])
      has(sweep.run().err, "conditions need prepare")
      sweep.define([[over = { mesh = { "1x2" } }, conditions = { mesh = { "2x1" } }, prepare = print, steps = 2]])
      has(sweep.run().err, "mesh | over | conditions")
    end)
  end)
end)
