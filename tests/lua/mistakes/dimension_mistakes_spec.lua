-- What those run into who divide layers or samples over a mesh for the first time, or come from PyTorch: each is one
-- line with the place, and with what would be right. Nothing that would train wrong numbers, or for nothing, is silent.

local has = require("lua.support.message").has
local program = require("lua.support.program")

local RECIPE = [[
local ms, re = require "moonshard", require("moonshard").re
local model = ms.models.gpt2 { vocab = 256, layers = 1, dim = 32, heads = 4, seq = 16 }
local mesh = ms.init_device_mesh("cpu", { 1, 2, 2 }, { "replicate", "shard", "tensor" })
local rules = ms.rules.tensor_parallel(model)
ms.fully_shard(model, { mesh = mesh, placements = rules })
local data = ms.data.text { files = "README.md", seq = 16, batch = 2, mesh = mesh }
local train = ms.trainer { model = model, optimizer = ms.optim.adamw { lr = 1e-2 }, loss = ms.loss.cross_entropy }
for _, batch in data:batches(1) do train:step(batch) end
]]

-- Each has: the line that is wrong, what replaces what in it, and what is said.
local MISTAKES = {
  { 3, '"tensor"', '"mp"', "dimension mp | tensor", at = 5 },
  { 3, '"replicate", "shard"', '"replicate", "shrad"', "dimension shrad | shard", at = 5 },
  { 3, '1, 2, 2 }, {.*}', '2, 2 }, { "dp", "cp" }', "dimension dp | DDP | FSDP", at = 5 },
  { 3, 'ms.init.*', "{ 1, 2, 2 }", "3 dimensions | ms.init_device_mesh", at = 5 },
  { 4, "ms.rules.*", '{ { "embed", { tensor = "ColwiseParallel" } } }', "rule 1 | ColwiseParallel | colwise?", at = 5 },
  { 4, "ms.rules.*", '{ { "embed", "vocab" } }', 'rule 1 | "vocab" | { tensor = "colwise" }', at = 5 },
  { 4, "ms.rules.*", '{ { "embed", ms.Shard(0) } }', 'rule 1 | Shard(0) | { tensor = "colwise" }', at = 5 },
  { 4, "ms.rules.*", '{ { "embed", { shard = "vocab" } } }', 'rule 1 | "shard" | tensor', at = 5 },
  { 4, "ms.rules.*", '{ { "embed", { tp = "vocab" } } }', 'rule 1 | "tp" | tensor?', at = 5 },
  { 4, "ms.rules.*", '{ { "embed", { tensor = "vocab", n_heads = 2 } } }', '"n_heads" | heads?', at = 5 },
  { 4, "ms.rules.*", '{ { "embed", { "vocab" } } }', 'rule 1 | name the dimension | { tensor = "colwise" }', at = 5 },
  { 4, "ms.rules.*", '{ { "embed.weight", { tensor = ms.Shard(-3) } } }', "Shard(-3) | embed.weight | -3", at = 5 },
  { 4, "ms.rules.*", '{ { "embed", { tensor = ms.Partial() } } }', 'ms.Partial | "partial" | x:to_local' },
  { 4, "ms.rules.*", "ms.rules.sequence_parallel(model)", "ms.rules.sequence_parallel | tensor_parallel" },
  { 4, "ms.rules.*", '{ embed = { tensor = "vocab" } }', 'placements | list | { "embed", value', at = 5 },
  { 4, "ms.rules.*", '{ { "embed", ms.RowwiseParallel() } }', "ms.RowwiseParallel | placements" },
  { 4, "ms.rules.*", '{ { ms.re[[wq.weight]], { tensor = "colwise", heads = 1e15 + 1 } } }',
    "layers.0.attn.wq.weight | 32 | axis 0 | 1000000000000001 heads", at = 5 },
  { 5, "ms.fully_shard.*", "ms.parallelize_module(model, mesh, rules)", "ms.parallelize_module | placements" },
  { 5, "placements = rules", "loss_parallel = true", "option loss_parallel | divided" },
  { 5, "placements = rules", "tensor_parallel = 2", "option tensor_parallel | mesh | placements" },
  { 5, "placements = rules", "context_parallel = 2", "option context_parallel | mesh | context" },
  { 5, "placements", 'strategy = "NO_SHARD", placements', "NO_SHARD | 1x2x2 | replicate" },
}

