-- Fields of lines of conversations, pairs and questions: each is used, has no effect, or is refused by name. And lines
-- themselves: their length, and what runs out of memory at one.

local clock = require("moonshard.base.clock")
local has = require("lua.support.message").has
local json_lines = require("moonshard.data.files.json_lines")
local message = require("lua.support.fixture").message
local ms = require("moonshard")
local scratch = require("lua.support.scratch")

teardown(scratch.clear)

local TEMPLATE = { user = { "<", ">" }, assistant = { "[", "]" }, system = { "{", "}" }, tool = { "(", ")" } }

local function write(...)
  local path = scratch.path() .. ".jsonl"
  scratch.write(path, table.concat({ ... }, "\n") .. "\n")
  return path
end

-- The text of a line's conversation, and that of its targets.
local function texts(line, more)
  local path = write(line)
  local o = { files = path, template = TEMPLATE, seq = 64, batch = 1 }
  for name, value in pairs(more or {}) do o[name] = value end
  local ok, data = pcall(ms.data.chat, o)
  os.remove(path)
  if not ok then error(data, 0) end
  local _, batch = data:batches(1)()
  local tokens, targets = {}, {}
  for i = 0, 63 do
    tokens[i + 1] = batch.tokens.data[i] ~= 0 and string.char(batch.tokens.data[i]) or ""
    targets[i + 1] = batch.targets.data[i] ~= -100 and string.char(batch.targets.data[i]) or ""
  end
  return table.concat(tokens) .. " " .. table.concat(targets)
end

-- Messages of a user and an assistant, with fields added to the line, and to the second message.
local function line_with(of_line, of_message)
  return ('{"messages": [{"role": "user", "content": "Q"}, {"role": "assistant", "content": "A"%s}]%s}'):format(
    of_message and ", " .. of_message or "", of_line and ", " .. of_line or "")
end

