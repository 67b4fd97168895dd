-- Raw errors of Lua, names of Python's, and loops without end, answered at the recipe's line with what to write; and
-- evaluations of a model that is not sharded, which every rank makes.

local has = require("lua.support.message").has
local program = require("lua.support.program")

local RECIPE = [[
local ms = require "moonshard"
local Net = ms.module "Net"
function Net:init() self.a, self.b = ms.nn.linear(8, 16), ms.nn.linear(16, 4) end
function Net:forward(x) return self.b(self.a(x):relu()) end
local model = ms.fully_shard(Net(), { mesh = 1 })
local train = ms.trainer { model = model, optimizer = ms.optim.adamw { lr = 1e-2 }, loss = ms.loss.mse }
local batch = { inputs = ms.ones { 6, 8 }, targets = ms.zeros(6, 4) }
local data = ms.data.text { files = "LICENSE", seq = 8, batch = 2 }
]]

-- Each has: a ninth line, and what is said.
local MISTAKES = {
  { "data.batches(2)", "batches | colon" },
  { "print(model.sharding.mesh.size())", "size | colon" },
  { 'train.parameter("a.weight")', "parameter | colon" },
  { 'print(model.sharding.mesh.size("shard"))', "mesh.size | colon" },
  { 'print(model.sharding.mesh.has("shard"))', "mesh.has | colon" },
  { 'print(model.sharding.mesh.copies("shard"))', "mesh.copies | colon" },
  { 'print(model.sharding.mesh.slice { "shard" })', "mesh.slice | colon" },
  { 'print(model.parameter("a.weight"))', '"a.weight" is no model | colon' },
  { "print(model.num_parameters())", "nil is no model | colon" },
  { 'model.unshard("a")', '"a" is no model | colon' },
  { "model.state_dict()", "nil is no model | colon" },
  { "function Net:__init__() end", "__init__ of Net | Net:init" },
  { "function Net:__call__() end", "__call__ of Net | Net:forward" },
  { 'ms.log.curve("x.svg")', 'ms.log.curve | options | "x.svg"' },
  { 'ms.log.curve { path = "x.svg" }', "ms.log.curve | option path" },
  { "ms.trainer { model = model, optimizer = train.optimizer, loss = ms.loss.mse, checkpoint = { every = 2 } }",
    "without dir | nothing is saved | dir" },
  { "data:batches(2, 4)", "steps | batch" },
  { 'data:batches("2")', 'steps | not "2"' },
  { 'ms.re("a", "i")', "one pattern | (?i)" },
  { 'ms.log.expect("10")', 'steps | not "10"' },
  { 'ms.data.sampler({ length = 8 }):set_epoch("3")', 'epoch | not "3"' },
  { "ms.schedule.cosine { peak = 1e-3, total = 10, floor = 1 }", "floor is 1 | peak 0.001" },
  { "ms.zeros { 2, dtype = 'int64' }", "int64 | is i32" },
  { "ms.zeros { 2, dtype = 'torch.float16' }", "float16 is not supported | write bf16" },
  { "function Net:forward(x) return self.b(self.a(x)), x end train:step(batch)", "several values | forward" },
  { "function Net:forward(x) return self.b(self.a(x) * x:mean():item()) end train:step(batch)",
    "item() | trace | ms.ops.where" },
  { "model(batch.inputs, batch.targets)", "Net | takes 1 argument | given 2" },
  { "batch.inputs:sum(0, 1)", "keepdim | { 0, 1 }" },
  { "ms.nn.cross_entropy(batch.inputs)", "it is ms.loss.cross_entropy" },
  { "print(ms.cuda)", "ms.cuda | --device" },
  { "math.max(batch.inputs, 0)", "'max' | x:item()" },
  { 'print(("%.2f"):format(batch.inputs))', "'format' | x:item()" },
  { "ms.log(1, { loss = 1, accuracy = batch.inputs:mean() })", "accuracy | not a tensor | x:item()" },
  { 'ms.log(1, { loss = 1, accuracy = "0.5" })', 'accuracy | not "0.5"' },
  { "ms.log(1, { loss = 1, trainer = 2 })", "ms.log | trainer | another" },
  { 'ms.fully_shard(Net(), { mesh = 1 }, { units = { "a" } })', "ms.fully_shard | a table | no place" },
  { "ms.nn.sequential({ Net() }, { Net() })", "ms.nn.sequential | a table | no place" },
  { "ms.nn.linear(8, 16, { bias = false }, { init = 1 })", "a table | no place" },
  { "ms.optim.adamw({ lr = 1 }, { eps = 1 })", "ms.optim.adamw | a table | no place" },
  { "ms.optim.sgd({ lr = 1 }, 0.9)", "ms.optim.sgd | 0.9 | no place" },
  { "batch.inputs:slice(0, 1, 5, 2)", "x:slice | 2 | no place" },
  { 'batch.inputs:softmax(1, "f32")', 'softmax | "f32" | no place' },
  { "train:step(3, batch)", "train:step(batch) | 1 argument | given 3 and a table" },
  { "train:step(batch.inputs, batch.targets)", "train:step(batch) | a tensor and a tensor" },
  { "ms.log(1, batch.inputs)", "ms.log(step, m)" },
  { 'ms.trainer { model = model, optimizer = train.optimizer, loss = ms.loss.mse, checkpoint = "runs" }',
    'not "runs" | { dir = ' },
  { 'ms.huggingface.model("x", { torch_dtype = "bf16" })', "torch_dtype | param_dtype | mp_policy" },
  { 'ms.huggingface.model("x", { device_map = "auto" })', "device_map | nothing to set" },
  { 'ms.data.text { files = "LICENSE", tokenizer = "x" }', "moonshard tokenize | ms.data.tokens" },
  { 'ms.data.text({ files = "LICENSE", valid_fraction = 0 }).valid:batches()', "'valid' | valid_fraction" },
  { "ms.models.llama { vocab = 8 }", "dim, ffn, heads, layers and seq are missing" }, -- prose: names in a list
  { "ms.tensor(2, 3)", "ms.tensor { 2, 3 }" },
  { 'ms.tensor({ 1, 2 }, "i32")', 'dtype = | not "i32"' },
  { 'ms.zeros({ 1, 2 }, "i32")', 'dtype = | not "i32"' },
  { "ms.zeros(batch.inputs.shape[0], 3)", "argument 1 is nil" },
  { "batch.inputs:reshape(batch.inputs.shape[0], -1)", "item 1 of shape | not nil" },
  { "print(batch.inputs.shape[0] - 1)", "arithmetic | begin at [1]" },
  { "print(batch.inputs:shape())", "shape | x.shape" },
  { "print(batch.inputs:dtype())", "dtype | x.dtype" },
  { "batch.inputs:softmax { dim = 1 }", "softmax | dim: | axis?" },
  { "batch.inputs:mean(1, { keepdim = true })", "keepdim | true or false" },
  { "batch.inputs:unsqueeze { dim = 1 }", "unsqueeze | not a table" },
  { "batch.inputs:cast(ms.bfloat16)", 'ms.bfloat16 | cast("bf16")' },
  { "ms.eye(3)", "ms.eye | one_hot" },
  { "ms.zeros_like(batch.inputs)", "ms.zeros(x.shape)" },
  { "ms.nn.conv2d(3, 16, 3, 1, 1)", "ms.nn.conv2d | padding = | not 1" },
  { "for _, p in ipairs(model:named_parameters()) do print(p) end", "not a function | named_parameters() do" },
  { "for _, p in ipairs(nil) do print(p) end", "ipairs | not nil" },
  { "for _, p in pairs(nil) do print(p) end", "pairs | not nil" },
  { 'ms.init_device_mesh({ 1 }, { "shard" })', "first argument | device | not a table" },
  { "for b in data:batches(2) do train:step(b) end", "for step, batch in data:batches(steps)" },
  { "train.optimizer.param_groups[1].lr = 1", "param_groups | train:set_rules { groups" },
  { "train.optimizer.lr.peak = 1", "lr | train:set_rules { lr" },
  { "torch.no_grad()", "torch | ms.nn" },
  { "DataLoader()", "data:batches(steps)" },
  { "optimizer:step()", "optimizer | train:step(batch)" },
  { 'train:save("x")', "ms.checkpoint.save(train, folder)" },
  { "model:save_pretrained()", "ms.huggingface.save(model, folder)" },
  { "model:compile()", "compile | compiled" },
  { "ms.evaluate(model)", "ms.evaluate.perplexity | train:evaluate" },
  { "local y = batch.inputs @ batch.targets", "matmul" },
  { "local y = batch.inputs ** 2", "power | ^" },
  { "import torch", "no import" },
  { "from torch.nn import F", "no import" },
  { "with ms.no_grad() do end", "contexts | train:evaluate" },
  { "while batch.n > 0: print(batch)", "'do' expected | while ... do" },
  { "if batch.n > 0: print(batch)", "'then' expected | if ... then" },
  { "local y = batch.inputs[0, 2]", "x[0][1]" },
  { "local y = batch.inputs[:, 2]", "x:slice(axis, start, stop)" },
  { "local y = 7 // 2", "math.floor(x / y)" },
  { "batch.inputs.sum()", "nil | x:sum(...)" },
  { "local y = batch.inputs[0:2]", "x:slice(axis, start, stop)" },
  { 'local y = { "a": 1 }', "{ name = value }" },
  { 'raise ValueError("x")', "error(text)" },
  { "def f(x): return x", "function name(x)" },
  { "function Net:forward(x) return b(a(x)) end train:step(batch)", "global 'a' | self.a" },
  { "Net.new()", "'new' | Net(...)" },
  { "Net:new()", "'new' | Net(...)" },
  { "local y = 3 if x else 4", "'else' | condition and x or y" },
  { "local y = x ? 1 : 2", "'?' | condition and x or y" },
  { "if x is None then end", "'is' | ==" },
  { "if x && y then end", "'&' | and" },
  { "if x || y then end", "'|' | or" },
  { "x = 1 x += 1", "x = x + 1" },
  { "x = 1 x++", "x = x + 1" },
  { "let x = 1", "local x = 1" },
  { "local y = { 1, 2 }[1]", "({ 1, 2 })[1]" },
  { "local y = [1, 2]", "lists are written { 1, 2 }" }, -- prose: the list is what is to be written
  { "print batch", "print(x)" },
  { "for i, b in enumerate(data) do end", "enumerate | ipairs" },
  { "for i in range(3) do end", "range | for i = 1, n" },
  { "print(len(batch))", "len | #list" },
  { "print(ms.rank())", "ms.world() has rank" },
  { "print(ms.world.rank)", "ms.world() has rank" },
  { 'batch.inputs:to("cuda")', "--device" },
  { "print(batch.inputs.device)", "device | --device" },
  { "print(batch.inputs.T)", "x:t()" },
  { 'print(batch.inputs["0:2"])', "one number | x:slice(axis, start, stop)" },
  { "print(batch.inputs[{ 1, 2 }])", "one number | x:slice(axis, start, stop)" },
  { "print(batch.inputs.item())", "item | colon" },
  { "ms.fully_shard(Net(), { reshard_after_forward = False })", "False | false" },
  { "print(None)", "None | nil" },
  { "local function f(x) return 1 + f(x) end f(1)", "stack overflow | without end" },
  { "function Net:forward(x) return self(x) end train:step(batch)", "forward of Net | without end" },
  { "function Net.forward(x) return x end train:step(batch)", "Net | function Net:forward(x)" },
  { "ms.trainer { model = model, optimizer = train.optimizer, forward = function(b) return b end }:step(batch)",
    "forward = function(net, b) | not a module" },
}

