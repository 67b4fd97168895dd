-- The forms of lines of conversations: each is recognised by its fields, and a line of none, of a part of one, or of
-- two is refused. What a template takes of messages and of lines travels with them.

local conversations = require("moonshard.data.conversations.conversations")
local has = require("lua.support.message").has
local json = require("moonshard.base.text.json")
local message = require("lua.support.fixture").message
local ms = require("moonshard")
local scratch = require("lua.support.scratch")

teardown(scratch.clear)

local function write(text, name)
  local path = scratch.path() .. (name or ".jsonl")
  scratch.write(path, text)
  return path
end

-- What is read of a text: a list of { messages, conversation, where }.
local function read(text, o)
  o = o or {}
  local path, found = write(text, o.name), {}
  local reader = conversations.reader("test", { ignore = o.ignore }, o.trains or "assistant")
  local takes = {}
  for field in (o.takes or ""):gmatch("%S+") do takes[field] = true end
  reader.takes = function(field) return takes[field] or false end
  local ok, raised = pcall(conversations.each, path, reader, function(messages, where, conversation)
    found[#found + 1] = { messages = messages, where = where:gsub("^.*/[^:]*", ""), conversation = conversation }
  end)
  os.remove(path)
  if not ok then error(raised, 0) end
  return found
end

-- A conversation as "role:content" with a star where it is trained on, separated by blanks.
local function text(line, o)
  local parts = {}
  for i, one in ipairs(read(line, o)[1].messages) do
    parts[i] = ("%s:%s%s"):format(one.role, tostring(one.content), one.trained and "*" or "")
  end
  return table.concat(parts, " ")
end

local function refused(line, o) return message(read, line, o) end

local PAIRS = { -- the fields of a question and its answer
  { "prompt", "completion" }, { "prompt", "response" }, { "instruction", "output" }, { "instruction", "response" },
  { "question", "answer" }, { "question", "response" }, { "query", "response" },
}

describe("a line of a question and its answer", function()
  it("U10 has any of the published names, with a system's message and earlier turns", function()
    for _, names in ipairs(PAIRS) do
      local line = ('{"%s": "Q", "%s": "A"%%s}'):format(names[1], names[2])
      assert.equal("user:Q assistant:A*", text(line:format("")))
      assert.equal("system:S user:Q assistant:A*", text(line:format(', "system": "S"')))
      assert.equal("system:S user:Q assistant:A*", text(line:format(', "system_prompt": "S", "id": 4')))
      assert.equal("user:a assistant:b* user:Q assistant:A*", text(line:format(', "history": [["a", "b"]]')))
      has(refused(line:format(', "system": "S", "system_prompt": "T"')), ":1: system | system_prompt")
      has(refused(line:format(', "label": true')), ':1: | label | ignore = { "label" }')
      has(refused(line:format(', "history": [null, ["a", "b"]]')), ":1: history | item 1 | null")
    end
  end)

  it("U10 has one text after an instruction, as Alpaca and Dolly name it", function()
    for _, answer in ipairs({ "output", "response" }) do
      for _, more in ipairs({ "input", "context" }) do
        local line = ('{"instruction": "Q", "%s": %%s, "%s": "A", "category": "c"}'):format(more, answer)
        assert.equal("user:Q\n\nI assistant:A*", text(line:format '"I"'))
        assert.equal("user:Q assistant:A*", text(line:format '""'))
        assert.equal("user:Q assistant:A*", text(line:format "null"))
        has(refused(line:format "3"), (":1: %s | 3"):format(more))
      end
    end
    has(refused '{"instruction": "Q", "input": "I", "context": "C", "output": "A"}', ":1: | input | context")
    has(refused '{"question": "Q", "context": "C", "answer": "A"}', ":1: | context | ignore")
  end)

  it("U10 tells a missing text from one that is null, and from an empty one", function()
    assert.equal("user:Q assistant:*", text '{"prompt": "Q", "completion": ""}')
    assert.equal("user: assistant:A*", text '{"prompt": "", "completion": "A"}')
    assert.equal("user: assistant:A*", text '{"question": "", "answer": "A"}')
    has(refused '{"prompt": "Q", "completion": null}', ":1: completion | not null")
    has(refused '{"prompt": null, "completion": "A"}', ":1: prompt | not null")
    has(refused '{"instruction": "Q", "output": null, "response": null}', ":1: | two forms | output | response")
    has(refused '{"prompt": "Q"}', ":1: | prompt | lacks completion or response")
    has(refused '{"question": "Q", "answer": ["A"]}', ":1: answer | table")
  end)

  it("U10 trains on the completion alone of two lists, and else on what flags say", function()
    local line = '{"prompt": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"%s}, '
      .. '{"role": "user", "content": "c"}], "%s": [{"role": "assistant", "content": "d"}]}'
    for _, answer in ipairs({ "completion", "response" }) do
      assert.equal("user:a assistant:b user:c assistant:d*", text(line:format("", answer)))
      assert.equal("user:a assistant:b* user:c assistant:d*", text(line:format(', "train": true', answer)))
      assert.equal("user:a* assistant:b user:c* assistant:d", text(line:format("", answer), { trains = "user" }))
      assert.equal("user:a* assistant:b* user:c* assistant:d*", text(line:format("", answer), { trains = "all" }))
    end
    has(refused '{"instruction": [{"role": "user", "content": "a"}], "output": "A"}', ":1: instruction | table")
  end)
end)

describe("a line", function()
  it("U10 of two forms is refused, with a field to leave out, and read without it", function()
    for _, case in ipairs({
      { '{"instruction": "Q", "output": "A", "response": "B"}', "response", "user:Q assistant:A*" },
      { '{"prompt": "Q", "completion": "A", "question": "R", "answer": "B"}', "question", "user:Q assistant:A*" },
      { '{"prompt": "Q", "completion": "A", "response": "B"}', "response", "user:Q assistant:A*" },
      { '{"messages": [{"role": "user", "content": "Q"}], "prompt": "Q", "completion": "B"}', "prompt", nil },
    }) do
      has(refused(case[1]), (':1: | two forms | ignore = { "%s" }'):format(case[2]))
      local one = case[3] and case[1]:gsub(', "answer": "B"', "")
      if one then assert.equal(case[3], text(one, { ignore = { case[2] } })) end
    end
    local both = '{"messages": [{"role": "user", "content": "Q"}], "conversations": [{"from": "gpt", "value": "A"}]}'
    has(refused(both), ":1: | messages | conversations")
    assert.equal("assistant:A*", text(both, { ignore = { "messages" } }))
  end)

  it("U10 of none names its fields, those that are near, and what reads it", function()
    has(refused '{"title": "x", "body": "y"}', ":1: | body, title | messages, or conversations")
    has(refused '{"promt": "Q", "completionn": "A"}', ":1: | completionn | completion")
    has(refused '{"role": "user", "content": "Q"}', ":1: | one message | messages")
    has(refused '{"from": "human", "value": "Q"}', ":1: | one message | messages")
    has(refused '{"text": "T"}', ":1: | text | ms.data.text | tokenize | prompt")
    has(refused '{"text": "T", "url": "u", "meta": {}}', ":1: | text | ms.data.text")
    has(refused '{"prompt": "Q", "text": "T"}', ":1: | text | ms.data.text")
    has(refused '{"prompt": "Q", "chosen": "A", "rejected": "B"}', ":1: | chosen | ms.data.preferences")
    has(refused '{"context": "C", "choices": ["A", "B"], "label": 0}', ":1: | ms.evaluate.multiple_choice")
  end)
end)

describe("a message", function()
  local function line(one) return ('{"messages": [{"role": "user", "content": "Q"}, %s]}'):format(one) end

  it("U10 keeps the fields that the template takes as they are, null and empty ones too", function()
    local takes = { takes = "tool_calls reasoning_content name tool_call_id" }
    local call = '{"type": "function", "function": {"name": "f", "arguments": {"x": [1, null]}}}'
    local read_back = read(line('{"role": "assistant", "content": "A", "reasoning_content": null, "name": "", '
      .. '"tool_calls": [' .. call .. "]}"), takes)[1].messages[2]
    assert.equal(json.null, read_back.reasoning_content)
    assert.equal("", read_back.name)
    assert.is_nil(read_back.tool_call_id)
    assert.equal("f", read_back.tool_calls[1]["function"].name)
    assert.equal(json.null, read_back.tool_calls[1]["function"].arguments.x[2])
    for _, field in ipairs({ "tool_calls", "reasoning_content", "name", "tool_call_id" }) do
      local one = ('{"role": "assistant", "content": "A", "%s": "x"}'):format(field)
      assert.equal("x", read(line(one), takes)[1].messages[2][field])
      has(refused(line(one)), (':1: message 2: | %s | ignore = { "%s" }'):format(field, field))
      assert.is_nil(read(line(one), { takes = takes.takes, ignore = { field } })[1].messages[2][field])
    end
  end)

  it("U10 needs a content, except one that calls tools with a template that takes them", function()
    local call = '"tool_calls": [{"function": {"name": "f", "arguments": {}}}]'
    local takes = { takes = "tool_calls" }
    assert.is_nil(read(line("{\"role\": \"assistant\", " .. call .. "}"), takes)[1].messages[2].content)
    local null = read(line('{"role": "assistant", "content": null, ' .. call .. "}"), takes)[1].messages[2]
    assert.equal(json.null, null.content)
    assert.is_true(null.trained)
    assert.equal("", read(line('{"role": "assistant", "content": "", ' .. call .. "}"), takes)[1].messages[2].content)
    has(refused(line '{"role": "assistant", "content": null, "tool_calls": []}', takes), "message 2: content | null")
    has(refused(line '{"role": "assistant", "tool_calls": null}', takes), "message 2: content | missing")
    has(refused(line("{\"role\": \"assistant\", \"content\": null, " .. call .. "}")), "message 2: | tool_calls")
  end)

  it("U10 of ShareGPT has its roles by other names, and calls of tools where the template takes them", function()
    local function turns(list) return ('{"conversations": [%s]}'):format(list) end
    for from, role in pairs({ human = "user", user = "user", gpt = "assistant", chatgpt = "assistant",
      assistant = "assistant", system = "system", tool = "tool", observation = "tool" }) do
      assert.equal(role .. ":x" .. (role == "assistant" and "*" or ""),
        text(turns(('{"from": "%s", "value": "x"}'):format(from))))
    end
    local function call(value) return turns(('{"from": "function_call", "value": %s}'):format(json.encode(value))) end
    local takes = { takes = "tool_calls" }
    local one = read(call '{"name": "f", "arguments": {"x": 1}}', takes)[1].messages[1]
    assert.same({ "assistant", "", true }, { one.role, one.content, one.trained })
    assert.same({ { type = "function", ["function"] = { name = "f", arguments = { x = 1 } } } },
      setmetatable(one.tool_calls, nil))
    assert.equal(2, #read(call '[{"name": "f"}, {"name": "g"}]', takes)[1].messages[1].tool_calls)
    has(refused(call '{"name": "f"}'), ':1: conversations: message 1: | "function_call" | tools')
    for _, wrong in ipairs({ "", "f(1)", "[]", "{}", "[3]" }) do
      has(refused(call(wrong), takes), ":1: conversations: message 1: value | name, arguments")
    end
  end)

  it("U10 says by any of four flags whether it is trained on, and refuses masks of two meanings", function()
    local function one(more) return line(('{"role": "assistant", "content": "A", %s}'):format(more)) end
    for _, flag in ipairs({ "train", "training", "trainable", "loss" }) do
      assert.equal("user:Q assistant:A", text(one(('"%s": false'):format(flag))))
      assert.equal("user:Q* assistant:A*", text(one(('"%s": true'):format(flag)), { trains = "user" }))
      assert.equal("user:Q assistant:A*", text(one(('"%s": null'):format(flag))))
      has(refused(one(('"%s": 1'):format(flag))), (":1: message 2: %s | 1"):format(flag))
      has(refused(one(('"%s": true, "weight": 0'):format(flag))), (":1: message 2: | weight | %s"):format(flag))
    end
    has(refused(one '"train": true, "loss": false'), ":1: message 2: train | loss")
    for _, mask in ipairs({ "mask", "masked", "loss_mask", "train_detail", "training_detail" }) do
      has(refused(one(('"%s": true'):format(mask))), (':1: message 2: | "%s" | ignore'):format(mask))
    end
    has(refused(one '"weight": 0.3'), ":1: message 2: weight | 0.3")
    assert.equal("user:Q assistant:A*", text(one '"weight": null'))
  end)

  it("U10 in a list with a null is refused, also among the parts of a content", function()
    has(refused '{"messages": [{"role": "user", "content": "Q"}, null]}', ":1: messages: item 2 | null")
    has(refused '{"conversations": [null]}', ":1: conversations: item 1 | null")
    has(refused(line '{"role": "assistant", "content": [null]}'), ":1: message 2: content: item 1 | null")
  end)
end)

describe("what a template takes of a line", function()
  local LINE = '{"prompt": "Q", "completion": "A", %s}'
  local function taken(more, o) return read(LINE:format(more), o)[1].conversation end

  it("U10 is tools, documents and its own variables, null and empty ones too", function()
    local o = { takes = "tools documents enable_thinking date_string" }
    local tools = taken('"tools": [{"name": "f", "default": null}], "documents": []', o)
    assert.equal("f", tools.tools[1].name)
    assert.equal(json.null, tools.tools[1].default)
    assert.same({}, setmetatable(tools.documents, nil))
    assert.equal("f", taken('"tools": "[{\\"name\\": \\"f\\"}]"', o).tools[1].name)
    assert.equal("", taken('"tools": ""', o).tools)
    assert.equal(json.null, taken('"tools": null', o).tools)
    assert.same({ enable_thinking = false, date_string = "d" },
      taken('"chat_template_kwargs": {"enable_thinking": false}, "date_string": "d"', o))
    assert.same({}, taken('"id": 3, "system": "S", "chat_template_kwargs": null', o))
  end)

  it("U10 is refused where it takes none, is no list, or is there twice", function()
    local o = { takes = "tools enable_thinking" }
    has(refused(LINE:format '"tools": ["f"]'), ':1: | "tools" | ignore')
    has(refused(LINE:format '"tools": "f()"', o), ":1: tools | list")
    has(refused(LINE:format '"tools": "{}"', o), ":1: tools | list")
    has(refused(LINE:format '"chat_template_kwargs": {"date": 1}', o), ":1: chat_template_kwargs | date | ignore")
    has(refused(LINE:format '"chat_template_kwargs": [1]', o), ":1: chat_template_kwargs | object")
    has(refused(LINE:format '"chat_template_kwargs": {"enable_thinking": true}, "enable_thinking": false', o),
      ":1: chat_template_kwargs | enable_thinking")
    assert.same({}, taken('"chat_template_kwargs": {"date": 1}', { ignore = { "chat_template_kwargs" } }))
  end)
end)

describe("a file that is no JSON", function()
  it("U10 is refused with what its first line begins with", function()
    for _, line in ipairs({ "question,answer", "prompt\tcompletion", "What is 1?", "[INST] Q", "'a': 1", "null" }) do
      has(refused('{"prompt": "Q", "completion": "A"}\n' .. line), (":2: | object | %s"):format(line:match("%S+")))
    end
  end)
end)

describe("a JSON list", function()
  local ITEM = '{"prompt": "Q%d", "completion": "A \\" ] } \\\\"}'

  it("U10 is read object by object, under the name of a list or of lines, on one line or on many", function()
    for _, join in ipairs({ { "[", ",", "]" }, { "[\n", ",\n", "\n]\n" }, { "\239\187\191 [ ", " ,\n\n ", " ]" } }) do
      for _, name in ipairs({ ".json", ".jsonl", ".data" }) do
        local whole = join[1] .. ITEM:format(1) .. join[2] .. ITEM:format(2) .. join[2] .. ITEM:format(3) .. join[3]
        local found = read(whole, { name = name })
        assert.equal(3, #found)
        assert.equal("Q3", found[3].messages[1].content)
        assert.equal('A " ] } \\', found[3].messages[2].content)
        assert.is_truthy(found[3].where:find("item 3$"))
      end
    end
    assert.same({}, read("[]", { name = ".json" }))
    local pretty = '[\n {\n  "prompt": "Q",\n  "completion": "A"\n },\n {\n  "prompt": "Q",\n  "completion": 3\n }\n]'
    has(refused(pretty, { name = ".json" }), ".json:6: item 2: completion | 3")
  end)

  it("U10 is cut anywhere between pieces", function()
    local items = {}
    for i = 1, 400 do items[i] = ('{"prompt": "%s", "completion": "\\\\\\"%d"}'):format(("]\\n{"):rep(i * 7), i) end
    local found = read("[" .. table.concat(items, ", ") .. "]")
    assert.equal(400, #found)
    for i, one in ipairs(found) do assert.equal('\\"' .. i, one.messages[2].content) end
    local list = require("moonshard.data.files.json_list")
    local whole, seen = '[{"a": "x\\"]"}, {"b": [1, {"c": "}"}]}]', {}
    for size = 1, #whole do
      local reader = list.new("p", 100, function(one) seen[#seen + 1] = one end)
      for at = 1, #whole, size do reader:add(whole:sub(at, at + size - 1)) end
      reader:finish()
    end
    assert.equal(2 * #whole, #seen)
    for i = 1, #seen, 2 do assert.same({ '{"a": "x\\"]"}', '{"b": [1, {"c": "}"}]}' }, { seen[i], seen[i + 1] }) end
  end)

  it("U10 is refused where it is cut short, goes on after its end, or has what is no object", function()
    local item = ITEM:format(1)
    local function wrong(whole, facts) has(refused(whole, { name = ".json" }), facts) end
    wrong("[" .. item, ".json:1: | cut short | 1 items")
    wrong("[" .. item .. ",", ".json:1: | cut short")
    wrong("[" .. item .. ', {"prompt": "Q', ".json:1: | cut short | item 2")
    wrong("[" .. item .. "] x", ".json:1: | end of the list")
    wrong("[" .. item .. "]\n[" .. item .. "]", ".json:2: | end of the list")
    wrong("[" .. item .. item .. "]", ".json:1: | 1 items | comma")
    wrong("[" .. item .. ",]", ".json:1: | object")
    wrong("[[" .. item .. "]]", ".json:1: | object")
    wrong("[1]", ".json:1: | object")
    wrong('[{"prompt": "Q", "completion": A}]', ".json:1: item 1: byte")
    wrong('[{"role": "user", "content": "Q"}]', ".json:1: item 1: | one message")
    wrong('{\n  "data": [' .. item .. "]\n}", ".json: | several lines | jq")
    local reader = require("moonshard.data.files.json_list").new("p", 10, function() end)
    has(message(reader.add, reader, '[{"a": "0123456789"}]'), "p:1: item 1")
  end)

  it("U10 of a folder or a pattern is taken by its contents", function()
    local folder = scratch.folder()
    scratch.write(folder .. "/a.json", "[" .. ITEM:format(1) .. "]")
    scratch.write(folder .. "/b.jsonl", ITEM:format(2))
    scratch.write(folder .. "/c.json", '{\n "_name": "x"\n}\n')
    scratch.write(folder .. "/d.txt", "text")
    local template = { user = { "<", ">" }, assistant = { "[", "]" } }
    for _, spec in ipairs({ folder, folder .. "/*", folder .. "/*.json*" }) do
      assert.equal(2, ms.data.chat({ files = spec, template = template, seq = 16, batch = 1 }).conversations)
    end
    assert.equal(1, ms.data.chat({ files = folder .. "/*.json", template = template, seq = 16, batch = 1 })
      .conversations)
  end)
end)

describe("a pair of answers", function()
  local TEMPLATE = { user = { "<", ">" }, assistant = { "[", "]" }, system = { "{", "}" } }

  local function rows(line, ignore)
    local path = write(line)
    local ok, data = pcall(ms.data.preferences, { files = path, template = TEMPLATE, seq = 32, batch = 1,
      ignore = ignore })
    os.remove(path)
    if not ok then error(data, 0) end
    local _, batch = data:batches(1)()
    local found = { "", "" }
    for i = 0, 63 do
      local token, row = batch.tokens.data[i], i < 32 and 1 or 2
      if token ~= 0 then found[row] = found[row] .. string.char(token) end
    end
    return table.concat(found, " ")
  end

  it("U10 has its prompt by any of the published names, and answers that are one message each", function()
    local two = '"chosen": "A", "rejected": "B"'
    assert.equal("<Q>[A] <Q>[B]", rows('{"prompt": "Q", ' .. two .. "}"))
    assert.equal("{S}<Q>[A] {S}<Q>[B]", rows('{"question": "Q", "system": "S", ' .. two .. "}"))
    assert.equal("<Q>[A] <Q>[B]", rows('{"instruction": "Q", "input": "", ' .. two .. "}"))
    assert.equal("<Q\n\nI>[A] <Q\n\nI>[B]", rows('{"instruction": "Q", "input": "I", ' .. two .. "}"))
    local one = '"chosen": {"%s": "%s", "%s": "A"}, "rejected": {"%s": "%s", "%s": "B"}}'
    local shared, plain = one:format(unpack { "from", "gpt", "value", "from", "gpt", "value" }),
      one:format(unpack { "role", "assistant", "content", "role", "assistant", "content" })
    assert.equal("<Q>[A] <Q>[B]", rows('{"conversations": [{"from": "human", "value": "Q"}], ' .. shared))
    assert.equal("<Q>[A] <Q>[B]", rows('{"messages": [{"role": "user", "content": "Q"}], ' .. plain))
    assert.equal("<Q>[A] <Q>[B]", rows('{"prompt": "Q", ' .. plain))
  end)

  it("U10 has one prompt, and no context without an instruction", function()
    local two = '"chosen": "A", "rejected": "B"}'
    local both = '{"prompt": "Q", "question": "R", ' .. two
    has(message(rows, both), ':1: | prompt | question | ignore = { "question" }')
    assert.equal("<Q>[A] <Q>[B]", rows(both, { "question" }))
    has(message(rows, '{"prompt": "Q", "input": "I", ' .. two), ':1: | "input" | instruction')
    has(message(rows, '{"question": "Q", "context": "I", ' .. two), ':1: | "context" | instruction')
    has(message(rows, '{"prompt": null, ' .. two), ":1: | prompt | question")
    has(message(rows, '{"prompt": "Q", "chosen": null, "rejected": "B"}'), ":1: chosen | null")
    has(message(rows, '{"prompt": "Q", "tools": ["f"], ' .. two), ':1: | "tools" | ignore')
  end)
end)
