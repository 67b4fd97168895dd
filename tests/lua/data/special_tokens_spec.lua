-- Prompts and evaluated texts have the tokens around them that a tokenizer's files name; data and conversations do not.

local json = require("cjson")
local ms = require("moonshard")
local has = require("lua.support.message").has
local program = require("lua.support.program")
local scratch = require("lua.support.scratch")

teardown(scratch.clear)

local BEGIN, END = 930, 932
local BEGINS = { type = "TemplateProcessing", pair = {},
  single = { { SpecialToken = { id = "<|begin|>", type_id = 0 } }, { Sequence = { id = "A", type_id = 0 } } },
  special_tokens = { ["<|begin|>"] = { id = "<|begin|>", ids = { BEGIN }, tokens = { "<|begin|>" } } } }
local BOTH = { type = "BertProcessing", cls = { "<|begin|>", BEGIN }, sep = { "<|endoftext|>", END } }

-- A folder of a model whose tokenizer.json has this post_processor.
local function folder_with(processor)
  local folder = scratch.path()
  local model = ms.models.llama { vocab = 934, layers = 1, dim = 16, heads = 2, ffn = 32, seq = 32 }
  ms.fully_shard(model, { seed = 3 })
  for name in model:named_parameters() do
    if not name:find("norm") then model:set_parameter(name, model:parameter(name) * 8) end
  end
  ms.huggingface.save(model, folder)
  local described = json.decode(scratch.read("tests/fixtures/tokenizer/good/llama3.json"))
  described.post_processor = processor
  scratch.write(folder .. "/tokenizer.json", json.encode(described))
  return folder, model, ms.tokenizer(folder)
end

local CASES = { BEGINS, BOTH }

describe("tokens around a text", function()
  it("are in prompts, of texts alone and unless told otherwise", function()
    for _, processor in ipairs(CASES) do
      local _, model, tokenizer = folder_with(processor)
      local plain, special = tokenizer:encode("the moon"), tokenizer:encode("the moon", { special = true })
      assert.equal(BEGIN, special[1])
      local function continued(prompt, more)
        return select(2, ms.generate(model, { prompt = prompt, tokenizer = tokenizer, tokens = 8, temperature = 0,
          special = more }))
      end
      assert.same(continued(special), continued("the moon"))
      assert.same({ continued(special) }, continued({ "the moon" }))
      assert.same(continued(plain), continued("the moon", false))
      assert.same(continued(plain), continued(plain, true))
      assert.are_not.same(continued(special), continued(plain))
      assert.equal(8, #continued(""))
    end
  end)

  it("are in the prompts of the command", function()
    for _, processor in ipairs(CASES) do
      local folder, model, tokenizer = folder_with(processor)
      local function expected(ids)
        return "the moon" .. ms.generate(model, { prompt = ids, tokenizer = tokenizer, tokens = 8, temperature = 0 })
          .. "\n"
      end
      local function said(...)
        local ended = program.run { "generate", folder, "--prompt", "the moon", "--tokens", "8", "--temperature", "0",
          "dtype=f32", ... }
        assert.equal(0, ended.status, ended.err)
        return ended.out
      end
      assert.equal(expected(tokenizer:encode("the moon", { special = true })), said())
      assert.equal(expected(tokenizer:encode("the moon")), said("--no-special"))
    end
  end)

  it("are in texts whose perplexity is asked for", function()
    for _, processor in ipairs(CASES) do
      local _, model, tokenizer = folder_with(processor)
      local text = "the moon shines"
      local function nll(o)
        o.tokenizer = tokenizer
        return ms.evaluate.perplexity(model, o).nll
      end
      local special = nll { tokens = tokenizer:encode(text, { special = true }) }
      assert.equal(special, nll { text = text })
      assert.equal(nll { tokens = tokenizer:encode(text) }, nll { text = text, special = false })
      assert.are_not.equal(special, nll { text = text, special = false })
    end
  end)

  it("begin the contexts of questions, and do not end them", function()
    for _, processor in ipairs(CASES) do
      local _, model, tokenizer = folder_with(processor)
      local function values(context, o)
        local path = scratch.path() .. ".jsonl"
        scratch.write(path, json.encode({ context = context, choices = { "moon", "sun" }, label = 0 }) .. "\n")
        o.files, o.tokenizer = path, tokenizer
        return ms.evaluate.multiple_choice(model, o).log_likelihoods
      end
      local begun = values("<|begin|>the", { special = false })
      assert.same(begun, values("the", {}))
      assert.same(begun, values("<|begin|>the", {}))
      assert.are_not.same(begun, values("the", { special = false }))
      assert.equal(2, #values("", {})[1])
      local template = { begin = "<|begin|>", user = { "<word>", "" }, assistant = { "", "" } }
      assert.same(values("the", { template = template }), values("the", { template = template, special = false }))
    end
  end)

  it("are not in files of tokens, nor in conversations", function()
    for _, processor in ipairs(CASES) do
      local folder, _, tokenizer = folder_with(processor)
      local text, out = scratch.path() .. ".txt", scratch.path() .. ".bin"
      scratch.write(text, "the moon")
      local ended = program.run { "tokenize", "--tokenizer", folder, "--out", out, text }
      has(ended.out, ("%d tokens"):format(#tokenizer:encode("the moon")))
      local prompt = ms.data.chat_prompt("Hi", { tokenizer = tokenizer,
        template = { begin = "<|begin|>", user = { "<word>", "" }, assistant = { "", "" } } })
      assert.equal(BEGIN, prompt[1])
      assert.are_not.equal(BEGIN, prompt[2])
      assert.are_not.equal(END, prompt[#prompt])
    end
  end)
end)
