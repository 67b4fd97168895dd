-- QK-clip: heads whose largest score is above the threshold have queries and keys scaled, as formulas in double say, on
-- every mesh, in every micro-batch, and in latent attention by its parts.

local breadth = require("lua.support.breadth")
local clipped = require("lua.muon.recipes.clipped")
local compare = require("moonshard.check.tolerance")
local has = require("lua.support.message").has
local json = require("cjson")
local program = require("lua.support.program")
local scratch = require("lua.support.scratch")

local function run(mesh, settings, environment, recipe)
  local ranks, out = 1, scratch.path()
  for size in mesh:gmatch("%d+") do ranks = ranks * tonumber(size) end
  local path = ("tests/lua/muon/recipes/%s.lua"):format(recipe or "qk_clip")
  local list = { "run", path, "-n", tostring(ranks), "mesh=" .. mesh, "out=" .. out }
  for name, value in pairs(settings) do list[#list + 1] = ("%s=%s"):format(name, tostring(value)) end
  local ended = program.run(list, environment)
  assert.equal(0, ended.status, mesh .. ": " .. ended.err)
  return json.decode(scratch.read(out))
end

local function assert_reference(mesh, settings, tolerance, environment)
  local expected = clipped.expected(settings.mla or false, settings.threshold or 0.5, settings.alpha or 0.5)
  local changed = 0
  for step, found in ipairs(run(mesh, settings, environment)) do
    assert.near(expected[step].max_logit, found.max_logit, (tolerance or 1e-5) * expected[step].max_logit)
    for name, values in pairs(found) do
      if name ~= "max_logit" then
        local worst = compare.arrays(expected[step][name], values, { count = #values, tolerance = tolerance or 1e-5 })
        assert.is_false(worst.differs,
          ("%s, step %d of %s: %g and %g"):format(mesh, step, name, worst.expected, worst.got))
        changed = changed + 1
      end
    end
  end
  assert.is_true(changed >= 4)
end

-- A decoder whose samples ranks divide, against one rank: every step clips, and differs from one without.
local function assert_divided(settings, meshes)
  local function decoder(mesh, more)
    local all = {}
    for _, source in ipairs({ settings, more or {} }) do
      for name, value in pairs(source) do all[name] = value end
    end
    return run(mesh, all, nil, "qk_clip_decoder")
  end
  local alone, unclipped = decoder("1x1x1"), decoder("1x1x1", { threshold = 1000 })
  for _, case in ipairs(meshes) do
    for step, found in ipairs(decoder(case[1], case[2])) do
      for name, values in pairs(found) do
        local worst = compare.arrays(alone[step][name], values, { count = #values, tolerance = 1e-5 })
        assert.is_false(worst.differs,
          ("%s, step %d of %s: %g and %g"):format(case[1], step, name, worst.expected or 0, worst.got or 0))
      end
      assert.is_true(found.max_logit[1] > 0.02)
      assert.not_same(unclipped[step]["layers.0.attn.wk.weight"], found["layers.0.attn.wk.weight"])
    end
  end
end

local function refused(recipe)
  local path = program.recipe(recipe)
  local ended = program.run { "run", path }
  os.remove(path)
  assert.equal(2, ended.status, ended.out .. ended.err)
  return ended.err
end

local LLAMA = [[
  local ms = require "moonshard"
  local model = ms.models.%s
  ms.fully_shard(model, { %s })
  local train = ms.trainer { model = model, optimizer = ms.optim.adamw { lr = 1e-3 }, loss = ms.loss.cross_entropy,
    qk_clip = %s }
  local tokens = ms.tensor({ { 1, 2, 3, 4 } }, { dtype = "i32" })
  local m = train:step { tokens = tokens, targets = tokens }
  print(m.max_logit > 0 and m.max_logit < 10)
]]
local SIZES = "{ vocab = 16, layers = 2, dim = 16, heads = 4, kv_heads = 2, ffn = 16, seq = 4 }"

describe("QK-clip", function()
  teardown(scratch.clear)

  it("Q9 scales queries and keys of heads above the threshold, and no others", function()
    assert_reference("1x1x1", {})
    assert_reference("1x1x1", { threshold = 2, alpha = 0.25 })
    local first = run("1x1x1", { threshold = 1000 })
    local of = clipped.sizes(false)
    for _, name in ipairs(of.names) do assert.same(of.weight(name), first[clipped.STEPS][name]) end
  end)

  it("Q9 leaves the shared key of latent attention, and gives its queries the whole factor", function()
    assert_reference("1x1x1", { mla = true })
    assert_reference("1x2x1", { mla = true, threshold = 2 })
  end)

  it("Q9 takes the largest score of all ranks and micro-batches", function()
    for _, case in ipairs(breadth.few {
      { "1x2x1", {} }, { "2x1x1", { own = true, layout = "ragged" } }, { "2x2x1", { over = true, own = true } },
      { "1x1x2", {} }, { "1x1x1", { micro = 4 } }, { "1x2x1", { micro = 2, sync = "last" } },
      { "2x1x2", { micro = 2, mla = false } }, { "1x2x2", { layout = "ragged", micro = 2 } },
    }) do
      assert_reference(case[1], case[2])
    end
  end)

  it("Q9 takes the largest score of the parts of a sample", function()
    assert_divided({}, breadth.few { { "1x1x2" }, { "1x1x2", { micro = 2 } }, { "2x1x2" }, { "1x2x2" } })
  end)

  it("Q9 clips attention in chunks, also of documents and where ranks divide samples", function()
    local meshes = breadth.few { { "1x2x1" }, { "1x1x2", { micro = 2 } }, { "1x2x2" } }
    for _, documents in ipairs(breadth.few { false, true }) do
      assert_divided({ attention = "chunked", documents = documents }, meshes)
    end
  end)

  it("Q9 scales masters, and what is kept of them in bf16", function()
    assert_reference("1x2x1", { dtype = "bf16", copy = true }, 2e-2)
  end)

  it("Q9 A1 does the same on the device cuda", function()
    if os.getenv("MOONSHARD_CONFIG") ~= "release" then return end
    local library = ("MOONSHARD_CUDA_LIBRARY=%s/tests/emulated/libmoonshard_cuda_emulated.so"):format(
      os.getenv("MOONSHARD_BIN"):match("^(.*)/"))
    assert_reference("1x1x2", { device = "cuda" }, 1e-5, program.emulated_cuda(library))
  end)

  it("Q9 knows the projections of decoders, also with documents and windows", function()
    for _, sizes in ipairs { SIZES, (SIZES:gsub(" }$", ", document_start = 3, window = 2 }")) } do
      local path = program.recipe(LLAMA:format("llama " .. sizes, "", "100"))
      local ended = program.run { "run", path }
      os.remove(path)
      assert.equal(0, ended.status, ended.err)
      assert.equal("true\n", ended.out)
    end
  end)

  it("Q9 knows the parts of latent attention of decoders", function()
    local path = program.recipe [[
      local ms = require "moonshard"
      local model = ms.models.llama { vocab = 16, layers = 1, dim = 16, heads = 4, kv_heads = 4, ffn = 16, seq = 4,
        kv_lora_rank = 8, qk_nope_head_dim = 4, qk_rope_head_dim = 2, v_head_dim = 3 }
      ms.fully_shard(model)
      local train = ms.trainer { model = model, optimizer = ms.optim.sgd { lr = 0 }, loss = ms.loss.cross_entropy,
        qk_clip = 1e-5 }
      local before = {}
      local function weight(name) return train:parameter("layers.0.attn." .. name .. ".weight") end
      for _, name in ipairs { "wq", "wkv_a", "wkv_b" } do before[name] = weight(name):tolist() end
      local tokens = ms.tensor({ { 1, 2, 3, 4 } }, { dtype = "i32" })
      train:step { tokens = tokens, targets = tokens }
      local function factor(name, row) return weight(name):tolist()[row][1] / before[name][row][1] end
      for h = 0, 3 do
        local share = factor("wq", h * 6 + 1)
        print(share < 1, math.abs(factor("wq", h * 6 + 6) - share ^ 2) < 1e-5,
          math.abs(factor("wkv_b", h * 7 + 4) - share) < 1e-5, factor("wkv_b", h * 7 + 5))
      end
      print(factor("wkv_a", 1), factor("wkv_a", 10))
    ]]
    local ended = program.run { "run", path }
    os.remove(path)
    assert.equal(0, ended.status, ended.err)
    assert.equal(("true\ttrue\ttrue\t1\n"):rep(4) .. "1\t1\n", ended.out)
  end)

  it("Q9 names what it cannot scale", function()
    has(refused(LLAMA:format("qwen3 " .. SIZES, "", "100")), "qk_clip | normalised")
    has(refused(LLAMA:format("llama " .. SIZES, [[freeze = { "layers.1.attn.wk.weight" }]], "100")),
      "layers.1.attn.wk.weight | frozen | qk_clip")
    has(refused(LLAMA:format("llama " .. SIZES, "", "-1")), "qk_clip | threshold | -1")
    has(refused [[
      local ms = require "moonshard"
      local model = ms.module { wq = ms.nn.linear(8, 8), forward = function(self, x)
        local q = self.wq(x):reshape(x.shape[1], x.shape[2], 2, 4)
        return ms.ops.attention(q, q, q)
      end }
      ms.fully_shard(model)
      local train = ms.trainer { model = model, optimizer = ms.optim.sgd { lr = 1 }, qk_clip = 1,
        forward = function(net, batch) return net(batch.x):mean() end }
      train:step { x = ms.ones { 1, 4, 8 } }
    ]], "qk_clip | ms.nn.attention_logits")
  end)
end)
