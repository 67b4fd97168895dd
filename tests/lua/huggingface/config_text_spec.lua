-- The text of a config.json that is written again: byte for byte what was read, but for the fields that changed.

local config = require("moonshard.huggingface.config")
local huggingface = require("lua.support.huggingface")
local has = require("lua.support.message").has
local json = require("moonshard.base.text.json")
local ms = require("moonshard")
local program = require("lua.support.program")
local scratch = require("lua.support.scratch")

-- What no table of Lua keeps: digits, escapes, order, blanks, empty lists and objects, integers above 2^53.
local ODD = {
  '"name": "Gr\\u00fc\\u00dfe \\/ \\"q\\" \\ud83d\\ude00"', '"initializer_range": 2.0e-02', '"temperature": 0.0',
  '"bad_words_ids": []', '"task_specific_params": {}', '"prefix": null', '"eos_token_id": [1, [2, null], {"a": -0.0}]',
  '"max_length": 9007199254740993', '"length_penalty": 1e-05', '"repetition_penalty": 1E+2', '"top_p": 0.1000',
  '"typ\\u0069cal_p": 1.0', '"language": {"b": [ ], "a": { } , "a2":[1,2 ,3]}', '"license": "\xc3\xa9\\n\\t"',
  '"base_model": 123456789012345678901234567890', '"top_k": -0',
}

-- The forms that a file can have.
local FORMS = {
  indented = function(list) return "{\n  " .. table.concat(list, ",\n  ") .. "\n}\n" end,
  ["indented by 4, without a last line end"] = function(list)
    return "{\n    " .. table.concat(list, ",\n    ") .. "\n}"
  end,
  ["with line ends of Windows and tabs"] = function(list)
    return "{\r\n\t" .. table.concat(list, ",\r\n\t") .. "\r\n}\r\n"
  end,
  ["on one line"] = function(list) return "{" .. table.concat(list, ",") .. "}" end,
  ["with blanks everywhere"] = function(list)
    return " \n{ " .. table.concat(list, " , "):gsub('": ', '" :\n ') .. " }\n\n"
  end,
}

