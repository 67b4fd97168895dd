-- Perplexity and questions with several answers: the reference library's numbers (tests/fixtures/evaluation), the same
-- on every mesh, and what is refused.

local decode = require("moonshard.base.text.json").decode
local fixture = require("lua.support.fixture")
local has = require("lua.support.message").has
local huggingface = require("lua.support.huggingface")
local message = fixture.message
local ms = require("moonshard")
local program = require("lua.support.program")
local scratch = require("lua.support.scratch")

teardown(scratch.clear)

local FOLDER, QUESTIONS = huggingface.FIXTURES .. "qwen3", "tests/fixtures/evaluation/questions.jsonl"
local expected = decode(scratch.read("tests/fixtures/evaluation/evaluation.json"))
local TOLERANCE = 1e-5

local model = ms.huggingface.model(FOLDER)

local function questions(lines)
  local path = scratch.path() .. ".jsonl"
  scratch.write(path, table.concat(lines, "\n") .. "\n")
  return path
end

describe("ms.evaluate.perplexity", function()
  it("G5 is the reference library's, by windows of any length and stride", function()
    for _, case in ipairs(expected.perplexity) do
      local got = ms.evaluate.perplexity(model, {
        text = expected.text, seq = case.seq, stride = case.stride, batch = 3,
      })
      assert.equal(#expected.text - 1, got.tokens)
      fixture.assert_close({ case.value }, { got.perplexity }, TOLERANCE, "perplexity")
    end
  end)

  it("G5 takes a text, its files or its tokens", function()
    local path = scratch.path() .. ".txt"
    scratch.write(path, expected.text)
    local of_text = ms.evaluate.perplexity(model, { text = expected.text })
    assert.same(of_text, ms.evaluate.perplexity(model, { files = path }))
    local of_tokens = ms.evaluate.perplexity(model, { tokens = { expected.text:byte(1, -1) } })
    assert.equal(of_text.nll, of_tokens.nll)
    assert.is_nil(of_tokens.bits_per_byte)
    -- The first byte has no score.
    fixture.assert_close({ of_text.nll / math.log(2) }, { of_text.bits_per_byte }, 1e-9, "bits")
    assert.equal(1, of_text.bits_per_byte and ms.evaluate.perplexity(model, { tokens = { 3, 4 } }).tokens)
  end)

  it("G5 needs a tokenizer for texts alone", function()
    local large = ms.models.gpt2 { vocab = 300, layers = 1, dim = 8, heads = 1, seq = 8 }
    ms.fully_shard(large)
    assert.equal(2, ms.evaluate.perplexity(large, { tokens = { 3, 299, 7 } }).tokens)
    has(message(ms.evaluate.perplexity, large, { text = "abc" }), "300 tokens | give its tokenizer")
  end)

  it("G5 reads JSON lines as ms.data.text does", function()
    local path = scratch.path() .. ".jsonl"
    scratch.write(path, '{"text": "!#"}\n{"text": "%&", "other": 1}\n')
    local function of(o) return ms.evaluate.perplexity(model, o) end
    assert.same(of { text = "!#!%&!" }, of { files = path, separator = "!" })
    scratch.write(path, '{"story": "!#"}\n{"story": "%&"}\n')
    assert.same(of { text = "!#%&" }, of { files = path, field = "story", separator = "" })
    has(message(of, { files = path }), "text")
    has(message(of, { text = "!!", field = "story" }), "field | JSON lines")
    has(message(of, { files = path, raw = true, field = "story" }), "raw | field")
  end)

  it("G5 refuses what makes no sense", function()
    local function refused(o) return message(ms.evaluate.perplexity, model, o) end
    has(refused { text = "!" }, "1 tokens | at least 2")
    has(refused {}, "one of files, text and tokens")
    has(refused { text = "!!", tokens = { 1, 2 } }, "one of")
    has(refused { text = "!!", stride = 9, seq = 8 }, "stride=9 | seq=8")
    has(refused { text = "!!", seq = 65 }, "seq=65 | 64 tokens")
    has(refused { text = "abc" }, "token 97 | 41 tokens | bytes")
    has(refused { tokens = { 1, 41 } }, "token 2 is 41 | 0 to 40")
    has(refused { text = "!!", ema = true }, "ema | trainer")
    has(message(ms.evaluate.perplexity, {}, { text = "!!" }), "a model or a trainer")
    has(message(ms.evaluate.perplexity, ms.nn.linear(2, 2), { text = "!!" }), "Linear | config.seq")
  end)
end)

describe("ms.evaluate.multiple_choice", function()
  it("G5 is lm-evaluation-harness's acc and acc_norm, by the reference library's likelihoods", function()
    local got = ms.evaluate.multiple_choice(model, { files = QUESTIONS, batch = 5 })
    for name in ("acc acc_norm acc_stderr"):gmatch("%S+") do
      fixture.assert_close({ expected[name] }, { got[name] }, 1e-12, name)
    end
    assert.same({ 13, 0 }, { got.questions, got.cut })
    for q, list in ipairs(expected.log_likelihoods) do
      fixture.assert_close(list, got.log_likelihoods[q], TOLERANCE, "question " .. q)
    end
  end)

  it("G5 uses the end of a context that is too long, and counts it", function()
    local long = questions { ('{"context": "%s", "choices": ["$", "%%"], "label": 0}'):format(("!#"):rep(40)) }
    local short = questions { ('{"context": "%s", "choices": ["$", "%%"], "label": 0}'):format(("!#"):rep(4)) }
    local cut = ms.evaluate.multiple_choice(model, { files = long, seq = 9 })
    assert.equal(2, cut.cut)
    fixture.assert_close(ms.evaluate.multiple_choice(model, { files = short, seq = 9 }).log_likelihoods[1],
      cut.log_likelihoods[1], 1e-6, "likelihoods")
  end)

  it("G5 normalises by characters, not bytes, and takes blanks at a context's end into the answer", function()
    local bytes = ms.models.gpt2 { vocab = 256, layers = 1, dim = 8, heads = 2, seq = 16 }
    local path = questions { '{"context": "a  ", "choices": ["\xc3\xa9\xc3\xa9", "xyz"], "label": 0}' }
    local got = ms.evaluate.multiple_choice(bytes, { files = path, delimiter = "" })
    local sums = got.log_likelihoods[1]
    assert.equal((sums[1] / 2 >= sums[2] / 3) and 1 or 0, got.acc_norm)
    local joined = questions { '{"context": "a", "choices": ["  \xc3\xa9\xc3\xa9", "  xyz"], "label": 0}' }
    assert.same(sums, ms.evaluate.multiple_choice(bytes, { files = joined, delimiter = "" }).log_likelihoods[1])
  end)

  it("G5 asks by a template of conversations", function()
    local bytes = ms.models.gpt2 { vocab = 256, layers = 1, dim = 8, heads = 2, seq = 32 }
    local template = { begin = "!", user = { "<", ">" }, assistant = { "[", "]" } }
    local asked = questions { '{"context": "q", "choices": ["a", "bc"], "label": 0}' }
    local written = questions { '{"context": "!<q>[", "choices": ["a", "bc"], "label": 0}' }
    assert.equal("!<q>[", string.char(unpack(ms.data.chat_prompt("q", { template = template }))))
    assert.equal("!<q>[a]<r>[", string.char(unpack(ms.data.chat_prompt({ { role = "user", content = "q" },
      { role = "assistant", content = "a" }, { role = "user", content = "r" } }, { template = template }))))
    assert.same(ms.evaluate.multiple_choice(bytes, { files = written, delimiter = "" }).log_likelihoods,
      ms.evaluate.multiple_choice(bytes, { files = asked, template = template }).log_likelihoods)
    template.trim = true
    local spaced = questions { '{"context": " q", "choices": [" a", "bc "], "label": 0}' }
    assert.same(ms.evaluate.multiple_choice(bytes, { files = asked, template = template }).log_likelihoods,
      ms.evaluate.multiple_choice(bytes, { files = spaced, template = template }).log_likelihoods)
    local long = questions { ('{"context": "%s", "choices": ["a", "bc"], "label": 0}'):format(("q"):rep(20000)) }
    assert.equal(2, ms.evaluate.multiple_choice(bytes, { files = long, template = template }).cut)
    has(message(ms.evaluate.multiple_choice, bytes, { files = asked, template = "chatmk" }), "chatmk | chatml")
    has(message(ms.data.chat_prompt, { "q" }), "ms.data.chat_prompt | message 1")
    has(message(ms.data.chat_prompt, 3), "ms.data.chat_prompt | 3")
  end)

  it("G5 says where a line is wrong", function()
    local function refused(line) return message(ms.evaluate.multiple_choice, model, { files = questions { line } }) end
    has(refused '{"choices": ["!", "#"], "label": 0}', ":1 | context | missing | text")
    has(refused '{"context": "!", "label": 0}', ":1 | choices | missing")
    has(refused '{"context": "!", "choices": ["!", "#"]}', ":1 | label | missing")
    has(refused '{"context": "!", "choices": ["!"], "label": 0}', ":1 | choices | 2")
    has(refused '{"context": "!", "choices": ["!", 2], "label": 0}', ":1 | choice 1 | 2")
    has(refused '{"context": "!", "choices": ["!", "#"], "label": 2}', ":1 | label | 0 to 1 | 2")
    has(refused '{"context": "", "choices": ["!", "#"], "label": 1}', ":1 | context is empty | template")
    has(refused(('{"context": "!", "choices": ["%s", "#"], "label": 1}'):format(("#"):rep(70))),
      ":1 | 71 tokens | 64 | larger seq")
    has(message(ms.evaluate.multiple_choice, model, { files = questions {} }),
      "no question | context, choices and label")
  end)
end)

describe("an evaluation", function()
  it("G5 has the same numbers on every mesh, between steps of a training, and of averages", function()
    local recipe = program.recipe [[
      local ms = require "moonshard"
      local cfg = ms.args { mesh = "1x1", names = "replicate shard", text = "" }
      local names = {}
      for name in cfg.names:gmatch("%S+") do names[#names + 1] = name end
      local mesh = ms.init_device_mesh(cfg.device, cfg.mesh, names)
      local model = ms.huggingface.model("tests/fixtures/huggingface/qwen3",
        { pad_vocab_to_multiple_of = 2 })
      ms.fully_shard(model, { mesh = mesh, units = { ms.re"^layers\\.\\d+$" },
        placements = mesh:has("tensor") and ms.rules.tensor_parallel(model) or nil })
      local data = ms.data.text { files = cfg.text, seq = 16, global_batch = 4, valid_fraction = 0, mesh = mesh }
      local train = ms.trainer { model = model, loss = ms.loss.cross_entropy, ema = 0.9,
        optimizer = ms.optim.sgd { lr = 0.5 } }
      local function evaluate()
        for _, ema in ipairs { false, true } do
          local text = ms.evaluate.perplexity(train, { files = cfg.text, seq = 12, stride = 7, batch = 2, ema = ema })
          local answers = ms.evaluate.multiple_choice(train, { batch = 3, ema = ema,
            files = "tests/fixtures/evaluation/questions.jsonl" })
          ms.log.print(("%.6f %d %.4f %.4f %.5f"):format(text.nll, text.tokens, answers.acc, answers.acc_norm,
            answers.log_likelihoods[3] and answers.log_likelihoods[3][1] or 0))
        end
      end
      evaluate()
      for _, batch in data:batches(2) do train:step(batch) end
      evaluate()
    ]]
    local path = scratch.path() .. ".txt"
    scratch.write(path, expected.text)
    local function run(ranks, mesh, names)
      local ended = program.run { "run", recipe, "-n", tostring(ranks), "mesh=" .. mesh,
        "names=" .. (names or "replicate shard"), "text=" .. path }
      assert.equal(0, ended.status, ended.err)
      return ended.out
    end
    local one = run(1, "1x1")
    assert.equal(4, select(2, one:gsub("\n", "")))
    local first, _, third, fourth = one:match("(.-)\n(.-)\n(.-)\n(.-)\n")
    assert.are_not.equal(first, third)
    assert.are_not.equal(third, fourth)
    local function numbers(text)
      local list = {}
      for number in text:gmatch("%S+") do list[#list + 1] = tonumber(number) end
      return list
    end
    -- The same weights give the same bits; steps on several ranks sum gradients, and divided layers, in another order.
    for _, case in ipairs({
      { 2, "1x2" }, { 4, "2x2" }, { 2, "1x2", "shard tensor" }, { 2, "1x2", "shard context" },
    }) do
      local got = run(unpack(case))
      if not case[3] then assert.equal(first, got:match("(.-)\n")) end
      fixture.assert_close(numbers(one), numbers(got), TOLERANCE, table.concat(case, " "))
    end
    local planned = program.run { "plan", recipe, "-n", "2", "mesh=1x2", "text=" .. path }
    assert.equal(0, planned.status, planned.err)
    os.remove(recipe)
  end)

  it("G5 says that ranks evaluate different data", function()
    local folder = os.tmpname() .. "-questions"
    os.execute("mkdir " .. folder)
    local question = '{"context": "a", "choices": ["bc", "d\\u00e9"], "label": %d}\n'
    for name, text in pairs {
      right = question:format(0) .. question:format(1), wrong = question:format(1) .. question:format(1),
    } do
      local file = io.open(("%s/%s.jsonl"):format(folder, name), "w")
      file:write(text)
      file:close()
    end
    local recipe = program.recipe [[
      local ms = require "moonshard"
      local cfg = ms.args { call = "", at = "" }
      local model = ms.models.gpt2 { vocab = 256, layers = 1, dim = 8, heads = 2, seq = 16 }
      ms.fully_shard(model)
      local train = ms.trainer { model = model, optimizer = ms.optim.sgd { lr = 0.1 }, ema = 0.9,
        loss = ms.loss.cross_entropy }
      local file = { [0] = cfg.at .. "/right.jsonl", cfg.at .. "/wrong.jsonl" }
      assert(loadstring("local ms, train, rank, file = ... " .. cfg.call))(ms, train, ms.world().rank, file)
    ]]
    local cases = {
      ['ms.evaluate.perplexity(train, { text = ("text %d"):format(rank) })'] = "perplexity | hash | tokens",
      ['ms.evaluate.perplexity(train, { text = ("text"):rep(rank + 2) })'] = "tokens is 8 on rank 0 and 12",
      ['ms.evaluate.perplexity(train, { text = "texts", ema = rank == 1 })'] = "ema is false on rank 0 and true",
      ['ms.evaluate.perplexity(train, { text = "texts", batch = 8 + rank })'] = "batch is 8 on rank 0 and 9",
      ['ms.evaluate.perplexity(train, { text = "texts", stride = 16 - rank })'] = "stride is 16 on rank 0 and 15",
      ['ms.evaluate.multiple_choice(train, { files = file[rank] })'] = "multiple_choice | hash | labels | rank 1",
    }
    local runs = {}
    for call in pairs(cases) do
      runs[call] = { "run", recipe, "-n", "2", "--timeout", "60", "call=" .. call, "at=" .. folder }
    end
    local ended = program.run_all(runs)
    for call, facts in pairs(cases) do
      assert.are_not.equal(0, ended[call].status, call)
      has(ended[call].err, facts .. " | rank 0 | rank 1 | same files")
    end
    os.remove(recipe)
    os.execute("rm -r " .. folder)
  end)
end)