describe("a recipe that ends in Lua's own error", function()
  it("is answered with what to write", function()
    local paths, runs = {}, {}
    for i, mistake in ipairs(MISTAKES) do
      paths[i] = program.recipe(RECIPE .. mistake[1] .. "\n")
      runs[i] = { "run", paths[i] }
    end
    local ended = program.run_all(runs)
    for i, mistake in ipairs(MISTAKES) do
      os.remove(paths[i])
      local err = ended[i].err:gsub(paths[i]:gsub("%p", "%%%0"), "RECIPE")
      assert.equal(2, ended[i].status, mistake[1] .. "\n" .. err)
      assert.equal("moonshard: RECIPE:9: ", err:sub(1, #"moonshard: RECIPE:9: "), err)
      has(err, mistake[2])
    end
  end)
end)

describe("an option of the command line", function()
  it("takes no setting and no other option for its file", function()
    local path = program.recipe(RECIPE)
    for _, after in ipairs({ "steps=1", "--trace" }) do
      for _, option in ipairs({ "--metrics", "--log-dir", "--tensorboard" }) do
        local ended = program.run({ "run", path, option, after })
        assert.equal(2, ended.status, ended.err)
        has(ended.err, ("%s %s: | missing | ./%s"):format(option, after, after))
      end
    end
    os.remove(path)
  end)
end)

describe("a model that is not sharded", function()
  it("is evaluated by each of two ranks as by one", function()
    local path = program.recipe([==[
      local ms = require "moonshard"
      local m = ms.models.gpt2 { vocab = 256, layers = 1, dim = 8, heads = 2, seq = 16 }
      local found = ms.evaluate.perplexity(m, { text = ("hello world "):rep(20) })
      print(("%.17g %d"):format(found.nll, found.tokens), (ms.generate(m, { prompt = "ab", tokens = 3 })))
    ]==])
    local one, two = program.run({ "run", path }), program.run({ "run", path, "-n", "2" })
    os.remove(path)
    assert.equal(0, two.status, two.err)
    assert.equal(one.out, two.out)
    has(one.out, "239")
  end)
end)
