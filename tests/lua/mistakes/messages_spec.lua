-- What is said of a mistake: the right line, the right rank, the first cause, and what would be right. Here are those
-- that Lua or the engine would otherwise pass over, or tell of something else.

local has = require("lua.support.message").has
local line_has = require("lua.support.message").line_has
local program = require("lua.support.program")

local HEAD = [[
local ms = require "moonshard"
local rank = ms.world().rank
local model = ms.nn.sequential { ms.nn.linear(4, 8), ms.ops.relu, ms.nn.linear(8, 2) }
ms.fully_shard(model, { mesh = ms.world().size })
local data = ms.data.random { inputs = 4, targets = 2 }
local train = ms.trainer { model = model, loss = ms.loss.mse, optimizer = ms.optim.sgd { lr = 0.1 } }
local function step() return train:step(data:read { 0, 1 }) end
]]
local FIRST_LINE = 8 -- of what follows it

-- Runs a recipe; its path in what it printed is RECIPE.
local function run(source, ranks, command)
  local path = program.recipe(source)
  local ended = program.run({ command or "run", path, "-n", tostring(ranks or 1), "--timeout", "60" })
  os.remove(path)
  ended.err = ended.err:gsub(path:gsub("%p", "%%%0"), "RECIPE")
  ended.out = ended.out:gsub(path:gsub("%p", "%%%0"), "RECIPE")
  return ended
end

local function says(text, source, ranks, status)
  local ended = run(source, ranks)
  assert.equal(status or 2, ended.status, ended.err)
  has(ended.err, text)
  return ended.err
end

local function at_head(text, status, source, ranks)
  return says(("RECIPE:%d: | %s"):format(FIRST_LINE, text), HEAD .. source, ranks, status)
end

describe("an error in a tail call", function()
  local function of_forward(forward)
    return run(([[
local ms = require "moonshard"
local Inner, Net = ms.module "Inner", ms.module "Net"
function Inner:init() self.a = ms.nn.linear(4, 2) end
%s
function Net:init() self.inner = Inner() end
function Net:forward(x)
  return self.inner(x)
end
local net = Net()
ms.fully_shard(net)
local train = ms.trainer { model = net, loss = ms.loss.mse, optimizer = ms.optim.sgd { lr = 0.5 } }
train:step { inputs = ms.zeros(3, 4), targets = ms.zeros(3, 2) }
]]):format(forward)).err
  end

  it("is reported with the line that made it", function()
    line_has(of_forward("function Inner:forward(x)\n  x = x:relu()\n  return x:reshape(5, 5)\nend"),
      "moonshard: RECIPE:6: | inner: | reshape | [3,4] | 12 | [5,5]")
  end)

  it("is reported with that line from inside of a layer that it called", function()
    line_has(of_forward("function Inner:forward(x)\n  return self.a(x:reshape(-1, 3))\nend"),
      "moonshard: RECIPE:5: | inner.a: | matmul | [4,3] | [2,4]")
  end)

  it("is reported with all lines that may have made it", function()
    line_has(of_forward("function Inner:forward(x)\n  if x.shape[1] == 2 then return x:relu() end\n"
        .. "  return x:reshape(5, 5)\nend"), "moonshard: RECIPE:5 or 6: | inner: | reshape | [3,4] | 12 | [5,5]")
  end)
end)

describe("what Lua would pass over", function()
  it("is an error: a setting that is not there", function()
    says("RECIPE:1: | Lr: | lr?",
      'local cfg = require("moonshard").args { lr = 0.1 } print(cfg.Lr)')
  end)

  it("is an error: ipairs over a loader, a sampler or a tensor", function()
    at_head("ipairs | random data | data:batches(", 2,
      "for _, batch in ipairs(data) do train:step(batch) end")
    at_head("ipairs | sampler | sampler:samples()", 2,
      "for _ in ipairs(ms.data.sampler { length = 4 }) do end")
    at_head("ipairs | tensor | x:tolist()", 2, "for _ in ipairs(ms.ones(3)) do end")
    assert.equal("1\ta\n2\tb\n", run("require 'moonshard' for i, x in ipairs { 'a', 'b' } do print(i, x) end").out)
  end)

  it("is an error: a layer that was replaced after the model was sharded", function()
    at_head("0 | replaced | RECIPE:4", 3,
      "step() model[1] = ms.nn.linear(4, 8) step()")
    at_head("2.weight | replaced", 2, "model[3].weight = ms.parameter { 2, 8 } step()")
    at_head("the model | [0] | lists begin at [1]", 3, "step() model[0] = ms.nn.linear(4, 8) step()")
  end)

  it("is said: a model that was not given to ms.fully_shard", function()
    local source = HEAD:gsub("ms.fully_shard[^\n]*", "")
    local ended = run(source .. "step()", 2)
    assert.equal(0, ended.status)
    line_has(ended.err, "moonshard: warning: RECIPE:6: | 2 ranks | DDP | ms.fully_shard(model)")
    assert.equal("", run(source .. "step()", 1).err)
  end)
end)

