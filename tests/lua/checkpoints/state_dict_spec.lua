-- Parts of a state dict that ranks put back: those of which several ranks have copies must be the same on all of them,
-- and all ranks refuse others before anything is loaded. Parts of one rank alone can be anything.

local has = require("lua.support.message").has
local ms = require("moonshard")
local program = require("lua.support.program")
local scratch = require("lua.support.scratch")
local tree = require("moonshard.nn.tree")

-- Rank `on` doubles one parameter of what it puts back.
local RECIPE = [[
local ms = require "moonshard"
local cfg = ms.args { mesh = "2x1", names = "replicate shard", on = 1, name = "",
  slices = false, every = 0, full = false }
local names = {}
for name in cfg.names:gmatch("%S+") do names[#names + 1] = name end
local model = ms.nn.sequential { ms.nn.linear(4, 8), ms.nn.layer_norm(8), ms.ops.relu, ms.nn.linear(8, 4) }
ms.fully_shard(model, {
  mesh = ms.init_device_mesh("cpu", cfg.mesh, names), units = { ms.re"^\\d$" }, shared_masters = false,
  placements = cfg.names:find("tensor") and { { "0", { tensor = "colwise" } }, { "3", { tensor = "rowwise" } } } or nil,
  shard_optimizer_over_replicate = cfg.slices or nil,
  replicate_sync = cfg.every > 0 and { every = cfg.every, outer = ms.optim.sgd { lr = 1 } } or nil,
})
local train = ms.trainer { model = model, optimizer = ms.optim.adamw { lr = 0.01 }, loss = ms.loss.mse }
train:step { inputs = ms.randn { 4, 4, seed = 1 }, targets = ms.zeros(4, 4) }
local rank, dict = ms.world().rank, model:state_dict { full = cfg.full }
local before = model:local_parameter("1.weight"):tolist()
if rank == cfg.on then dict[cfg.name] = (dict[cfg.name] or ms.ones(4, 8)) * 2 end
local ok, raised = pcall(model.load_state_dict, model, dict, { full = cfg.full })
for i, value in ipairs(model:local_parameter("1.weight"):tolist()) do assert(value == before[i]) end
assert(ok or tostring(raised):find("nothing is loaded"), tostring(raised))
if not ok then error(raised, 0) end
if rank == 0 then print("loaded") end
]]

-- Two replicas of local steps; back=true: each puts its own weights back before the replicas meet.
local LOCAL = [[
local ms = require "moonshard"
local cfg = ms.args { back = false, out = "" }
local model = ms.nn.sequential { ms.nn.linear(4, 8), ms.ops.relu, ms.nn.linear(8, 4) }
ms.fully_shard(model, {
  mesh = ms.init_device_mesh("cpu", "2x1", { "replicate", "shard" }),
  replicate_sync = { every = 3, outer = ms.optim.sgd { lr = 0.7, momentum = 0.9 } },
})
local train, sums = ms.trainer { model = model, optimizer = ms.optim.adamw { lr = 0.01 }, loss = ms.loss.mse }, {}
for step = 1, 6 do
  train:step { inputs = ms.randn { 4, 4, seed = 10 * step + ms.world().rank }, targets = ms.ones(4, 4) }
  if step == 2 and cfg.back then model:load_state_dict(model:state_dict()) end
  sums[step] = ("%.9g"):format(model:local_parameter("0.weight"):sum():item())
end
local file = assert(io.open(("%s.%d"):format(cfg.out, ms.world().rank), "w"))
file:write(table.concat(sums, " "))
file:close()
]]

-- More parameters than ranks tell each other about in one exchange; `on` changes the last of them.
local MANY = [[
local ms = require "moonshard"
local cfg = ms.args { on = -1 }
local layers = {}
for i = 1, 600 do layers[i] = ms.nn.linear(1, 1, { bias = false }) end
local model = ms.nn.sequential(layers)
ms.fully_shard(model, { mesh = ms.init_device_mesh("cpu", "2x1", { "replicate", "shard" }), shared_masters = false })
local dict = model:state_dict()
if ms.world().rank == cfg.on then dict["599.weight"] = dict["599.weight"] * 2 end
model:load_state_dict(dict)
print("loaded")
]]

-- A part of one model takes the weights of the same part of another, and nothing else does.
local PART = [[
local ms = require "moonshard"
local cfg = ms.args { full = false, other = -1 }
local Pair = ms.module "Pair"
function Pair:init()
  self.g = ms.nn.sequential { ms.nn.linear(4, 4), ms.nn.linear(4, 4) }
  self.d = ms.nn.linear(4, 1)
  self.d.tied = self.g[1]
end
function Pair:forward(x) return self.d(self.g(x)) end
local function pair(seed)
  local made = Pair()
  ms.fully_shard(made, { mesh = "1x2", seed = seed, units = { "g.1" } })
  return made
end
local function names(dict)
  local list = {}
  for name in pairs(dict) do list[#list + 1] = name end
  table.sort(list)
  return table.concat(list, " ")
end
local a, b = pair(1), pair(2)
local kept, o = b:parameter("d.weight"):tolist(), { full = cfg.full }
if cfg.other == ms.world().rank then a.d:state_dict(o) end
local dict = a.g:state_dict(o)
if next(dict) then assert(names(dict) == "0.bias 0.weight 1.bias 1.weight", names(dict)) end
b.g:load_state_dict(dict, o)
local function same(x, y)
  for i, row in ipairs(x) do
    for j, value in ipairs(row) do
      if value ~= y[i][j] then return false end
    end
  end
  return true
end
assert(same(kept, b:parameter("d.weight"):tolist()))
assert(not same(kept, a:parameter("d.weight"):tolist()))
for i = 0, 1 do
  assert(same(a:parameter(("g.%d.weight"):format(i)):tolist(), b:parameter(("g.%d.weight"):format(i)):tolist()))
end
local tied = a.d:state_dict(o)
if next(tied) then assert(names(tied) == "bias tied.bias tied.weight weight", names(tied)) end
local ok, raised = pcall(b.g.load_state_dict, b.g, a:state_dict(o), o)
assert(not ok and tostring(raised):find("no g.0.bias", 1, true), tostring(raised))
print("taken")
]]

local TENSOR = "names=shard tensor"

-- Runs that are refused, with the facts that the message has.
local REFUSED = {
  ["replicas"] = { "2", "name=3.weight", "3.weight differs between rank 0 and rank 1 | full = true" },
  ["replicas of shards"] = { "4", "mesh=2x2", "on=3", "name=0.bias", "0.bias differs between rank 1 and rank 3" },
  ["ranks of tensor that have it whole"] = { "4", TENSOR, "mesh=2x2", "on=2", "name=1.bias",
    "1.bias differs between rank 2 and rank 3" },
  ["ranks of tensor with replicas' slices"] = { "4", "names=replicate tensor", "slices=true", "mesh=2x2", "on=1",
    "name=3.bias", "3.bias differs between rank 0 and rank 1" },
}

local TAKEN = {
  ["nothing else"] = { "4", "mesh=2x2", "on=-1", "name=0.bias" },
  ["shards"] = { "2", "mesh=1x2", "name=0.bias" },
  ["what tensor divides"] = { "2", TENSOR, "mesh=1x2", "name=0.weight" },
  ["slices of replicas"] = { "2", "slices=true", "on=0", "name=0.weight" },
  ["weights of local steps"] = { "2", "every=4", "name=0.weight" },
  ["what the first rank alone gives"] = { "2", "full=true", "name=3.weight" },
}

describe("parts that ranks load", function()
  local path, ended

  setup(function()
    path = program.recipe(RECIPE)
    local runs = {}
    for _, list in ipairs({ REFUSED, TAKEN }) do
      for name, case in pairs(list) do
        local words = { "run", path, "-n", case[1], "--timeout", "60" }
        for i = 2, #case do words[#words + 1] = case[i]:find("^%a+=") and case[i] or nil end
        runs[name] = words
      end
    end
    ended = program.run_all(runs)
  end)
  teardown(function() os.remove(path) end)

  it("U1 are refused on all ranks where copies differ, with the parameter and two ranks #release", function()
    for name, case in pairs(REFUSED) do
      assert.not_equal(0, ended[name].status, name)
      has(ended[name].err, "load_state_dict: " .. case[#case])
      assert.equal("", ended[name].out, name)
    end
  end)

  it("U1 can differ where no two ranks have the same elements", function()
    for name in pairs(TAKEN) do
      assert.equal(0, ended[name].status, name .. ": " .. ended[name].err)
      has(ended[name].out, "loaded")
    end
  end)

  it("U1 can be of any number of parameters", function()
    local recipe = program.recipe(MANY)
    local same = program.run { "run", recipe, "-n", "2", "--timeout", "60" }
    local other = program.run { "run", recipe, "-n", "2", "--timeout", "60", "on=1" }
    os.remove(recipe)
    assert.equal(0, same.status, same.err)
    has(same.out, "loaded")
    assert.not_equal(0, other.status)
    has(other.err, "599.weight differs between rank 0 and rank 1")
  end)

  it("U1 take as many walks over the modules, however many there are", function()
    local inventory, layers, walks = tree.inventory, {}, 0
    for i = 1, 20 do layers[i] = ms.nn.linear(1, 1) end
    local model = ms.nn.sequential(layers)
    ms.fully_shard(model)
    tree.inventory = function(...)
      walks = walks + 1
      return inventory(...)
    end
    local ok, dict = pcall(model.state_dict, model)
    tree.inventory = inventory
    assert(ok, dict)
    assert.is_truthy(dict["19.bias"])
    assert.is_true(walks < 5, walks)
  end)

  it("U1 can be those of a module within the model, by their names in it", function()
    local recipe = program.recipe(PART)
    for _, full in ipairs({ "full=false", "full=true" }) do
      local run = program.run { "run", recipe, "-n", "2", "--timeout", "60", full }
      assert.equal(0, run.status, run.err)
      has(run.out, "taken")
    end
    local apart = program.run { "run", recipe, "-n", "2", "--timeout", "60", "full=true", "other=1" }
    os.remove(recipe)
    assert.not_equal(0, apart.status)
    has(apart.err, "rank 1 | another part | same module")
  end)

  it("H12 are put back by replicas of local steps without a trace", function()
    local recipe, said = program.recipe(LOCAL), {}
    for _, back in ipairs({ "false", "true" }) do
      local out = scratch.path()
      local run = program.run { "run", recipe, "-n", "2", "--timeout", "60", "back=" .. back, "out=" .. out }
      assert.equal(0, run.status, run.err)
      said[back] = { scratch.read(out .. ".0"), scratch.read(out .. ".1") }
      for rank = 0, 1 do os.remove(out .. "." .. rank) end
    end
    os.remove(recipe)
    assert.same(said["false"], said["true"])
    assert.not_equal(said["true"][1], said["true"][2])
    local last = "%S+$"
    assert.equal(said["true"][1]:match(last), said["true"][2]:match(last))
  end)
end)
