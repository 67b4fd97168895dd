-- Training over several hosts: the same bits in every run and over each transport, and what one host gives. Here the
-- hosts are this machine under other names; nodes_spec.lua trains over network namespaces, and random_plans_spec.lua
-- compares random models with one rank.

local breadth = require("lua.support.breadth")
local launched = require("lua.support.launched")
local program = require("lua.support.program")
local scratch = require("lua.support.scratch")

-- Prints losses and the sum of all parameters of some models, to the last bit: the first rank does, or each one.
local RECIPE = [==[
  local ms = require "moonshard"
  local re = ms.re
  local cfg = ms.args { meshes = "", dtype = "f32", layout = "rows", each = false, steps = 3, whole = false }
  local function say(line)
    if cfg.each then io.write(line .. "\n") else ms.log.print(line) end
  end
  for mesh in cfg.meshes:gmatch("%S+") do
    local model = ms.models.gpt2 { vocab = 40, layers = 2, dim = 24, heads = 2, seq = 8 }
    ms.fully_shard(model, {
      mesh = ms.init_device_mesh("cpu", mesh, { "replicate", "shard" }), units = { re[[^layers\.\d+$]] },
      layout = cfg.layout, shard = cfg.whole and { { "layers.0", false } } or nil,
      mp_policy = { param_dtype = cfg.dtype, reduce_dtype = cfg.dtype },
    })
    local train = ms.trainer {
      model = model, loss = ms.loss.cross_entropy, optimizer = ms.optim.adamw { lr = 1e-2 }, micro_batches = 2,
      clip_grad_norm = 1,
    }
    for step = 1, cfg.steps do
      local function draw(seed)
        local data, drawn = require("ffi").new("int32_t[64]"), ms.rand { 64, seed = seed }:tolist()
        for i = 1, 64 do data[i - 1] = math.floor(40 * drawn[i]) end
        return { data = data, dtype = "i32", shape = { 8, 8 } }
      end
      local seed = 100 * step + ms.world().rank
      local m = train:step { tokens = draw(seed), targets = draw(seed + 50) }
      say(("%s step %d: %.17g %.17g"):format(mesh, step, m.loss, m.grad_norm))
    end
    local sum = 0
    for name in model:named_parameters() do
      for _, x in ipairs(train:parameter(name):flatten():tolist()) do sum = sum + x end
    end
    say(("%s: %.17g"):format(mesh, sum))
  end
]==]

-- In how many of them another order of a sum gives other bits grows with the steps. What a sanitizer sees does not.
local config = os.getenv("MOONSHARD_CONFIG")
local STEPS = config == "release" and "steps=20" or "steps=2"

local CASES = {
  { "a:1,b:1", "1x2 2x1" }, { "a:2,b:2", "1x4 2x2 4x1" }, { "a:1,b:1,c:1", "1x3 3x1" },
  { "a:1,b:1,c:1,d:1", "2x2 4x1" },
  { "a:3,b:3", "2x3 3x2 6x1", "whole=false" }, -- 3x2 would sum copies of a unit in other orders
}