describe("a loop over what is no iterator", function()
  it("says how to loop", function()
    at_head("random data | iterator | data:batches(", 2, "for _, batch in data do train:step(batch) end")
    at_head("sampler | iterator | sampler:samples()", 2, "for _ in ms.data.sampler { length = 4 } do end")
    at_head("tensor | iterator | x:tolist()", 2, "for _ in ms.ones(3) do end")
  end)
end)

describe("a forward of layers", function()
  local function of_forward(text)
    return run(([[
local ms = require "moonshard"
local Net = ms.module "Net"
function Net:init() self.fc1, self.fc2, self.norm = ms.nn.linear(4, 8), ms.nn.linear(8, 2), ms.nn.layer_norm(8) end
function Net:forward(x)
  return %s
end
local net = Net()
ms.fully_shard(net)
local train = ms.trainer { model = net, loss = ms.loss.mse, optimizer = ms.optim.sgd { lr = 0.5 } }
train:step { inputs = ms.zeros(3, 4), targets = ms.zeros(3, 2) }
]]):format(text)).err
  end

  it("that calls one with a dot learns of the colon", function()
    local calls = { "self.fc1.forward(x)", "self.norm.forward(self.fc1(x))", "self.fc2.forward(self.fc1(x))" }
    for _, text in ipairs(calls) do
      line_has(of_forward(text), "RECIPE:5: | tensor | forward | dot | layer(x) | colon")
    end
  end)

  it("that names one wrongly gets the nearest name", function()
    line_has(of_forward("self.fc3(self.fc1(x))"), "RECIPE:5: | fc3 | fc1, fc2 or norm?")
    line_has(of_forward("self.nrom:forward(x)"), "RECIPE:5: | nrom | norm, ")
    assert.is_nil(of_forward("self.fc1.wieght.shape"):find("no field", 1, true))
  end)
end)

describe("a loss of numbers", function()
  it("that is given classes names them, and what takes classes", function()
    for _, what in ipairs({ "mse", "l1", "huber" }) do
      local source = HEAD:gsub("ms%.loss%.mse", "ms.loss." .. what)
      says("ms.loss." .. what .. " | the target is i32 | cast | cross_entropy", source
        .. "train:step { inputs = ms.zeros(2, 4), targets = ms.tensor { { 1, 2 }, { 3, 4 }, dtype = 'i32' } }")
    end
  end)
end)

describe("what nothing would take", function()
  it("is refused in a batch: booleans, texts, functions, and fields without names", function()
    for value, facts in pairs({ ["true"] = "batch.warm | true | number", ['"hard"'] = "batch.warm | hard | number",
      ["print"] = "batch.warm | function | number" }) do
      at_head(facts, 2, "local b = data:read { 0, 1 } b.warm = " .. value .. " train:step(b)")
    end
    at_head("names | inputs = | 1", 2, "local b = data:read { 0, 1 } train:step { b.inputs, targets = b.targets }")
  end)

  it("is refused of a parameter: the fields that PyTorch's have", function()
    local fields = { requires_grad = "freeze | ms.fully_shard", data = "set_parameter", grad = "train:step" }
    for field, facts in pairs(fields) do
      at_head(field .. " | " .. facts, 2, "for _, p in model:named_parameters() do p." .. field .. " = false end")
    end
  end)

  it("is refused of a trainer: a loss with a forward, and data without its position", function()
    local other = "ms.trainer { model = ms.nn.linear(2, 2), loss = ms.loss.mse, "
      .. "optimizer = ms.optim.sgd { lr = 1 }, %s }"
    at_head("loss | forward", 2, other:format("forward = print"))
    for _, method in ipairs({ "state", "load_state" }) do
      local data = method == "state" and "load_state" or "state"
      at_head("checkpoint | method " .. method, 2, other:format(("checkpoint = { dir = os.tmpname() .. 'd', "
        .. "data = { %s = print } }"):format(data)))
    end
  end)

  it("is refused of a mesh: sizes that are no whole numbers", function()
    for _, shape in ipairs({ "1.4x2", "1e9x2", "9.9x9.9x2" }) do
      at_head("mesh shape | " .. shape, 2, ("ms.init_device_mesh('cpu', %q)"):format(shape))
    end
  end)

  it("is refused of a state dict: parts of another shape", function()
    for _, shape in ipairs({ "{ 4, 8 }", "{ 32 }", "{ 2, 16 }" }) do
      at_head("load_state_dict | 0.weight is [ | here [8,4]", 2, ("local d = model:state_dict() d['0.weight'] = "
        .. "ms.ones(%s) model:load_state_dict(d)"):format(shape))
    end
  end)
end)

