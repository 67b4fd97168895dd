-- Tensor and context dimensions over several hosts: `moonshard check` compares the ranks of hosts with one rank, and
-- counts, bytes and memory with the plan. Here the hosts are this machine under other names.

local checks = require("lua.hosts.struck_checks")
local breadth = require("lua.support.breadth")
local has = require("lua.support.message").has
local program = require("lua.support.program")
local struck_hosts = require("lua.hosts.struck_hosts")

local RECIPE = "tests/lua/recipes/tensor_parallel.lua"

local function on(command, hosts, ...)
  return { command, RECIPE, "--hosts", hosts, "--agent", "tests/fuzz/agent.sh", "--rendezvous", "tcp://127.0.0.1",
    "--timeout", "60", ... }
end

-- Sizes of replicate, shard and tensor, or of replicate, shard, context and tensor.
local EQUAL = {
  ["replicas across"] = on("check", "a:2,b:2", "mesh=2x1x2", "dtype=bf16", "micro_batches=2"),
  ["shards across"] = on("check", "a:2,b:2", "mesh=1x2x2", "sequence_parallel=true"),
  ["tensor across"] = on("check", "a:1,b:1", "mesh=1x1x2", "dropout=0.2", "recompute=true",
    "steps=1"),
  ["tensor over hosts and ranks"] = on("check", "a:2,b:2", "mesh=1x1x4", "sequence_parallel=true", "tied=true"),
  ["tensor over uneven hosts"] = on("check", "a:3,b:1", "mesh=1x1x4", "tied=true"),
  ["replicas over uneven hosts"] = on("check", "a:3,b:1", "mesh=2x1x2"),
  ["context across"] = on("check", "a:1,b:1", "mesh=1x1x2x1", "dropout=0.2"),
  ["context over hosts and ranks"] = on("check", "a:2,b:2", "mesh=1x1x4x1", "model=llama", "ignored=true"),
  ["context over uneven hosts"] = on("check", "a:3,b:1", "mesh=1x1x4x1", "documents=true", "seq=64"),
  ["context across, tensor inside"] = on("check", "a:2,b:2", "mesh=1x1x2x2", "sequence_parallel=true"),
  ["modules of one's own"] = on("check", "a:1,b:1", "mesh=1x1x2", "model=mixer", "sequence_parallel=true"),
  ["four dimensions"] = on("check", "a:4,b:4", "mesh=2x1x2x2", "batch=1", "layout=ragged"),
}

-- The last one is the only one under the thread sanitizer.
local NAMES = {}
for name in pairs(EQUAL) do NAMES[#NAMES + 1] = name end
table.sort(NAMES)
NAMES = breadth.few(NAMES)

describe("tensor and context dimensions over hosts", function()
  local ended

  setup(function()
    local cases = {
      orders = on("run", "a:3,b:3", "mesh=3x1x2"), orders_of_shards = on("run", "a:3,b:3", "mesh=1x3x2"),
      same_order = on("run", "a:4,b:2", "mesh=3x1x2", "steps=1"),
      stalls = on("run", "a:2,b:2", "mesh=1x1x4", "model=by_hand", "--timeout", "2", "--inject-delay", "tensor:60s@2"),
      ["stalls in context"] = on("run", "a:2,b:2", "mesh=1x1x4x1", "--timeout", "2", "--inject-delay",
        "context:60s@3"),
    }
    for _, name in ipairs(NAMES) do cases[name] = EQUAL[name] end
    ended = program.run_all(cases)
  end)

  for _, name in ipairs(NAMES) do
    it("T15 H1 train as one rank does, with the bytes of the plan: " .. name, function()
      assert.equal(0, ended[name].status, ended[name].err .. ended[name].out)
      has(ended[name].out, "equal within tolerance | the plan's")
    end)
  end

  it("T15 L6 name a rank that stalls in a collective along them, with its layer", function()
    for name, facts in pairs({
      stalls = "rank 2 on b | rank 2 | all_gather layers.0.up | phase | first | step 1",
      ["stalls in context"] = "rank 3 on b | rank 3 | all_gather layers.0.attn | phase | first | step 1",
    }) do
      assert.equal(3, ended[name].status, ended[name].err)
      has(ended[name].err:match("^[^\n]*"), facts)
    end
  end)

  it("T15 H4 name the rank that is killed, or the host that is lost, while its group divides layers", function()
    local why_not = struck_hosts.why_not()
    if why_not then return pending(why_not) end
    for _, strike in ipairs({ "kill_rank", "stop_rank", "kill_host" }) do
      assert.is_nil(checks.run({ hosts = 2, ranks = 2, mesh = "1x1x4", at = "begun", delay = 0.1, strike = strike,
        host = 2, rank = 1, timeout = 5, words = "steps=1000000 --inject-delay update:10ms" }))
    end
  end)

  it("T15 D12 refuse hosts that cut a group of tensor so that its ranks would sum in different orders", function()
    for name, dim in pairs({ orders = "replicate", orders_of_shards = "shard" }) do
      assert.equal(2, ended[name].status, ended[name].err)
      has(ended[name].err, ("3 ranks along dimension %s | rank 2 | rank 3 | multiple of 2"):format(dim))
    end
    assert.equal(0, ended.same_order.status, ended.same_order.err)
  end)
end)
