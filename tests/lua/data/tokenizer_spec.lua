-- Tokenizers against the reference library's ids (tests/fixtures/tokenizer/make.py), files by `moonshard tokenize`, and
-- what a tokenizer.json is refused for.

local errors = require("moonshard.base.error")
local json = require("cjson")
local has = require("lua.support.message").has
local program = require("lua.support.program")
local tokenizers = require("moonshard.data.tokenizer")
local scratch = require("lua.support.scratch")

local FIXTURES = "tests/fixtures/tokenizer/"
local folder

local function write(name, content)
  local path = folder .. "/" .. name
  local file = assert(io.open(path, "wb"))
  file:write(content)
  file:close()
  return path
end

local function tokens_of(path)
  local content, ids = scratch.read(path), {}
  local width = content:sub(1, 4) == "\136\216\52\1" and 2 or 4 -- 20240520, little-endian
  for at = 1025, #content, width do
    local id = 0
    for byte = width, 1, -1 do id = id * 256 + content:byte(at + byte - 1) end
    ids[#ids + 1] = id
  end
  return ids
end

local function refused(change, from, to)
  local text = scratch.read(FIXTURES .. "good/" .. change .. ".json")
  local at, last = text:find(from, 1, true)
  assert(at, from .. " is not in the file")
  local path = write("bad.json", text:sub(1, at - 1) .. to .. text:sub(last + 1))
  local ok, raised = pcall(tokenizers.open, path)
  assert.is_false(ok)
  assert.is_true(errors.is(raised))
  has(raised.message, path)
  return raised.status .. " " .. raised.message
end

describe("tokenizer", function()
  setup(function()
    folder = scratch.folder()
  end)

  teardown(scratch.clear)

  it("gives the reference library's ids for texts that are hard to cut, and the texts back", function()
    local cases = json.decode(scratch.read(FIXTURES .. "cases.json"))
    assert.is_true(#cases > 400)
    for _, name in ipairs({ "gpt2", "llama3" }) do
      local tokenizer = tokenizers.open(FIXTURES .. "good/" .. name .. ".json")
      for _ = 1, 2 do -- the second time from the cache
        for _, case in ipairs(cases) do
          assert.same(case[name], tokenizer:encode(case.text))
          assert.equal(case.text, tokenizer:decode(case[name]))
        end
      end
    end
  end)

  -- In ByteLevel's text an added token with an "ß" is no valid text for the reference library, and its own text here.
  it("gives the reference library's ids and texts with every step and every model", function()
    local cases = json.decode(scratch.read(FIXTURES .. "steps/cases.json"))
    assert.is_true(#cases.texts > 120)
    local count = 0
    for name, expected in pairs(cases.results) do
      local tokenizer = tokenizers.open(FIXTURES .. "steps/" .. name .. ".json")
      count = count + 1
      for i, text in ipairs(cases.texts) do
        assert.same(expected.ids[i], tokenizer:encode(text), name .. ": " .. text)
        -- Where a part of a character is unknown, the reference library writes U+FFFD for its other bytes.
        local cut = expected.text[i]:find("\239\191\189", 1, true) and not text:find("\239\191\189", 1, true)
        if not cut then
          assert.equal(expected.text[i], tokenizer:decode(expected.ids[i]), name .. ": " .. text)
        end
      end
    end
    assert.equal(31, count)
  end)

  it("knows its tokens by name", function()
    local tokenizer = tokenizers.open(FIXTURES .. "good/llama3.json")
    local id = tokenizer:id("<|endoftext|>")
    assert.same({ id }, tokenizer:encode("<|endoftext|>"))
    assert.equal(tokenizer:encode(" the")[1], tokenizer:id("Ġthe"))
    assert.is_true(tokenizer.vocab > id)
    local ok, raised = pcall(tokenizer.id, tokenizer, "<|endof|>")
    assert.is_false(ok)
    has(raised.message, "<|endof|> | <|endoftext|>")
  end)

  it("refuses text that is not UTF-8, and ids that are no tokens", function()
    local tokenizer = tokenizers.open(FIXTURES .. "good/gpt2.json")
    for text, byte in pairs({
      ["ab\255"] = 2, ["\192\128"] = 0, ["x\237\160\128"] = 1, ["moon moon \240\159\140"] = 10,
    }) do
      local ok, raised = pcall(tokenizer.encode, tokenizer, text)
      assert.is_false(ok)
      has(raised.message, ("byte %d of the text"):format(byte))
    end
    local ok, raised = pcall(tokenizer.decode, tokenizer, { 1, 99999 })
    assert.is_false(ok)
    has(raised.message, "token 99999")
  end)

  it("names the field of a tokenizer.json that it does not do", function()
    for from, expected in pairs({
      ['"normalizer": null'] = { '"normalizer": {"type":"NFX"}', "MS_EUNSUPPORTED", 'normalizer | "NFX" | NFC NFD' },
      ['"type": "BPE"'] = { '"type": "BPP"', "MS_EUNSUPPORTED", 'model.type | "BPP" | BPE Unigram' },
      ['"dropout": null'] = { '"dropout": 0.1', "MS_EUNSUPPORTED", "model.dropout" },
      ['"behavior": "Isolated"'] = { '"behavior": "Some"', "MS_EUNSUPPORTED", "Split.behavior | Isolated" },
      ['"type": "Split"'] = { '"type": "UnicodeScripts"', "MS_EUNSUPPORTED", 'pre_tokenizer | "UnicodeScripts"' },
      ['(?i:'] = { "(?<=a)(?i:", "MS_EINVAL", "Split.pattern: | behind" },
      ['\\\\s+(?!'] = { "\\\\s+((?!", "MS_EINVAL", "Split.pattern: | parenthesis" },
      ['"vocab": {'] = { '"vocab": {"!!!":0,', "MS_EINVAL", "model.vocab" },
      ['"merges": ['] = { '"merges": [["zzzz", "q"],', "MS_EINVAL", 'merges: | entry 0 | "zzzz" | model.vocab' },
      ['"model": {'] = { '"modell": {', "MS_EINVAL", "model | missing" },
      ['{'] = { '{,', "MS_EINVAL", "tokenizer: byte" },
    }) do
      local told = refused("llama3", from, expected[1])
      has(told, expected[2])
      has(told, expected[3])
      if expected[2] == "MS_EUNSUPPORTED" then has(told, "tokenizers | ms.data.tokens") end
    end
    has(refused("gpt2", '"!": ', '"!!!!!": '), "MS_EUNSUPPORTED")
    has(refused("gpt2", '"merges": [', '"merges": ["a b c",'), "entry 0")
  end)

  it("names what is wrong in a step, in a model, and in a table of replacements", function()
    local function refuses(name, change, expected)
      local described = json.decode(scratch.read(FIXTURES .. "steps/" .. name .. ".json"))
      change(described)
      local ok, raised = pcall(tokenizers.open, write("step.json", json.encode(described)))
      assert.is_false(ok, expected)
      has(raised.message, expected)
    end
    local function normalizer(step)
      return function(d) d.normalizer = step end
    end
    refuses("llama2", normalizer({ type = "Prepend" }), "normalizer: Prepend: prepend")
    refuses("llama2", normalizer({ type = "Replace", pattern = { String = "a", Regex = "b" }, content = "" }),
      "Replace.pattern: | String | Regex")
    refuses("llama2", normalizer({ type = "Replace", pattern = { Regex = "(a" }, content = "" }),
      "Replace.pattern: | (a")
    refuses("llama2", normalizer({ type = "Sequence", normalizers = { { type = "NFC", form = 1 } } }),
      'NFC: field "form"')
    for _, map in ipairs({ "!", "", "AAAA", "//8AAA==" }) do
      refuses("t5", normalizer({ type = "Precompiled", precompiled_charsmap = map }), "precompiled_charsmap")
    end
    local function pre_tokenizer(step)
      return function(d) d.pre_tokenizer = step end
    end
    refuses("mistral", pre_tokenizer({ type = "Metaspace", replacement = "ab" }), "replacement | one character")
    refuses("mistral", pre_tokenizer({ type = "Metaspace", replacement = "_", prepend_scheme = "last" }),
      "prepend_scheme")
    refuses("mistral", pre_tokenizer({ type = "Metaspace", replacement = "_", prepend_scheme = "first",
      add_prefix_space = false }), "add_prefix_space | never")
    local byte_level = { type = "ByteLevel", add_prefix_space = false, use_regex = false }
    refuses("qwen", pre_tokenizer({ type = "Sequence", pretokenizers = { byte_level, byte_level } }),
      "ByteLevel | once")
    refuses("t5", pre_tokenizer({ type = "Sequence", pretokenizers = { { type = "WhitespaceSplit" },
      { type = "Metaspace", replacement = "_", prepend_scheme = "first" } } }), 'Metaspace | "first" | normalizer')
    refuses("bert", function(d) d.model.unk_token = "[NONE]" end, "model.unk_token: | [NONE]")
    refuses("t5", function(d) d.model.unk_id = 9999 end, "model.unk_id | 9999")
    refuses("t5", function(d) d.model.vocab[1] = { "a" } end, "model.vocab: entry 0")
    refuses("prefixed", function(d) d.model.merges[1] = { "a", "b" } end, "merges: entry 0")
    refuses("llama2", function(d)
      for i = 0, 1 do
        d.added_tokens[#d.added_tokens + 1] = { id = 0, content = i == 0 and " \n" or "<y>", rstrip = i == 1,
          lstrip = false, single_word = false, normalized = false, special = false }
      end
    end, '"<y>" | rstrip')
    refuses("llama2", function(d) d.decoder = { type = "Strip", content = " ", start = -1, stop = 0 } end,
      "decoder: Strip: start")
  end)

  it("reads an empty sequence of normalizers, which changes nothing", function()
    local plain = tokenizers.open(FIXTURES .. "good/gpt2.json")
    local text = scratch.read(FIXTURES .. "good/gpt2.json"):gsub('"normalizer": null',
      '"normalizer": {"type":"Sequence","normalizers":[]}')
    local tokenizer = tokenizers.open(write("empty.json", text))
    assert.same(plain:encode("a cat"), tokenizer:encode("a cat"))
  end)

  it("U10 gives added tokens the reference library's ids, whatever ids they are listed with", function()
    for _, case in ipairs(json.decode(scratch.read(FIXTURES .. "added.json"))) do
      local described = json.decode(scratch.read(FIXTURES .. "good/gpt2.json"))
      described.added_tokens = case.added_tokens
      local tokenizer = tokenizers.open(write("added.json", json.encode(described)))
      assert.same(case.ids, tokenizer:encode(case.text), case.name)
      assert.equal(case.text, tokenizer:decode(case.ids), case.name)
    end
  end)

  it("U10 names a field that it does not know, one of another type, and parts that would change the text", function()
    for from, expected in pairs({
      ['"version": "1.0"'] = { '"version": "2.0"', "MS_EUNSUPPORTED", "version | 1.0" },
      ['"truncation": null'] = { '"truncation": null, "trim": null', "MS_EUNSUPPORTED", 'field | "trim" | unknown' },
      ['"padding": null'] = { '"padding": 3', "MS_EUNSUPPORTED", "padding" },
      ['"type": "BPE"'] = { '"type": "BPE", "id content": 1', "MS_EUNSUPPORTED", 'model: field | "id content"' },
      ['"ignore_merges": true'] = { '"ignore_merges": "true"', "MS_EINVAL", "model.ignore_merges | true or false" },
      ['"byte_fallback": false'] = { '"byte_fallback": null', "MS_EINVAL", "model.byte_fallback | true or false" },
      ['"normalized": false'] = { '"normal": false', "MS_EUNSUPPORTED", '"<|begin|>" | field | "normal"' },
      ['"special": true'] = { '"special": null', "MS_EINVAL", '"<|begin|>" | special | true or false' },
      ['"rstrip": false,'] = { "", "MS_EINVAL", '"<|begin|>" | rstrip | missing' },
      ['"invert": false'] = { '"invert": false, "inverted": 1', "MS_EUNSUPPORTED", 'Split: field | "inverted"' },
      ['"use_regex": false'] = { '"use_regex": 0', "MS_EINVAL", "ByteLevel.use_regex | true or false" },
      ['"post_processor": null'] = { '"post_processor": {"type":"Add"}', "MS_EUNSUPPORTED", 'post_processor | "Add"' },
    }) do
      local told = refused("llama3", from, expected[1])
      has(told, expected[2])
      has(told, expected[3])
    end
    local function decoded_by(decoder)
      local described = json.decode(scratch.read(FIXTURES .. "good/gpt2.json"))
      described.decoder = decoder
      return pcall(tokenizers.open, write("decoder.json", json.encode(described)))
    end
    local byte_level, fuse = { type = "ByteLevel" }, { type = "Fuse" }
    assert.is_true(decoded_by({ type = "Sequence", decoders = { byte_level } }))
    assert.is_true(decoded_by({ type = "Sequence", decoders = { byte_level, fuse } }))
    for _, wrong in ipairs({ fuse, { type = "Sequence", decoders = { fuse, byte_level } } }) do
      local ok, raised = decoded_by(wrong)
      assert.is_false(ok)
      has(raised.message, "decoder: | Fuse | ByteLevel")
    end
  end)

  it("U10 numbers new added tokens from the size of the vocabulary, wherever its ids end", function()
    local described = json.decode(scratch.read(FIXTURES .. "good/gpt2.json"))
    local size = 0
    for _ in pairs(described.model.vocab) do size = size + 1 end
    described.model.vocab.gap = size + 7
    described.added_tokens = {}
    for i, content in ipairs({ "<y>", "gap", "<z>", "<y>", "<w>" }) do
      described.added_tokens[i] = { id = 3, content = content, single_word = false, lstrip = false, rstrip = false,
        normalized = false, special = false }
    end
    local tokenizer = tokenizers.open(write("gap.json", json.encode(described)))
    local ids = {}
    for i, content in ipairs({ "<y>", "gap", "<z>", "<w>" }) do ids[i] = tokenizer:id(content) - size end
    assert.same({ 1, 7, 2, 3 }, ids)
  end)

  it("U10 refuses added tokens that would share an id or bytes with others", function()
    local function refuses(change, expected)
      local described = json.decode(scratch.read(FIXTURES .. "good/gpt2.json"))
      change(described)
      local ok, raised = pcall(tokenizers.open, write("shared.json", json.encode(described)))
      assert.is_false(ok)
      has(raised.message, expected)
    end
    local function added(content, flags)
      local token = { id = 0, content = content, single_word = false, lstrip = false, rstrip = false,
        normalized = false, special = false }
      for name, value in pairs(flags or {}) do token[name] = value end
      return token
    end
    refuses(function(it) it.added_tokens = { added("<y>"), added("<y>", { special = true }) } end,
      'added_tokens: | "<y>" | twice')
    refuses(function(it)
      local vocab = it.model.vocab
      local size = 0
      for _ in pairs(vocab) do size = size + 1 end
      vocab["\1gap"] = size + 1 -- the next number, by the size, is then the id of this token
      it.added_tokens = { added("<y>") }
    end, '"<y>" | id | another token | gaps')
    refuses(function(it) it.added_tokens = { added("Ġ") } end, '"Ġ" | model.vocab | other bytes')
    refuses(function(it) it.added_tokens = json.null end, "added_tokens | list")
  end)

  it("writes token files, each text a document, alike with any number of threads", function()
    -- Lines, blanks and a special token at places that cuts of a megabyte may hit.
    local parts, cases = {}, json.decode(scratch.read(FIXTURES .. "cases.json"))
    local long = os.getenv("MOONSHARD_CONFIG") == "release" and 5 or 2.2
    local bytes = 0
    while bytes < long * 2 ^ 20 do
      for i = 1, #cases do
        local line = cases[(i * 7) % #cases + 1].text .. (i % 5 == 0 and "\n\n  \n" or "\n")
        parts[#parts + 1] = line
        bytes = bytes + #line
      end
    end
    local text = table.concat(parts)
    local one, two = write("one.txt", text), write("two.txt", "the moon")
    local tokenizer = tokenizers.open(FIXTURES .. "good/llama3.json")
    local expected = tokenizer:encode(text)
    table.insert(expected, 1, tokenizer:id("<|begin|>"))
    expected[#expected + 1] = tokenizer:id("<|endoftext|>")
    expected[#expected + 1] = tokenizer:id("<|begin|>")
    for _, id in ipairs(tokenizer:encode("the moon")) do expected[#expected + 1] = id end
    expected[#expected + 1] = tokenizer:id("<|endoftext|>")
    local out = folder .. "/out.bin"
    for _, threads in ipairs({ "1", "3" }) do
      local ended = program.run({ "tokenize", "--tokenizer", FIXTURES .. "good/llama3.json", "--begin", "<|begin|>",
        "--end", "<|endoftext|>", "-j" .. threads, "--json", "--out", out, one, two })
      assert.equal(0, ended.status, ended.err)
      local told = json.decode(ended.out)
      assert.equal(#expected, told.tokens)
      assert.equal(#text + 8, told.bytes)
      assert.equal(2, told.token_bytes)
      assert.same(expected, tokens_of(out))
    end
    local back = program.run({ "tokenize", "--tokenizer", FIXTURES .. "good/llama3.json", "--decode", out })
    assert.equal("<|begin|>" .. text .. "<|endoftext|><|begin|>the moon<|endoftext|>", back.out)
    local plain = program.run({ "tokenize", "--tokenizer", FIXTURES .. "good/gpt2.json", two })
    has(plain.out, "two.bin: | tokens | 16 bits | 8 B | 1 file")
    assert.same(tokenizers.open(FIXTURES .. "good/gpt2.json"):encode("the moon"), tokens_of(folder .. "/two.bin"))
  end)

  it("leaves nothing half written when a file is wrong, and replaces what is not UTF-8 on request", function()
    local bad, out = write("bad.txt", ("moon "):rep(1000) .. "\xe2\x82 sun\xff"), folder .. "/none.bin"
    local good = write("good.txt", "sun")
    local arguments = { "tokenize", "--tokenizer", FIXTURES .. "good/gpt2.json", "--out", out, good, bad }
    local ended = program.run(arguments)
    assert.equal(2, ended.status)
    has(ended.err, bad .. " | byte 5000 | 0xe2 | UTF-8")
    assert.is_nil(io.open(out))
    assert.equal("", io.popen("ls " .. folder .. "/*.tmp 2>/dev/null"):read("*a"))
    arguments[#arguments + 1] = "--replace-invalid"
    assert.equal(0, program.run(arguments).status)
    local tokenizer = tokenizers.open(FIXTURES .. "good/gpt2.json")
    local expected = tokenizer:encode("sun")
    for _, id in ipairs(tokenizer:encode(("moon "):rep(1000) .. "\239\191\189 sun\239\191\189")) do
      expected[#expected + 1] = id
    end
    assert.same(expected, tokens_of(out))
    local missing = program.run({ "tokenize", "--tokenizer", folder, "a.txt" })
    assert.equal(2, missing.status)
    has(missing.err, folder .. "/tokenizer.json: No such file")
    has(program.run({ "tokenize", "a.txt" }).err, "--tokenizer")
    has(program.run({ "tokenize", "--tokenizer", "t", "a", "b" }).err, "--out FILE.bin")
    local text = write("text.bin", "sun") -- what its tokens would be named
    for _, more in ipairs({ {}, { "--out", folder .. "/./text.bin" } }) do
      ended = program.run({ "tokenize", "--tokenizer", FIXTURES .. "good/gpt2.json", text, unpack(more) })
      assert.equal(2, ended.status)
      has(ended.err, "overwrite | " .. text)
      assert.equal("sun", io.open(text):read("*a"))
    end
  end)

  describe("around a text", function()
    local LLAMA = FIXTURES .. "good/llama3.json"

    -- The ids of a text, by the post_processor that replaces the file's.
    local function open_with(processor)
      local described = json.decode(scratch.read(LLAMA))
      described.post_processor = processor
      write("tokenizer.json", json.encode(described))
      return tokenizers.open(folder)
    end

    it("puts the tokens that the reference library puts there, where they are asked for", function()
      for _, case in ipairs(json.decode(scratch.read(FIXTURES .. "special.json"))) do
        local tokenizer = open_with(case.post_processor)
        for _, text in ipairs(case.texts) do
          assert.same(text.special, tokenizer:encode(text.text, { special = true }), case.name)
          assert.same(text.plain, tokenizer:encode(text.text), case.name)
          assert.same(text.plain, tokenizer:encode(text.text, { special = false }), case.name)
        end
      end
    end)

    it("puts none twice", function()
      local bert = { type = "BertProcessing", cls = { "<|begin|>", 930 }, sep = { "<|endoftext|>", 932 } }
      local tokenizer = open_with(bert)
      local inner = tokenizer:encode("the")
      local whole = { 930, inner[1], inner[2], 932 }
      assert.equal(2, #inner)
      for _, text in ipairs({ "the", "<|begin|>the", "the<|endoftext|>", "<|begin|>the<|endoftext|>" }) do
        assert.same(whole, tokenizer:encode(text, { special = true }), text)
      end
    end)

    it("names what a post_processor has that is none", function()
      local function template(single, known) return { type = "TemplateProcessing", single = single, pair = {},
        special_tokens = known or json.decode("{}") } end
      local text, begin = { Sequence = { id = "A", type_id = 0 } }, { SpecialToken = { id = "<b>", type_id = 0 } }
      for _, case in ipairs({
        { template({ begin, text }), "special_tokens | \"<b>\"" },
        { template({ begin, text }, { ["<b>"] = { ids = { 5000 } } }), "\"<b>\" | 5000" },
        { template({ begin, text }, { ["<b>"] = { ids = { "1" } } }), "post_processor | \"<b>\"" },
        { template({ text, text }), "post_processor.single | entry 1" },
        { template({ { Sequence = { id = "B", type_id = 0 } } }), "post_processor.single | entry 0" },
        { template({}), "post_processor.single | Sequence A" },
        { { type = "BertProcessing", cls = { "<b>", 1 } }, "post_processor.sep" },
        { { type = "RobertaProcessing", cls = { "<b>", 90000 }, sep = { "<s>", 1 } }, "\"<b>\" | 90000" },
      }) do
        local ok, raised = pcall(open_with, case[1])
        assert.is_false(ok)
        has(raised.message, folder .. "/tokenizer.json | " .. case[2])
      end
    end)
  end)
end)
