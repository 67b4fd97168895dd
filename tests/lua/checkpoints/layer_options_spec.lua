-- Options of layers in a model of one's own, against those of the checkpoint that it resumes from: what each
-- constructor of ms.nn declares of each of its options, and what a run with another value says.

local has = require("lua.support.message").has
local json = require("moonshard.base.text.json")
local layer_options = require("moonshard.nn.layer_options")
local message = require("lua.support.fixture").message
local model_options = require("moonshard.checkpoint.model_options")
local ms = require("moonshard")
local program = require("lua.support.program")
local scratch = require("lua.support.scratch")
local trainable_tokens = require("moonshard.nn.adapters.trainable_tokens")

teardown(scratch.clear)

-- Functions of ms.nn whose result is no layer with options.
local WITHOUT = {
  masked_attention = true, sinusoidal = true, alibi = true, document_positions = true, sequential = true,
  attention_logits = true,
}

local function experts(o)
  o.experts, o.n_group = 4, o.n_group or 2
  return ms.nn.mixture_of_experts(8, 8, o)
end

local function adapted(o)
  local net = ms.nn.sequential { ms.nn.linear(8, 8) }
  return ms.lora(net, { { ms.re"0", o } })
end

local function with_rows(o)
  local embedding = ms.nn.embedding(8, 4)
  trainable_tokens.attach(embedding, { tonumber(o.trainable_token_indices or 1) })
  return embedding
end

local function convolution(make)
  return { make = function(o) return make(4, 4, 3, o) end, stride = { 1, 2 }, padding = { 0, "same" },
    dilation = { 1, 2 }, groups = { 1, 2 } }
end

-- How each is made with options, and two values of each that a checkpoint keeps.
local CASES = {
  ["ms.nn.linear"] = {},
  ["ms.nn.embedding"] = { make = function(o) return ms.nn.embedding(8, 4, o) end, used_rows = { 8, 6 } },
  ["ms.nn.layer_norm"] = { make = function(o) return ms.nn.layer_norm(4, o) end, eps = { 1e-5, 1e-6 } },
  ["ms.nn.rms_norm"] = { make = function(o) return ms.nn.rms_norm(4, o) end, eps = { 1e-5, 0.25 },
    from_one = { false, true } },
  ["ms.nn.dropout"] = { make = function(o) return ms.nn.dropout(o.p) end, p = { 0, 0.1 } },
  ["ms.nn.conv2d"] = convolution(ms.nn.conv2d),
  ["ms.nn.conv1d"] = convolution(ms.nn.conv1d),
  ["ms.nn.max_pool2d"] = { make = function(o) return ms.nn.max_pool2d(o.kernel or 2, { stride = o.stride,
    padding = o.padding }) end, kernel = { 2, 3 }, stride = { 2, 1 }, padding = { 0, 1 } },
  ["ms.nn.avg_pool2d"] = { make = function(o) return ms.nn.avg_pool2d(o.kernel or 2, { stride = o.stride,
    padding = o.padding, count_include_pad = o.count_include_pad }) end, kernel = { 2, 3 }, stride = { 2, 1 },
    padding = { 0, 1 }, count_include_pad = { true, false } },
  ["ms.nn.group_norm"] = { make = function(o) return ms.nn.group_norm(o.groups or 2, 4, { eps = o.eps }) end,
    groups = { 2, 4 }, eps = { 1e-5, 1e-3 } },
  ["ms.nn.upsample"] = { make = function(o) return ms.nn.upsample(next(o) and o or { size = 8 }) end, size = { 4, 8 },
    scale_factor = { 2, 3 }, mode = { "nearest", "bilinear" } },
  ["ms.nn.mixture_of_experts"] = { make = experts, top_k = { 2, 1 }, score = { "softmax", "sigmoid" },
    renormalise = { true, false }, route_scale = { 1, 2.5 }, bias_rate = { 0.5, 0.25 }, aux_loss = { 0, 0.01 },
    activation = { "silu", "gelu" }, n_group = { 2, 1 }, topk_group = { 1, 2 }, group_score = { "max", "top2" },
    score_before_experts = { false, true } },
  ["ms.lora"] = { make = adapted, dropout = { 0, 0.1 } },
  ["ms.lora: trainable_token_indices"] = { make = with_rows, trainable_token_indices = { "1", "2" } },
}

local function within(layer)
  return ms.module { inner = layer, forward = function(self, x) return self.inner(x) end }
end

-- What a model says of the options of another, as its checkpoint keeps them.
local function compared(before, after)
  local saved = json.decode(json.encode(model_options.of(before)))
  return pcall(model_options.check, "old", saved, after)
end