local function train(recipe, hosts, settings)
  local words = { "run", recipe, "--timeout", "60" }
  for _, word in ipairs(hosts) do words[#words + 1] = word end
  for _, word in ipairs(settings) do words[#words + 1] = word end
  local ended = program.run(words)
  assert.equal(0, ended.status, ended.err)
  return ended.out
end

local function on(hosts, ...)
  return { "--hosts", hosts, "--agent", "tests/fuzz/agent.sh", "--rendezvous", "tcp://127.0.0.1", ... }
end

-- As ranks of mpirun, of which every two pretend to be a host. Each prints its lines; returns them in order.
local function under_mpirun(recipe, transport, settings)
  local be_a_rank = [[
    export MOONSHARD_NODE=$((OMPI_COMM_WORLD_RANK / 2))
    export OMPI_COMM_WORLD_LOCAL_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=$((OMPI_COMM_WORLD_RANK % 2))
    exec "$0" "$@"
  ]]
  local environment = ("MOONSHARD_TRANSPORT=%s MOONSHARD_TOKEN=known-to-all-of-them mpirun --allow-run-as-root "
    .. "--oversubscribe -n 4 sh -c '%s'"):format(transport, be_a_rank)
  local place = "tcp://127.0.0.1:" .. launched.find_port()
  local ended = program.run({ "run", recipe, "--timeout", "60", "--rendezvous", place, unpack(settings) }, environment)
  assert.equal(0, ended.status, ended.err)
  local lines = {}
  for line in ended.out:gmatch("[^\n]+") do lines[#lines + 1] = line end
  table.sort(lines)
  return lines
end

local function numbers(text)
  local list = {}
  for number in text:gmatch(": ?([^\n]*)") do
    for one in number:gmatch("%S+") do list[#list + 1] = assert(tonumber(one), one) end
  end
  return list
end

describe("training over hosts", function()
  local recipe, has_ucx

  setup(function()
    recipe = scratch.path()
    has_ucx = program.run({ "doctor" }).out:find("UCX %d") ~= nil
    scratch.write(recipe, RECIPE)
  end)
  teardown(scratch.clear)

  -- A sanitizer sees in the first of some runs what it sees in all.
  for _, case in ipairs(config == "release" and breadth.few(CASES) or { { "a:2,b:2", "2x2" } }) do
    it("H1 repeats every bit on " .. case[1], function()
      local settings_of = { { "dtype=f32" }, { "dtype=bf16", "layout=ragged", case[3] or "whole=true" } }
      for _, more in ipairs(breadth.all and settings_of or { settings_of[2] }) do
        local settings = { "meshes=" .. case[2], unpack(more) }
        local first = train(recipe, on(case[1]), settings)
        if config == "release" then assert.equal(first, train(recipe, on(case[1]), settings)) end
        if has_ucx then assert.equal(first, train(recipe, on(case[1], "--transport", "ucx"), settings)) end
        local ranks = 0
        for count in case[1]:gmatch(":(%d)") do ranks = ranks + count end
        local one, many = numbers(train(recipe, { "-n", tostring(ranks) }, settings)), numbers(first)
        assert.equal(#one, #many)
        -- Sums of other orders; in bf16 each is rounded to 8 bits.
        local allowed = more[1] == "dtype=f32" and 1e-4 or 0.05
        for i, value in ipairs(one) do
          assert.is_true(math.abs(value - many[i]) <= allowed * math.max(1, math.abs(value)),
            ("number %d is %.9g, but on one host %.9g"):format(i, many[i], value))
        end
      end
    end)
  end

  it("H1 gives all ranks one loss and norm, also where hosts divide the replicas of each shard differently", function()
    local out = train(recipe, on("a:3,b:3", "--log-ranks", "all"), { "meshes=3x2", "each=true", STEPS })
    local ranks_with = {}
    for line in out:gmatch("%[rank %d%] ([^\n]*)") do ranks_with[line] = (ranks_with[line] or 0) + 1 end
    assert.is_not_nil(next(ranks_with))
    for line, ranks in pairs(ranks_with) do assert.equal(6, ranks, line) end
  end)

  it("H1 gives the same bits over MPI", function()
    if os.getenv("MOONSHARD_CONFIG") ~= "release" then
      return pending("tests/c/transport/test_mpi_launched uses MPI there")
    end
    local library = os.getenv("MOONSHARD_BIN"):match("^(.*)/") .. "/libmoonshard_mpi.so"
    if not launched.can("test -e " .. library .. " && command -v mpirun") then
      return pending("mpirun or libmoonshard_mpi.so is missing")
    end
    local settings = { "meshes=2x2 4x1" }
    local over_tcp = under_mpirun(recipe, "tcp", settings)
    assert.equal(4 * 2 * 4, #over_tcp)
    assert.same(over_tcp, under_mpirun(recipe, "mpi", settings))
  end)
end)
