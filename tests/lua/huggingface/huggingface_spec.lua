-- Models in Hugging Face's layout: the reference library's numbers (tests/fixtures/huggingface) on several meshes, what
-- ranks read, the recipes, and checkpoints as folders.

local json = require("cjson")
local huggingface = require("lua.support.huggingface")
local has = require("lua.support.message").has
local scratch = require("lua.support.scratch")
local ms = require("moonshard")
local program = require("lua.support.program")

local FIXTURES = huggingface.FIXTURES
local new_folder = scratch.path
local read_file = scratch.read
local write_file = scratch.write
local values_of = huggingface.values_of
local copy_of = huggingface.copy_of
local train, assert_reference = huggingface.train, huggingface.assert_reference

teardown(scratch.clear)

-- ---- the reference library's numbers ----------------------------------------------------------------------------

-- The thread sanitizer makes a run ten times slower: there the richest model stands for all.
local function fixtures()
  return os.getenv("MOONSHARD_CONFIG") == "thread" and { "llama" } or { "gpt2", "gpt2_base", "llama", "llama_tied" }
end

describe("a Hugging Face folder", function()
  for _, name in ipairs(fixtures()) do
    it("K6 trains as the reference library trains it, on 1 rank and on 2x2: " .. name, function()
      assert_reference(name, train(name, 1, "1x1"))
      assert_reference(name, train(name, 4, "2x2"))
    end)
  end

  it("K6 gives the same with a padded vocabulary, ragged chunks and micro-batches", function()
    for _, name in ipairs(os.getenv("MOONSHARD_CONFIG") == "thread" and {} or { "gpt2", "llama" }) do
      assert_reference(name, train(name, 2, "1x2", { padding = 16, layout = "ragged", micro = 2 }))
    end
  end)

  it("K6 is saved as it was read: names, values, config, and division into files", function()
    local result = train("llama", 4, "1x4", { steps = 1, shard_size = "12KB", padding = 7 })
    local before, saved = ms.safetensors.open(FIXTURES .. "llama"), ms.safetensors.open(result.out .. "/before")
    assert.equal(#before.tensors, #saved.tensors)
    for i, tensor in ipairs(before.tensors) do
      assert.equal(tensor.name, saved.tensors[i].name)
      assert.same(tensor.shape, saved.tensors[i].shape)
      assert.equal(before:checksum(tensor.name), saved:checksum(tensor.name), tensor.name)
    end
    local decode = require("moonshard.base.text.json").decode -- null is nil in both
    local read, written = read_file(FIXTURES .. "llama/config.json"), read_file(result.out .. "/before/config.json")
    assert.same(decode(read), decode(written))
    assert.same({ "model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors",
      "model-00003-of-00003.safetensors" }, result.saved.files)
    local index = json.decode(read_file(result.out .. "/before/model.safetensors.index.json"))
    assert.equal(result.saved.bytes, index.metadata.total_size)
    local whole = 0
    for _, tensor in ipairs(before.tensors) do whole = whole + tensor.bytes end
    assert.equal(whole, result.saved.bytes)
  end)

  it("K6 is read in parts: each rank the bytes of its own rows", function()
    local whole = 0
    for _, tensor in ipairs(ms.safetensors.open(FIXTURES .. "gpt2").tensors) do whole = whole + tensor.bytes end
    assert.equal(whole, train("gpt2", 1, "1x1", { steps = 1 }).bytes_read)
    local half = train("gpt2", 2, "1x2", { steps = 1 }).bytes_read
    assert(half < 0.52 * whole, ("%d of %d bytes"):format(half, whole))
  end)
end)

-- ---- folders that are made for a test ---------------------------------------------------------------------------

describe("ranks", function()
  it("K6 that read different files stop before they train", function()
    local recipe = program.recipe(([[
      local ms = require "moonshard"
      local model = ms.huggingface.model(ms.world().rank == 1 and "%s" or "%s")
      ms.fully_shard(model)
      print(model:parameter("norm.weight"))
    ]]):format(copy_of("gpt2_base"), FIXTURES .. "gpt2_base"))
    local ended = program.run({ "run", recipe, "-n", "2" })
    os.remove(recipe)
    assert.equal(2, ended.status)
    has(ended.err, "files | rank")
  end)
end)

describe("the recipes", function()
  it("K6 train from a folder and save one, or refuse to before they train", function()
    local sizes = { vocab = 256, layers = 1, dim = 8, heads = 2, seq = 32, ffn = 12 }
    for name, model_of in pairs({ gpt2 = ms.models.gpt2, llama = ms.models.llama }) do
      local folder, saved = new_folder(), new_folder()
      ms.huggingface.save(model_of(sizes), folder)
      local words = { "run", "recipes/" .. name .. ".lua", "-n", "2", "mesh=1x2", "steps=1", "seq=8", "batch=1",
        "files=recipes", "folder=" .. folder, "save=" .. saved }
      local ended = program.run(words)
      assert.equal(0, ended.status, ended.err)
      assert.equal(1, select(2, ended.out:gsub("step 1/1  loss", "")))
      assert.equal(#ms.safetensors.open(folder).tensors, #ms.safetensors.open(saved).tensors)
      assert.same(require("moonshard.base.text.json").decode(read_file(folder .. "/config.json")),
        require("moonshard.base.text.json").decode(read_file(saved .. "/config.json")))
      local again = program.run(words)
      assert.equal(2, again.status)
      assert.equal("", again.out)
      has(again.err, "already")
      words[#words] = "save=/proc/model"
      local nowhere = program.run(words)
      assert.equal(2, nowhere.status, nowhere.err)
      assert.equal("", nowhere.out)
      has(nowhere.err, "/proc/model/config.json: | folder /proc/model: No such file")
    end
  end)

  it("K1 go on from a checkpoint on another mesh, which is exported in the folder's sizes", function()
    for name, model_of in pairs({ gpt2 = ms.models.gpt2, llama = ms.models.llama }) do
      local folder, runs, saved, exported, plain = new_folder(), new_folder(), new_folder(), new_folder(), new_folder()
      ms.huggingface.save(model_of({ vocab = 257, layers = 1, dim = 8, heads = 4, seq = 32, ffn = 12 }), folder)
      local words = { "run", "recipes/" .. name .. ".lua", "-n", "4", "seq=8", "batch=1", "files=recipes",
        "folder=" .. folder, "checkpoint=" .. runs, "resume=auto" }
      local function run(...)
        local all = { unpack(words) }
        for _, word in ipairs({ ... }) do all[#all + 1] = word end
        local ended = program.run(all)
        assert.equal(0, ended.status, ended.err)
        return ended.out
      end
      run("mesh=2x2", "steps=2")
      local out = run("mesh=1x4", "steps=3", "save=" .. saved)
      has(out, "resume | " .. runs .. "/step-00000002 | step 2")
      assert.equal(0, program.run({ "export", runs, exported, "--huggingface" }).status)
      local theirs, ours = ms.safetensors.open(saved), ms.safetensors.open(exported)
      for _, tensor in ipairs(theirs.tensors) do
        assert.same(tensor.shape, ours:tensor(tensor.name).shape)
        assert.equal(theirs:checksum(tensor.name), ours:checksum(tensor.name))
      end
      assert.equal(0, program.run({ "export", runs, plain }).status)
      plain = ms.safetensors.open(plain)
      assert.same({ 257, 8 }, plain:tensor("embed.weight").shape)
      local embedding = name == "gpt2" and "transformer.wte.weight" or "model.embed_tokens.weight"
      assert.equal(theirs:checksum(embedding), plain:checksum("embed.weight"))
    end
  end)

  it("K6 are planned from a config.json alone", function()
    local folder = new_folder()
    os.execute(("mkdir '%s'"):format(folder))
    write_file(folder .. "/config.json", read_file(FIXTURES .. "llama/config.json"))
    local planned = program.run({ "plan", "recipes/llama.lua", "-n", "6", "mesh=2x3", "seq=8", "folder=" .. folder })
    assert.equal(0, planned.status, planned.err)
    assert.truthy(planned.out:find("^plan: rank 0 of 6"))
  end)
end)

describe("a checkpoint", function()
  it("K6 of any mesh is exported as a folder that is the model", function()
    local checkpoint, exported, plain = new_folder(), new_folder(), new_folder()
    local ended = program.run({ "run", "recipes/quickstart.lua", "-n", "4", "layers=1", "dim=16", "heads=2", "seq=8",
      "batch=1", "steps=2", "sample=0", "svg=", "files=recipes", "checkpoint=" .. checkpoint, "save_every=2" })
    assert.equal(0, ended.status, ended.err)
    ended = program.run({ "export", checkpoint, exported, "--huggingface" })
    assert.equal(0, ended.status, ended.err)
    has(ended.out, exported .. ": | 17 tensors")
    assert.equal(0, program.run({ "export", checkpoint, plain }).status)
    local model, file = ms.huggingface.model(exported), ms.safetensors.open(plain)
    for name in model:named_parameters() do
      assert.same(values_of(file, name), model:parameter(name):reshape(-1):tolist(), name)
    end
    ended = program.run({ "export", checkpoint, exported, "--huggingface" })
    assert.equal(2, ended.status)
    has(ended.err, "already")
  end)
end)

-- ---- saving -----------------------------------------------------------------------------------------------------