describe("a field of a line", function()
  it("U10 is a system message, or one of the history, in every form", function()
    assert.equal("{S}<Q>[A] A]", texts(line_with '"system": "S"'))
    assert.equal("{S}<Q>[A] A]", texts '{"system": "S", "prompt": "Q", "completion": "A"}')
    assert.equal("{S}<Q>[A] A]", texts '{"instruction": "Q", "output": "A", "system": "S"}')
    assert.equal("{S}<Q>[A] S}", texts('{"instruction": "Q", "output": "A", "system": "S"}', { train_on = "system" }))
    assert.equal("<a>[b]<c>[d]<Q>[A] b]d]A]",
      texts '{"history": [["a", "b"], ["c", "d"]], "instruction": "Q", "input": "", "output": "A"}')
    assert.equal("{S}<a>[b]<Q>[A] b]A]",
      texts '{"system": "S", "history": [["a", "b"]], "prompt": "Q", "completion": "A"}')
    -- A system message that is there already is not repeated; another one is a question.
    local both = '{"system": "%s", "messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "Q"}, '
      .. '{"role": "assistant", "content": "A"}]}'
    assert.equal("{S}<Q>[A] A]", texts(both:format("S")))
    assert.equal("{S}<Q>[A] A]", texts(both:format("")))
    has(message(texts, both:format("T")), ".jsonl:1: | system | differ")
    has(message(texts, '{"history": [["a"]], "prompt": "Q", "completion": "A"}'), ".jsonl:1: | history | pair 1")
    has(message(texts, '{"system": 3, "prompt": "Q", "completion": "A"}'), ".jsonl:1: | system | 3")
    has(message(texts, line_with '"history": [["a", "b"]]'), ".jsonl:1: | history | ignore")
  end)

  it("U10 is a list of messages as prompt and completion, as TRL has them", function()
    local line = '{"prompt": [{"role": "system", "content": "S"}, {"role": "user", "content": "Q"}], '
      .. '"completion": [{"role": "assistant", "content": "A"}]%s}'
    assert.equal("{S}<Q>[A] A]", texts(line:format("")))
    assert.equal("{S}<Q>[A] A]", texts(line:format(', "system": "S"')))
    assert.equal("<Q>[A] A]", texts '{"prompt": [{"role": "user", "content": "Q"}], "completion": "A"}')
    assert.equal("<Q>[A] A]", texts '{"prompt": "Q", "completion": [{"role": "assistant", "content": "A"}]}')
    has(message(texts, '{"prompt": [], "completion": "A"}'), ".jsonl:1: | prompt | list")
    has(message(texts, '{"prompt": "Q", "completion": [{"role": "gpt", "content": "A"}]}'), 'role "gpt"')
  end)

  it("U10 has contents in parts, of which texts are joined and others refused by type", function()
    local line = '{"messages": [{"role": "user", "content": "Q"}, {"role": "assistant", "content": [%s]}]}'
    assert.equal("<Q>[AB] AB]", texts(line:format(
      '{"type": "text", "text": "A", "image": null}, {"type": "text", "text": "B"}')))
    has(message(texts, line:format '{"type": "image", "image": "x"}'),
      '.jsonl:1: message 2: | part 1 of content | "image" | text')
    has(message(texts, line:format '{"type": "text", "text": "A", "cache": 1}'), 'part 1 | "cache"')
    has(message(texts, line:format '{"type": "text"}'), "part 1 of content: text | missing")
    has(message(texts, line:format '"A"'), 'part 1 of content | "A"')
    has(message(texts, line:format ""), "message 2: content | text")
    assert.equal("<Q>[A] A]", texts('{"conversations": [{"from": "human", "value": [{"type": "text", "text": "Q"}]}, '
      .. '{"from": "gpt", "value": "A"}]}'))
  end)

  it("U10 has no effect if it is the empty list of another form", function()
    local shared = '{"conversations": [{"from": "human", "value": "Q"}, {"from": "gpt", "value": "A"}], %s}'
    for _, empty in ipairs({ '"messages": []', '"messages": null', '"messages": {}', '"conversation": []',
      '"system": [], "messages": []' }) do
      assert.equal("<Q>[A] A]", texts(shared:format(empty)))
    end
    assert.equal("<>[A] A]", texts '{"messages": [], "prompt": "", "completion": "A", "history": []}')
    assert.equal("<Q>[A] A]", texts '{"prompt": "", "instruction": "Q", "input": [], "output": "A"}')
    has(message(texts, '{"messages": []}'), ".jsonl:1: messages | list")
  end)

  it("U10 names roles and contents as ShareGPT does", function()
    local shared = '{"%s": [{"from": "system", "value": "S"}, {"from": "human", "value": "Q"}, '
      .. '{"from": "gpt", "value": "A"}]}'
    assert.equal("{S}<Q>[A] A]", texts(shared:format("conversations")))
    assert.equal("{S}<Q>[A] A]", texts(shared:format("conversation")))
    assert.equal("{S}<Q>[A] A]", texts(shared:format("messages")))
    assert.equal("<Q>[A] A]", texts('{"conversations": [{"role": "user", "content": "Q"}, '
      .. '{"role": "assistant", "content": "A"}]}'))
    has(message(texts, '{"messages": [{"role": "user", "from": "human", "content": "Q"}]}'), "message 1 | role | from")
    has(message(texts, '{"messages": [{"from": "human", "content": "Q"}]}'), "message 1 | content | from")
    has(message(texts, '{"conversations": [{"from": "bing", "value": "Q"}]}'), 'role "bing"')
  end)

  it("U10 chooses what is trained on: a flag decides over the role, a weight of 0 leaves out", function()
    local four = '{"messages": [{"role": "user", "content": "Q"%s}, {"role": "assistant", "content": "A"%s}, '
      .. '{"role": "user", "content": "R"}, {"role": "assistant", "content": "B"%s}]}'
    local function trained(...) return texts(four:format(...)):match(" (.*)$") end
    assert.equal("A]B]", trained("", "", ""))
    assert.equal("B]", trained("", ', "weight": 0', ', "weight": 1'))
    assert.equal("B]", trained("", ', "train": false', ', "train": true'))
    assert.equal("B]", trained("", ', "training": false', ""))
    assert.equal("Q>A]B]", trained(', "train": true', "", ""))
    assert.equal("A]B]", trained(', "weight": 1', "", "")) -- what a message without a weight has
    assert.equal("B]", trained("", ', "weight": 0, "train": false', ""))
    assert.equal("<Q>[A]<R>[B] Q>R>B]", texts(four:format("", ', "train": false', ""), { train_on = "all" }))
    has(message(trained, "", ', "weight": 0.5', ""), ".jsonl:1: message 2 | weight | 0.5")
    has(message(trained, "", ', "weight": true', ""), "message 2 | weight | true")
    has(message(trained, "", ', "train": 1', ""), "message 2 | train | 1")
    has(message(trained, "", ', "train": true, "training": false', ""), "message 2 | train | training")
    has(message(trained, "", ', "train": true, "weight": 0', ""), "message 2 | weight | train")
    has(message(trained, "", ', "weight": 0', ', "weight": 0'), "ms.data.chat | trained | assistant")
  end)

  it("U10 is refused by name where nothing uses it, with the way to train without it", function()
    local refused = {
      [line_with '"tools": [{"name": "w"}]'] = "tools", [line_with '"functions": [{"name": "w"}]'] = "functions",
      [line_with '"chosen": "A"'] = "chosen", [line_with '"wieght": 2'] = "wieght",
      [line_with '"completion": "A"'] = "completion", [line_with '"prompt": "other"'] = "prompt",
      ['{"instruction": "Q", "output": "A", "text": "Q A"}'] = "text",
      ['{"prompt": "Q", "completion": "A", "weight": 0}'] = "weight",
      ['{"conversations": [{"from": "human", "value": "Q"}, {"from": "gpt", "value": "A"}], "tools": "[]x"}'] = "tools",
    }
    for _, field in ipairs({ "tool_calls", "function_call", "reasoning_content", "reasoning", "thinking", "name",
      "tool_call_id", "mask", "prefix" }) do
      refused[line_with(nil, ('"%s": "x"'):format(field))] = field
    end
    for line, field in pairs(refused) do
      has(message(texts, line), ('.jsonl:1: | %s | ignore = { "%s" }'):format(field, field))
      assert.equal("<Q>[A] A]", texts(line, { ignore = { field } }), line)
    end
    has(message(texts, line_with(nil, '"tool_calls": [{"id": "a"}]')), "message 2 | tool_calls")
    has(message(texts, line_with '"wieght": 2', { ignore = "wieght" }), "ignore")
    has(message(texts, line_with(), { ignore = { wieght = true } }), "ignore | list of names")
  end)

  it("U10 is refused where a list has a null, which would end it in silence", function()
    for _, line in ipairs({
      '{"messages": [{"role": "user", "content": "Q"}, null, {"role": "assistant", "content": "A"}]}',
      '{"messages": [{"role": "user", "content": [{"type": "text", "text": "Q"}, null]}]}',
      '{"instruction": "Q", "output": "A", "history": [null, ["a", "b"]]}',
    }) do
      has(message(texts, line), ".jsonl:1: | list is null")
    end
  end)

  it("U10 has no effect where it is empty, null, where a line comes from, or what the messages repeat", function()
    for _, more in ipairs({
      '"tools": []', '"tools": null', '"functions": {}', '"system": null', '"system": ""', '"history": []',
      '"id": 7', '"source": "web"', '"prompt_id": "x"', '"category": "chat"', '"prompt": "Q"', '"language": "en"',
    }) do
      assert.equal("<Q>[A] A]", texts(line_with(more)), more)
    end
    for _, more in ipairs({ '"tool_calls": []', '"tool_calls": null', '"name": ""', '"id": 3' }) do
      assert.equal("<Q>[A] A]", texts(line_with(nil, more)), more)
    end
  end)

  it("U10 is checked in pairs of answers, in questions and in prompts, too", function()
    local function pairs_of(line, more)
      local path = write(line)
      local o = { files = path, template = TEMPLATE, seq = 32, batch = 1 }
      for name, value in pairs(more or {}) do o[name] = value end
      local ok, data = pcall(ms.data.preferences, o)
      os.remove(path)
      if not ok then error(data, 0) end
      local _, batch = data:batches(1)()
      local rows = { {}, {} }
      for i = 0, 63 do
        local token = batch.tokens.data[i]
        table.insert(rows[i < 32 and 1 or 2], token ~= 0 and string.char(token) or "")
      end
      return table.concat(rows[1]) .. " " .. table.concat(rows[2])
    end
    local function pair(more) return '{"prompt": "Q", "chosen": "A", "rejected": "B"' .. more .. "}" end
    assert.equal("<Q>[A] <Q>[B]", pairs_of(pair ', "score_chosen": 2, "id": 1, "tools": []'))
    assert.equal("{S}<Q>[A] {S}<Q>[B]", pairs_of(pair ', "system": "S"'))
    local list = '[{"role": "user", "content": "Q"}, {"role": "assistant", "content": "%s"%s}]'
    local both = ('{"chosen": %s, "rejected": %s, "messages": %s, "system": "S"}')
    local chosen, rejected = list:format("A", ""), list:format("B", "")
    assert.equal("{S}<Q>[A] {S}<Q>[B]", pairs_of(both:format(chosen, rejected, chosen)))
    has(message(pairs_of, both:format(chosen, rejected, rejected)), ".jsonl:1: messages | ignore")
    has(message(pairs_of, pair ', "tools": ["w"]'), '.jsonl:1: | tools | ignore = { "tools" }')
    has(message(pairs_of, pair ', "margin": 1'), ".jsonl:1: | margin")
    assert.equal("<Q>[A] <Q>[B]", pairs_of(pair ', "margin": 1', { ignore = { "margin" } }))
    has(message(pairs_of, pair ', "history": [["a", "b"]]'), ".jsonl:1: | history")
    for _, flag in ipairs({ ', "weight": 0', ', "train": true', ', "reasoning_content": "x"' }) do
      has(message(pairs_of, ('{"chosen": %s, "rejected": %s}'):format(list:format("A", flag), rejected)),
        "chosen: message 2 | " .. flag:match("%a+"))
    end
    local model = ms.models.gpt2 { vocab = 256, layers = 1, dim = 8, heads = 2, seq = 16 }
    local function asked(more, ignore)
      local path = write('{"context": "Q", "choices": ["A", "B"], "label": 0' .. more .. "}")
      local ok, found = pcall(ms.evaluate.multiple_choice, model, { files = path, ignore = ignore })
      os.remove(path)
      if not ok then error(found, 0) end
      return found.questions
    end
    assert.equal(1, asked(', "id": 3'))
    has(message(asked, ', "hint": "A"'), '.jsonl:1: | hint | ignore = { "hint" }')
    assert.equal(1, asked(', "hint": "A"', { "hint" }))
    has(message(ms.data.chat_prompt, { { role = "user", content = "Q", tool_calls = { 1 } } }), "tool_calls")
    has(message(ms.data.chat_prompt, { { role = "user", content = "Q", nmae = "x" } }), "message 1 | nmae")
  end)
end)