local function replaced(line, from, to)
  local lines = {}
  for text in RECIPE:gmatch("[^\n]+") do lines[#lines + 1] = text end
  local changed, n = lines[line]:gsub(from, (to:gsub("%%", "%%%%")), 1)
  assert.equal(1, n, from)
  lines[line] = changed
  return table.concat(lines, "\n") .. "\n"
end

-- The same with a model and batches of its own.
local OWN = [[
local ms = require "moonshard"
local mesh = ms.init_device_mesh("cpu", { 2, 2 }, { "shard", "%s" })
local model = ms.nn.sequential { ms.nn.linear(8, 16), ms.ops.relu, ms.nn.linear(16, 4) }
local pair = { { "0", { tensor = "colwise" } }, { "2", { tensor = "rowwise" } } }
ms.fully_shard(model, { mesh = mesh, placements = pair })
local train = ms.trainer { model = model, optimizer = ms.optim.adamw { lr = 1e-2 }, loss = ms.loss.mse }
local data = ms.data.random { inputs = 8, targets = 4 }
for _, batch in data:batches(ms.data.sampler { length = data.length, %s }, 8) do
  print(train:step(batch).loss)
  break
end
]]

local paths, ended = {}, nil

local function run_all()
  local runs = {}
  local function add(name, command, source, ...)
    paths[name] = program.recipe(source)
    runs[name] = { command, paths[name], "-n", "4", ... }
  end
  for i, mistake in ipairs(MISTAKES) do add(i, "plan", replaced(mistake[1], mistake[2], mistake[3])) end
  add("undivided", "plan", replaced(5, ", placements = rules", ""), "--summary")
  add("divided", "plan", RECIPE, "--summary")
  add("without the dimension", "plan", replaced(3, "1, 2, 2 }, {.*}", '2, 2 }, { "replicate", "shard" }'), "--summary")
  add("text", "run", replaced(6, ", mesh = mesh", ""), "--timeout", "60")
  for _, dim in ipairs({ "tensor", "context" }) do
    add("sampler over " .. dim, "run", OWN:format(dim, "seed = 1"), "--timeout", "60")
    add("shared over " .. dim, "run", OWN:format(dim, "mesh = mesh"), "--timeout", "60")
  end
  ended = program.run_all(runs)
end

describe("mistakes with dimensions", function()
  setup(run_all)
  teardown(function()
    for _, path in pairs(paths) do os.remove(path) end
  end)

  it("T13 are one line with the place and what would be right", function()
    for i, mistake in ipairs(MISTAKES) do
      local got = ended[i]
      assert.equal(2, got.status, mistake[3] .. got.err)
      has(got.err, ("%s:%d: | %s"):format(paths[i], mistake.at or mistake[1], mistake[4]))
    end
  end)

  it("T13 ranks that compute the same are warned of, and rules without the dimension change nothing", function()
    assert.equal(0, ended.undivided.status, ended.undivided.err)
    has(ended.undivided.err, "warning: | placements | 2 ranks | tensor | ms.rules.tensor_parallel")
    for _, name in ipairs({ "divided", "without the dimension" }) do
      assert.equal(0, ended[name].status, ended[name].err)
      assert.equal("", ended[name].err)
    end
  end)

  it("T14 data that gives other samples to ranks that compute together is refused, wherever it is from", function()
    assert.equal(2, ended.text.status, ended.text.err)
    has(ended.text.err, "tensor | 1x2x2 | mesh = mesh")
    for _, dim in ipairs({ "tensor", "context" }) do
      local got = ended["sampler over " .. dim]
      assert.equal(2, got.status, got.err)
      has(got.err, ("rank 0 | rank 1 | %s | mesh = mesh"):format(dim))
      got = ended["shared over " .. dim]
      assert.equal(0, got.status, got.err)
    end
  end)

  it("T13 names the line of the op that the ranks cannot divide, among others of its module", function()
    local recipe = program.recipe([[
local ms = require "moonshard"
local Block = ms.module "Block"
function Block:init() self.a, self.o = ms.nn.linear(6, 6), ms.nn.linear(6, 6) end
function Block:forward(x)
  local h = self.a(x):tanh()
  h = h:reshape(4, 8, 3, 2)
  h = h:reshape(4, 8, 6)
  return self.o(h)
end
local model = ms.nn.sequential { Block(), Block() }
local mesh = ms.init_device_mesh("cpu", { 1, 2 }, { "shard", "tensor" })
ms.fully_shard(model, { mesh = mesh, placements = { { ms.re"a", { tensor = "colwise" } } } })
local train = ms.trainer { model = model, optimizer = ms.optim.sgd { lr = 0.1 }, loss = ms.loss.mse }
train:step { inputs = ms.ones(4, 8, 6), targets = ms.zeros(4, 8, 6) }
]])
    local got = program.run({ "run", recipe, "-n", "2" })
    assert.not_equal(0, got.status)
    has(got.err, recipe .. ":6: | reshape | [4,8,6] to [4,8,3,2] | tensor")
    os.remove(recipe)
  end)
end)
