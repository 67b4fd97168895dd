-- The ready-made models: names, counts, shapes, first weights, and graphs that compile.

local ms = require("moonshard")
local fixture = require("lua.support.fixture")
local has = require("lua.support.message").has
local message = fixture.message

before_each(function() ms.world().describe(0, 1) end)

local function parameters(model)
  local shapes, count = {}, 0
  for name, parameter in model:named_parameters() do
    shapes[name] = parameter
    count = count + 1
  end
  return shapes, count
end

describe("gpt2", function()
  it("has the documented names and shapes", function()
    local shapes, count = parameters(fixture.gpt2())
    assert.equal(2 + 2 * 16 + 2 + 1, count)
    for name, shape in pairs({
      ["embed.weight"] = { 16, 8 }, ["pos.weight"] = { 4, 8 }, ["head.weight"] = { 16, 8 },
      ["layers.0.norm1.weight"] = { 8 }, ["layers.0.norm1.bias"] = { 8 }, ["layers.1.norm2.bias"] = { 8 },
      ["layers.0.attn.wq.weight"] = { 8, 8 }, ["layers.0.attn.wk.bias"] = { 8 }, ["layers.0.attn.wv.weight"] = { 8, 8 },
      ["layers.1.attn.wo.weight"] = { 8, 8 }, ["layers.1.mlp.fc1.weight"] = { 32, 8 },
      ["layers.1.mlp.fc2.weight"] = { 8, 32 }, ["norm.weight"] = { 8 }, ["norm.bias"] = { 8 },
    }) do
      assert.same(shape, shapes[name].shape, name)
    end
    assert.is_nil(shapes["head.bias"])
  end)

  it("draws first weights as GPT-2 does", function()
    local shapes = parameters(fixture.gpt2())
    local function law(name) return tostring(shapes[name].init) end
    assert.equal("normal(0, 0.02)", law("embed.weight"))
    assert.equal("normal(0, 0.02)", law("layers.0.attn.wq.weight"))
    assert.equal("normal(0, 0.01)", law("layers.0.attn.wo.weight")) -- 0.02 / sqrt(2 * 2 layers)
    assert.equal("normal(0, 0.01)", law("layers.1.mlp.fc2.weight"))
    assert.equal("zeros", law("layers.0.mlp.fc1.bias"))
    assert.equal("ones", law("norm.weight"))
  end)

  it("has the published sizes", function()
    local published = { ["124M"] = 124439808, ["355M"] = 354823168, ["774M"] = 774030080, ["1.5B"] = 1557611200 }
    for name, count in pairs(published) do
      assert.equal(count, ms.models.gpt2({ name }):num_parameters())
    end
  end)

  it("gives logits, for shorter rows too", function()
    local graph = fixture.trace(fixture.gpt2(), 3, 4)
    assert.same({ 3, 4, 16 }, graph.outputs.logits.shape)
    assert.same({}, graph.loss.shape)
    assert.same({ 3, 2, 16 }, fixture.trace(fixture.gpt2(), 3, 2).outputs.logits.shape)
  end)

  it("can do without biases, and with dropout, ratio, activation and a tied head", function()
    local model = fixture.gpt2({ bias = false, dropout = 0.1, mlp_ratio = 2, activation = "relu", tied = true })
    local shapes = parameters(model)
    assert.is_nil(shapes["layers.0.attn.wq.bias"])
    assert.is_nil(shapes["head.weight"])
    assert.same({ 16, 8 }, shapes["layers.0.mlp.fc1.weight"].shape)
    assert.is_true(fixture.summary(fixture.trace(model, 2, 4)).instructions > 0)
  end)

  it("compiles for a rank of a mesh, in both precisions and layouts", function()
    ms.world().describe(1, 4)
    for _, dtype in ipairs({ "f32", "bf16" }) do
      for _, layout in ipairs({ "rows", "ragged" }) do
        local model = ms.fully_shard(fixture.gpt2(), { mesh = { 2, 2 }, units = { "layers" }, layout = layout,
          mp_policy = { param_dtype = dtype } })
        local summary = fixture.summary(fixture.trace(model, 2, 4))
        assert.is_true(summary.peak_bytes > 0)
        assert.is_true(summary.comm_bytes[0] > 0 and summary.comm_bytes[1] > 0)
      end
    end
  end)

  it("can do without biases in bf16, in more than one model of a program", function()
    for _ = 1, 2 do
      local model = ms.fully_shard(fixture.gpt2 { bias = false }, { mp_policy = { param_dtype = "bf16" } })
      local graph = fixture.trace(model, 2, 4)
      assert.equal("bf16", graph.outputs.logits.dtype)
      assert.is_true(fixture.summary(graph).instructions > 0)
    end
  end)

  it("has the width, the eps and the positions that it is given", function()
    local shapes = parameters(fixture.gpt2({ ffn = 20, eps = 1e-3 }))
    assert.same({ 20, 8 }, shapes["layers.0.mlp.fc1.weight"].shape)
    assert.same({ 8, 20 }, shapes["layers.1.mlp.fc2.weight"].shape)
    assert.equal(1e-3, fixture.gpt2({ eps = 1e-3 }).norm.eps)
  end)

  for title, case in pairs({
    ["heads that do not divide"] = { { heads = 3 }, "dim 8 | heads 3" },
    ["a wrong type"] = { { dim = "wide" }, 'dim | 1 | "wide"' },
    ["an unknown option"] = { { layer = 2 }, "layers?" },
    ["an unknown activation"] = { { activation = "tanh" }, "activation | relu" },
  }) do
    it("refuses " .. title, function() has(message(fixture.gpt2, case[1]), case[2]) end)
  end

  it("refuses a missing size, an unknown published one and rows that are too long", function()
    has(message(ms.models.gpt2, { vocab = 3 }), "missing")
    has(message(ms.models.gpt2, { "125M" }), "124M")
    has(message(fixture.trace, fixture.gpt2(), 2, 5), "seq")
  end)
end)