-- The config of the fixture llama as a list of its fields, and the odd ones.
local function fields_with(more)
  local list, replaced = {}, { dtype = true, torch_dtype = true }
  for _, member in ipairs(json.fields("{" .. table.concat(more, ",") .. "}")) do replaced[member.name] = true end
  for _, member in ipairs(json.fields(scratch.read(huggingface.FIXTURES .. "llama/config.json"))) do
    if not replaced[member.name] then
      list[#list + 1] = ("%s: %s"):format(json.encode(member.name), member.text)
    end
  end
  for i, field in ipairs(more) do table.insert(list, (i * 2) % (#list + 1) + 1, field) end
  return list
end

-- A checkpoint of a folder's model after a step that changes nothing.
local function checkpoint_of(folder)
  local train = ms.trainer {
    model = ms.huggingface.model(folder), optimizer = ms.optim.sgd { lr = 0 }, loss = ms.loss.cross_entropy,
  }
  local tokens = ms.tensor { { 1, 2, 3, 4 }, dtype = "i32" }
  train:step { tokens = tokens, targets = tokens }
  return ms.checkpoint.save(train, scratch.path())
end

describe("a config.json that was read", function()
  teardown(scratch.clear)

  for form, text_of in pairs(FORMS) do
    it("U10 K6 is written with the same bytes: " .. form, function()
      local list = fields_with(ODD)
      table.insert(list, 3, '"torch_dtype": "float32"')
      local folder, saved = huggingface.copy_of("llama"), scratch.path()
      local text = text_of(list)
      scratch.write(folder .. "/config.json", text)
      ms.huggingface.save(ms.huggingface.model(folder), saved)
      assert.equal(text, scratch.read(saved .. "/config.json"))
      assert.same(config.read(folder), config.read(saved))
    end)

    it("U10 K6 differs in a field that changed, one that is new, and one that is left out: " .. form, function()
      local function text_with(dtype, zeta, ...) return text_of(fields_with({ dtype, zeta, ... })) end
      local before = text_with('"torch_dtype": "float32"', '"zeta": [1,2]', '"prefix": "\\u0061"')
      local folder, saved = huggingface.copy_of("llama"), scratch.path()
      scratch.write(folder .. "/config.json", before)
      ms.huggingface.save(ms.huggingface.model(folder, { ignore = { "zeta" } }), saved, { dtype = "bf16" })
      local after = scratch.read(saved .. "/config.json")
      local expected = before:gsub('"float32"', '"bfloat16"')
      local first, last = expected:find('%s*"zeta"%s*:%s*%[1,2%]%s*,')
      expected = expected:sub(1, first - 1) .. expected:sub(last + 1)
      assert.equal((expected:gsub("%s", "")), (after:gsub("%s", "")))
      assert.equal(before:match("^%s*{%s*"), after:match("^%s*{%s*"))
      assert.equal(before:match("%s*}%s*$"), after:match("%s*}%s*$"))
    end)

    it("U10 K6 has new fields in its own form: " .. form, function()
      local folder, saved = huggingface.copy_of("llama"), scratch.path()
      local text = text_of(fields_with({}))
      scratch.write(folder .. "/config.json", text)
      ms.huggingface.save(ms.huggingface.model(folder), saved)
      local list = fields_with({})
      list[#list + 1] = '"torch_dtype": "float32"'
      assert.equal(text_of(list), scratch.read(saved .. "/config.json"))
    end)
  end

  it("U10 K6 can lose its first and its last field, and all", function()
    local given = config.of_text('{"a": 1, "b": 2.0, "c": null}')
    local without = { a = '{ "b": 2.0, "c": null}', b = '{"a": 1, "c": null}', c = '{"a": 1, "b": 2.0}' }
    for left_out, expected in pairs(without) do
      local whole = {}
      for name, value in pairs(given) do whole[name] = name ~= left_out and value or nil end
      assert.equal(expected, config.text(whole, given))
    end
    assert.equal("{}", config.text({}, given))
    assert.equal('{ "d": 4}', config.text({ d = 4 }, given))
    assert.equal('{\n  "d": 4}', config.text({ d = 4 }, (config.of_text("{}"))))
    assert.equal('{\n  "d": 4\n}\n', config.text({ d = 4 }))
  end)

  it("U10 K6 is exported from a checkpoint with the same bytes", function()
    local list = fields_with(ODD)
    list[#list + 1] = '"dtype": "float32"'
    local folder, exported = huggingface.copy_of("llama"), scratch.path()
    local text = FORMS["indented by 4, without a last line end"](list)
    scratch.write(folder .. "/config.json", text)
    local ended = program.run({ "export", checkpoint_of(folder), exported, "--huggingface" })
    assert.equal("", ended.err)
    assert.equal(text, scratch.read(exported .. "/config.json"))
  end)

  it("U10 K6 is exported from a checkpoint with the companions of a folder that is named", function()
    local folder, bare, exported = huggingface.copy_of("llama"), huggingface.copy_of("llama"), scratch.path()
    local texts = { ["generation_config.json"] = '{"temperature":0.60}', ["vocab.txt"] = "a\r\n\xff\0b" }
    for name, text in pairs(texts) do scratch.write(folder .. "/" .. name, text) end
    local path = checkpoint_of(folder)
    local ended = program.run({ "export", path, exported, "--huggingface", "--tokenizer", folder })
    assert.equal("", ended.err)
    for name, text in pairs(texts) do assert.equal(text, scratch.read(exported .. "/" .. name), name) end
    local alone = program.run({ "export", path, scratch.path(), "--tokenizer", folder })
    assert.equal(2, alone.status)
    has(alone.err, "--tokenizer | --huggingface")
    local none = program.run({ "export", path, scratch.path(), "--huggingface", "--tokenizer", bare })
    assert.equal(2, none.status)
    has(none.err, bare .. ": | tokenizer.json | generation_config.json")
  end)

  it("U10 K6 has its companions copied byte for byte", function()
    local folder, saved = huggingface.copy_of("llama"), scratch.path()
    local texts = {
      ["generation_config.json"] = '{"temperature":0.60,\r\n "eos_token_id" : [ ],"top_p":1E0}',
      ["tokenizer_config.json"] = '{"chat_template": "{{ \\u00e9 }}", "n": 9007199254740993}',
      ["special_tokens_map.json"] = "{ }", ["vocab.txt"] = "a\r\n\xff\0b", ["tokenizer.model"] = "\n\0\1\2",
    }
    for name, text in pairs(texts) do scratch.write(folder .. "/" .. name, text) end
    ms.huggingface.save(ms.huggingface.model(folder), saved)
    for name, text in pairs(texts) do assert.equal(text, scratch.read(saved .. "/" .. name), name) end
  end)
end)