describe("options of layers", function()
  it("K1 are declared by every constructor, with what another value means", function()
    local listed = {}
    for who, declaration in pairs(layer_options.declared) do
      assert.truthy(CASES[who], who)
      listed[who] = true
      for key, spec in pairs(declaration.specs) do
        local name = type(key) == "string" and key or spec.required
        assert.is_true(spec.resume == "refused" or spec.resume == "told" or spec.resume == "free", who .. " " .. name)
        assert.equal(spec.resume ~= "free", CASES[who][name] ~= nil, who .. " " .. name)
      end
    end
    for name, make in pairs(ms.nn) do
      if type(make) == "function" then assert.equal(not WITHOUT[name], listed["ms.nn." .. name] == true, name) end
    end
  end)

  it("K1 are refused or told where they have another value, by the path of the layer", function()
    local seen = 0
    for who, case in pairs(CASES) do
      for key, spec in pairs(layer_options.declared[who].specs) do
        local name = type(key) == "string" and key or spec.required
        local values = case[name]
        if values then
          local function model(value) return within(case.make({ [name] = value })) end
          local ok, said = compared(model(values[1]), model(values[1]))
          assert.is_true(ok and said == nil, who .. " " .. name)
          for i = 1, 2 do
            local was, is = values[i], values[3 - i]
            ok, said = compared(model(was), model(is))
            assert.equal(spec.resume == "told", ok, who .. " " .. name)
            has(tostring(said), ("inner | %s | %s | %s"):format(spec.name or name, tostring(was), tostring(is)))
          end
          seen = seen + 1
        end
      end
    end
    assert.is_true(seen > 30)
  end)

  it("K1 are the same where a size is written in two ways", function()
    local pairs_of = {
      { ms.nn.conv2d(4, 4, 3, { stride = 2 }), ms.nn.conv2d(4, 4, 3, { stride = { 2, 2 } }) },
      { ms.nn.max_pool2d(2), ms.nn.max_pool2d({ 2, 2 }, { stride = 2 }) },
    }
    for _, pair in ipairs(pairs_of) do
      local ok, said = compared(within(pair[1]), within(pair[2]))
      assert.is_true(ok and said == nil, tostring(said))
    end
  end)

  it("K1 are the functions of ms.nn.sequential, too, by their names in ms.ops", function()
    local function own(x) return ms.ops.relu(x) end
    local function model(item) return within(ms.nn.sequential { ms.nn.linear(2, 2), item, ms.nn.linear(2, 2) }) end
    local named = { relu = ms.ops.relu, tanh = ms.ops.tanh, gelu = ms.ops.gelu, logsumexp = ms.ops.logsumexp }
    for was, before in pairs(named) do
      for is, after in pairs(named) do
        local ok, said = compared(model(before), model(after))
        assert.equal(was == is, ok, was .. is)
        if ok then assert.is_nil(said) else has(tostring(said), ("inner.1 | ms.ops.%s | ms.ops.%s"):format(was, is)) end
      end
      local ok, said = compared(model(before), model(own))
      assert.is_true(ok)
      has(said, ("inner.1 | ms.ops.%s | a function"):format(was))
      ok, said = compared(model(own), model(before))
      assert.is_true(ok)
      has(said, ("inner.1 | a function | ms.ops.%s"):format(was))
    end
    assert.same({ true }, { compared(model(own), model(function(x) return x end)) })
  end)

  it("K1 that changed in many layers, or with an option of their model, are reported once", function()
    local function deep(p)
      return ms.nn.sequential { ms.nn.dropout(p), ms.nn.dropout(p), ms.nn.dropout(p) }
    end
    local _, said = compared(deep(0), deep(0.5))
    assert.equal("0.p was 0 in the checkpoint, and is 0.5 here, as in 2 more modules", said)
    local function gpt2(dropout) return require("lua.support.fixture").gpt2 { dropout = dropout } end
    _, said = compared(gpt2(0), gpt2(0.5))
    assert.equal("dropout was 0 in the checkpoint, and is 0.5 here", said)
  end)

  it("K1 of checkpoints that have none are not compared", function()
    local model = within(ms.nn.rms_norm(4, { from_one = true }))
    assert.is_nil(model_options.check("old", nil, model))
    assert.is_nil(model_options.check("old", { other = { eps = 1 } }, model))
    has(message(model_options.check, "old", { inner = { eps = 1e-5, from_one = false } }, model), "inner.from_one")
  end)

  it("K1 decide over a run that resumes", function()
    local recipe = program.recipe([[
local ms = require "moonshard"
local cfg = ms.args { dir = "", resume = "", steps = 1, top_k = 2, from_one = false, drop = ms.args.real(0),
  adapters = ms.args.real(0) }
local Net = ms.module "Net"
function Net:init()
  self.norm = ms.nn.rms_norm(8, { from_one = cfg.from_one })
  self.experts = ms.nn.mixture_of_experts(8, 8, { experts = 4, top_k = cfg.top_k })
  self.drop, self.out = ms.nn.dropout(cfg.drop), ms.nn.linear(8, 8)
end
function Net:forward(x) return self.out(self.drop(self.experts(self.norm(x)))) end
local net = Net()
ms.lora(net, { { ms.re"^out$", { rank = 2, dropout = cfg.adapters } } })
ms.fully_shard(net, { mesh = ms.world().size })
local train = ms.trainer { model = net, optimizer = ms.optim.sgd { lr = 0.01 }, loss = ms.loss.mse,
  checkpoint = { dir = cfg.dir, resume = cfg.resume } }
for _ = train.steps_done + 1, cfg.steps do
  train:step { inputs = ms.randn { 4, 8, seed = 1 }, targets = ms.randn { 4, 8, seed = 2 } }
end
]])
    local dir = scratch.path()
    assert.equal(0, program.run({ "run", recipe, "dir=" .. dir }).status)
    local function resumed(...)
      local copy = scratch.path()
      os.execute(("cp -r '%s' '%s'"):format(dir, copy))
      local ended = program.run { "run", recipe, "-n", "2", "dir=" .. copy, "steps=2", "resume=auto", ... }
      return ended.status, ended.out .. ended.err
    end
    for setting, facts in pairs({ ["top_k=1"] = "experts.top_k=2, here 1",
      ["from_one=true"] = "norm.from_one=false, here true" }) do
      local status, said = resumed(setting)
      assert.equal(2, status, said)
      has(said, "step-00000001 | different | " .. facts)
    end
    for setting, facts in pairs({ ["drop=0.5"] = "drop.p was 0 | is 0.5 here",
      ["adapters=0.25"] = "out.lora_dropout was 0 | is 0.25 here" }) do
      local status, said = resumed(setting)
      assert.equal(0, status, said)
      has(said:match("[^\n]*"), "checkpoint | step-00000001: | " .. facts)
    end
    os.remove(recipe)
  end)
end)
