-- Conversations for fine-tuning: templates, masks, packed rows, compressed files, and that packing changes no numbers.

local ffi = require("ffi")
local has = require("lua.support.message").has
local message = require("lua.support.fixture").message
local ms = require("moonshard")
local program = require("lua.support.program")
local scratch = require("lua.support.scratch")

teardown(scratch.clear)

-- A file of JSON lines.
local function write(lines, name)
  local folder = scratch.path()
  os.execute(("mkdir '%s'"):format(folder))
  local path = folder .. "/" .. (name or "chats.jsonl")
  scratch.write(path, type(lines) == "table" and table.concat(lines, "\n") .. "\n" or lines)
  return path
end

local LINES = 35000
local HELLO = '{"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yo"}]}'

local function with(more)
  local o = { files = write { HELLO }, seq = 64, batch = 1, shuffle = false }
  for key, value in pairs(more or {}) do o[key] = value end
  return ms.data.chat(o)
end

-- The first row of bytes: its text, and the text of its targets, with a dot for none.
local function texts(data)
  local _, batch = data:batches(1)()
  local tokens, targets = {}, {}
  for i = 0, batch.tokens.shape[2] - 1 do
    local token, target = batch.tokens.data[i], batch.targets.data[i]
    tokens[i + 1] = token == 0 and "_" or string.char(token)
    targets[i + 1] = target == -100 and "." or string.char(target)
  end
  return table.concat(tokens), table.concat(targets)
end