describe("a name that is almost right", function()
  it("of a mesh's dimension is answered with the nearest", function()
    local mesh = "local mesh = ms.init_device_mesh('cpu', { 1, 1 }, { 'replicate', 'shard' }) "
    for _, use in ipairs({ "mesh.shrad", "mesh:size('shrad')", "mesh:slice { 'replicate', 'shrad' }" }) do
      at_head('mesh 1x1 (replicate, shard) | "shrad" | shard?', 2,
        mesh .. "print(" .. use .. ")")
    end
  end)

  it("of a tied parameter is answered with the name that it has", function()
    local tied = [[
local ms = require "moonshard"
local Net = ms.module "Net"
function Net:init()
  self.embed = ms.nn.embedding(16, 8)
  self.head = ms.nn.linear(8, 16, { bias = false })
  self.head.weight = self.embed.weight
end
local net = Net()
]]
    local text = "head.weight | tied | embed.weight"
    says("RECIPE:9: | freeze | " .. text, tied .. 'ms.fully_shard(net, { freeze = { "head.weight" } })')
    says("optimizer | groups | " .. text, tied .. 'ms.fully_shard(net) ms.trainer { model = net, loss = ms.loss.mse,'
      .. 'optimizer = ms.optim.sgd { lr = 1, groups = { { "head.weight", { lr_scale = 2 } } } } }')
  end)

  it("and is a string that looks like a regular expression gets the way to write one", function()
    local model = HEAD:gsub("ms.fully_shard[^\n]*", "")
    says('units | "layers.*" | 3 names | 0, 2, 3 | re[[layers.*]]', (model:gsub("relu", "relu, ms.nn.dropout(0)")
      .. 'ms.fully_shard(model, { units = { "layers.*" } })'):gsub("local train[^\n]*", ""))
    local head = model:gsub("local train[^\n]*", "")
    says([=[write re[[layers\.\w+\.weight]]]=], head .. 'ms.fully_shard(model, { freeze = { "layers.*.weight" } })')
  end)

  it("and is a string that is a part of names gets the regular expression", function()
    local gpt2 = "local ms = require 'moonshard' local model = ms.models.gpt2 { vocab = 8, layers = 2, dim = 8, "
      .. "heads = 2, seq = 4 } ms.fully_shard(model, { %s })"
    for option, count in pairs({ units = 10, freeze = 16 }) do
      says(("%s | \"attn\" | re[[attn]] matches %d, first layers.0.attn"):format(option, count),
        gpt2:format(option .. " = { 'attn' }"))
    end
    says("units | \"atn\" | nearest", gpt2:format("units = { 'atn' }"))
  end)

  it("and is a string with brackets gets long brackets that hold them", function()
    local model = HEAD:gsub("ms.fully_shard[^\n]*", "")
    local head = model:gsub("local train[^\n]*", "")
    says("write re[=[[02]]=]", head .. 'ms.fully_shard(model, { freeze = { "[02]" } })')
  end)
end)

