-- Generation that keeps keys and values: token for token as without, together as alone, and on every mesh.

local breadth = require("lua.support.breadth")
local fixture = require("lua.support.fixture")
local has = require("lua.support.message").has
local ms = require("moonshard")
local program = require("lua.support.program")
local scratch = require("lua.support.scratch")
local session = require("moonshard.engine.session")

local message = fixture.message

local FAMILIES = { "gpt2", "documents", "llama", "qwen3", "gemma2", "smollm3", "qwen2_moe",
  "deepseek_v3", "gpt_oss", "qwen3_next" }
local PROMPTS = { "the moon is", { 1, 2, 32, 4 }, "a" }

local FOLDERS = "tests/fixtures/huggingface/"

local MODELS = {
  gpt2 = function() return fixture.gpt2 { vocab = 256, seq = 40 } end,
  documents = function() return fixture.gpt2 { vocab = 256, seq = 40, document_start = 32 } end,
  llama = function()
    return ms.models.llama { vocab = 256, layers = 2, dim = 16, heads = 4, kv_heads = 2, ffn = 32, seq = 40 }
  end,
  qwen3 = function()
    return ms.models.qwen3 { vocab = 256, layers = 2, dim = 16, heads = 4, kv_heads = 2, head_dim = 6, ffn = 32,
      seq = 40 }
  end,
  smollm3 = function()
    return ms.models.smollm3 { vocab = 256, layers = 4, dim = 16, heads = 4, kv_heads = 2, head_dim = 4, ffn = 32,
      seq = 40 }
  end,
  qwen2_moe = function()
    return ms.models.qwen2_moe { vocab = 256, layers = 2, dim = 16, heads = 4, kv_heads = 2, ffn = 32, seq = 40,
      experts = 4, experts_per_token = 2, expert_ffn = 12, shared_ffn = 8 }
  end,
  deepseek_v3 = function()
    return ms.models.deepseek_v3 { vocab = 256, layers = 2, dim = 16, heads = 4, ffn = 32, seq = 40, kv_lora_rank = 12,
      qk_nope_head_dim = 6, qk_rope_head_dim = 4, v_head_dim = 5, experts = 4, experts_per_token = 2, expert_ffn = 12,
      document_start = 32 }
  end,
  gpt_oss = function()
    return ms.models.gpt_oss { vocab = 256, layers = 2, dim = 16, heads = 4, kv_heads = 2, ffn = 12, seq = 40,
      experts = 4, experts_per_token = 2, window = 5, slides = { true, false }, document_start = 32 }
  end,
  qwen3_next = function()
    return ms.models.qwen3_next { vocab = 256, layers = 3, dim = 16, heads = 4, kv_heads = 2, head_dim = 6, ffn = 32,
      seq = 40, experts = 4, experts_per_token = 2, expert_ffn = 12, shared_ffn = 8, linear_num_key_heads = 2,
      linear_num_value_heads = 4, linear_key_head_dim = 4, linear_attention = { true, false, true },
      document_start = 32 }
  end,
  gemma2 = function()
    return ms.models.gemma2 { vocab = 256, layers = 2, dim = 16, heads = 4, kv_heads = 2, head_dim = 6, ffn = 32,
      seq = 40, window = 5 }
  end,
}