local function padded(text, filler) return text .. filler:rep(64 - #text) end

describe("ms.data.chat", function()
  it("G5 trains on answers only, by the template", function()
    local tokens, targets = texts(with())
    local whole = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nYo<|im_end|>\n"
    assert.equal(whole:sub(1, 64), tokens)
    assert.equal(("."):rep(51) .. "Yo<|im_end|>\n", targets)
    tokens, targets = texts(with { template = "plain" })
    assert.equal(padded("user: Hi\nassistant: Yo\n", "_"), tokens)
    assert.equal(padded(("."):rep(19) .. "Yo\n", "."), targets)
  end)

  it("G5 has the tokens of a prompt at the beginning of its conversation, and of a question's answers", function()
    local tokenizer, template = ms.tokenizer("tests/fixtures/tokenizer/good/gpt2.json"), "plain"
    local path = write { '{"messages": [{"role": "user", "content": "the ones"}, '
      .. '{"role": "assistant", "content": "\\n Yo"}]}' }
    local data = ms.data.chat { files = path, tokenizer = tokenizer, template = template, seq = 24, batch = 1 }
    local prompt = ms.data.chat_prompt("the ones", { tokenizer = tokenizer, template = template })
    local _, batch = data:batches(1)()
    local first = {}
    for i = 1, #prompt do first[i] = batch.tokens.data[i - 1] end
    assert.same(first, prompt)
    assert.equal(-100, batch.targets.data[#prompt - 2])
    assert.not_equal(-100, batch.targets.data[#prompt - 1]) -- the next token is the answer's first
    -- Encoded whole, the text has other tokens at the borders.
    assert.not_same(tokenizer:encode(tokenizer:decode(prompt)), prompt)
    local model = ms.models.gpt2 { vocab = tokenizer.vocab, layers = 1, dim = 8, heads = 2, seq = 24 }
    local asked = write { '{"context": "the ones", "choices": ["\\n Yo", "No"], "label": 0}' }
    local scored = ms.evaluate.multiple_choice(model, { files = asked, tokenizer = tokenizer, template = template })
    local answer, whole = tokenizer:encode("\n Yo"), { unpack(prompt) }
    for i, id in ipairs(answer) do whole[#prompt + i] = id end
    local logits = model(ms.tensor({ whole }, { dtype = "i32" })):log_softmax()
    local sum = 0
    for i, id in ipairs(answer) do sum = sum + logits:tolist()[1][#prompt + i - 1][id + 1] end
    assert.near(sum, scored.log_likelihoods[1][1], 1e-4)
    has(message(ms.data.chat_prompt, "Hi", "plain"), 'ms.data.chat_prompt | { template = "plain" }')
    local hi = { role = "user", content = "Hi" }
    has(message(ms.data.chat_prompt, hi), "{ { role =, content = } }")
    has(message(ms.data.chat_prompt, {}), "{ role =, content = }")
    has(message(ms.data.chat_prompt, { messages = { hi } }), "messages")
    has(message(ms.data.chat_prompt, { hi, system = "be kind" }), "system")
  end)

  it("G5 cuts off the space around contents where the models' own templates do", function()
    local line = '{"messages": [{"role": "user", "content": "  Hi\\u3000 you \\n"}, '
      .. '{"role": "assistant", "content": "\\u00a0\\tYo \\u2003"}]}'
    local function rows(template)
      local data = with { template = template, files = write({ line }), seq = 160 }
      local _, batch = data:batches(1)()
      local found = { "", "" }
      for i = 0, 159 do
        local token, target = batch.tokens.data[i], batch.targets.data[i]
        if token ~= 0 then found[1] = found[1] .. string.char(token) end
        if target ~= -100 then found[2] = found[2] .. string.char(target) end
      end
      return found, string.char(unpack(ms.data.chat_prompt(" Hi\n", { template = template })))
    end
    local found, prompt = rows("llama3")
    assert.same({ "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nHi\227\128\128 you<|eot_id|>"
      .. "<|start_header_id|>assistant<|end_header_id|>\n\nYo<|eot_id|>", "Yo<|eot_id|>" }, found)
    has(prompt, "\nHi<|eot_id|>")
    found = rows("gemma")
    assert.same({ "<bos><start_of_turn>user\nHi\227\128\128 you<end_of_turn>\n<start_of_turn>model\nYo<end_of_turn>\n",
      "Yo<end_of_turn>\n" }, found)
    for _, name in ipairs({ "chatml", "phi3", "plain" }) do
      assert.is_truthy(rows(name)[2]:find("\194\160\tYo \226\128\131", 1, true))
    end
    local own = { user = { "<", ">" }, assistant = { "[", "]" }, trim = true }
    found, prompt = rows(own)
    assert.same({ "<Hi\227\128\128 you>[Yo]", "Yo]" }, found)
    assert.equal("<Hi>[", prompt)
    own.trim = "yes"
    has(message(rows, own), 'trim | true | "yes"')
  end)

  it("G5 trains on another role, or on all, and takes templates of a recipe's own", function()
    local template = { begin = "!", user = { "<", ">" }, assistant = { "[", "]" } }
    local tokens, targets = texts(with { template = template })
    assert.equal(padded("!<Hi>[Yo]", "_"), tokens)
    assert.equal(padded(".....Yo]", "."), targets)
    assert.equal(padded(".Hi>", "."), select(2, texts(with { template = template, train_on = "user" })))
    assert.equal(padded(".Hi>.Yo]", "."), select(2, texts(with { template = template, train_on = "all" })))
  end)

  it("G5 reads the forms of published datasets, and compressed files", function()
    local template = { user = { "<", ">" }, assistant = { "[", "]" } }
    local function text_of(line, name)
      return (texts(with { template = template, files = write({ line }, name) }):gsub("_+$", ""))
    end
    assert.equal("<Q>[A]", text_of('{"prompt": "Q", "completion": "A"}'))
    assert.equal("<Q\n\nI>[A]", text_of('{"instruction": "Q", "input": "I", "output": "A"}'))
    assert.equal("<Q>[A]", text_of('{"instruction": "Q", "input": "", "output": "A"}'))
    assert.equal("<Q>[A]", text_of('\239\187\191{"prompt": "Q", "completion": "A"}')) -- with a byte order mark
    ffi.cdef [[
      size_t ZSTD_compress(void *to, size_t capacity, const void *from, size_t bytes, int level);
    ]]
    local plain = ('{"prompt": "Q", "completion": "A"}\n'):rep(LINES) -- more than is decompressed at a time
    local room = ffi.new("uint8_t[?]", 2 ^ 20)
    local bytes = tonumber(ffi.load("libzstd.so.1").ZSTD_compress(room, 2 ^ 20, plain, #plain, 3))
    local compressed = ffi.string(room, bytes)
    assert.equal(LINES, with({ template = template, files = write(compressed, "chats.jsonl.zst") }).conversations)
    for _, size in ipairs({ 2 ^ 20 - 1, 2 ^ 20, 2 ^ 20 + 1 }) do -- as much as is decompressed at a time
      local line = '{"prompt": "", "completion": "' .. ("x"):rep(size - 32) .. '"}'
      bytes = tonumber(ffi.load("libzstd.so.1").ZSTD_compress(room, 2 ^ 20, line, #line, 3))
      assert.equal(size, #line)
      assert.equal(1, with({ files = write(ffi.string(room, bytes), "chats.jsonl.zst"), template = template }).cut)
    end
    has(message(with, { files = write(compressed:sub(1, -5), "chats.jsonl.zst") }), "chats.jsonl.zst | frame")
    has(message(with, { files = write("nothing", "chats.jsonl.zst") }), "chats.jsonl.zst | zstd")
  end)

  it("G5 packs rows, in which no conversation has a target in the next", function()
    local template = { user = { "<", ">" }, assistant = { "[", "]" } }
    local lines = {}
    for i = 1, 7 do
      lines[i] = ('{"prompt": "%s", "completion": "%s"}'):format(("q"):rep(i), ("a"):rep(12 - i))
    end
    local packed = with { template = template, files = write(lines), document_start = 1 }
    assert.equal(7, packed.conversations)
    assert.equal(0, packed.cut)
    assert.equal(3, packed.n) -- 17 tokens each, three in a row
    local tokens, targets = texts(packed)
    local one = "\1<q>[aaaaaaaaaaa]"
    assert.equal(one, tokens:sub(1, 17))
    assert.equal("....aaaaaaaaaaa].", targets:sub(1, 17))
    assert.equal("\1<qq>", tokens:sub(18, 22))
    local apart = with { template = template, files = write(lines), document_start = 1, pack = false }
    assert.equal(7, apart.n)
    assert.equal(packed.trained, apart.trained)
    template.begin = "\1" -- which is document_start itself
    assert.equal(one, texts(with { template = template, files = write(lines), document_start = 1 }):sub(1, 17))
  end)

  it("U10 refuses a template whose tokens the tokenizer cuts into pieces", function()
    local tokenizer = ms.tokenizer("tests/fixtures/tokenizer/good/llama3.json") -- has <|begin|>, and <word>
    local function prompt(template)
      return ms.data.chat_prompt("moon", { tokenizer = tokenizer, template = template })
    end
    for template, token in pairs({
      chatml = "<|im_start|>", llama3 = "<|begin_of_text|>", gemma = "<bos>", phi3 = "<|user|>",
    }) do
      has(message(prompt, template), "chat_prompt: | token " .. token .. " | llama3.json | pieces")
    end
    local own = { user = { "<|begin|>", "<|endoftext|>" }, assistant = { "<word>", "<|done|>" } }
    assert.equal("<|begin|>moon<|endoftext|><word>", tokenizer:decode(prompt(own)))
    local path = write { '{"prompt": "a", "completion": "b"}' }
    has(message(ms.data.chat, { files = path, tokenizer = tokenizer, template = own, seq = 16, batch = 1 }),
      "ms.data.chat: | token <|done|> | llama3.json | pieces | add the token")
    own.assistant = { "<answer>", "\n" } -- a text as any other
    assert.is_true(#prompt(own) > 5)
    assert.is_true(#prompt("plain") > 5)
  end)

  it("G5 uses the beginning of a longer conversation, and says how many there are", function()
    local lines = { HELLO, ('{"prompt": "q", "completion": "%s"}'):format(("a"):rep(100)) }
    local data = with { files = write(lines), template = "plain" }
    assert.equal(1, data.cut)
    assert.equal(2, data.n)
  end)

  it("G5 says where a line is wrong", function()
    local function refused(line, more)
      more = more or {}
      more.files = write { HELLO, line }
      return message(with, more)
    end
    has(refused "{", "chats.jsonl:2: ")
    for _, text in ipairs({ "\255", "\192\128", "\195", "\237\160\128", "\224\128\128", "\244\144\128\128", "\128",
      "\240\128\128\128", "\226\130" }) do
      has(refused('{"prompt": "\195\188' .. text .. '", "completion": "x"}'),
        ("chats.jsonl:2: byte 15, 0x%02x | UTF-8"):format(text:byte()))
    end
    has(refused "[]", "chats.jsonl:2: | object")
    has(refused "{}", "chats.jsonl:2: | no fields | messages | prompt | instruction")
    has(refused '{"messages": []}', "chats.jsonl:2: messages | at least one")
    has(refused '{"messages": [{"role": "user"}]}', "chats.jsonl:2: message 1: content | missing")
    has(refused '{"prompt": "q", "completion": 3}', "chats.jsonl:2: completion | 3")
    has(refused '{"prompt": "q"}', "chats.jsonl:2: | prompt | completion or response")
    has(refused '{"prompt": "q", "completion": NaN}', "chats.jsonl:2: byte 31: | completion is NaN | Python")
    has(refused('{"messages": [{"role": "tool", "content": "x"}]}', { template = { user = { "", "" },
      assistant = { "", "" } } }), 'chats.jsonl:2: | role "tool"')
    with { files = write { HELLO, '{"prompt": "\195\188\226\130\172\240\157\132\158\127", "completion": "x"}' } }
    has(refused '{"messages": [{"role": "Assistant", "content": "x"}]}',
      'chats.jsonl:2: | role "Assistant" | mean assistant')
    has(refused('{"messages": [{"role": "gpt", "content": "x"}]}', { template = "llama3" }), 'role "gpt" | assistant')
    assert.equal("string", type(refused('{"messages": [{"role": "default", "content": "x"}]}')))
    has(message(with, { template = "chatlm" }), "chatlm | chatml")
    has(message(with, { template = { user = "x" } }), "template: user | before, after")
    has(message(with, { train_on = "bot" }), 'trained | "bot"')
    has(message(with, { train_on = "last", seq = 2 }), 'trained | "assistant"')
    has(message(with, { pack = true }), "pack | document_start")
    has(message(with, { document_start = "<s>" }), "document_start | tokenizer")
    has(message(with, { document_start = 72 }), "document_start (72) | text")
    has(message(with, { tokenizer = "hf" }), 'tokenizer | ms.tokenizer | "hf"')
    has(message(with, { padding = -5 }), "padding | at least 0 | -5")
    has(message(with, { batch = 3 }), "1 rows | at least 3")
    has(message(with, { files = write({}, "chats.jsonl") }), "no conversation")
  end)
end)

describe("recipes/chat.lua", function()
  it("G5 packs rows for a folder's model, evaluates, and can be planned and checked", function()
    local folder, lines = scratch.path(), {}
    ms.huggingface.save(ms.models.qwen3 { vocab = 256, layers = 1, dim = 16, heads = 2, ffn = 24, seq = 96 }, folder)
    for i = 1, 16 do lines[i] = ('{"prompt": "%s", "completion": "yes"}'):format(("q"):rep(i % 4 + 1)) end
    local path = write(lines)
    local function run(command, ...)
      local ended = program.run { command, "recipes/chat.lua", "-n", "2", "folder=" .. folder, "files=" .. path,
        "template=plain", "document_start=1", "seq=40", "batch=1", "text=README.md", ... }
      assert.equal(0, ended.status, ended.err .. ended.out)
      return ended.out
    end
    has(run("run", "steps=2", "valid=0.25"), "before: validation loss | perplexity | step 2/2 | after: | perplexity")
    has(run("plan"), "peak")
    has(run("check", "mesh=1x2", "dtype=f32"), "equal within tolerance")
    -- With its document_start the model does not attend from one conversation to another; the folder does not keep it.
    local packed = ms.huggingface.model(folder, { document_start = 1 })
    local tokens = ms.tensor({ { 1, 2, 3, 1, 4, 5 }, { 1, 9, 9, 1, 4, 5 } }, { dtype = "i32" })
    local function last(model, row) return model(tokens)[row][5]:tolist() end
    assert.same(last(packed, 0), last(packed, 1))
    assert.are_not.same(last(ms.huggingface.model(folder), 0), last(ms.huggingface.model(folder), 1))
    assert.is_nil(ms.huggingface.config(packed).document_start)
  end)
end)

describe("training on packed conversations", function()
  local recipe = program.recipe [[
    local ms = require "moonshard"
    local cfg = ms.args { files = "", pack = true, batch = 1, mesh = "1x1", family = "llama" }
    local mesh = ms.init_device_mesh(cfg.device, cfg.mesh, { "replicate", "shard" })
    local data = ms.data.chat { files = cfg.files, template = "plain", document_start = 1, pack = cfg.pack, seq = 64,
      global_batch = cfg.batch, shuffle = false, mesh = mesh }
    local model = ms.models[cfg.family] { vocab = 256, layers = 2, dim = 16, heads = 2, ffn = 24, seq = 64,
      document_start = data.document_start }
    ms.fully_shard(model, { mesh = mesh })
    local train = ms.trainer { model = model, loss = ms.loss.cross_entropy, optimizer = ms.optim.sgd { lr = 0.5 } }
    for step, batch in data:batches(3) do print(("%.4f"):format(train:step(batch).loss)) end
  ]]
  teardown(function() os.remove(recipe) end)

  it("G5 is training on them apart, on any mesh", function()
    local lines = {}
    for i = 1, 4 do
      lines[i] = ('{"prompt": "%s", "completion": "%s"}'):format(("q"):rep(i), ("ab"):rep(2))
    end
    local path = write(lines)
    local function losses(...)
      local ended = program.run { "run", recipe, "files=" .. path, ... }
      assert.equal(0, ended.status, ended.err)
      return ended.out
    end
    local apart = losses("pack=false", "batch=4")
    assert.equal(3, select(2, apart:gsub("\n", "")))
    assert.equal(apart, losses("-n", "2", "mesh=1x2", "pack=false", "batch=4"))
    assert.equal(apart, losses("batch=2"))
    assert.equal(apart, losses("-n", "2", "mesh=2x1", "batch=2"))
    assert.equal(losses("family=gpt2", "pack=false", "batch=4"),
      losses("-n", "2", "mesh=2x1", "batch=2", "family=gpt2")) -- its positions are learned
  end)
end)
