-- Conversations written by Jinja templates: where a template comes from, what it is given, which tokens are trained on,
-- and prompts. Tokens and masks are compared with the reference library's (tests/fixtures/templates/make.py).

local chat_template = require("moonshard.data.conversations.chat_template")
local has = require("lua.support.message").has
local json = require("moonshard.base.text.json")
local message = require("lua.support.fixture").message
local message_tokens = require("moonshard.data.conversations.message_tokens")
local ms = require("moonshard")
local scratch = require("lua.support.scratch")

teardown(scratch.clear)

local FIXTURES = "tests/fixtures/"

local read = scratch.read

-- A folder with files, { name = text }, and the tokenizer of a fixture.
local function folder_with(files, tokenizer)
  local folder = scratch.folder()
  assert(os.execute("mkdir " .. folder .. "/additional_chat_templates") == 0)
  scratch.write(folder .. "/tokenizer.json", read(FIXTURES .. "tokenizer/" .. (tokenizer or "steps/qwen") .. ".json"))
  for name, text in pairs(files) do scratch.write(folder .. "/" .. name, text) end
  return folder
end

local function file_with(text, ending)
  local path = scratch.folder() .. "/file" .. ending
  scratch.write(path, text)
  return path
end

local function lines_with(...) return file_with(table.concat({ ... }, "\n") .. "\n", ".jsonl") end

-- ChatML, which ends the conversation by the token of the end.
local CHATML = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
  .. "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
-- The same, but thoughts of earlier answers are left out.
local THINKING = [[{% set ns = namespace(last=-1) %}
{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}
{% for m in messages %}[{{ m.role }}]{{ m.content.split('</think>')[-1] if loop.index0 < ns.last else m.content }}
{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}]]

local TURNS = '{"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yo"}, '
  .. '{"role": "user", "content": "So?"}, {"role": "assistant", "content": "No"}]}'