local function numbers_of(text)
  local list = {}
  for digits in text:gmatch("%d+") do list[#list + 1] = tonumber(digits) end
  return list
end

-- Which of its plans a model has run.
local function plans_of(model)
  local names = {}
  for exec in session.of(model).plans:execs() do names[exec.plan.name] = true end
  return names
end

local function run(ranks, mesh, family, device)
  local out = scratch.path()
  local ended = program.run({ "run", "tests/lua/generation/recipes/generate.lua", "-n", tostring(ranks),
    "mesh=" .. mesh, "out=" .. out, "family=" .. family, "device=" .. (device or "cpu") },
    device and program.emulated_cuda())
  assert.equal(0, ended.status, ended.err)
  return scratch.read(out)
end

describe("keys and values that generation keeps", function()
  teardown(scratch.clear)

  for _, family in ipairs(FAMILIES) do
    it("G7 give the tokens of passes over whole texts, up to and beyond the model's length: " .. family, function()
      local kept, whole = MODELS[family](), MODELS[family]()
      for _, o in ipairs({
        { prompt = "moonshine", tokens = 25, temperature = 1 },
        { prompt = "t", tokens = 50, temperature = 2, top_k = 0 },
        { prompt = PROMPTS, tokens = 45, temperature = 0.5 },
      }) do
        o.cache = true
        local _, tokens = ms.generate(kept, o)
        o.cache = false
        local _, expected = ms.generate(whole, o)
        assert.same(expected, tokens)
      end
      assert.same({ generate = true }, plans_of(whole))
      assert.same({ generate = true, prefill = true, decode = true }, plans_of(kept))
    end)

    it("G7 give the same texts on every mesh #all: " .. family, function()
      local alone = run(1, "1x1", family)
      for mesh, ranks in pairs({ ["1x2"] = 2, ["2x1"] = 2, ["1x1x2"] = 2, ["1x1x2x1"] = 2 }) do
        assert.equal(alone, run(ranks, mesh, family), mesh)
      end
      if breadth.all then assert.equal(alone, run(4, "2x2", family)) end
    end)
  end

  it("G7 continue prompts as the reference library does, for every folder of the fixtures", function()
    local folders = {}
    for line in scratch.read(FOLDERS .. "generated.txt"):gmatch("[^\n]+") do
      local folder, prompt, made = line:match("^(%S+) ([%d ]+) | ([%d ]+)$")
      local ids, expected = numbers_of(prompt), numbers_of(made)
      if breadth.all or not folders[folder] then -- each prompt, or the first of a folder
        folders[folder] = folders[folder] or ms.huggingface.model(FOLDERS .. folder)
        local o = { prompt = ids, tokens = #expected, temperature = 0, cache = true }
        assert.same(expected, select(2, ms.generate(folders[folder], o)), folder)
      end
    end
    local count = 0
    for _ in pairs(folders) do count = count + 1 end
    assert.is_true(count >= 16, count .. " folders")
  end)

  it("G7 continue the prompts of a list as each of them alone", function()
    for _, cache in ipairs({ true, false }) do
      local model = MODELS.llama()
      local texts, tokens = ms.generate(model, { prompt = PROMPTS, tokens = 20, temperature = 1, seed = 7,
        cache = cache })
      assert.equal(3, #texts)
      for i, prompt in ipairs(PROMPTS) do
        local text, alone = ms.generate(model, { prompt = prompt, tokens = 20, temperature = 1, seed = 6 + i })
        assert.equal(text, texts[i])
        assert.same(alone, tokens[i])
      end
    end
  end)

  it("G7 give the same texts on emulated GPUs", function()
    local alone = run(1, "1x1", "qwen3")
    assert.equal(alone, run(1, "1x1", "qwen3", "cuda"))
  end)

  it("G7 end each text of a list at its own stop token", function()
    local tokenizer = ms.tokenizer("tests/fixtures/tokenizer/good/gpt2.json")
    local model = fixture.gpt2 { vocab = tokenizer.vocab, seq = 1024 }
    -- By this seed each ends elsewhere.
    local o = { prompt = { "the", "moon", " is" }, tokens = 300, temperature = 5, top_k = 0, seed = 6 }
    o.tokenizer = tokenizer
    local _, whole = ms.generate(model, o)
    o.stop = "<|endoftext|>"
    local _, cut = ms.generate(model, o)
    local lengths = {}
    for i, tokens in ipairs(whole) do
      local expected = {}
      for _, token in ipairs(tokens) do
        if token == tokenizer:id(o.stop) then break end
        expected[#expected + 1] = token
      end
      assert.same(expected, cut[i])
      lengths[#expected] = true
    end
    local distinct = 0
    for _ in pairs(lengths) do distinct = distinct + 1 end
    assert.equal(3, distinct)
  end)

  it("take prompts of any length", function()
    local model, ids = MODELS.gpt2(), {}
    for i = 1, 9000 do ids[i] = i % 256 end
    local _, tokens = ms.generate(model, { prompt = ids, tokens = 2, temperature = 0 })
    local last = {}
    for i = 1, 40 do last[i] = ids[8960 + i] end
    assert.same(select(2, ms.generate(model, { prompt = last, tokens = 2, temperature = 0 })), tokens)
    local text = ("moon"):rep(2500)
    assert.equal(1, #select(2, ms.generate(model, { prompt = text, tokens = 1 })))
  end)

  it("refuse ranks with other prompts or settings", function()
    for o, said in pairs({
      ['prompt = r == 0 and "a" or "b"'] = "prompt is | texts", ["seed = 1 + r"] = "seed is 1 | and 2",
      ["tokens = 2 + r"] = "tokens is 2 | and 3", ["top_k = r"] = "top_k is 0 | and 1",
    }) do
      local recipe = program.recipe(([[
        local ms = require "moonshard"
        local r = ms.world().rank
        local model = ms.models.gpt2 { vocab = 256, layers = 1, dim = 8, heads = 2, seq = 8 }
        ms.fully_shard(model, { mesh = ms.init_device_mesh("cpu", "1x2", { "replicate", "shard" }) })
        ms.generate(model, { %s })]]):format(o))
      program.refused(2, { "run", recipe, "-n", "2" }, "ms.generate | " .. said .. " | rank 1")
      os.remove(recipe)
    end
  end)

  it("refuse prompts that are none, and models that keep nothing", function()
    local model = MODELS.gpt2()
    has(message(function() ms.generate(nil, { prompt = "a" }) end), "ms.generate | model or a trainer | nil")
    for text, prompt in pairs({
      ["at least one token"] = { "a", "" },
      ["list of such | empty"] = {},
      ["prompt 2 | not true"] = { "a", true },
      ["token 2 | 1.5 | integers"] = { 1, 1.5 },
      ["token 1 | -1 | integers"] = { { -1 } },
      ["token 300 | 256 tokens"] = { 300 },
    }) do
      has(message(function() ms.generate(model, { prompt = prompt }) end), text)
    end
    local Own = ms.module "Own"
    function Own:init()
      self.config = { vocab = 256, seq = 8 }
      self.embed, self.head = ms.nn.embedding(256, 4), ms.nn.linear(4, 256)
    end
    function Own:forward(tokens) return self.head(self.embed(tokens)) end
    local own = Own()
    has(message(function() ms.generate(own, { cache = true }) end), "Own | leave cache out")
    assert.equal(3, #select(2, ms.generate(own, { tokens = 3 })))
  end)
end)
