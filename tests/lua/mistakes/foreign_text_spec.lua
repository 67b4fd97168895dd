-- Text of others in messages: names and values of files, of command lines and of recipes can have control characters,
-- line ends and any length. What is printed moves no cursor, begins no line, and still says what to do.

local has = require("lua.support.message").has
local json = require("cjson")
local errors = require("moonshard.base.error")
local options = require("moonshard.base.checks.options")
local program = require("lua.support.program")
local scratch = require("lua.support.scratch")
local text_lines = require("moonshard.base.text.text_lines")

teardown(scratch.clear)

local EVIL = "x\27[31my\7\r\nmoonshard: forged\194\155z\127"
local SHOWN = "x\\x1b[31my" -- how it begins in a message

local function write(folder, name, value)
  scratch.write(folder .. "/" .. name, type(value) == "table" and json.encode(value) or value)
  return folder .. "/" .. name
end

local function safetensors(header)
  local text = json.encode(header)
  local size = #text
  return string.char(size % 256, math.floor(size / 256) % 256, math.floor(size / 65536), 0, 0, 0, 0, 0) .. text
end

local function recipe(folder, body) return write(folder, "recipe.lua", 'local ms = require "moonshard"\n' .. body) end

-- What has a text of others, by the arguments of a command that reports it: made in a folder, with the text.
local CASES = {
  ["model_type of a config"] = function(at, text)
    write(at, "config.json", { model_type = text })
    return { "run", recipe(at, ("ms.huggingface.model(%q)"):format(at)) }
  end,
  ["a file in weight_map"] = function(at, text)
    write(at, "model.safetensors.index.json", { weight_map = { a = text .. ".safetensors" } })
    return { "inspect", at }
  end,
  ["a name of a tensor"] = function(at, text)
    return { "inspect", write(at, "a.safetensors", safetensors { [text] = { dtype = "F32", shape = { 2 },
      data_offsets = { 0, 4 } } }) }
  end,
  ["the dtype of a tensor"] = function(at, text)
    return { "inspect", write(at, "a.safetensors", safetensors { a = { dtype = text, shape = { 1 },
      data_offsets = { 0, 4 } } }) }
  end,
  ["the kind of a tokenizer"] = function(at, text)
    return { "inspect", write(at, "tokenizer.json", { model = { type = text, vocab = { a = 0 }, merges = {} } }) }
  end,
  ["the manifest of a checkpoint"] = function(at, text)
    write(at, "manifest.json", { version = text, files = { text }, parameters = { { name = text } } })
    return { "inspect", at }
  end,
  ["a field of a cluster"] = function(at, text)
    local cluster = write(at, "c.lua", ("return { [%q] = 1, device = %q }"):format(text, text))
    return { "price", recipe(at, "ms.args {}"), "-n", "1", "--cluster", cluster }
  end,
  ["a role of a conversation"] = function(at, text)
    local chats = write(at, "c.jsonl", { messages = { { role = text, content = "x" } } })
    return { "run", recipe(at, ("ms.data.chat { files = %q, seq = 8 }"):format(chats)) }
  end,
  ["a field of a conversation"] = function(at, text)
    local chats = write(at, "c.jsonl", { messages = { { role = "user", content = "x", [text] = 1 } } })
    return { "run", recipe(at, ("ms.data.chat { files = %q, seq = 8 }"):format(chats)) }
  end,
  ["an option"] = function(at, text) return { "run", recipe(at, ("ms.optim.adamw { [%q] = 1 }"):format(text)) } end,
  ["a path"] = function(at, text) return { "run", recipe(at, ("ms.tokenizer(%q)"):format(text)) } end,
  ["an error of a recipe"] = function(at, text) return { "run", recipe(at, ("error(%q)"):format(text)) } end,
  ["a pattern"] = function(at, text)
    return { "run", recipe(at, ("ms.fully_shard(ms.nn.linear(2, 2), { units = { ms.re(%q) } })"):format(text .. "(")) }
  end,
  ["a setting of a command line"] = function(at, text) return { "run", recipe(at, "ms.args {}"), text .. "=1" } end,
  ["a command"] = function(_, text) return { text } end,
  ["a host"] = function(at, text)
    return { "run", recipe(at, "ms.args {}"), "--hosts", write(at, "hosts", "a slots=" .. text .. "\n") }
  end,
}
describe("text of others in a message", function()
  it("has no control characters and begins no line", function()
    local runs, names = {}, {}
    for name, make in pairs(CASES) do
      runs[name] = make(scratch.folder(), EVIL)
      names[#names + 1] = name
    end
    local ended = program.run_all(runs)
    for _, name in ipairs(names) do
      local said = ended[name].err
      assert.not_equal(0, ended[name].status, name)
      assert.is_nil(said:gsub("\n", ""):find("%c"), name .. ": " .. said)
      assert.is_nil(said:find("\194[\128-\159]"), name .. ": " .. said)
      assert.is_nil(("\n" .. said):find("\nmoonshard: forged"), name .. ": " .. said)
    end
    for _, name in ipairs({ "model_type of a config", "a file in weight_map", "a role of a conversation", "an option",
      "a path", "an error of a recipe", "a setting of a command line", "a command", "a field of a conversation" }) do
      assert.truthy(ended[name].err:find(SHOWN, 1, true), name .. ": " .. ended[name].err)
    end
  end)

  it("does not hide the rest of it, however long it is", function()
    local long, runs = ("long"):rep(5000), {}
    local facts = {
      ["model_type of a config"] = "qwen2", ["the dtype of a tensor"] = "F32", ["an option"] = "weight_decay",
      ["a role of a conversation"] = "assistant", ["a field of a conversation"] = "ignore",
    }
    for name in pairs(facts) do runs[name] = CASES[name](scratch.folder(), long) end
    local ended = program.run_all(runs)
    for name, fact in pairs(facts) do
      assert.is_true(#ended[name].err < 5000, name .. ": " .. #ended[name].err)
      has(ended[name].err, fact)
    end
  end)

  it("moves no cursor where a run or a command that ends well names its files", function()
    local at = scratch.folder() .. "/"
    local path = recipe(at, [[
      local cfg = ms.args { dir = "", resume = "", steps = 2, files = "" }
      local model = ms.models.gpt2 { vocab = 256, layers = 1, dim = 8, heads = 1, seq = 8 }
      ms.fully_shard(model)
      local train = ms.trainer { model = model, optimizer = ms.optim.adamw { lr = 0.1 }, loss = ms.loss.cross_entropy,
        checkpoint = { dir = cfg.dir, every = 1, keep_last = 3, resume = cfg.resume } }
      for step, batch in ms.data.text { files = cfg.files, seq = 8, batch = 1 }:batches { more = cfg.steps } do
        ms.log(step, train:step(batch))
      end]])
    scratch.write(at .. "text", ("a text\n"):rep(100))
    local dir = at .. EVIL
    local first = { "run", path, "files=" .. at .. "text", "dir=" .. dir, "--trace", at .. EVIL .. ".json",
      "--metrics", dir .. ".jsonl" }
    local again = { "run", path, "files=" .. at .. "text", "dir=" .. dir, "resume=" .. dir .. "/step-00000001",
      "steps=1", "--metrics", dir .. ".jsonl", "--tensorboard", dir .. ".events" }
    local facts = {
      { first, "traced in | wrote metrics" },
      { again, "resumed from | this run does not go on from | wrote metrics | continues after step 1" },
      { { "export", dir, dir .. ".exported", "--optimizer" }, "model.safetensors | tensors" },
    }
    for _, case in ipairs(facts) do
      local ended = program.run_all({ case[1] })[1]
      local said = ended.out .. ended.err
      assert.equal(0, ended.status, said)
      has(said, case[2] .. " | " .. SHOWN)
      assert.is_nil(said:gsub("\n", ""):find("%c"), said)
      assert.is_nil(("\n" .. said):find("\nmoonshard: forged"), said)
    end
  end)

  it("is escaped where errors are made, of the Lua layer and of the engine", function()
    local ok, raised = pcall(errors.invalid, "%s: %s is %d\n  and more", EVIL, "plain", 3)
    assert.is_false(ok)
    assert.equal("x\\x1b[31my\\x07\\r\\nmoonshard: forged\\xc2\\x9bz\\x7f: plain is 3\n  and more", raised.message)
    local engine = require("moonshard.base.ffi")
    assert.is_true(engine.C.ms_config_default(EVIL, engine.ffi.new("int[1]"), 4) ~= 0)
    local said = engine.ffi.string(engine.C.ms_error_message())
    engine.C.ms_error_clear()
    assert.truthy(said:find("x\\x1b[31my\\x07\\r\\nmoonshard: forged\\xc2\\x9bz\\x7f", 1, true), said)
    assert.is_nil(said:find("%c"))
    assert.equal('"a\\"b\\\\\\n"', options.describe('a"b\\\n'))
    assert.is_true(#options.describe(("x"):rep(10000)) < 400)
    assert.equal("a\\n b\n  c\\n\\nd", text_lines.indented("a\n b\n  c\n\nd"))
    assert.equal("caf\195\169 \226\130\172", text_lines.indented("caf\195\169 \226\130\172"))
  end)
end)
