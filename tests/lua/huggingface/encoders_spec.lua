-- Encoders from and to Hugging Face's folders: BERT as a masked language model, and vision transformers. The reference
-- library's numbers on random small models (tests/fixtures/huggingface), and what is refused.

local huggingface = require("lua.support.huggingface")
local fixture = require("lua.support.fixture")
local has = require("lua.support.message").has
local message = fixture.message
local ms = require("moonshard")
local program = require("lua.support.program")
local scratch = require("lua.support.scratch")

local train, assert_reference = huggingface.train, huggingface.assert_reference
local copy_of, set = huggingface.copy_of, huggingface.set

teardown(scratch.clear)

local ENCODERS = { "bert", "bert_plain", "vit", "vit_plain" }
local tried, all = huggingface.tried(ENCODERS, "bert")

describe("an encoder", function()
  for _, name in ipairs(tried) do
    it("G1 trains as the reference library trains it, on 1 rank and on 2x2: " .. name, function()
      huggingface.assert_trains(name, { 2, "1x2" })
    end)
  end

  it("G1 trains alike over a tensor dimension, with a padded vocabulary, ragged chunks and micro-batches", function()
    for _, name in ipairs(all and { "bert", "bert_plain" } or {}) do
      huggingface.assert_trains_divided(name)
    end
  end)

  it("G1 trains on the emulated device cuda as on the CPU", function()
    for _, name in ipairs(all and { "bert", "vit" } or {}) do -- no emulated kernels for the thread sanitizer
      assert_reference(name, train(name, 1, "1x1", { device = "cuda" }, program.emulated_cuda()))
    end
  end)

  it("G1 is saved as it was read: names, values and config", function()
    for _, name in ipairs(ENCODERS) do huggingface.assert_saved(name) end
  end)

  it("G1 of ms.models is saved as a folder that is read again as the same model", function()
    local tokens = ms.tensor({ { 3, 1, 16, 7 }, { 2, 5, 0, 0 } }, { dtype = "i32" })
    local images = ms.tensor((function() local t = {} for i = 1, 32 do t[i] = i * i % 7 / 7 end return t end)())
    local cases = {
      { ms.models.bert { vocab = 17, layers = 2, dim = 8, heads = 2, seq = 8, padding = 0, activation = "relu" },
        tokens },
      { ms.models.bert { vocab = 17, layers = 1, dim = 8, heads = 2, seq = 8, types = 3, pad_vocab_to_multiple_of = 8,
        dropout = 0.1 }, tokens },
      { ms.models.vit { size = 4, patch = 2, classes = 3, channels = 1, layers = 1, dim = 8, heads = 2, eps = 1e-3 },
        images:reshape(2, 1, 4, 4) },
    }
    for _, case in ipairs(cases) do
      local model, input = unpack(case)
      local folder = scratch.path()
      ms.huggingface.save(model, folder)
      local again = ms.huggingface.model(folder)
      for key, value in pairs(model.config) do
        if key ~= "dropout" and key ~= "pad_vocab_to_multiple_of" then assert.equal(value, again.config[key], key) end
      end
      assert.same(model(input):tolist(), again(input):tolist())
    end
  end)
end)

