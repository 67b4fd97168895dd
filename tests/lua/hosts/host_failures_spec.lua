-- Training over several hosts whose ranks, launchers, hosts and links fail; `make soak` strikes at random moments.

local checks = require("lua.hosts.struck_checks")
local breadth = require("lua.support.breadth")
local struck_hosts = require("lua.hosts.struck_hosts")

local TIMEOUT = 5
local FOR_EVER = "steps=1000000 --inject-delay update:10ms" -- ranks that wait for most of a step keep no processor busy
local STEPS = breadth.all and 120 or 60
local why_not = struck_hosts.why_not()

-- Fills what most cases share; `two` hosts of 2 ranks, or 3 of 1.
local function case_of(strike, more)
  local case = {
    strike = strike, hosts = 2, ranks = 2, mesh = "2x2", at = "begun", delay = 0.1, host = 2, rank = 1,
    timeout = TIMEOUT, words = FOR_EVER,
  }
  for name, value in pairs(more or {}) do case[name] = value end
  return case
end

local function assert_well(cases)
  for _, case in ipairs(cases) do
    local wrong = checks.run(case)
    if wrong then
      error(("%s of host %d, rank %d, at %s, %s: %s"):format(case.strike, case.host, case.rank, case.at,
        case.nodes and "--nodes" or "--hosts", wrong), 0)
    end
  end
end

local THREE = { hosts = 3, ranks = 1, mesh = "1x3" }

local function three(strike, more)
  local case = case_of(strike, THREE)
  for name, value in pairs(more or {}) do case[name] = value end
  return case
end

describe("training over hosts", function()
  it("H4 names the rank that is killed, on every host, whenever it is", function()
    if why_not then return pending(why_not) end
    assert_well(breadth.few {
      case_of("kill_rank", { nodes = true, mesh = "1x4" }),
      case_of("kill_rank", { at = "start", host = 1 }),
      case_of("kill_rank", { at = "saving", delay = 0, rank = 2, words = FOR_EVER .. " dir=$D/checkpoints every=3" }),
      case_of("kill_rank", { host = 1, mesh = "4x1" }),
    })
  end)

  it("H4 Q6 names the rank that is killed or stopped while gradients travel in few bits, and goes on after one that "
    .. "lagged", function()
    if why_not then return pending(why_not) end
    local bits = FOR_EVER .. " replicate=i8 shard=i4"
    assert_well(breadth.few {
      case_of("kill_rank", { mesh = "2x2", words = bits }), -- replicas are on two hosts, and shards on one
      case_of("kill_rank", { mesh = "1x4", words = FOR_EVER .. " shard=i8", host = 1 }), -- two hops
      case_of("stop_rank", { mesh = "4x1", words = FOR_EVER .. " replicate=i4", rank = 2 }),
      case_of("kill_host", { mesh = "2x2", words = bits }),
      case_of("lag_rank", { mesh = "2x2", words = "steps=120 replicate=i8 shard=i4", timeout = 60, delay = 0 }),
    })
  end)

  it("H4 names the host whose launcher, or everything, is killed", function()
    if why_not then return pending(why_not) end
    assert_well(breadth.few {
      case_of("kill_launcher"), case_of("kill_launcher", { host = 1, nodes = true }), three("kill_host"),
      case_of("kill_host", { host = 1 }),
    })
  end)

  it("H4 names the rank that is stopped, not those that give up because of it", function()
    if why_not then return pending(why_not) end
    assert_well(breadth.few { case_of("stop_rank", { rank = 2, nodes = true }), case_of("stop_rank", { host = 1 }) })
  end)

  it("H4 names the host that loses power, whose launcher is stopped, or whose link goes down", function()
    if why_not then return pending(why_not) end
    assert_well(breadth.few { case_of("stop_launcher"), three("cut_link"), three("lose_host") })
  end)

  it("H4 names the hosts that cannot reach each other, though both reach the first", function()
    if why_not then return pending(why_not) end
    struck_hosts.run(three("part_hosts", { at = "start", delay = 0 }), function(ended)
      local one = ended.commands[1]
      assert.is_false(one.hung)
      assert.equal(3, one.status, one.err)
      for rank = 0, 2 do
        assert.truthy(ended.said[rank]:find("connection between rank [12] and rank [12] failed"), ended.said[rank])
      end
      assert.equal("", ended.left)
    end)
  end)

  it("H4 goes on with the same numbers after a rank that lagged, or a link that was down", function()
    if why_not then return pending(why_not) end
    local function losses(strike)
      local case = case_of(strike, { timeout = 60, delay = 0, words = ("steps=%d --metrics $D/metrics"):format(STEPS) })
      return struck_hosts.run(case, function(ended)
        assert.equal(0, ended.commands[1].status, ended.commands[1].err)
        local list = {}
        for line in io.lines(ended.folder .. "/metrics") do
          list[#list + 1] = line:match('"loss":[^,]*,"grad_norm":[^,]*')
        end
        return list
      end)
    end
    local expected = losses("none")
    assert.equal(STEPS, #expected)
    assert.same(expected, losses("lag_rank"))
    assert.same(expected, losses("blink_link"))
  end)

  it("H4 L7 ends on SIGTERM to the command, one launcher or one rank, after a save by all ranks", function()
    if why_not then return pending(why_not) end
    for _, case in ipairs(breadth.few {
      case_of("term_launcher"), case_of("term_rank", { rank = 2 }), case_of("term"),
      case_of("term_launcher", { nodes = true }),
    }) do
      case.words = FOR_EVER .. " dir=$D/checkpoints every=1000000"
      case.timeout = 60
      struck_hosts.run(case, function(ended)
        local told = case.strike .. ": " .. ended.commands[1].err
        for _, one in ipairs(ended.commands) do assert.equal(143, one.status, told) end
        local step = ended.commands[1].err:match("^moonshard: terminated after step (%d+), saved as %S+\n$")
        assert.truthy(step, told)
        assert.equal("", ended.left)
        local list = io.popen("ls " .. ended.folder .. "/checkpoints")
        assert.equal(("step-%08d\n"):format(step), list:read("*a"))
        list:close()
      end)
    end
  end)

  it("H4 L7 ends on SIGTERM and Ctrl-C without a save", function()
    if why_not then return pending(why_not) end
    assert_well(breadth.few { case_of("int"), case_of("term") })
  end)
end)
