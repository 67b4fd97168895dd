-- Modules: names, order, counts and trees; layers; and what a call of one does to scopes, precision and errors.

local ms = require("moonshard")
local errors = require("moonshard.base.error")
local fixture = require("lua.support.fixture")
local has = require("lua.support.message").has
local message = fixture.message
ms.world().describe(0, 1)

local Gate = ms.module "Gate"

function Gate:init(dim)
  self.scale = ms.parameter { dim, init = "ones" }
  self.proj = ms.nn.linear { dim, dim }
end

function Gate:forward(x)
  return x * self.proj(x):sigmoid() * self.scale
end

local Net = ms.module "Net"

function Net:init()
  self.first = ms.nn.linear(10, 8)
  self._private = ms.nn.linear(3, 3)
  self.blocks = {}
  for i = 1, 3 do self.blocks[i] = Gate(8) end
  self.heads = { b = ms.nn.linear { 8, 2 }, a = ms.nn.linear { 8, 1, bias = false } }
end

function Net:forward(x)
  x = self.first(x)
  for _, block in ipairs(self.blocks) do x = block(x) end
  return self.heads.a(x), self.heads.b(x)
end

local function names(iterator)
  local list = {}
  for name in iterator do list[#list + 1] = name end
  return list
end

local function trace(model, shape, fn, dtype)
  return ms.trace.graph(model, { inputs = { { "x", dtype or "f32", shape } }, fn = function(inputs)
    return { outputs = { y = fn(inputs.x) } }
  end })
end

describe("modules", function()
  it("are named by their fields, in the order of assignment, lists from 0", function()
    assert.same({
      "first.weight", "first.bias",
      "blocks.0.scale", "blocks.0.proj.weight", "blocks.0.proj.bias",
      "blocks.1.scale", "blocks.1.proj.weight", "blocks.1.proj.bias",
      "blocks.2.scale", "blocks.2.proj.weight", "blocks.2.proj.bias",
      "heads.a.weight", "heads.b.weight", "heads.b.bias",
    }, names(Net():named_parameters()))
    assert.same({ "", "first", "blocks.0", "blocks.0.proj", "blocks.1", "blocks.1.proj", "blocks.2", "blocks.2.proj",
      "heads.a", "heads.b" }, names(Net():named_modules()))
  end)

  it("count each parameter once", function()
    assert.equal(88 + 3 * (8 + 72) + 8 + 18, Net():num_parameters())
    local tied = fixture.gpt2({ tied = true })
    assert.equal(fixture.gpt2():num_parameters() - 16 * 8, tied:num_parameters())
    for _, name in ipairs(names(tied:named_parameters())) do assert.not_equal("head.weight", name) end
  end)

  it("print as a tree, equal neighbours once", function()
    assert.equal(table.concat({
      "Net  354 parameters",
      "  first: Linear(10 -> 8)  88 parameters",
      "  blocks.0-2: 3 x Gate  80 parameters each",
      "    scale: f32 [8]",
      "    proj: Linear(8 -> 8)  72 parameters",
      "  heads.a: Linear(8 -> 1, no bias)  8 parameters",
      "  heads.b: Linear(8 -> 2)  18 parameters",
    }, "\n"), tostring(Net()))
  end)

  it("print equal blocks once, and by itself a block that rules keep otherwise", function()
    local model = ms.fully_shard(fixture.gpt2({ layers = 4, dim = 64 }), {
      units = { ms.re[[^layers\.\d+$]] }, freeze = { "layers" },
      storage = { { "layers.1.attn.wq.weight", "nf4" } },
    })
    local text = tostring(model)
    has(text, "  layers.0: Block  | (0 trainable, | frozen)  [unit, f32]\n |   layers.1: Block  | wq: Linear(64 -> 64)")
    has(text, "frozen)  [weight kept in nf4]\n | wk: Linear(64 -> 64) | layers.2-3: 2 x Block  | parameters each (0")
  end)

  it("print their units once the model is sharded", function()
    local model = ms.fully_shard(fixture.gpt2(), {
      units = { ms.re[[^layers\.\d+$]] }, mp_policy = { param_dtype = "bf16" },
      reshard_after_forward = { { "layers.1", false } },
    })
    local text = tostring(model)
    has(text, "root | bf16")
    has(text, "layers.0: Block | 872 | [unit, bf16]")
    has(text, "layers.1: Block | 872 | unit | bf16 | never")
  end)

  it("can be written as one table", function()
    local model = ms.module {
      scale = ms.parameter { 4, init = 2 },
      forward = function(self, x) return x * self.scale end,
    }
    assert.same({ "scale" }, names(model:named_parameters()))
    assert.same({ 3, 4 }, trace(model, { 3, 4 }, model).outputs.y.shape)
  end)

  it("inherit", function()
    local Twice = ms.module("Twice", Gate)
    function Twice:forward(x) return Gate.forward(self, Gate.forward(self, x)) end
    local model = Twice(4)
    assert.same({ "scale", "proj.weight", "proj.bias" }, names(model:named_parameters()))
    assert.same({ 2, 4 }, trace(model, { 2, 4 }, model).outputs.y.shape)
  end)

  it("give their path to errors of ops, and the line of the layer", function()
    local Wrong = ms.module "Wrong"
    function Wrong:init() self.inner = ms.nn.linear(7, 8) end
    function Wrong:forward(x)
      return self.inner(x) + 0 -- no tail call, so that the line is on the stack
    end
    local model = ms.nn.sequential { ms.nn.linear(4, 8), Wrong() }
    local text, raised = message(trace, model, { 2, 4 }, model)
    assert.truthy(text:find("^%S*tests/lua/models/module_spec.lua:%d+: "), text)
    has(text, "1.inner: | matmul")
    assert.equal("1.inner", raised.path)
    assert.equal("MS_ESHAPE", raised.status)
    assert.truthy(raised.c_where:find("%.c:%d+$"))
  end)

  it("give their path to errors of Lua, with the traceback kept", function()
    local Wrong = ms.module "Wrong"
    function Wrong:forward(x) return self.missing.weight * x end
    local model = ms.module {
      w = ms.parameter { 1 },
      wrong = Wrong(),
      forward = function(self, x) return self.wrong(x) end,
    }
    local text, raised = message(trace, model, { 2 }, model)
    has(text, "in wrong: | 'missing'")
    has(raised.traceback, "stack traceback")
    assert.equal("", require("moonshard.base.context").path)
    assert.is_nil(require("moonshard.base.context").trace)
  end)

  it("cast what comes into a unit of another precision, and what goes out when asked", function()
    local model = ms.nn.sequential { ms.nn.linear(4, 4), ms.nn.linear(4, 4) }
    ms.fully_shard(model, { units = { "0", "1" }, mp_policy = {
      { "0", { param_dtype = "bf16", output_dtype = "f32" } }, { "1", { param_dtype = "bf16" } },
    } })
    local seen = {}
    local graph = trace(model, { 2, 4 }, function(x)
      local y = model[1](x)
      seen[1] = y.dtype
      return model[2](y)
    end)
    assert.same({ "f32" }, seen)
    assert.equal("bf16", graph.outputs.y.dtype)
  end)

  for title, case in pairs({
    ["a call outside of a trace"] = { function() local _ = Net()(1) end, "outside | trace" },
    ["an op outside of a trace"] = { function() local _ = ms.ops.relu(Net().first.weight) end,
      "values | inside" },
    ["a table without forward"] = { function() ms.module { a = 1 } end, "no forward" },
    ["a class that is called without one"] = { function()
      local model = ms.module "Empty" ()
      model.w = ms.parameter { 1 }
      trace(model, { 1 }, model)
    end, "Empty | forward" },
    ["a name with a dot"] = { function()
      local model = Gate(2)
      model["a.b"] = ms.parameter { 1 }
      model:num_parameters()
    end, "UTF-8 | dots | spaces" },
    ["a parameter with a wrong size"] = { function() ms.parameter { 3, 0 } end, "size 0 of dimension 1" },
    ["a parameter without a size"] = { function() ms.parameter { init = "ones" } end, "shape is missing" },
    ["an unknown law"] = { function() ms.parameter { 3, init = "onez" } end, "init" },
    ["a parameter of another model"] = { function()
      local model, other = Gate(2), Gate(2)
      trace(model, { 1, 2 }, function(x) return x * other.scale end)
    end, "model" },
    ["a missing argument"] = { function() ms.nn.linear { 3 } end, "argument 2 | outputs" },
    ["an unknown option"] = { function() ms.nn.linear { 3, 4, bais = false } end, "bias?" },
    ["more elements than can be counted"] = { function() ms.parameter { 2 ^ 33, 2 ^ 33 } end, "2^53" },
    ["a probability that is none"] = { function() ms.nn.dropout(1) end, "below 1" },
  }) do
    it("refuse " .. title, function()
      local text = message(case[1])
      has(text, case[2])
      assert.truthy(text:find("tests/lua/models/module_spec.lua:%d+: "), text)
    end)
  end
end)

describe("layers", function()
  it("have PyTorch's shapes and names", function()
    local model = ms.module {
      embed = ms.nn.embedding(16, 8), norm = ms.nn.layer_norm(8), rms = ms.nn.rms_norm(8), drop = ms.nn.dropout(0.5),
      linear = ms.nn.linear { 8, 3 },
      forward = function(self, tokens) return self.linear(self.drop(self.rms(self.norm(self.embed(tokens))))) end,
    }
    assert.same({ 2, 5, 3 }, trace(model, { 2, 5 }, model, "i32").outputs.y.shape)
    assert.same({ 3, 8 }, model.linear.weight.shape)
    assert.same({ "embed.weight", "linear.weight", "linear.bias", "norm.weight", "norm.bias", "rms.weight" },
      names(model:named_parameters()))
  end)

  it("draw first weights as PyTorch or GPT-2 do", function()
    local linear = ms.nn.linear { 16, 3 }
    assert.same({ "uniform", -0.25, 0.25 }, { linear.weight.init.kind, linear.weight.init.a, linear.weight.init.b })
    assert.equal("uniform", linear.bias.init.kind)
    linear = ms.nn.linear { 16, 3, init = "gpt2" }
    assert.same({ "normal", 0, 0.02, "zeros" }, { linear.weight.init.kind, linear.weight.init.a, linear.weight.init.b,
      linear.bias.init.kind })
    assert.equal("ones", ms.nn.layer_norm(4).weight.init.kind)
  end)

  it("have no bias where none is asked for, and normalise alike", function()
    local norm, plain = ms.nn.layer_norm(4), ms.nn.layer_norm { 4, bias = false }
    assert.same({ "weight" }, names(plain:named_parameters()))
    local x = ms.randn { 3, 4, seed = 1 }
    assert.same(norm(x):tolist(), plain(x):tolist())
    ms.fully_shard(plain)
    assert.equal(1, #plain.sharding.params) -- so state_dict and checkpoints have no bias either
  end)

  it("apply a sequence of modules and functions", function()
    local model = ms.nn.sequential { ms.nn.linear(4, 8), ms.ops.relu, ms.nn.linear(8, 2) }
    assert.same({ "0.weight", "0.bias", "2.weight", "2.bias" }, names(model:named_parameters()))
    assert.same({ 3, 2 }, trace(model, { 3, 4 }, model).outputs.y.shape)
  end)
end)

describe("names", function()
  local P = function() return ms.parameter { 2 } end
  for text, put in pairs({
    ["the model | [true] | boolean | names"] = function(net) net[true] = P() end,
    ["list | boolean | names"] = function(net) net.list = { [false] = P() } end,
    ['list | item 1 | field "0" | 0'] = function(net) net.list = { P(), ["0"] = P() } end,
    ['list | item 3 | field "2"'] = function(net) net.list = { P(), P(), ms.nn.linear(2, 2), ["2"] = P() } end,
    ["the model | field `forward`"] = function(net) net.forward = ms.nn.linear(2, 2) end,
    ["the model | field `parameter`"] = function(net) net.parameter = P() end,
    ["inner | field `state_dict`"] = function(net)
      net.inner = Gate(2)
      net.inner.state_dict = P()
    end,
    ["the model | field `sharding`"] = function(net) net.sharding = ms.nn.linear(2, 2) end,
  }) do
    it("that a model cannot have are refused: " .. text, function()
      local net = Gate(2)
      put(net)
      has(message(function() ms.fully_shard(net) end), text)
    end)
  end

  it("of methods are those of a plain table's fields, too", function()
    local net = Gate(2)
    net.parts = { forward = P(), parameter = P() }
    assert.equal("parts.forward", names(net:named_parameters())[4])
  end)
end)

describe("errors", function()
  it("carry the codes of the engine", function()
    local C = require("moonshard.base.ffi").C
    for name, code in pairs(errors.CODES) do assert.equal(tonumber(C[name]), code) end
  end)

  it("name the nearest part of ms", function()
    has(message(function() return ms.fuly_shard end), "fully_shard?")
  end)
end)
