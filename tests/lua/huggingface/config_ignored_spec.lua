-- Fields of config.json that a user loads a folder without: in ms.huggingface.model, in the recipes, and in generate.

local config = require("moonshard.huggingface.config")
local huggingface = require("lua.support.huggingface")
local has = require("lua.support.message").has
local message = require("lua.support.fixture").message
local ms = require("moonshard")
local program = require("lua.support.program")
local scratch = require("lua.support.scratch")

-- A folder with unknown fields, and one that asks for what is not built.
local function odd_folder(name)
  return huggingface.copy_of(name, function(given)
    given.zeta, given.eta, given.rope_interleaved = 3, { 1, 2 }, true
    given.auto_map = { AutoModelForCausalLM = "modeling_odd.OddForCausalLM" }
  end)
end

local ALL = { "zeta", "eta", "rope_interleaved" }

-- A recipe that prints what `call` gives.
local function run(call)
  local recipe = program.recipe('local ms = require "moonshard"\nprint(' .. call .. ")\n")
  local ended = program.run({ "run", recipe })
  os.remove(recipe)
  return ended
end

describe("fields that are ignored", function()
  teardown(scratch.clear)

  it("K6 are no fault, and are not saved", function()
    local folder, saved = odd_folder("llama"), scratch.path()
    has(message(ms.huggingface.model, folder), "config.json: | 3 | zeta | eta | rope_interleaved")
    ms.huggingface.save(ms.huggingface.model(folder, { ignore = ALL }), saved)
    local whole = config.read(saved)
    for _, name in ipairs(ALL) do assert.is_nil(whole[name]) end
    assert.is_table(whole.auto_map)
    assert.equal(41, ms.huggingface.model(saved).config.vocab)
  end)

  it("K4 must be in the file: all that are not are named, with near names", function()
    local text = message(ms.huggingface.model, odd_folder("llama"), { ignore = { "zetta", "hiden_size", "zeta" } })
    has(text, "config.json | zetta | zeta? | hiden_size | hidden_size? | ignore")
    assert.is_nil(text:find("zeta,", 1, true), text)
    has(message(ms.huggingface.model, odd_folder("llama"), { ignore = { 3 } }), "ignore | item 1 | 3")
  end)

  it("K4 that have an effect are said at the start, once, and code of the folder that is not run", function()
    local folder = odd_folder("llama")
    local call = 'ms.huggingface.model("%s", { ignore = { "zeta", "eta", "rope_interleaved", "rms_norm_eps" } })'
    local ended = run(call:format(folder) .. ".config.eps")
    assert.equal(0, ended.status, ended.err)
    assert.equal("1e-06\n", ended.out)
    has(ended.err, folder .. "/config.json: rope_interleaved true | ignored | effect | neighbouring")
    has(ended.err, "rms_norm_eps 1e-05 | ignored | effect | 1e-06 | auto_map | does not run")
    assert.is_nil(ended.err:find("zeta", 1, true), ended.err)
    assert.is_nil(ended.err:find("eta ", 1, true), ended.err)
    assert.equal(3, select(2, ended.err:gsub("\n", "")))
    local twice = run(('(function() for i = 1, 2 do ms.huggingface.model("%s", { ignore = { "zeta", "eta", '
      .. '"rope_interleaved" } }) end end)()'):format(folder))
    assert.equal(2, select(2, twice.err:gsub("\n", "")), twice.err)
  end)

  it("K6 are named to recipes by ignore=a,b, also to their plans", function()
    local lists = {
      llama = { "plan", "recipes/llama.lua", "seq=8", "batch=1" },
      gpt2 = { "plan", "recipes/gpt2.lua", "seq=8", "batch=1" },
      lora = { "plan", "recipes/lora.lua", "seq=8", "batch=1" },
    }
    local runs = {}
    for name, words in pairs(lists) do
      local folder = odd_folder(name == "gpt2" and "gpt2" or "llama")
      table.insert(words, "folder=" .. folder)
      runs[name] = { unpack(words) }
      table.insert(runs[name], "ignore=zeta,eta,rope_interleaved")
      runs[name .. " without"] = words
    end
    for name, ended in pairs(program.run_all(runs)) do
      if name:find("without", 1, true) then
        assert.equal(2, ended.status, name)
        has(ended.err, "ignore=eta,zeta | rope_interleaved")
      else
        assert.equal(0, ended.status, name .. ": " .. ended.err)
        has(ended.err, "rope_interleaved true")
      end
    end
  end)

  it("K6 can be named to every recipe that reads a folder", function()
    local recipes = io.popen("ls recipes/*.lua")
    local readers = 0
    for path in recipes:lines() do
      for call in scratch.read(path):gmatch("ms%.huggingface%.model(%b())") do
        readers = readers + 1
        assert.is_truthy(call:find("ignore = cfg.ignore", 1, true), path .. ": " .. call)
      end
    end
    recipes:close()
    assert.is_true(readers >= 6)
  end)

  it("K6 are named to generate by ignore=a,b", function()
    local folder = odd_folder("llama")
    local words = { "generate", folder, "--prompt", "a", "--tokens", "1", "--temperature", "0" }
    local refused = program.run(words)
    assert.equal(2, refused.status)
    has(refused.err, "zeta | eta | rope_interleaved | ignore=eta,zeta")
    words[#words + 1] = "ignore=zeta,eta,rope_interleaved"
    local ended = program.run(words)
    has(ended.err, "rope_interleaved true | effect")
    assert.is_nil(ended.err:find("is unknown", 1, true), ended.err)
  end)
end)
