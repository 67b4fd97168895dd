-- Qwen3-Next from and to Hugging Face's folders: the reference library's numbers on a random small model
-- (tests/fixtures/huggingface), over ranks, in documents that share a row, and what is refused.

local decode = require("moonshard.base.text.json").decode
local has = require("lua.support.message").has
local huggingface = require("lua.support.huggingface")
local message = require("lua.support.fixture").message
local ms = require("moonshard")
local program = require("lua.support.program")
local scratch = require("lua.support.scratch")

teardown(scratch.clear)

local NAME = "qwen3_next"
local FOLDER = huggingface.FIXTURES .. NAME

local LINEAR = { linear_num_key_heads = 2, linear_num_value_heads = 4, linear_key_head_dim = 4,
  linear_value_head_dim = 3, linear_attention = { true, false } }

local function with(...)
  local o = { vocab = 17, layers = 2, dim = 8, heads = 2, ffn = 12, seq = 80, experts = 3, experts_per_token = 2,
    expert_ffn = 6, shared_ffn = 5 }
  for _, source in ipairs({ ... }) do
    for key, value in pairs(source) do o[key] = value end
  end
  return o
end

describe("Qwen3-Next", function()
  it("G1 trains as the reference library trains it, on one rank and on meshes", function()
    huggingface.assert_trains(NAME)
  end)

  it("G1 trains alike over a tensor dimension, with a padded vocabulary, ragged chunks and micro-batches", function()
    huggingface.assert_trains_divided(NAME)
  end)

  it("G1 trains on the emulated device cuda", function()
    if os.getenv("MOONSHARD_CONFIG") == "thread" then return end -- no emulated kernels for the thread sanitizer
    huggingface.assert_reference(NAME, huggingface.train(NAME, 1, "1x1", { device = "cuda" }, program.emulated_cuda()))
  end)

  it("G1 trains alike over a context dimension, and with recomputed layers", function()
    local recipe = program.recipe [[
      local ms = require "moonshard"
      local cfg = ms.args { mesh = "", folder = "", recompute = false, start = 0 }
      local model = ms.huggingface.model(cfg.folder, { document_start = cfg.start > 0 and cfg.start or nil })
      ms.fully_shard(model, {
        mesh = ms.init_device_mesh(cfg.device, cfg.mesh, { "shard", "context" }),
        recompute = cfg.recompute and { { ms.re "^layers\\.0$", true } } or nil,
      })
      local train = ms.trainer { model = model, loss = ms.loss.cross_entropy, optimizer = ms.optim.sgd { lr = 0.1 } }
      local tokens = ms.tensor({ { 1, 2, 30, 4, 5, 6, 7, 8 }, { 9, 3, 5, 16, 7, 1, 2, 4 } }, { dtype = "i32" })
      for _ = 1, 3 do print(("%.5f"):format(train:step({ tokens = tokens, targets = tokens }).loss)) end
    ]]
    local function losses(ranks, ...)
      local ended = program.run({ "run", recipe, "-n", tostring(ranks), "mesh=1x" .. ranks, "folder=" .. FOLDER, ... })
      assert.equal(0, ended.status, ended.err)
      return ended.out
    end
    local alone = losses(1)
    assert.equal(alone, losses(2))
    assert.equal(alone, losses(1, "recompute=true"))
    assert.equal(losses(1, "start=5"), losses(2, "start=5"))
    os.remove(recipe)
  end)

  it("G1 is priced by the products of its linear attention in f32, which no bytes hide", function()
    local recipe = program.recipe [[
      local ms = require "moonshard"
      local model = ms.models.qwen3_next { vocab = 128, layers = 1, dim = 256, heads = 2, ffn = 64, seq = 2048,
        experts = 2, experts_per_token = 1, linear_num_key_heads = 2, linear_num_value_heads = 4 }
      ms.fully_shard(model, { mesh = ms.init_device_mesh("cuda", "1", { "shard" }) })
      local train = ms.trainer { model = model, loss = ms.loss.cross_entropy, optimizer = ms.optim.sgd { lr = 0.1 } }
      local tokens = ms.zeros({ 1, 2048 }, { dtype = "i32" })
      train:step { tokens = tokens, targets = tokens }
    ]]
    local ended = program.run({ "price", recipe, "-n", "1", "--cluster", "h100x8", "--json" })
    assert.equal(0, ended.status, ended.err)
    local found = 0
    for _, op in ipairs(decode(ended.out).ops) do
      if op.op:find("gated_delta_rule", 1, true) then
        found = found + 1
        assert.is_true(op.ms > 1e3 * op.flops / 67e12, op.op) -- the device's peak without tensor cores
      end
    end
    assert.equal(2, found)
    os.remove(recipe)
  end)

  it("G1 is saved as it was read: names, values and config", function() huggingface.assert_saved(NAME) end)

  it("G1 gives a document of a row the logits that it has in a row of its own", function()
    local start, length = 16, 70
    local model = ms.models.qwen3_next(with(LINEAR, { document_start = start }))
    local function logits_of(ids) return model(ms.tensor({ ids }, { dtype = "i32" })):tolist()[1] end
    local first, second = {}, { start }
    for i = 1, 3 do first[i] = i end
    for i = 2, length do second[i] = i * i % 16 end
    local row = { unpack(first) }
    for _, id in ipairs(second) do row[#row + 1] = id end
    local together, alone = logits_of(row), logits_of(second)
    for i, expected in ipairs(alone) do
      for v, value in ipairs(expected) do assert.near(value, together[#first + i][v], 1e-5) end
    end
  end)

  it("G1 leaves out layers that predict further tokens", function()
    local folder = huggingface.copy_of(NAME, nil, function(tensors)
      tensors[#tensors + 1] = { name = "mtp.fc.weight", shape = { 1, 2 }, values = { 1, 2 } }
    end)
    assert.same(huggingface.logits_of(FOLDER):tolist(), huggingface.logits_of(folder):tolist())
  end)

  it("G1 makes models whose folders are read again as the same model", function()
    local tokens = ms.tensor({ { 3, 1, 16, 7, 2, 5, 9, 4 } }, { dtype = "i32" })
    for _, more in ipairs({ { kv_heads = 1, rotary_dim = 2, sparse = { false, true }, aux_loss = 0.25 },
      { linear_attention = { true, true }, linear_conv_kernel_dim = 2, qkv_bias = true, out_bias = true } }) do
      local model, folder = ms.models.qwen3_next(with(LINEAR, more)), scratch.path()
      ms.huggingface.save(model, folder)
      local again = ms.huggingface.model(folder)
      assert.same(model.config, again.config)
      assert.same(model(tokens):tolist(), again(tokens):tolist())
    end
  end)

  it("G1 has linear attention in all layers but every so many, where no list says which", function()
    local _, o = require("moonshard.huggingface.config").parse({ model_type = NAME, num_hidden_layers = 5 },
      "config.json")
    assert.same({ true, true, true, false, true }, o.linear_attention)
    assert.equal(64, o.rotary_dim)
  end)

  it("G1 refuses to save what no config.json can say, and a config.json that makes no sense", function()
    local function refused(name, more, option)
      has(message(ms.huggingface.save, ms.models[name](with(more)), scratch.path()),
        ("config.json of %s | %s"):format(name, option))
    end
    refused("qwen2_moe", { attn_output_gate = true }, "attn_output_gate")
    refused("qwen2_moe", { linear_num_value_heads = 2, linear_key_head_dim = 4 }, "linear_num_value_heads")
    refused("qwen3_next", with(LINEAR, { attn_output_gate = false }), "attn_output_gate")
    local function config_refused(field, value)
      return message(ms.huggingface.model, huggingface.copy_of(NAME, huggingface.set(field, value)))
    end
    has(config_refused("layer_types", { "linear_attention", "mamba", "linear_attention" }), 'layer 2 | "mamba"')
    has(config_refused("linear_num_key_heads", 3), "linear_num_value_heads 4 | linear_num_key_heads 3")
    has(config_refused("num_experts_per_tok", 5), "num_experts_per_tok is 5 | 4 experts")
  end)
end)