describe("a line", function()
  local function each(path, visit)
    json_lines.each(path, "lines", visit or function() end)
  end

  it("U10 has a bounded length, and one that is within it is read in linear time", function()
    local path = scratch.path() .. ".jsonl"
    local file = assert(io.open(path, "w"))
    file:write('{"a": 1}\n{"a": "')
    for _ = 1, 65 do file:write(("x"):rep(2 ^ 20)) end
    file:write('"}\n')
    file:close()
    local seen = 0
    has(message(each, path, function() seen = seen + 1 end), path .. ":2: | 64 MiB")
    assert.equal(1, seen)
    local best = {} -- seconds for a line of 1 and of 16 MiB: a pattern that starts again at every byte takes 256 times
    for i, size in ipairs({ 2 ^ 20, 2 ^ 24 }) do
      scratch.write(path, '{"a": "' .. ("\195\188 "):rep(size / 3) .. '"}')
      best[i] = math.huge
      for _ = 1, 3 do
        local began = clock.now()
        each(path)
        best[i] = math.min(best[i], clock.now() - began)
      end
    end
    assert.is_true(best[2] < 120 * best[1], ("%g and %g s"):format(best[1], best[2]))
    os.remove(path)
  end)

  it("U10 is named where memory runs out", function()
    local path = write('{"a": 1}', '{"a": 2}', '{"a": 3}')
    local raised = select(2, message(each, path, function(row)
      if row.a == 2 then error("not enough memory", 0) end -- as LuaJIT raises it
    end))
    has(raised.message, path .. ":2: | not enough memory | fewer")
    assert.equal("MS_ENOMEM", raised.status)
    os.remove(path)
  end)

  it("U10 may be anywhere in a piece, lack its end, or be blank", function()
    local lines, seen = {}, {}
    for i = 1, 3000 do lines[i] = ('{"a": "%s"}'):format(("x"):rep(i % 1500)) end
    lines[#lines] = "\r"
    local path = scratch.path() .. ".jsonl"
    scratch.write(path, "\239\187\191" .. table.concat(lines, "\n") .. '\n{"a": "end"}')
    each(path, function(row, where) seen[#seen + 1] = where:match("%d+$") .. " " .. #row.a end)
    assert.equal(3000, #seen)
    assert.equal("1500 0", seen[1500])
    assert.equal("2999 1499", seen[2999])
    assert.equal("3001 3", seen[3000])
    has(message(each, "/nowhere.jsonl"), "/nowhere.jsonl: | lines")
    has(message(each, "/tmp"), "/tmp")
    os.remove(path)
  end)
end)
