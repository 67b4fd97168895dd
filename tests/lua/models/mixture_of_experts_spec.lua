-- Mixtures of experts: the layer equals a loop over all experts, its biases follow the loads, its auxiliary loss its
-- formula, and they train over ranks, on the emulated device and under either layout as on one rank.

local ms = require("moonshard")
local breadth = require("lua.support.breadth")
local fixture = require("lua.support.fixture")
local has = require("lua.support.message").has
local program = require("lua.support.program")
local message, ops = fixture.message, ms.ops

local DIM, FFN, TOKENS = 6, 10, 23

local function numbers(x) return x:reshape(-1):tolist() end

-- The same parameters, every expert on all tokens, and their results weighted by the places of a one-hot.
local Dense = ms.module "Dense"

function Dense:init(o)
  self.o = setmetatable(o, {})
  self.router = ms.nn.linear(DIM, o.experts, { bias = false })
  if o.bias then self.router_bias = ms.parameter { o.experts, init = "zeros" } end
  self.experts = ms.module {
    w1 = ms.parameter { o.experts, FFN, DIM }, w3 = ms.parameter { o.experts, FFN, DIM },
    w2 = ms.parameter { o.experts, DIM, FFN }, forward = function() end,
  }
end

function Dense:forward(x)
  local o = self.o
  local logits = self.router(x)
  local scores = o.score == "sigmoid" and logits:sigmoid() or logits:softmax()
  local _, index = (o.bias and scores + self.router_bias or scores):topk(o.top_k)
  local weights = scores:gather(1, index)
  if o.renormalise then weights = weights / weights:sum(-1, true) end
  local chosen = ops.one_hot(index, o.experts, "f32")
  local dense = (chosen * weights:unsqueeze(-1)):sum(1) * (o.route_scale or 1)
  local sum
  for e = 0, o.experts - 1 do
    local function matrix(w, rows, columns)
      return ops.slice(w, { axis = 0, start = e, stop = e + 1 }):reshape(rows, columns)
    end
    local w1, w3 = matrix(self.experts.w1, FFN, DIM), matrix(self.experts.w3, FFN, DIM)
    local h = ops.matmul(x, w1, { trans_b = 1 }):silu() * ops.matmul(x, w3, { trans_b = 1 })
    local y = ops.matmul(h, matrix(self.experts.w2, DIM, FFN), { trans_b = 1 }) * dense:slice(1, e, e + 1)
    sum = sum and sum + y or y
  end
  return sum
end

local function trainer_of(model)
  ms.fully_shard(model, { mesh = ms.init_device_mesh("cpu", "1x1", { "replicate", "shard" }) })
  return ms.trainer { model = model, optimizer = ms.optim.sgd { lr = 0 }, loss = ms.loss.mse }
end

local batch = { inputs = ms.randn { TOKENS, DIM, seed = 1 }, targets = ms.randn { TOKENS, DIM, seed = 2 } }

local json, scratch = require("moonshard.base.text.json"), require("lua.support.scratch")

local function layer(o) return ms.nn.mixture_of_experts(DIM, FFN, o) end