-- The text of a row of bytes, and that of its targets, with a dot for none.
local function texts(o)
  o.seq, o.batch, o.shuffle = o.seq or 256, 1, false
  local _, batch = ms.data.chat(o):batches(1)()
  local tokens, targets = {}, {}
  for i = 0, batch.tokens.shape[2] - 1 do
    local token, target = batch.tokens.data[i], batch.targets.data[i]
    if token == 0 then break end
    tokens[#tokens + 1] = string.char(token)
    targets[#targets + 1] = target == -100 and "." or string.char(target)
  end
  return table.concat(tokens), table.concat(targets)
end

-- What is trained on of each text between dots.
local function trained(o)
  local _, targets = texts(o)
  local parts = {}
  for part in targets:gmatch("[^.]+") do parts[#parts + 1] = part end
  return parts
end

local function prompt(messages, o)
  local bytes = {}
  for i, id in ipairs(ms.data.chat_prompt(messages, o)) do bytes[i] = string.char(id) end
  return table.concat(bytes)
end

describe("Jinja templates of conversations", function()
  it("give templates the tools and calls of lines, and refuse those that a template does not read", function()
    local source = [[{% if tools %}{{ tools | tojson }}
{% endif %}{% for m in messages %}[{{ m.role }}]{{ m.content or '' }}]]
      .. [[{% for c in m.tool_calls or [] %}<{{ c.function.name }} {{ c.function.arguments | tojson }}>{% endfor %}
{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}]]
    local line = '{"tools": [{"zeta": 1, "alpha": 2.0}], "messages": [{"role": "user", "content": "4+4?"}, '
      .. '{"role": "assistant", "content": null, "tool_calls": [{"function": {"name": "add", "arguments": '
      .. '{"y": 4, "x": 4}}}]}, {"role": "tool", "content": "8"}, {"role": "assistant", "content": "8"}]}'
    local text, targets = texts { files = lines_with(line), template = { jinja = source } }
    local before, call = '[{"zeta": 1, "alpha": 2.0}]\n[user]4+4?[assistant]', '<add {"y": 4, "x": 4}>'
    assert.equal(before .. call .. "[tool]8[assistant]8", text)
    assert.equal(call, targets:sub(#before, #before + #call - 1))
    has(message(texts, { files = lines_with(line), template = { jinja = CHATML } }), "tools | template")
    has(message(texts, { files = lines_with((line:gsub("\"tools\".-%], ", "", 1))), template = { jinja = CHATML } }),
      "tool_calls | template")
    has(message(texts, { files = lines_with(line) }), "tools | template")
  end)

  it("give the tokens and masks of the reference library, with tokenizers of many families", function()
    local cases = assert(json.decode(read(FIXTURES .. "templates/masks.json"), true))
    local variables = assert(json.decode(read(FIXTURES .. "templates/families.json"), true)).variables
    local by_tokenizer = {}
    for _, case in ipairs(cases) do
      local name = case.tokenizer .. " " .. case.family
      by_tokenizer[name] = by_tokenizer[name] or message_tokens.new("spec", {
        tokenizer = ms.tokenizer(folder_with({
          ["chat_template.jinja"] = read(FIXTURES .. "templates/families/" .. case.family .. ".jinja"),
        }, "steps/" .. case.tokenizer)),
        template = "tokenizer", now = case.family == "roles" and "2024-07-26" or nil,
        template_kwargs = case.family == "masked" and { eos_token = "</s>" } or nil,
      })
      local messages = {}
      for i, given in ipairs(variables[case.conversation].messages) do
        messages[i] = { trained = given.role == "assistant" }
        for field, value in pairs(given) do messages[i][field] = value end
      end
      local ids, mask = by_tokenizer[name]:of(messages, "x:1", {})
      for i, is_trained in ipairs(mask) do mask[i] = is_trained and "1" or "0" end
      assert.same(case.ids, ids, name .. case.conversation)
      assert.equal(case.mask, table.concat(mask), name .. case.conversation)
    end
    assert.equal(80, #cases)
  end)

  it("come from the tokenizer's folder, where the reference library looks", function()
    local function written(files, template, o)
      o = o or {}
      o.tokenizer, o.template = ms.tokenizer(folder_with(files)), template or "tokenizer"
      return o.tokenizer:decode(ms.data.chat_prompt("Hi", o))
    end
    local config = '{"chat_template": "of the config", "eos_token": {"content": "<|endoftext|>"}}'
    assert.equal("of the config", written { ["tokenizer_config.json"] = config })
    assert.equal("a file's", written { ["tokenizer_config.json"] = config, ["chat_template.jinja"] = "a file's" })
    assert.equal("a processor's", written { ["chat_template.json"] = '{"chat_template": "a processor\'s"}' })
    local several = { ["tokenizer_config.json"] = '{"chat_template": [{"name": "default", "template": "plain"}, '
      .. '{"name": "tool_use", "template": "for {{ tools | length }}"}, {"name": "rag", "template": "rag"}]}' }
    assert.equal("plain", written(several))
    assert.equal("rag", written(several, "tokenizer:rag"))
    assert.equal("for 1", written(several, nil, { tools = { { type = "function" } } }))
    assert.equal("more", written({
      ["chat_template.jinja"] = "one", ["additional_chat_templates/more.jinja"] = "more",
    }, "tokenizer:more"))
    assert.equal("Hi<|endoftext|>", written {
      ["tokenizer_config.json"] = '{"eos_token": "<|endoftext|>"}',
      ["chat_template.jinja"] = "{{ messages[0].content }}{{ eos_token }}",
    })
    has(message(written, {}), "ms.data.chat_prompt: | no chat template")
    has(message(written, several, "tokenizer:rga"), "no chat template | rga | rag")
    has(message(written, { ["chat_template.jinja"] = "\n{% iff %}" }), "chat_template.jinja:2: | iff | if")
    has(message(written, { ["chat_template.jinja"] = "{{ bos_token }}" }), "bos_token | template_kwargs")
    has(message(written, { ["tokenizer_config.json"] = '{"chat_template": [1]}' }), "chat_template: item 1 | 1")
    has(message(ms.data.chat_prompt, "Hi", { template = "tokenizer" }), "tokenizer")
    has(message(ms.data.chat_prompt, "Hi", { template = "none.jinja" }), "none.jinja")
    has(message(ms.data.chat_prompt, "Hi", { template = "chatlm" }), "chatlm | chatml | .jinja")
    has(message(ms.data.chat_prompt, "Hi", { template = { jinja = 1 } }), "jinja | 1")
    has(message(ms.data.chat_prompt, "Hi", { template = { jinja = "", begin = "" } }), "jinja | begin")
  end)

  it("train on answers, and on what ends them", function()
    local path, template = lines_with(TURNS), { jinja = CHATML }
    local text, targets = texts { files = path, template = template }
    local named, of_named = texts { files = path, template = "chatml" }
    assert.equal(named, text)
    assert.equal(of_named, targets)
    assert.same({ "Yo<|im_end|>\n", "No<|im_end|>\n" }, trained { files = path, template = template })
    assert.same({ "No<|im_end|>\n" }, trained { files = path, template = template, train_on = "last" })
    assert.same({ "No<|im_end|>\n" }, trained { files = path, template = "chatml", train_on = "last" })
    assert.same({ "Hi<|im_end|>\n", "So?<|im_end|>\n" }, trained { files = path, template = template,
      train_on = "user" })
    local flagged = lines_with((TURNS:gsub('"Yo"', '"Yo", "train": false')))
    assert.same({ "No<|im_end|>\n" }, trained { files = flagged, template = template })
    assert.same({ "Yo<|im_end|>\n", "No<|im_end|>\n" },
      trained { files = path, template = file_with(CHATML, ".jinja") })
  end)

  it("train on what the template marks, of answers that are trained on", function()
    local marked = "{% for m in messages %}({{ m.role }}){% if m.role == 'assistant' %}"
      .. "{% generation %}{{ m.content }}!{% endgeneration %}|{% else %}{{ m.content }}|{% endif %}{% endfor %}"
      .. "{% if add_generation_prompt %}(assistant){% endif %}"
    local path = lines_with(TURNS)
    assert.same({ "Yo!", "No!" }, trained { files = path, template = { jinja = marked } })
    assert.same({ "No!" }, trained { files = path, template = { jinja = marked }, train_on = "last" })
    local within = "{% macro all() %}" .. marked .. "{% endmacro %}{{ all() }}"
    has(message(ms.data.chat, { files = path, template = { jinja = within }, seq = 64 }), ":1: | generation | line 1")
  end)

  it("name a message whose place is not known, and can train on the last answer alone", function()
    local thoughts = TURNS:gsub('"Yo"', '"<think>a</think>Yo"'):gsub('"No"', '"<think>b</think>No"')
    local path, template = lines_with("", thoughts), { jinja = THINKING }
    has(message(ms.data.chat, { files = path, template = template, seq = 64 }), ":2: | message 2 | train_on = \"last\"")
    assert.same({ "<think>b</think>No\n" }, trained { files = path, template = template, train_on = "last" })
    local other = CHATML .. "{% if add_generation_prompt %}<thought>{% endif %}"
    has(message(ms.data.chat, { files = path, template = { jinja = other }, seq = 64 }),
      ":2: | message 2 | add_generation_prompt")
    local ended = CHATML .. "{% if not add_generation_prompt %}{{ eos_token }}{% endif %}"
    assert.same({ "Yo<|im_end|>\n", "No<|im_end|>\n</s>" }, trained {
      files = lines_with(TURNS), template = { jinja = ended }, template_kwargs = { eos_token = "</s>" } })
    local strict = "{% if messages[0].role != 'system' %}{{ raise_exception('no system') }}{% endif %}"
    has(message(ms.data.chat, { files = path, template = { jinja = strict }, seq = 64 }),
      path .. ":2: | { jinja }:1: | no system")
  end)

  it("get tools, variables and the day of the recipe, and refuse what they do not read", function()
    local template = { jinja = "{{ tools | tojson }}{{ style }}{{ strftime_now('%d %b %Y') }}" }
    local function written(o)
      o.template = o.template or template
      return prompt("Hi", o)
    end
    local tools = file_with('[{"z": 1.0, "a": null}]', ".json")
    assert.equal('[{"z": 1.0, "a": null}]brief26 Jul 2024', written { tools = tools, now = "2024-07-26",
      template_kwargs = { style = "brief" } })
    assert.equal('[{"a": 2, "z": 1}]05 Jan 2025', written { tools = { { z = 1, a = 2 } }, now = "2025-01-05 09:30" })
    assert.equal("null01 Jan 2024", written { now = "2024-01-01" })
    has(message(written, {}), "strftime_now | now")
    has(message(written, { now = "today" }), "now | 2024-07-26 | today")
    has(message(written, { now = "2024-07-26", template_kwargs = { styel = 1 } }), "template_kwargs | styel | style")
    has(message(written, { now = "2024-07-26", template_kwargs = { tools = {} } }), "template_kwargs | tools | option")
    has(message(written, { now = "2024-07-26", tools = file_with("{}", ".json") }), "tools | list")
    local plain = { jinja = "x" }
    has(message(written, { template = plain, tools = tools }), "tools")
    has(message(written, { template = plain, now = "2024-07-26" }), "strftime_now")
    for name, value in pairs({ tools = tools, now = "2024-07-26", template_kwargs = {} }) do
      has(message(written, { template = "chatml", [name] = value }), name .. " | Jinja")
    end
    local model = ms.models.gpt2 { vocab = 256, layers = 1, dim = 8, heads = 2, seq = 24 }
    has(message(ms.evaluate.multiple_choice, model, { files = "none.jsonl", tools = tools }), "tools | Jinja")
  end)

  it("write prompts that begin a conversation, and take the fields that the template reads", function()
    local template = { jinja = "{% for m in messages %}{{ m.role }}: {{ m.reasoning_content }}{{ m.content | trim }}\n"
      .. "{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}" }
    local text = texts { files = lines_with(TURNS), template = template }
    local asked = prompt("Hi", { template = template })
    assert.equal("user: Hi\nassistant: ", asked)
    assert.equal(asked, text:sub(1, #asked))
    assert.equal("user: (m)x\nassistant: ", prompt({ { role = "user", content = " x", reasoning_content = "(m)" } },
      { template = template }))
    has(message(ms.data.chat_prompt, { { role = "user", content = "x", name = "al" } }, { template = template }),
      "message 1 | name")
    has(message(ms.data.chat_prompt, {}, { template = template }), "{ role =, content = }")
    local asks = message_tokens.new("spec", { template = template })
    assert.equal("yes", asks.tokenizer:decode(asks:answer("  yes ")))
    local found = chat_template.find("spec", template, {})
    assert.is_true(chat_template.takes(found, "reasoning_content"))
    assert.is_false(chat_template.takes(found, "tool_calls"))
    local named = chat_template.find("spec", "chatml", {})
    assert.is_true(chat_template.takes(named, "content"))
    assert.is_false(chat_template.takes(named, "reasoning_content"))
  end)

  it("are refused with a tokenizer that cuts their tokens, unless they are its own", function()
    local folder = folder_with { ["chat_template.jinja"] = CHATML:gsub("im_start", "im_begin") }
    local o = { tokenizer = ms.tokenizer(folder), template = folder .. "/chat_template.jinja" }
    has(message(ms.data.chat_prompt, "Hi", o), "<|im_begin|>")
    o.template = "tokenizer"
    assert.is_true(#ms.data.chat_prompt("Hi", o) > 10)
    o.template = { jinja = "{{ messages[0].content }}" } -- of the message, not of the template
    assert.is_true(#ms.data.chat_prompt("<|im_begin|>", o) > 3)
  end)

  it("put no second document_start before a conversation that begins with it", function()
    local tokenizer = ms.tokenizer(folder_with {})
    local start = tokenizer:id("<|endoftext|>")
    local function first(source)
      local ids = ms.data.chat_prompt("Hi", { tokenizer = tokenizer, document_start = start,
        template = { jinja = source } })
      return { ids[1], ids[2] }
    end
    local hi = tokenizer:encode("Hi")[1]
    assert.same({ start, hi }, first("{{ messages[0].content }}"))
    assert.same({ start, hi }, first("<|endoftext|>{{ messages[0].content }}"))
    has(message(first, "Hi<|endoftext|>"), "document_start")
  end)

  it("write pairs of answers", function()
    local path = lines_with('{"prompt": "Hi", "chosen": "Yes", "rejected": "No"}')
    local data = ms.data.preferences { files = path, template = { jinja = CHATML }, seq = 64, batch = 1 }
    local plain = ms.data.preferences { files = path, template = "chatml", seq = 64, batch = 1 }
    local _, batch = data:batches(1)()
    local _, expected = plain:batches(1)()
    for i = 0, 2 * 64 - 1 do
      assert.equal(expected.tokens.data[i], batch.tokens.data[i])
      assert.equal(expected.targets.data[i], batch.targets.data[i])
    end
  end)

  it("by name write what the published ones do", function()
    local published = {
      chatml = "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endfor %}",
      llama3 = "{{ '<|begin_of_text|>' }}{% for m in messages %}{{ '<|start_header_id|>' + m.role + "
        .. "'<|end_header_id|>\\n\\n' + m.content | trim + '<|eot_id|>' }}{% endfor %}",
      gemma = "{{ '<bos>' }}{% for m in messages %}{{ '<start_of_turn>' + ('model' if m.role == 'assistant' "
        .. "else m.role) + '\\n' + m.content | trim + '<end_of_turn>\\n' }}{% endfor %}",
      phi3 = "{% for m in messages %}{{ '<|' + m.role + '|>\\n' + m.content + '<|end|>\\n' }}{% endfor %}",
    }
    local messages = { { role = "user", content = " <think> Hi \n" },
      { role = "assistant", content = "<think>a</think>b" } }
    local more = { { role = "system", content = "Be brief." }, { role = "ipython", content = "1\n" },
      { role = "tool", content = "é" } }
    for name, source in pairs(published) do
      local list = { unpack(messages) }
      for _, given in ipairs(name == "gemma" and {} or more) do list[#list + 1] = given end
      local parts = {}
      for i, piece in ipairs(chat_template.render(chat_template.find("spec", name, {}), list, "x:1")) do
        parts[i] = piece.text
      end
      local found = chat_template.find("spec", { jinja = source }, {})
      assert.equal(found:render(list, nil, #list, false, "x:1").text, table.concat(parts), name)
    end
  end)
end)