describe("a BERT", function()
  local function model() return ms.huggingface.model(huggingface.FIXTURES .. "bert") end
  local function tokens_of(...) return ms.tensor({ ... }, { dtype = "i32" }) end
  local function rows(logits, length) return logits:slice(1, 0, length):tolist() end

  it("G1 attends to later tokens and not to padding, which a mask can also name", function()
    local bert = model()
    local alone, padded = bert(tokens_of { 3, 1, 40, 7 }), bert(tokens_of { 3, 1, 40, 7, 0, 0 })
    for i, row in ipairs(rows(padded, 4)[1]) do
      for j, value in ipairs(row) do assert.near(alone:tolist()[1][i][j], value, 1e-5) end
    end
    local masked = bert(tokens_of { 3, 1, 40, 7, 9, 9 }, false, tokens_of { 1, 1, 1, 1, 0, 0 })
    assert.same(rows(padded, 4), rows(masked, 4))
    for _, mask in ipairs({ tokens_of { 1, 2, -1, 7, 0, 0 }, ms.tensor { { 0.5, 1, 2, 1, 0, 0 } } }) do
      assert.same(rows(masked, 4), rows(bert(tokens_of { 3, 1, 40, 7, 9, 9 }, false, mask), 4))
    end
    local later = bert(tokens_of { 3, 1, 40, 8 })
    assert.not_same(rows(alone, 1), rows(later, 1))
    local nothing = bert(tokens_of { 0, 0, 0 }):tolist()[1][1][1]
    assert.equal(nothing, nothing)
  end)

  it("G1 is read with the names of old files, and without what only other tasks read", function()
    local function change(tensors)
      for _, tensor in ipairs(tensors) do
        tensor.name = tensor.name:gsub("LayerNorm%.weight$", "LayerNorm.gamma"):gsub("LayerNorm%.bias$",
          "LayerNorm.beta")
        if tensor.name == "cls.predictions.bias" then
          table.insert(tensors, { name = "cls.predictions.decoder.bias", shape = tensor.shape, values = tensor.values })
        elseif tensor.name == "bert.embeddings.word_embeddings.weight" then
          table.insert(tensors, { name = "cls.predictions.decoder.weight", shape = tensor.shape,
            values = tensor.values })
        end
      end
      table.insert(tensors, { name = "bert.pooler.dense.bias", shape = { 16 }, values = {} })
      table.insert(tensors, { name = "cls.seq_relationship.bias", shape = { 2 }, values = { 1, 2 } })
      for i = 1, 16 do tensors[#tensors - 1].values[i] = i end
    end
    local tokens = tokens_of { 3, 1, 40, 7 }
    assert.same(model()(tokens):tolist(), ms.huggingface.model(copy_of("bert", nil, change))(tokens):tolist())
    local function untie(tensors)
      change(tensors)
      for _, tensor in ipairs(tensors) do
        if tensor.name == "cls.predictions.decoder.bias" then tensor.values = { 5, unpack(tensor.values, 2) } end
      end
    end
    local untied = ms.huggingface.model(copy_of("bert", nil, untie))
    has(message(untied, tokens), "cls.predictions.decoder.bias | cls.predictions.bias | element 0")
  end)

  it("G1 refuses fields that change numbers in a way that is not built", function()
    local function refused(name, field, value)
      return message(ms.huggingface.model, copy_of(name, set(field, value)))
    end
    has(refused("bert", "tie_word_embeddings", false), "tie_word_embeddings | false")
    has(refused("bert", "position_embedding_type", "relative_key"), "position_embedding_type | relative_key")
    has(refused("bert", "is_decoder", true), "is_decoder | true")
    has(refused("bert", "add_cross_attention", true), "add_cross_attention | true")
    has(refused("bert", "hidden_act", "mish"), "hidden_act | mish | gelu_new")
    has(refused("bert", "num_attention_heads", 3), "hidden_size 16 | num_attention_heads 3")
    has(refused("bert", "windows", 3), "windows | unknown")
    has(refused("bert", "pad_token_id", 999), "config.json | pad_token_id 999 | vocab_size")
    has(refused("bert", "architectures", { "BertModel" }), "architectures | BertModel | BertForMaskedLM")
    has(refused("vit", "architectures", { "ViTModel" }), "architectures | ViTModel | ViTForImageClassification")
    ms.huggingface.model(copy_of("bert", set("architectures", { "BertForPreTraining" }))) -- has the same tensors
    has(refused("vit", "image_size", { 8, 8 }), "image_size | whole number")
    has(refused("vit", "image_size", 9), "image_size 9 | patch_size 4")
    has(refused("vit", "num_labels", 6), "classifier.weight | [5,16] instead of [6,16]")
  end)

  it("G1 is trained by a loss on what the model is given: other fields and targets are refused", function()
    local function small() return ms.models.bert { vocab = 257, layers = 1, dim = 8, heads = 2, seq = 8 } end
    local function trainer(of, forward)
      return ms.trainer { model = of, optimizer = ms.optim.sgd { lr = 0.1 }, forward = forward,
        loss = not forward and ms.loss.cross_entropy or nil }
    end
    local path = scratch.path()
    scratch.write(path, ("abcdefgh"):rep(40))
    local text = ms.data.text { files = path, seq = 8, batch = 2, valid_fraction = 0 }
    local function batch_of(data)
      local _, batch = data:batches(1)()
      return batch
    end
    local next_tokens, masked = batch_of(text), batch_of(ms.data.masked { text, mask = 256, vocab = 256 })
    local bert, gpt = trainer(small()), trainer(ms.models.gpt2 { vocab = 257, layers = 1, dim = 8, heads = 2, seq = 8 })
    assert.is_number(bert:step(masked).loss)
    has(message(bert.step, bert, next_tokens), "Bert | ms.data.masked")
    has(message(gpt.step, gpt, masked), "GPT2 | next tokens")
    has(message(gpt.evaluate, gpt, ms.data.masked({ text, mask = 256, vocab = 256 }):batches(1)), "GPT2 | next tokens")
    assert.is_number(gpt:step(next_tokens).loss)
    masked.mask = ms.zeros({ 2, 8 }, { dtype = "u8" })
    has(message(bert.step, bert, masked), "mask | forward | tokens")
    local seen
    trainer(small(), function(net, b)
      seen = b.mask
      return ms.loss.cross_entropy(net(b.tokens, false, b.mask), b.targets)
    end):step(masked)
    assert.same({ 2, 8 }, seen.shape)
  end)

  it("G1 says what to do where the ranks of tensor do not divide its classes", function()
    local vit = ms.models.vit { size = 8, patch = 4, classes = 3, layers = 1, dim = 8, heads = 2 }
    has(fixture.as_rank(0, 2, function()
      local mesh = ms.init_device_mesh("cpu", { 1, 2 }, { "shard", "tensor" })
      return message(ms.fully_shard, vit, { mesh = mesh, placements = ms.rules.tensor_parallel(vit) })
    end), 'head.weight | 2 and 4 | { "head", { tensor = "replicate" } }')
  end)

  it("G1 refuses inputs and options that make no sense", function()
    local bert = model()
    has(message(bert, ms.tensor({ 1, 2 }, { dtype = "i32" })), "tokens | [batch, length] | [2]")
    has(message(bert, tokens_of { 1, 2 }, true), "types | [1,2] | true")
    has(message(bert, tokens_of { 1, 2 }, false, 3), "mask | [1,2] | 3")
    has(message(bert, ms.zeros({ 1, 13 }, { dtype = "i32" })), "13 tokens | seq=12")
    has(message(bert, tokens_of { 1, 2 }, tokens_of { 1 }), "types | [1,2] | [1,1]")
    local sizes = { vocab = 9, layers = 1, dim = 8, heads = 2, seq = 8 }
    local function with(name, value)
      local o = { [name] = value }
      for key, size in pairs(sizes) do o[key] = o[key] or size end
      return message(ms.models.bert, o)
    end
    has(with("padding", 9), "padding | 0 to 8 | 9")
    has(with("heads", 3), "dim 8 | heads 3")
    has(with("activation", "mish"), "activation | mish | gelu")
    has(with("deviation", 0), "deviation | above 0 | 0")
    has(with("deviation", math.huge), "deviation | finite | inf")
    has(with("eps", -1), "eps | above 0 | -1")
    has(message(ms.generate, bert, { prompt = { 1 } }), "Bert | later tokens")
    local vit = ms.huggingface.model(huggingface.FIXTURES .. "vit")
    has(message(vit, ms.zeros { 1, 3, 8, 9 }), "[N,3,8,8] | [1,3,8,9]")
  end)
end)