describe("a mixture of experts", function()
  for title, o in pairs({
    ["of softmax scores"] = { experts = 4, top_k = 2, renormalise = true },
    ["without renormalisation"] = { experts = 7, top_k = 3, renormalise = false },
    ["of sigmoid scores with a bias"] = { experts = 5, top_k = 2, score = "sigmoid", renormalise = true, bias = true,
      route_scale = 2.5 },
    ["of one expert each"] = { experts = 3, top_k = 1, renormalise = false },
    ["of all experts"] = { experts = 3, top_k = 3, renormalise = true },
  }) do
    it("G4 equals a loop over all experts: " .. title, function()
      local given = { bias_rate = o.bias and 1e-3 or nil }
      for name, value in pairs(o) do
        if name ~= "bias" then given[name] = value end
      end
      local sparse, dense = trainer_of(layer(given)), trainer_of(Dense(o))
      for name in sparse.model:named_parameters() do
        local values = ms.randn { seed = 10 + #name, unpack(sparse:parameter(name).shape) }
        sparse:set_parameter(name, values)
        dense:set_parameter(name, values)
      end
      local loss = sparse:step(batch).loss
      fixture.assert_close({ dense:step(batch).loss }, { loss }, 2e-6, "loss")
      for name in dense.model:named_parameters() do
        if name ~= "router_bias" then
          fixture.assert_close(numbers(dense:gradient(name)), numbers(sparse:gradient(name)), 1e-5, name)
        end
      end
    end)
  end

  it("G4 names groups in checkpoints only where it has some, so that earlier ones are of the same model", function()
    local of = require("moonshard.nn.layer_options").of
    local plain, grouped = of(layer { experts = 4 }), of(layer { experts = 4, n_group = 2, group_score = "top2" })
    for name, value in pairs({ n_group = 2, group_score = "top2" }) do
      assert.is_nil(plain[name])
      assert.equal(value, grouped[name])
    end
    local model = ms.models.mixtral { vocab = 17, layers = 1, dim = 8, heads = 2, ffn = 12, seq = 8, experts = 4,
      n_group = 1, topk_group = 1, route_scale = 1 }
    for _, name in ipairs({ "n_group", "topk_group", "group_score", "route_scale" }) do
      assert.is_nil(model.config[name])
    end
  end)

  it("G4 takes any leading axes, and adds what a shared expert makes, weighed by its gate", function()
    local both = trainer_of(layer { experts = 4, shared = ms.nn.linear(DIM, DIM), shared_gate = true })
    local alone = trainer_of(layer { experts = 4 })
    for name in alone.model:named_parameters() do alone:set_parameter(name, both:parameter(name)) end
    local x, model = ms.randn { 2, 3, DIM, seed = 3 }, both.model
    local y = model(x)
    assert.same({ 2, 3, DIM }, y.shape)
    local added = model.shared_gate(x):sigmoid() * model.shared(x)
    fixture.assert_close(numbers(alone.model(x)), numbers(y - added), 1e-5, "without the shared expert")
  end)

  it("G4 moves each bias by the sign of its load, and nothing else reads the loads", function()
    local rate, experts, top_k = 0.125, 4, 2
    local model = layer { experts = experts, top_k = top_k, score = "sigmoid", bias_rate = rate }
    local train = trainer_of(model)
    local bias = { 0, 0, 0, 0 }
    local weight = train:parameter("router.weight")
    local loss, norm
    for step = 1, 6 do
      local m = train:step(batch)
      local scores = ops.matmul(batch.inputs, weight, { trans_b = 1 }):sigmoid() + ms.tensor(bias)
      local _, index = scores:topk(top_k)
      local load = ops.one_hot(index, experts, "f32"):sum { 0, 1 }:tolist()
      for e = 1, experts do
        local excess = load[e] * experts - TOKENS * top_k
        bias[e] = bias[e] - (excess > 0 and rate or excess < 0 and -rate or 0)
      end
      assert.same(bias, train:parameter("router_bias"):tolist(), "step " .. step)
      if step == 1 then loss, norm = m.loss, m.grad_norm end
    end
    assert.not_same({ 0, 0, 0, 0 }, bias)
    local plain = trainer_of(layer { experts = experts, top_k = top_k, score = "sigmoid" })
    for name in plain.model:named_parameters() do plain:set_parameter(name, train:parameter(name)) end
    local m = plain:step(batch)
    assert.equal(m.loss, loss)
    assert.equal(m.grad_norm, norm)
  end)

  it("G4 adds its auxiliary loss in training alone, for all routers together", function()
    local experts, top_k, coefficient = 4, 2, 0.5
    local function make(aux)
      local options = { experts = experts, top_k = top_k, aux_loss = aux }
      return trainer_of(ms.nn.sequential { layer(options), layer(options) })
    end
    local with, without = make(coefficient), make(0)
    local x, load, probability = batch.inputs, ms.zeros(experts), ms.zeros(experts)
    for i = 0, 1 do
      local scores = with.model[i + 1].router(x):softmax()
      local _, index = scores:topk(top_k)
      load = load + ops.one_hot(index, experts, "f32"):sum { 0, 1 } * (1 / (2 * TOKENS))
      probability = probability + scores:mean(0) * 0.5
      x = with.model[i + 1](x)
    end
    local expected = (load * probability):sum():item() * experts * coefficient
    local added = with:step(batch).loss - without:step(batch).loss
    assert.near(expected, added, 1e-5)
    local function validation(train)
      local left = 1
      return train:evaluate(function()
        left = left - 1
        if left == 0 then return 1, batch end
      end)
    end
    assert.equal(validation(with), validation(without))
  end)

  it("G4 leaves the auxiliary loss of a frozen model out of that of the one that trains", function()
    local options = { experts = 4, aux_loss = 0.5, bias_rate = 0.125 }
    local Pair = ms.module "Pair"
    function Pair:init(both) self.policy, self.reference = layer(options), both and layer(options) or nil end
    function Pair:forward(x)
      local y = self.policy(x)
      return self.reference and y + self.reference(x) * 0 or y
    end
    local function trained(both)
      local model = Pair(both)
      ms.fully_shard(model, { mesh = "1x1", freeze = both and { "reference" } or nil })
      local train = ms.trainer { model = model, optimizer = ms.optim.sgd { lr = 0.5 }, loss = ms.loss.mse }
      return train, train:step(batch).loss
    end
    local both, loss = trained(true)
    local alone, expected = trained(false)
    assert.equal(expected, loss)
    for name in alone.model:named_parameters() do
      assert.same(numbers(alone:parameter(name)), numbers(both:parameter(name)), name)
    end
    assert.same({ 0, 0, 0, 0 }, both:parameter("reference.router_bias"):tolist())
  end)

  it("G4 keeps the auxiliary loss of a frozen router whose inputs train", function()
    local function step(aux)
      local model = ms.nn.sequential { ms.nn.linear(DIM, DIM), layer { experts = 4, aux_loss = aux } }
      ms.fully_shard(model, { mesh = "1x1", freeze = { ms.re[[^1\.]] } })
      local train = ms.trainer { model = model, optimizer = ms.optim.sgd { lr = 0.5 }, loss = ms.loss.mse }
      local loss = train:step(batch).loss
      return loss, numbers(train:gradient("0.weight"))
    end
    local loss, gradient = step(0.5)
    local without, other = step(0)
    assert.is_true(loss > without + 0.4)
    assert.not_same(other, gradient)
  end)

  it("G4 is described, and refuses options that make no sense #release", function()
    has(tostring(ms.nn.sequential { layer { experts = 4, bias_rate = 1e-3, aux_loss = 0.1 } }),
      "MixtureOfExperts | 2 of 4 experts | 0.001 | 0.1 | Experts | 4 of 6 -> 10 -> 6")
    for text, o in pairs({
      ["top_k is 5 | 4 experts"] = { experts = 4, top_k = 5 },
      ["score | softmax | sigmoid | tanh"] = { experts = 4, score = "tanh" },
      ["activation | tanh | silu"] = { experts = 4, activation = "tanh" },
      ["aux_loss | at least 0 | -1"] = { experts = 4, aux_loss = -1 },
      ["shared | module | table"] = { experts = 4, shared = { 3 } },
      ["shared_gate | shared"] = { experts = 4, shared_gate = true },
      ["experts"] = {},
    }) do
      has(message(layer, o), text)
    end
    has(message(ms.parameter, { 4, balance = 0 }), "balance | above 0 | 0")
  end)

  it("G4 consists of ops that help lists #release", function()
    for _, name in ipairs({ "expert_order", "expert_dispatch", "expert_combine", "grouped_matmul" }) do
      assert.truthy(("\n" .. ops.help()):find("\n" .. name .. " ", 1, true), name)
    end
  end)

  it("G4 has rules for ranks of tensor where no layer has experts", function()
    local model = ms.models.decoder {
      vocab = 8, layers = 1, dim = 8, heads = 2, seq = 4, ffn = 8, experts = 2, sparse = { false },
    }
    ms.fully_shard(model, { mesh = ms.init_device_mesh("cpu", { 1, 1 }, { "shard", "tensor" }),
      placements = ms.rules.tensor_parallel(model) })
    assert.same({}, model.sharding.warnings)
  end)

  it("G4 has no place for experts on ranks of their own yet, and says so", function()
    local model = layer { experts = 4 }
    has(message(ms.fully_shard, model, { placements = { { "experts", { expert = ms.Shard(0) } } } }),
      "placements: | expert | not built | tensor")
  end)
end)

-- The emulated kernels are not built for the thread sanitizer.
local runs = require("lua.support.emulated_runs").of("tests/lua/recipes/experts.lua")
local EMULATED = os.getenv("MOONSHARD_CONFIG") ~= "thread"
runs:case("f32 cpu", { "mesh=1x1x1", "aux=0.1" })
if EMULATED then
  runs:case("f32 cuda", { "mesh=1x1x1", "aux=0.1", "device=cuda" }, "")
  runs:case("bf16 cpu", { "mesh=1x1x1", "dtype=bf16" })
  runs:case("bf16 cuda", { "mesh=1x1x1", "dtype=bf16", "device=cuda" }, "")
end

describe("a model with two of them", function()
  teardown(function() runs:remove() end)

  it("G4 trains on the emulated device cuda as on the CPU", function()
    if not EMULATED then return end
    runs:assert_as("f32 cpu", "f32 cuda")
    runs:assert_as("bf16 cpu", "bf16 cuda")
  end)

  it("G4 trains over ranks as on one, with the same biases", function()
    for _, settings in ipairs(breadth.few({
      { "2", "mesh=1x2x1" }, { "4", "mesh=2x2x1", "micro=3" }, { "2", "mesh=1x2x1", "dtype=bf16" },
      { "2", "mesh=1x1x2", "aux=0.1" }, { "4", "mesh=1x2x2", "layout=ragged" }, { "2", "mesh=2x1x1", "optimizer=muon" },
      { "2", "mesh=1x2x1", "recompute=true" }, { "4", "mesh=2x2x1", "over=true" },
    })) do
      local ended = program.run({ "check", "tests/lua/recipes/experts.lua", "-n", unpack(settings) })
      assert.equal(0, ended.status, ended.err .. ended.out)
      has(ended.out, "tolerance")
    end
  end)

  it("G4 goes on from a checkpoint on another mesh, with its biases", function()
    local dir, whole, rest = scratch.path(), scratch.path(), scratch.path()
    local function run(ranks, mesh, steps, out, ...)
      local ended = program.run({ "run", "tests/lua/recipes/experts.lua", "-n", tostring(ranks), "mesh=" .. mesh,
        "steps=" .. steps, "out=" .. out, ... })
      assert.equal(0, ended.status, ended.err)
      return json.decode(scratch.read(out))
    end
    local all = run(1, "1x1x1", 4, whole)
    run(2, "1x2x1", 2, rest, "checkpoint=" .. dir)
    local last = run(2, "2x1x1", 4, rest, "checkpoint=" .. dir, "resume=auto")
    assert.equal(2, #last.biases)
    assert.same({ all.biases[3], all.biases[4] }, last.biases)
    fixture.assert_close({ all.losses[3], all.losses[4] }, last.losses, 1e-5, "losses")
    scratch.clear()
  end)
end)

describe("the recipe", function()
  it("G4 trains on text, tells loads, and saves a folder or says at once that it cannot", function()
    local folder = scratch.path()
    local function run(...)
      return program.run({ "run", "recipes/mixture_of_experts.lua", "-n", "2", "steps=2", "files=recipes", "dim=16",
        "ffn=8", "seq=16", "batch=2", "layers=2", ... })
    end
    local balanced = run()
    assert.equal(0, balanced.status, balanced.err)
    has(balanced.out, "step 1/2 | layer 0  loads | layer 1  loads | step 2/2 | layer 1  loads")
    assert.equal(0, run("-n", "4", "mesh=1x2x2", "seq=8").status)
    local words = { "bias_rate=0", "score=softmax", "aux_loss=0.01", "save=" .. folder }
    local saved = run(unpack(words))
    assert.equal(0, saved.status, saved.err)
    assert.equal(0.01, ms.huggingface.model(folder).config.aux_loss)
    local refused = run("save=" .. scratch.path())
    assert.equal(2, refused.status)
    has(refused.err, "config.json of mixtral | bias_rate")
    assert.equal("", refused.out)
    scratch.clear()
  end)
end)