describe("a rank that fails alone", function()
  it("before training is named, and the status is that of bad input", function()
    line_has(at_head("no", 2, "if rank == 1 then error('no') end step()", 2), "moonshard: | rank 1 | RECIPE:8: no\n")
  end)

  it("after training began is named, and the status is 3", function()
    local err = at_head("no", 3, "step() if rank == 1 then error('no') end step()", 2)
    line_has(err, "moonshard: | rank 1 | : RECIPE:8: no\n")
    line_has(at_head("attempt", 3, "step() if rank == 1 then nothing.x = 1 end step()", 2),
      "moonshard: | rank 1 | : RECIPE:8: | 'nothing'")
  end)

  it("cannot fake lines, move the cursor, or fill the screen", function()
    local err = at_head("a\\nmoonshard: rank 0 died: \\x1b[31m\\xc2\\x9b", 3,
      "step() error('a\\nmoonshard: rank 0 died: \\27[31m\\194\\155' .. ('y'):rep(5000))")
    assert.equal(1, select(2, err:gsub("\n", "")))
    assert.truthy(#err < 1200, #err)
    has(err, "... (")
    has(err, " bytes more")
    at_head("b\\nmoonshard: c", 2, "error(setmetatable({}, { __tostring = function() "
      .. "return 'RECIPE:8: b\\nmoonshard: c' end }), 0)")
  end)

  it("on a token that is not in the vocabulary is named", function()
    local err = says("RECIPE:7: | embed: | embedding | token 99 | position 1 | [0,16)", [[
local ms = require "moonshard"
local model, rank = ms.models.gpt2 { vocab = 16, layers = 1, dim = 8, heads = 2, seq = 2 }, ms.world().rank
ms.fully_shard(model)
local train = ms.trainer { model = model, loss = ms.loss.cross_entropy, optimizer = ms.optim.sgd { lr = 0.5 } }
local targets = ms.tensor { { 1, 2 }, dtype = "i32" }
for i = 1, 2 do
  train:step { tokens = ms.tensor { { 1, i + rank == 4 and 99 or 2 }, dtype = "i32" }, targets = targets }
end
]], 3, 3)
    has(err, "moonshard: | rank 2")
  end)

  it("by leaving its loop is said to have left it early", function()
    local err = says("rank 1 | loop | early",
      HEAD .. "for i = 1, 3 do if rank == 1 and i == 3 then break end step() end", 3, 3)
    has(err, "rank 1 | barrier | step 2")
    says("rank 1 | loop",
      HEAD .. "for i = 1, 3 do if rank ~= 1 and i == 3 then break end step() end", 3, 3)
  end)

  it("and catches it is reported by that, and not by what came of it", function()
    local caught = HEAD:gsub("loss = ms.loss.mse", "loss = function(...) return of(...) end") .. [[
function of(outputs, targets)
  if failing and rank == 1 then return ms.ops.matmul(outputs, outputs) end
  return ms.loss.mse(outputs, targets)
end
step()
failing = true
pcall(train.step, train, { inputs = ms.zeros(3, 4), targets = ms.zeros(3, 2) })
failing = false
step()
]]
    says("rank 1 | failed before | RECIPE:14: | matmul | [3,2] | disagree", caught, 2, 3)
    -- All ranks alike: a recipe that looks for the largest batch.
    local alike = run(caught:gsub("failing and rank == 1", "failing"), 2)
    assert.same({ 0, "" }, { alike.status, alike.err })
  end)

  it("because its batch differs is refused on all ranks, which can train on", function()
    local ended = run(HEAD .. [[
step()
local batch = rank == 1 and { inputs = ms.zeros(2, 3), targets = ms.zeros(2, 2) } or data:read { 0, 1 }
print(select(2, pcall(train.step, train, batch)))
print(step().step)
]], 2)
    assert.same({ 0, "" }, { ended.status, ended.err })
    has(ended.out, "not run the same | batch.inputs | [2,4] on rank 0 | [2,3] on rank 1")
  end)
end)

describe("a parameter that one rank alone reads", function()
  it("is named, and that all ranks read it", function()
    for _, call in ipairs({ "train:parameter('0.weight')", "model:parameter('2.bias')" }) do
      says("rank 0 | train:parameter | all ranks", HEAD
        .. "step() if rank == 0 then local _ = " .. call .. " end step()", 2, 3)
    end
  end)
end)

describe("moonshard check", function()
  it("gives recipes the mesh dimensions that they read", function()
    local ended = run(HEAD:gsub("mesh = [^}]*}", 'mesh = "1x2" }')
      .. "for _ = 1, 3 do local m = step() print(m.comm_bytes.replicate + m.comm_bytes.shard) end", 2, "check")
    assert.equal(0, ended.status, ended.err)
    has(ended.out, "tolerance | 3 steps")
  end)
end)
