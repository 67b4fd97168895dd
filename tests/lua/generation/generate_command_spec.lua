-- moonshard generate: a recipe with the weights of a checkpoint, or a Hugging Face folder.

local has = require("lua.support.message").has
local program = require("lua.support.program")
local scratch = require("lua.support.scratch")

local RECIPE = "tests/lua/generation/recipes/generated.lua"
local folder

local function generated(...)
  local ended = program.run({ "generate", ... })
  assert.equal(0, ended.status, ended.err)
  return ended.out
end

local function refused(text, ...)
  local ended = program.run({ "generate", ... })
  assert.equal(2, ended.status)
  has(ended.err, text)
end

local function read(name)
  return scratch.read(folder .. "/" .. name)
end

-- A checkpoint in a folder of this name, and in its file "text" what the model gave.
local function train(name, ...)
  local path = folder .. "/" .. name
  local ended = program.run({ "run", RECIPE, "-n", "2", "checkpoint=" .. path, "out=" .. path .. "/text", ... })
  assert.equal(0, ended.status, ended.err)
end

describe("moonshard generate", function()
  setup(function()
    folder = os.tmpname()
    os.remove(folder)
    assert.equal(0, os.execute("mkdir " .. folder))
  end)

  teardown(function() os.execute("rm -rf " .. folder) end)

  it("gives what the trained model gave, on any mesh", function()
    train("a")
    local text = read("a/text")
    local arguments = { RECIPE, "--checkpoint", folder .. "/a", "--prompt", "the", "--tokens", "10", "--seed", "4" }
    assert.equal(text, generated(unpack(arguments)))
    assert.equal(text, generated("-n", "2", "mesh=2x1", unpack(arguments)))
    arguments[#arguments] = "5"
    assert.are_not.equal(text, generated(unpack(arguments)))
    local said = program.run({ "generate", unpack(arguments) }).err
    assert.truthy(said:find("GPT(", 1, true) or said:find("GPT2(", 1, true), said)
    refused("checkpoint", RECIPE, "--checkpoint", folder .. "/none")
    refused("needs --checkpoint DIR", RECIPE)
    refused("moonshard generate RECIPE.lua --checkpoint " .. folder .. "/a", folder .. "/a")
    refused("--temperature -1 | 0", RECIPE, "--temperature", "-1")
    refused("--top-p 7 | 0 | 1", RECIPE, "--top-p", "7")
  end)

  it("gives with --ema what the averages of the weights gave, on any mesh", function()
    train("averaged", "ema=0.9")
    local arguments = { RECIPE, "--checkpoint", folder .. "/averaged", "--prompt", "the", "--tokens", "10",
      "--seed", "4" }
    local text = read("averaged/text.ema")
    assert.are_not.equal(read("averaged/text"), text)
    assert.equal(read("averaged/text"), generated(unpack(arguments)))
    assert.equal(text, generated("--ema", unpack(arguments)))
    assert.equal(text, generated("-n", "2", "--ema", unpack(arguments)))
    refused("--ema needs --checkpoint DIR", "--ema", RECIPE)
    train("plain", "steps=1")
    refused("averages", RECIPE, "--ema", "--checkpoint", folder .. "/plain")
  end)

  it("continues with the weights of a Hugging Face folder, on any mesh", function()
    local model = "tests/fixtures/huggingface/gpt2" -- 41 tokens, and no tokenizer: bytes below 41
    local arguments = { model, "--prompt", "!#", "--tokens", "12", "--seed", "3", "dtype=f32" }
    local text = generated(unpack(arguments))
    assert.is_true(#text >= 12, text)
    assert.equal(text, generated("-n", "2", unpack(arguments)))
    assert.equal(text, generated("-n", "4", "mesh=2x2", unpack(arguments)))
    arguments[7] = "4"
    assert.are_not.equal(text, generated(unpack(arguments)))
    refused("folder", model, "--checkpoint", folder)
    refused(folder .. ": | recipe | config.json", folder)
  end)

  it("computes in the dtype of a Hugging Face folder", function()
    local copy = folder .. "/typed"
    assert.equal(0, os.execute("cp -r tests/fixtures/huggingface/gpt2 " .. copy))
    local config = read("typed/config.json"):gsub('"eos_token_id": 0,', "")
    local function text(field, ...)
      scratch.write(copy .. "/config.json", (config:gsub('"dtype": "float32",', field)))
      return generated(copy, "--prompt", "!#", "--tokens", "200", "--temperature", "1", ...)
    end
    local long, short = text("", "dtype=f32"), text("", "dtype=bf16")
    assert.are_not.equal(long, short)
    assert.equal(long, text('"dtype": "float32",'))
    assert.equal(long, text('"torch_dtype": "torch.float32",'))
    assert.equal(long, text("")) -- its tensors are F32
    assert.equal(short, text('"dtype": "float32",', "dtype=bf16"))
    local auto = text("", "dtype=auto")
    assert.equal(auto, text('"dtype": "bfloat16",'))
    assert.equal(auto, text('"torch_dtype": "float16",'))
    local help = program.run({ "generate", "--help" }).out
    has(help, "dtype=f32 | dtype=bf16 | float32 | bfloat16")
  end)

  it("draws tokens as a Hugging Face folder says, unless the command line does", function()
    local copy = folder .. "/drawing"
    assert.equal(0, os.execute("cp -r tests/fixtures/huggingface/gpt2 " .. copy))
    local config = read("drawing/config.json"):gsub('"eos_token_id": 0,', "")
    scratch.write(copy .. "/config.json", config)
    local path = copy .. "/generation_config.json"
    local function run(file, ...)
      os.remove(path)
      if file then scratch.write(path, file) end
      local ended = program.run({ "generate", copy, "--prompt", "!#", "--tokens", "40", "--seed", "3", ... })
      assert.equal(0, ended.status, ended.err)
      return ended.out, ended.err
    end
    for file, case in pairs({
      ['{"do_sample": true, "temperature": 2.5, "top_k": 7, "top_p": 0.9}'] =
        { { "--temperature", "2.5", "--top-k", "7", "--top-p", "0.9" }, "temperature 2.5, top_k 7, top_p 0.9" },
      ['{"do_sample": true}'] = { { "--temperature", "1", "--top-k", "50" }, "temperature 1, top_k 50" },
      ['{"do_sample": true, "temperature": 3, "top_k": null}'] =
        { { "--temperature", "3", "--top-k", "50" }, "temperature 3, top_k 50" },
      ['{"do_sample": true, "temperature": null, "top_k": 0}'] =
        { { "--temperature", "1", "--top-k", "0" }, "temperature 1, top_k 0" },
      ['{"do_sample": false, "temperature": 0.6}'] = { { "--temperature", "0" }, "temperature 0" },
    }) do
      local text, said = run(file)
      assert.equal(run(nil, unpack(case[1])), text, file)
      has(said, path .. ": " .. case[2])
      assert.equal(1, select(2, said:gsub(path, "")))
      local over, told = run(file, "--temperature", "3", "--top-k", "5", "--top-p", "0.5")
      assert.equal(run(nil, "--temperature", "3", "--top-k", "5", "--top-p", "0.5"), over)
      assert.is_nil(told:find(path, 1, true))
    end
    local _, said = run('{"repetition_penalty": 1.1, "min_p": 0.05, "num_beams": 1, "bad_words_ids": [[3]]}', "-n", "2")
    has(said, path .. " | bad_words_ids (a list), min_p 0.05, repetition_penalty 1.1")
    assert.is_nil(said:find("num_beams", 1, true))
    assert.equal(1, select(2, said:gsub(path, "")))
    _, said = run('{"repetition_penalty": 1.0, "transformers_version": "4.40", "max_length": 20, "top_k": null}')
    assert.is_nil(said:find(path, 1, true))
    for field, shown in pairs({ ['"temperature": -1'] = "temperature | -1", ['"top_k": 1.5'] = "top_k | 1.5",
      ['"top_p": 0'] = "top_p | 0", ['"do_sample": "no"'] = "do_sample | no" }) do
      scratch.write(path, "{" .. field .. "}")
      refused(path .. " | " .. shown, copy)
    end
    -- In a folder without that file config.json says it, as old ones do.
    local plain = run(nil, "--temperature", "2.5", "--top-k", "7")
    scratch.write(copy .. "/config.json", (config:gsub("{",
      '{"do_sample": true, "temperature": 2.5, "top_k": 7, "repetition_penalty": 1.3, "max_length": 9,', 1)))
    local text, told = run(nil)
    assert.equal(plain, text)
    has(told, copy .. "/config.json: temperature 2.5, top_k 7 | repetition_penalty 1.3")
    assert.is_nil(told:find("max_length", 1, true))
    assert.are_not.equal(plain, (run('{"do_sample": false}')))
  end)

  it("ends at the tokens that a Hugging Face folder names", function()
    local copy = folder .. "/ending"
    assert.equal(0, os.execute("cp -r tests/fixtures/huggingface/gpt2 " .. copy))
    local config = read("ending/config.json")
    local function name(field, generation)
      scratch.write(copy .. "/config.json", (config:gsub('"eos_token_id": 0', '"eos_token_id": ' .. field)))
      if generation then scratch.write(copy .. "/generation_config.json", generation) end
    end
    local arguments = { copy, "--prompt", "!#", "--tokens", "40", "--seed", "3", "--temperature", "2" }
    local function text(...)
      name(...)
      return generated(unpack(arguments))
    end
    local whole = text("null")
    assert.equal(#"!#" + 40 + #"\n", #whole)
    local function until_any(...) -- tokens are bytes
      local first = #whole
      for _, id in ipairs({ ... }) do
        first = math.min(first, whole:find(string.char(id), 3, true) or first)
      end
      return whole:sub(1, first - 1) .. "\n"
    end
    local a, b = whole:byte(22), whole:byte(12)
    assert.are_not.equal(whole, until_any(a))
    assert.equal(until_any(a), text(a))
    assert.equal(until_any(a, b), text(("[%d, %d]"):format(a, b)))
    assert.equal(until_any(b), text(a, ('{"eos_token_id": %d}'):format(b)))
    assert.equal(until_any(a, b), text("null", ('{"eos_token_id": [%d, 50256, %d]}'):format(a, b)))
    assert.equal(until_any(a, b), generated("-n", "2", unpack(arguments)))
    assert.equal(whole, text(a, "{}"))
    for value, shown in pairs({ ['"</s>"'] = "</s>", ["-1"] = "-1", ["[3, 1.5]"] = "1.5", ["true"] = "true" }) do
      name("0", '{"eos_token_id": ' .. value .. "}")
      refused(copy .. "/generation_config.json | eos_token_id | " .. shown, copy)
    end
    os.remove(copy .. "/generation_config.json")
    name("[null]")
    refused(copy .. "/config.json | eos_token_id | null", copy)
  end)
end)