describe("llama", function()
  local function llama(changes)
    local config = { vocab = 16, layers = 2, dim = 16, heads = 4, kv_heads = 2, ffn = 24, seq = 4 }
    for name, value in pairs(changes or {}) do config[name] = value end
    return ms.models.llama(config)
  end

  it("has the documented names and shapes", function()
    local shapes, count = parameters(llama())
    assert.equal(1 + 2 * 9 + 1 + 1, count)
    for name, shape in pairs({
      ["embed.weight"] = { 16, 16 }, ["layers.0.attn_norm.weight"] = { 16 }, ["layers.0.attn.wq.weight"] = { 16, 16 },
      ["layers.0.attn.wk.weight"] = { 8, 16 }, ["layers.1.attn.wv.weight"] = { 8, 16 },
      ["layers.1.attn.wo.weight"] = { 16, 16 }, ["layers.1.ffn_norm.weight"] = { 16 },
      ["layers.0.mlp.w1.weight"] = { 24, 16 }, ["layers.0.mlp.w2.weight"] = { 16, 24 },
      ["layers.0.mlp.w3.weight"] = { 24, 16 }, ["norm.weight"] = { 16 }, ["head.weight"] = { 16, 16 },
    }) do
      assert.same(shape, shapes[name].shape, name)
    end
  end)

  it("has the published sizes", function()
    local published = { ["1B"] = 1235814400, ["3B"] = 3212749824, ["7B"] = 6738415616, ["8B"] = 8030261248,
      ["13B"] = 13015864320, ["70B"] = 70553706496 }
    for name, count in pairs(published) do
      assert.equal(count, ms.models.llama({ name }):num_parameters())
    end
  end)

  it("gives logits and compiles with grouped queries", function()
    local graph = fixture.trace(llama(), 2, 4)
    assert.same({ 2, 4, 16 }, graph.outputs.logits.shape)
    assert.is_true(fixture.summary(graph).instructions > 0)
  end)

  it("is traced in well under 0.3 s with 32 layers", function()
    local model = ms.fully_shard(ms.models.llama { "8B", seq = 4096 }, { units = { ms.re[[^layers\.\d+$]] } })
    local best = math.huge
    for _ = 1, 3 do
      local began = os.clock()
      fixture.trace(model, 1, 4096)
      best = math.min(best, os.clock() - began)
    end
    assert.is_true(best < 0.3, best)
  end)

  it("has heads of another size than dim / heads", function()
    local shapes = parameters(llama({ head_dim = 6 }))
    assert.same({ 24, 16 }, shapes["layers.0.attn.wq.weight"].shape)
    assert.same({ 12, 16 }, shapes["layers.0.attn.wv.weight"].shape)
    assert.same({ 16, 24 }, shapes["layers.0.attn.wo.weight"].shape)
    assert.is_true(fixture.summary(fixture.trace(llama({ head_dim = 6 }), 2, 4)).instructions > 0)
  end)

  it("uses the frequencies of Llama 3.1 when they are requested", function()
    for name, factor in pairs({ ["1B"] = 32, ["3B"] = 32, ["8B"] = 8, ["70B"] = 8, ["405B"] = 8 }) do
      local scaling = ms.models.llama({ name }).config.rope_scaling
      assert.same({ factor, 1, 4, 8192 }, { scaling.factor, scaling.low_freq_factor, scaling.high_freq_factor,
        scaling.original_max_position_embeddings })
    end
    assert.is_false(ms.models.llama({ "8B", rope_scaling = false }).config.rope_scaling)
    for _, name in ipairs({ "7B", "13B" }) do
      local config = ms.models.llama({ name }).config
      assert.same({ false, 10000, 4096, config.heads },
        { config.rope_scaling, config.rope_theta, config.seq, config.kv_heads })
    end
  end)

  it("refuses heads that do not divide, or are odd, and scaling that makes no sense", function()
    has(message(llama, { kv_heads = 3 }), "heads 4 | kv_heads 3")
    has(message(llama, { dim = 18 }), "dim 18 | heads 4 | head_dim")
    has(message(llama, { head_dim = 5 }), "5 | even")
    has(message(llama, { rope_scaling = { factor = 8 } }), "rope_scaling: ")
    has(message(llama, { rope_scaling = { factor = 8, low_freq_factor = 5, high_freq_factor = 4,
      original_max_position_embeddings = 8192 } }), "high | low")
  end)
end)
