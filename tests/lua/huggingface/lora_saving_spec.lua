-- Saving folders of adapters: where none is written, in which types, what they hold besides, and `moonshard export`.
-- lora_files_spec.lua compares what is in them.

local adapter = require("moonshard.nn.adapter")
local json = require("cjson")
local has = require("lua.support.message").has
local huggingface = require("lua.support.huggingface")
local message = require("lua.support.fixture").message
local ms = require("moonshard")
local program = require("lua.support.program")
local scratch = require("lua.support.scratch")

local FIXTURES = "tests/fixtures/lora/"

teardown(scratch.clear)

local function save(model, folder) return ms.lora.save(model, folder) end
local function model_of(name) return ms.huggingface.model(huggingface.FIXTURES .. name) end
local function loaded(name) return ms.lora.load(model_of(name), FIXTURES .. name) end

describe("saving adapters", function()
  it("Q8 is not saved over another one, nor from a model without adapters", function()
    local folder = scratch.path()
    save(loaded("llama"), folder)
    has(message(save, loaded("llama"), folder), "already exists")
    has(message(save, model_of("llama"), scratch.path()), "no adapters")
    has(message(ms.lora.save, loaded("llama"), scratch.path(), { dtype = "f64" }), "f64")
    has(message(ms.lora.save, loaded("llama"), scratch.path(), { ema = true }), "ema | trainer")
  end)

  it("Q8 is not saved with a whole model in one folder, in either order", function()
    for _, name in ipairs({ "llama", "gpt2" }) do
      local adapters, whole, both = scratch.path(), scratch.path(), scratch.path()
      save(loaded(name), adapters)
      has(message(ms.huggingface.save, loaded(name), adapters), adapters .. "/adapter_model.safetensors | add | remove")
      ms.huggingface.save(loaded(name), whole)
      has(message(save, loaded(name), whole), whole .. "/config.json | a whole model")
      has(message(ms.lora.check_folder, whole), whole .. "/config.json")
      has(message(ms.huggingface.check_folder, adapters), adapters .. "/adapter_model.safetensors")
      os.execute(("mkdir '%s' && cp '%s/adapter_config.json' '%s'"):format(both, adapters, both))
      has(message(ms.huggingface.save, loaded(name), both), both .. "/adapter_config.json | add | remove")
    end
  end)

  it("Q8 next to the weights of a model is not left out without a word", function()
    for _, name in ipairs({ "llama", "gpt2" }) do
      local both = scratch.path()
      os.execute(("cp -r '%s%s' '%s' && cp '%s%s'/adapter_* '%s'"):format(huggingface.FIXTURES, name, both, FIXTURES,
        name, both))
      local facts = both .. "/adapter_config.json | adapter = false | ms.lora.load"
      has(message(ms.huggingface.model, both), facts)
      has(message(ms.huggingface.model, both .. "/"), facts)
      program.refused(2, { "generate", both, "--prompt", "!" }, facts)
      local whole = ms.huggingface.model(both, { adapter = false })
      assert.same({}, adapter.layers(whole))
      assert.same(adapter.records(loaded(name)), adapter.records(ms.lora.load(whole, both)))
    end
  end)

  it("Q8 is not saved by several ranks that have the model undivided", function()
    local recipe = program.recipe([==[
      local ms = require "moonshard"
      local model = ms.lora(ms.nn.sequential { ms.nn.linear(4, 4) }, { { "0", { rank = 2 } } })
      ms.lora.save(model, "/nowhere")
    ]==])
    program.refused(2, { "run", recipe, "-n", "2" }, "ms.lora.save | not divided | 2 ranks | ms.fully_shard")
    os.remove(recipe)
  end)

  it("Q8 has whole modules that trained besides, and is saved with a warning if it cannot hold all", function()
    local recipe, folder, checkpoint, out = program.recipe([[
      local ms = require "moonshard"
      local cfg = ms.args { out = "", checkpoint = "" }
      local model = ms.nn.sequential { ms.nn.linear(4, 4), ms.nn.layer_norm(4) }
      ms.lora(model, { { "0", { rank = 1 } } }, { train = { "1", "0.weight" } })
      ms.fully_shard(model)
      local train = ms.trainer { model = model, optimizer = ms.optim.sgd { lr = 0.1 }, loss = ms.loss.mse }
      train:step { inputs = ms.ones(2, 4), targets = ms.ones(2, 4) }
      ms.lora.save(train, cfg.out)
      ms.checkpoint.save(train, cfg.checkpoint)
      ms.lora.merge(train)
      local ok, raised = pcall(ms.checkpoint.save, train, cfg.checkpoint)
      print(ok, raised)
    ]]), scratch.path(), scratch.path(), scratch.path()
    local ended = program.run({ "run", recipe, "out=" .. folder, "checkpoint=" .. checkpoint })
    os.remove(recipe)
    assert.equal(0, ended.status, ended.err)
    has(ended.err, "warning | 0.weight")
    has(ended.out, "false | ms.lora.merge")
    has(program.run({ "export", checkpoint, out, "--adapters" }).err, "warning | 0.weight")
    for _, of in ipairs({ folder, out }) do
      local config = json.decode(scratch.read(of .. "/adapter_config.json"))
      assert.same({ "1" }, config.modules_to_save)
      local file = ms.safetensors.open(of .. "/adapter_model.safetensors")
      assert.same({ 4 }, file:tensor("base_model.model.1.bias").shape)
    end
  end)

  it("Q8 is written in half precision when asked", function()
    local folder = scratch.path()
    local written = ms.lora.save(loaded("llama"), folder, { dtype = "bf16", base = "meta-llama/x" })
    local file = ms.safetensors.open(folder .. "/adapter_model.safetensors")
    assert.equal("BF16", file.tensors[1].dtype)
    local bytes = 0
    for _, tensor in ipairs(file.tensors) do bytes = bytes + tensor.bytes end
    assert.equal(bytes, written.bytes)
    assert.equal("meta-llama/x", json.decode(scratch.read(folder .. "/adapter_config.json")).base_model_name_or_path)
  end)
end)

describe("moonshard export", function()
  it("Q10 refuses adapters of a model that has none", function()
    local recipe, folder = program.recipe([[
      local ms = require "moonshard"
      local cfg = ms.args { out = "" }
      local model = ms.fully_shard(ms.nn.sequential { ms.nn.linear(3, 4) })
      local train = ms.trainer { model = model, optimizer = ms.optim.sgd { lr = 0.1 }, loss = ms.loss.mse }
      train:step { inputs = ms.ones(2, 3), targets = ms.ones(2, 4) }
      ms.checkpoint.save(train, cfg.out)
    ]]), scratch.path()
    assert.equal(0, program.run({ "run", recipe, "out=" .. folder }).status)
    program.refused(2, { "export", folder, scratch.path(), "--adapters" }, "adapters | ms.lora")
    program.refused(2, { "export", folder, scratch.path(), "--adapters", "--huggingface" },
      "--adapters | --huggingface")
    os.remove(recipe)
  end)
end)
