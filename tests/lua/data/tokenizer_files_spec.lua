-- The files next to a tokenizer.json: what they say otherwise is refused by name, or told, as the reference library has
-- other tokens for it. And what a tokenizer.json says of calls, or in two fields together.

local has = require("lua.support.message").has
local json = require("cjson")
local program = require("lua.support.program")
local scratch = require("lua.support.scratch")
local tokenizers = require("moonshard.data.tokenizer")

local GOOD = "tests/fixtures/tokenizer/good/"
local STEPS = "tests/fixtures/tokenizer/steps/"
local NAMES = { "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json" }
local CONFIG, MAP, ADDED = unpack(NAMES)

describe("files next to a tokenizer.json", function()
  local folder

  setup(function() folder = scratch.folder() end)
  teardown(scratch.clear)

  -- Opens gpt2.json with these files, texts by name, and no others.
  local function open_with(files, described)
    scratch.write(folder .. "/tokenizer.json", described or scratch.read(GOOD .. "gpt2.json"))
    for _, name in ipairs(NAMES) do
      os.remove(folder .. "/" .. name)
      if files[name] then scratch.write(folder .. "/" .. name, files[name]) end
    end
    return pcall(tokenizers.open, folder)
  end

  local function refused(files, name, facts, described)
    local ok, raised = open_with(files, described)
    assert.is_false(ok, facts)
    assert.equal("MS_EUNSUPPORTED", raised.status)
    has(raised.message, ("%s/%s | %s"):format(folder, name, facts))
  end

  it("are refused where they add tokens that it lacks", function()
    for config, token in pairs({
      ['{"added_tokens_decoder": {"999": {"content": "<|new|>", "special": true}}}'] = "<|new|>",
      ['{"pad_token": "[PAD]"}'] = "[PAD]", ['{"vision_2_token": "<v>"}'] = "<v>",
      ['{"mask_token": {"content": "<mask>", "lstrip": true}}'] = "<mask>",
      ['{"additional_special_tokens": ["<|endoftext|>", "<tool>"]}'] = "<tool>",
      ['{"extra_special_tokens": {"image_token": "<image>"}}'] = "<image>",
      ['{"model_specific_special_tokens": {"image_token": "<img>"}}'] = "<img>",
      ['{"model_specific_special_tokens": {"image_token": {"content": "<img>"}}}'] = "<img>",
    }) do
      refused({ [CONFIG] = config }, CONFIG, token .. " | tokenizer.json")
    end
    for _, config in ipairs({ "none", "{}", '{"pad_token": "<|endoftext|>"}' }) do
      if config == "none" then config = nil end
      refused({ [CONFIG] = config, [MAP] = '{"pad_token": "<pad>"}' }, MAP, "<pad> | tokenizer.json")
      refused({ [CONFIG] = config, [MAP] = '{"additional_special_tokens": [{"content": "<x>"}]}' }, MAP, "<x>")
      refused({ [CONFIG] = config, [ADDED] = '{"<pad>": 500}' }, ADDED, "<pad> | tokenizer.json")
    end
  end)

  it("are refused where they name a token that it has in its vocabulary alone", function()
    local described = json.decode(scratch.read(GOOD .. "gpt2.json"))
    described.model.vocab["<pad>"] = 900
    described = json.encode(described)
    refused({ [CONFIG] = '{"pad_token": "<pad>"}' }, CONFIG, "<pad> | vocabulary | added_tokens", described)
    refused({ [MAP] = '{"pad_token": "<pad>"}' }, MAP, "<pad> | vocabulary | added_tokens", described)
    assert.is_true((open_with({ [CONFIG] = "{}" }, described)))
  end)

  it("are refused where they change how a text is cut", function()
    for config, facts in pairs({
      ['{"tokenizer_class": "GPT2Tokenizer", "add_prefix_space": true}'] = "add_prefix_space | space",
      ['{"split_special_tokens": true}'] = "split_special_tokens",
      ['{"added_tokens_decoder": {"0": {"content": "<|endoftext|>", "lstrip": true}}}'] = "lstrip | <|endoftext|>",
      ['{"added_tokens_decoder": {"0": {"content": "<|endoftext|>", "rstrip": true}}}'] = "rstrip | <|endoftext|>",
      ['{"added_tokens_decoder": {"0": {"content": "<|endoftext|>", "single_word": true}}}'] = "single_word",
      ['{"extra_special_tokens": [{"content": "<|endoftext|>", "rstrip": true}]}'] = "rstrip | <|endoftext|>",
    }) do
      refused({ [CONFIG] = config }, CONFIG, facts)
    end
    refused({ [MAP] = '{"split_special_tokens": true}' }, MAP, "split_special_tokens")
    for _, name in ipairs(NAMES) do
      local ok, raised = open_with({ [name] = "[1" })
      assert.is_false(ok)
      has(raised.message, name .. " | JSON")
    end
  end)

  it("say what tokenizer.json says of steps and flags, or are refused", function()
    local function described(name) return scratch.read(STEPS .. name .. ".json") end
    for _, case in ipairs({
      { "roberta", '{"tokenizer_class": "RobertaTokenizer", "add_prefix_space": true}', true },
      { "roberta", '{"tokenizer_class": "RobertaTokenizer", "add_prefix_space": false}', "add_prefix_space | with" },
      { "llama2", '{"tokenizer_class": "LlamaTokenizer", "add_prefix_space": false}', "add_prefix_space | with" },
      { "llama2", '{"tokenizer_class": "LlamaTokenizer", "add_prefix_space": null}', true },
      { "bert", '{"tokenizer_class": "BertTokenizer", "do_lower_case": true, "add_prefix_space": false}', true },
      { "bert", '{"tokenizer_class": "BertTokenizer", "do_lower_case": false}', "do_lower_case | lower" },
      { "bert_cased", '{"do_lower_case": true}', "do_lower_case | lower" },
      { "roberta", '{"mask_token": {"content": "<mask>", "lstrip": true}, "extra_special_tokens": '
        .. '[{"content": "<mask>", "lstrip": true, "rstrip": false}]}', true },
      { "roberta", '{"extra_special_tokens": [{"content": "<mask>", "lstrip": false}]}', "lstrip | <mask> | true" },
    }) do
      if case[3] == true then
        assert.is_true((open_with({ [CONFIG] = case[2] }, described(case[1]))))
      else
        refused({ [CONFIG] = case[2] }, CONFIG, case[3], described(case[1]))
      end
    end
  end)

  it("are read where they say the same, or do not count", function()
    local decoder = '"added_tokens_decoder": {"50256": {"content": "<|endoftext|>", "lstrip": false}}'
    for _, files in ipairs({
      { [CONFIG] = ("{%s, \"bos_token\": \"<|endoftext|>\"}"):format(decoder) },
      { [CONFIG] = '{"tokenizer_class": "PreTrainedTokenizerFast", "add_prefix_space": true, "pad_token": null}' },
      { [CONFIG] = '{"add_prefix_space": false, "model_max_length": 9, "extra_special_tokens": {}, "unk_token": ""}' },
      { [CONFIG] = '{"split_special_tokens": false, "eos_token": {"content": "<|endoftext|>", "lstrip": true}}' },
      { [MAP] = '{"eos_token": "<|endoftext|>"}', [ADDED] = '{"<|endoftext|>": 50256}' },
      { [CONFIG] = ("{%s}"):format(decoder), [MAP] = '{"pad_token": "<pad>"}', [ADDED] = '{"<pad>": 7}' },
      { [CONFIG] = '{"pad_token": "<pad>"}', [MAP] = '{"pad_token": "<|endoftext|>"}' },
    }) do
      local ok, tokenizer = open_with(files)
      assert.is_true(ok, tostring(tokenizer))
      assert.same(tokenizers.open(GOOD .. "gpt2.json"):encode("a cat"), tokenizer:encode("a cat"))
    end
  end)

  it("put no tokens around a text that the post_processor does not, and say so once", function()
    local function template(...)
      local single, known = {}, {}
      for i, token in ipairs({ ... }) do
        single[i] = { [token == "A" and "Sequence" or "SpecialToken"] = { id = token, type_id = 0 } }
        known[token] = { id = token, ids = { token == "<|begin|>" and 930 or 932 }, tokens = { token } }
      end
      return { type = "TemplateProcessing", single = single, pair = single, special_tokens = known }
    end
    local recipe = scratch.path() .. ".lua"
    scratch.write(recipe, [[
      local ms = require("moonshard")
      local tokenizer = ms.tokenizer(ms.args({ folder = "" }).folder)
      tokenizer:encode("the")
      for _ = 1, 2 do print(table.concat(tokenizer:encode("the", { special = true }), " ")) end]])
    for _, case in ipairs({
      { json.null, { add_bos_token = true, add_eos_token = true }, "83 260", { "add_bos_token", "add_eos_token" } },
      { template("<|begin|>", "A"), { add_bos_token = true, add_eos_token = false }, "930 83 260", {} },
      { template("<|endoftext|>", "<|begin|>", "A"), { add_bos_token = true }, "932 930 83 260", {} },
      { template("<|begin|>", "A"), { add_bos_token = false, add_eos_token = true }, "930 83 260",
        { "add_bos_token", "add_eos_token" } },
      { json.null, { add_bos_token = false }, "83 260", {} },
    }) do
      local processor, config, ids, told = unpack(case)
      local described = json.decode(scratch.read(GOOD .. "llama3.json"))
      described.post_processor = processor
      config.bos_token, config.eos_token, config.tokenizer_class = "<|begin|>", "<|endoftext|>", "LlamaTokenizerFast"
      assert.is_true((open_with({ [CONFIG] = json.encode(config) }, json.encode(described))))
      local ended = program.run({ "run", recipe, "-n", "2", "folder=" .. folder })
      assert.equal(0, ended.status, ended.err)
      for line in ended.out:gmatch("%d[%d ]+") do assert.equal(ids, line) end
      assert.equal(#told, select(2, ended.err:gsub("warning:", "")), ended.err)
      for _, field in ipairs(told) do has(ended.err, ("%s/%s | %s"):format(folder, CONFIG, field)) end
    end
  end)
end)

describe("a tokenizer.json", function()
  teardown(scratch.clear)

  local FLAGS = { single_word = false, lstrip = false, rstrip = false, normalized = false, special = true }

  -- A tokenizer of a model, with other parts.
  local function tokenizer_of(model, parts)
    local whole = { version = "1.0", added_tokens = {}, model = model }
    for name, part in pairs(parts or {}) do whole[name] = part end
    local path = scratch.path() .. ".json"
    scratch.write(path, (json.encode(whole):gsub('"merges":{}', '"merges":[]'):gsub('"added_tokens":{}',
      '"added_tokens":[]')))
    return tokenizers.open(path), path
  end

  it("U10 has no effect by what it says of calls, truncation and padding, and a note says so", function()
    local model = { type = "WordLevel", vocab = { a = 0, b = 1, ["[PAD]"] = 2 }, unk_token = "[PAD]" }
    local pad = { id = 2, content = "[PAD]" }
    for name, value in pairs(FLAGS) do pad[name] = value end
    local _, path = tokenizer_of(model, {
      pre_tokenizer = { type = "WhitespaceSplit" }, added_tokens = { pad },
      truncation = { direction = "Right", max_length = 2, strategy = "LongestFirst", stride = 0 },
      padding = { strategy = { Fixed = 5 }, direction = "Right", pad_id = 2, pad_type_id = 0, pad_token = "[PAD]" },
    })
    local text, out = scratch.path() .. ".txt", scratch.path() .. ".bin"
    scratch.write(text, "a b a b")
    local ended = program.run { "tokenize", "--tokenizer", path, "--out", out, text }
    assert.equal(0, ended.status, ended.err)
    has(ended.out, "4 tokens")
    has(ended.err, path .. " | truncation | padding")
  end)

  it("U10 falls back to the bytes of a character with the prefix and the suffix that it has in a word", function()
    local model = { type = "BPE", byte_fallback = true, continuing_subword_prefix = "#", end_of_word_suffix = "$",
      vocab = { a = 0, ["<0x23>"] = 1, ["<0x24>"] = 2, ["<0x62>"] = 3, ["#c"] = 4 }, merges = {} }
    assert.same({ 0, 1, 3, 2 }, (tokenizer_of(model)):encode("ab"))
    assert.same({ 0, 4, 1, 3, 2 }, (tokenizer_of(model)):encode("acb"))
  end)

  it("U10 keeps characters that are not assigned where BERT's normalizer cleans texts", function()
    local model = { type = "WordLevel", vocab = { ["[UNK]"] = 0, a = 1 }, unk_token = "[UNK]" }
    local tokenizer = tokenizer_of(model, { normalizer = { type = "BertNormalizer", clean_text = true,
      handle_chinese_chars = false, strip_accents = false, lowercase = false } })
    assert.same({ 0 }, tokenizer:encode("a\205\184")) -- U+0378
    assert.same({ 1 }, tokenizer:encode("\238\128\128a\226\128\139")) -- U+E000 is private, U+200B a format
  end)
end)
