-- Models in Hugging Face's layout: the reference library's numbers (tests/fixtures/huggingface), what is read and
-- written, and folders that are refused.

local ffi = require("ffi")
local json = require("cjson")
local compare = require("moonshard.check.compare")
local fixture = require("lua.fixture")
local ms = require("moonshard")
local program = require("lua.program")

local FIXTURES = "tests/fixtures/huggingface/"
local message = fixture.message

local folders = {}

local function new_folder()
  local path = os.tmpname()
  os.remove(path)
  folders[#folders + 1] = path
  return path
end

teardown(function()
  for _, path in ipairs(folders) do os.execute(("rm -rf '%s'"):format(path)) end
end)

local function read_file(path)
  local file = assert(io.open(path, "rb"))
  local text = file:read("*a")
  file:close()
  return text
end

local function write_file(path, text)
  local file = assert(io.open(path, "wb"))
  file:write(text)
  file:close()
end

-- The values of a tensor as numbers.
local function values_of(file, name)
  local n = file:tensor(name).elements
  local data, list = ffi.new("float[?]", math.max(1, n)), {}
  file:read_f32(name, nil, 0, n, data)
  for i = 1, n do list[i] = data[i - 1] end
  return list
end

local function assert_close(expected, got, tolerance, what)
  assert.equal(#expected, #got, what)
  local worst = compare.arrays(expected, got, { count = #expected, tolerance = tolerance })
  if worst and worst.differs then
    error(("%s: %.9g beside %.9g, %g is allowed"):format(what, worst.got, worst.expected, worst.allowed), 0)
  end
end

-- ---- the reference library's numbers ----------------------------------------------------------------------------

local F32 = 1e-5

-- Trains a fixture as its reference was trained.
local function train(name, ranks, mesh, more)
  local out = new_folder()
  os.execute(("mkdir '%s'"):format(out))
  local words = {
    "run", "tests/lua/recipes/huggingface.lua", "-n", tostring(ranks), "mesh=" .. mesh, "folder=" .. FIXTURES .. name,
    "reference=" .. FIXTURES .. name .. ".safetensors", "out=" .. out,
  }
  for key, value in pairs(more or {}) do words[#words + 1] = ("%s=%s"):format(key, tostring(value)) end
  local ended = program.run(words)
  assert(ended.status == 0, ended.err)
  local result = json.decode(read_file(out .. "/result.json"))
  result.out = out
  return result
end

-- A folder that was written beside the tensors of the reference whose names begin with `kind`.
local function assert_tensors(reference, folder, kind, tolerance)
  local file, count = ms.safetensors.open(folder), 0
  for _, tensor in ipairs(file.tensors) do
    local theirs = reference:tensor(kind .. "." .. tensor.name)
    assert.same(theirs.shape, tensor.shape, tensor.name)
    assert_close(values_of(reference, theirs.name), values_of(file, tensor.name), tolerance, theirs.name)
  end
  for _, tensor in ipairs(reference.tensors) do
    if tensor.name:sub(1, #kind + 1) == kind .. "." then count = count + 1 end
  end
  assert.equal(count, #file.tensors)
end

local function assert_reference(name, result)
  local reference = ms.safetensors.open(FIXTURES .. name .. ".safetensors")
  assert.same(reference:tensor("logits").shape, result.shape)
  assert_close(values_of(reference, "logits"), result.logits, F32, "logits")
  assert_close(values_of(reference, "losses"), result.losses, F32, "losses")
  assert_tensors(reference, result.out .. "/gradient", "gradient", F32)
  assert_tensors(reference, result.out .. "/after", "after", compare.PARAMETERS * F32)
end

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
    local decode = require("moonshard.json").decode -- null is nil in both
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

-- A copy of a fixture: its config and its list of { name, shape, values } changed.
local function copy_of(name, change_config, change_tensors)
  local folder = new_folder()
  os.execute(("mkdir '%s'"):format(folder))
  local config = json.decode(read_file(FIXTURES .. name .. "/config.json"))
  if change_config then change_config(config) end
  write_file(folder .. "/config.json", json.encode(config))
  local file, tensors, declared = ms.safetensors.open(FIXTURES .. name), {}, {}
  for i, tensor in ipairs(file.tensors) do
    tensors[i] = { name = tensor.name, shape = tensor.shape, values = values_of(file, tensor.name) }
  end
  if change_tensors then change_tensors(tensors) end
  for i, tensor in ipairs(tensors) do declared[i] = { name = tensor.name, dtype = "F32", shape = tensor.shape } end
  local writer = ms.safetensors.create(folder .. "/model.safetensors", declared)
  for _, tensor in ipairs(tensors) do
    writer:put_f32(tensor.name, nil, 0, #tensor.values, ffi.new("float[?]", #tensor.values, tensor.values))
  end
  writer:finish()
  return folder
end

local function logits_of(folder, options)
  local model = ms.huggingface.model(folder, options)
  return model(ms.tensor { { 3, 1, 40, 7 }, dtype = "i32" })
end

local function set(name, value)
  return function(config) config[name] = value end
end

local function find(tensors, name)
  for i, tensor in ipairs(tensors) do
    if tensor.name == name then return tensor, i end
  end
  error("no tensor " .. name)
end

describe("names and shapes", function()
  it("K6 are read with and without the prefix, without the masks and frequencies of old files", function()
    local plain = copy_of("gpt2", nil, function(tensors)
      for _, tensor in ipairs(tensors) do tensor.name = tensor.name:gsub("^transformer%.", "") end
      tensors[#tensors + 1] = { name = "h.1.attn.bias", shape = { 1, 1, 2, 2 }, values = { 1, 0, 1, 1 } }
      tensors[#tensors + 1] = { name = "h.0.attn.masked_bias", shape = {}, values = { -1e4 } }
    end)
    assert.same(logits_of(FIXTURES .. "gpt2"):tolist(), logits_of(plain):tolist())
  end)

  it("K4 a missing, an extra and a misshapen tensor are listed, each kind with its names", function()
    local folder = copy_of("llama_tied", nil, function(tensors)
      find(tensors, "model.norm.weight").name = "model.norms.weight"
      local _, i = find(tensors, "model.layers.0.mlp.up_proj.weight")
      table.remove(tensors, i)
      local k = find(tensors, "model.layers.0.self_attn.k_proj.weight")
      k.shape = { k.shape[2], k.shape[1] }
    end)
    local text = message(ms.huggingface.model, folder)
    local expected = "does not hold the tensors that config.json asks for; "
      .. "missing: model.layers.0.mlp.up_proj.weight, model.norm.weight; "
      .. "misshapen: model.layers.0.self_attn.k_proj.weight is [16,8] instead of [8,16]; extra: model.norms.weight"
    assert.truthy(text:find(expected, 1, true), text)
  end)

  it("K4 of many names some are listed, and how many more there are", function()
    local text = message(ms.huggingface.model, copy_of("gpt2", set("n_layer", 3)))
    assert.truthy(text:find("missing: transformer.h.2.attn.c_attn.bias, ", 1, true))
    assert.truthy(text:find(", and 4 more", 1, true), text)
  end)

  it("K6 a tied head may be stored too, if it is the embedding", function()
    local function with_head(change)
      return copy_of("llama_tied", nil, function(tensors)
        local embed = find(tensors, "model.embed_tokens.weight")
        local head = { name = "lm_head.weight", shape = embed.shape, values = { unpack(embed.values) } }
        if change then head.values[100] = head.values[100] + 1 end
        tensors[#tensors + 1] = head
      end)
    end
    assert.same(logits_of(FIXTURES .. "llama_tied"):tolist(), logits_of(with_head()):tolist())
    assert.truthy(message(logits_of, with_head(true)):find(
      "config.json ties lm_head.weight to model.embed_tokens.weight, but they differ at element 99: set "
      .. "tie_word_embeddings to false", 1, true))
  end)

  it("K6 a head that is not tied is needed", function()
    assert.truthy(message(ms.huggingface.model, copy_of("llama_tied", set("tie_word_embeddings", false)))
      :find("missing: lm_head.weight", 1, true))
  end)

  it("K6 are read from f64 too, and integers are refused", function()
    local function stored_as(dtype, ctype)
      local folder = copy_of("gpt2_base")
      local file, declared = ms.safetensors.open(folder), {}
      for i, tensor in ipairs(file.tensors) do
        declared[i] = { name = tensor.name, dtype = dtype, shape = tensor.shape }
      end
      local writer = ms.safetensors.create(folder .. "/other.safetensors", declared)
      for _, tensor in ipairs(file.tensors) do
        local values = values_of(file, tensor.name)
        local data = ffi.new(ctype, #values, values)
        writer:put(tensor.name, data, ffi.sizeof(data))
      end
      writer:finish()
      os.remove(folder .. "/model.safetensors")
      return folder
    end
    assert.same(logits_of(FIXTURES .. "gpt2_base"):tolist(), logits_of(stored_as("F64", "double[?]")):tolist())
    assert.truthy(message(logits_of, stored_as("I32", "int32_t[?]")):find("elements of type I32", 1, true))
  end)
end)

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
    assert.truthy(ended.err:find("reads the model from other files than rank", 1, true), ended.err)
  end)
end)

describe("a parameter", function()
  it("K6 is gathered in parts and written in parts by its owners", function()
    local recipe = program.recipe([[
      local ms, engine = require "moonshard", require "moonshard.ffi"
      local C, ffi, check = engine.C, engine.ffi, engine.check
      local model = ms.fully_shard(ms.nn.sequential { ms.nn.linear(7, 11) }, { mesh = { 2, 2 } })
      local whole = model:parameter("0.weight"):reshape(-1):tolist()
      local state, out = model.session:ensure_state(), ffi.new("float[77]")
      for _, range in ipairs { { 0, 77 }, { 0, 1 }, { 76, 1 }, { 20, 37 }, { 41, 2 } } do
        for i = 0, 76 do out[i] = 9 end
        check(C.ms_state_gather_range(state, 0, "param", range[1], range[2], ms.world().rank ~= 3 and out or nil))
        for i = 1, range[2] do assert(ms.world().rank == 3 or out[i - 1] == whole[range[1] + i]) end
        local after = range[2]
        assert(after == 77 or out[after] == 9)
      end
      for _, range in ipairs { { 0, 0 }, { 0, 78 }, { 77, 1 }, { -1, 2 } } do
        assert(C.ms_state_gather_range(state, 0, "param", range[1], range[2], out) == C.MS_EINVAL)
        C.ms_error_clear()
      end
      local first, count = ffi.new("double[1]"), ffi.new("double[1]")
      check(C.ms_model_owned(model.sharding:handle(), 0, first, count))
      for i = 0, 76 do out[i] = i end
      local cut = math.floor(count[0] / 2)
      check(C.ms_state_write(state, 0, "param", first[0] + cut, count[0] - cut, out + first[0] + cut))
      check(C.ms_state_write(state, 0, "param", first[0], cut, out + first[0]))
      assert(C.ms_state_write(state, 0, "param", first[0] + 1, count[0], out) == C.MS_EINVAL)
      C.ms_error_clear()
      for i, value in ipairs(model:parameter("0.weight"):reshape(-1):tolist()) do assert(value == i - 1) end
      print("all of it")
    ]])
    local ended = program.run({ "run", recipe, "-n", "4" })
    os.remove(recipe)
    assert.equal("all of it\n", ended.out, ended.err)
  end)
end)

-- ---- config.json ------------------------------------------------------------------------------------------------

describe("a config.json", function()
  local function refused(name, change)
    return message(ms.huggingface.model, copy_of(name, change))
  end

  for title, case in pairs({
    ["attention biases"] = { "llama", set("attention_bias", true),
      "attention_bias is true: biases in attention are not built" },
    ["biases in the MLP"] = { "llama", set("mlp_bias", true), "mlp_bias is true" },
    ["another activation of Llama"] = { "llama", set("hidden_act", "gelu"),
      'hidden_act is "gelu": only silu is built' },
    ["another activation of GPT-2"] = { "gpt2", set("activation_function", "quick_gelu"),
      'activation_function is "quick_gelu", which is not built: there are gelu, gelu_fast, gelu_new' },
    ["a sliding window"] = { "llama", set("sliding_window", 128),
      "sliding_window is 128: attention in a sliding window" },
    ["other rope types"] = { "llama", function(c) c.rope_scaling.rope_type = "yarn" end,
      'rope_scaling: rope type "yarn" is not built: there are default and llama3' },
    ["rope on a part of a head"] = { "llama_tied", function(c) c.rope_parameters.partial_rotary_factor = 0.5 end,
      "rope_parameters: partial_rotary_factor 0.5" },
    ["two ropes"] = { "llama", function(c) c.rope_parameters = { rope_type = "default" } end, "say the same thing" },
    ["a scaling without its factor"] = { "llama", function(c) c.rope_scaling.factor = nil end,
      "rope_scaling: factor must be a number above 0, not nil" },
    ["attention without its scale"] = { "gpt2", set("scale_attn_weights", false), "scale_attn_weights is false" },
    ["attention scaled by layer"] = { "gpt2", set("scale_attn_by_inverse_layer_idx", true),
      "scaled by layer is not built" },
    ["quantised weights"] = { "llama", set("quantization_config", { bits = 4 }), "quantization_config is a table" },
    ["a field that nobody knows"] = { "llama", set("house_number", 2),
      'field house_number is not known here, so what it does to the numbers is not either; if it has no part in them, '
      .. 'give ignore = { "house_number" }' },
    ["a field that is nearly known"] = { "llama", set("rms_norm_epsilon", 2),
      "is not either (the nearest that is: rms_norm_eps)" },
    ["another family"] = { "llama", set("model_type", "mistral"), 'model_type is "mistral": there are gpt2 and llama' },
    ["a size that is none"] = { "gpt2", set("n_layer", "two"),
      'n_layer must be a whole number of at least 1, not "two"' },
    ["heads that do not divide"] = { "gpt2", set("n_head", 5), "n_embd 12 must be a multiple of n_head 5" },
    ["heads without keys"] = { "llama", set("num_key_value_heads", 3), "that of num_key_value_heads 3" },
  }) do
    it("K6 is refused with " .. title, function()
      local text = refused(case[1], case[2])
      assert.truthy(text:find(case[3], 1, true), text)
      assert.truthy(text:find("/config.json: ", 1, true), text)
    end)
  end

  it("K6 that is missing or no JSON is told", function()
    assert.truthy(message(ms.huggingface.model, "/no/folder"):find("/no/folder/config.json: No such file", 1, true))
    local folder = copy_of("gpt2")
    write_file(folder .. "/config.json", "{")
    assert.truthy(message(ms.huggingface.model, folder):find("config.json: byte 2: ", 1, true))
  end)

  it("K6 a field that has no part is ignored when it is named", function()
    local folder = copy_of("llama_tied", set("house_number", 7))
    local logits = logits_of(folder, { ignore = { "house_number" } })
    assert.same(logits_of(FIXTURES .. "llama_tied"):tolist(), logits:tolist())
  end)

  it("K6 says theta and scaling in the old way and in the new, alike", function()
    local old = copy_of("llama_tied", function(c)
      c.rope_theta, c.rope_scaling, c.rope_parameters = c.rope_parameters.rope_theta, c.rope_parameters, nil
      c.rope_scaling.rope_theta, c.rope_scaling.type, c.rope_scaling.rope_type = nil, "llama3", nil
    end)
    assert.same(logits_of(FIXTURES .. "llama_tied"):tolist(), logits_of(old):tolist())
    local without = logits_of(copy_of("llama_tied", function(c) c.rope_parameters.rope_type = "default" end))
    assert.is_not.same(logits_of(FIXTURES .. "llama_tied"):tolist(), without:tolist())
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
      assert.same(require("moonshard.json").decode(read_file(folder .. "/config.json")),
        require("moonshard.json").decode(read_file(saved .. "/config.json")))
      local again = program.run(words)
      assert.equal(2, again.status)
      assert.equal("", again.out)
      assert.truthy(again.err:find("is there already: save into a folder of its own", 1, true), again.err)
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
    assert.truthy(ended.out:find(exported .. ": 17 tensors, ", 1, true), ended.out)
    assert.equal(0, program.run({ "export", checkpoint, plain }).status)
    local model, file = ms.huggingface.model(exported), ms.safetensors.open(plain)
    for name in model:named_parameters() do
      assert.same(values_of(file, name), model:parameter(name):reshape(-1):tolist(), name)
    end
    ended = program.run({ "export", checkpoint, exported, "--huggingface" })
    assert.equal(2, ended.status)
    assert.truthy(ended.err:find("is there already: save into a folder of its own", 1, true), ended.err)
  end)
end)

-- ---- saving -----------------------------------------------------------------------------------------------------

describe("saving", function()
  it("K6 writes a model that was made here, and reads it again", function()
    for _, model in ipairs({
      ms.models.gpt2 { vocab = 41, layers = 1, dim = 8, heads = 2, seq = 4, mlp_ratio = 3, activation = "gelu",
        tied = true },
      ms.models.llama { vocab = 41, layers = 1, dim = 8, heads = 2, kv_heads = 1, head_dim = 6, ffn = 12, seq = 64,
        rope_theta = 500, pad_vocab_to_multiple_of = 32, rope_scaling = { factor = 4, low_freq_factor = 1,
          high_freq_factor = 4, original_max_position_embeddings = 16 } },
    }) do
      local folder = new_folder()
      local written = ms.huggingface.save(model, folder)
      assert.same({ "model.safetensors" }, written.files)
      local tokens = ms.tensor { { 3, 1, 40, 7 }, dtype = "i32" }
      assert.same(model(tokens):tolist(), logits_of(folder):tolist())
    end
  end)

  it("K6 rounds to bf16 and f16 when asked", function()
    local model = ms.huggingface.model(FIXTURES .. "llama_tied")
    for dtype, name in pairs({ bf16 = "BF16", f16 = "F16" }) do
      local folder = new_folder()
      ms.huggingface.save(model, folder, { dtype = dtype })
      local file = ms.safetensors.open(folder)
      assert.equal(name, file:tensor("model.norm.weight").dtype)
      -- The fixture's values are bf16: the one keeps them, the other has more digits but fewer exponents.
      assert.same(logits_of(FIXTURES .. "llama_tied"):tolist(), logits_of(folder):tolist())
    end
  end)

  it("K6 refuses what it cannot do", function()
    local model = ms.huggingface.model(FIXTURES .. "gpt2")
    local folder = copy_of("gpt2")
    for text, call in pairs({
      ["is there already: save into a folder of its own"] = function() ms.huggingface.save(model, folder) end,
      ['max_shard_size must be a size such as "5GB"'] = function()
        ms.huggingface.save(model, new_folder(), { max_shard_size = "big" })
      end,
      ["there are f32, bf16 and f16"] = function() ms.huggingface.save(model, new_folder(), { dtype = "f64" }) end,
      ["without biases has no Hugging Face layout"] = function()
        ms.huggingface.save(fixture.gpt2 { bias = false }, new_folder())
      end,
      ["a Linear has no Hugging Face layout"] = function() ms.huggingface.save(ms.nn.linear(2, 2), new_folder()) end,
      ["give a model or a trainer"] = function() ms.huggingface.save({}, new_folder()) end,
    }) do
      local raised = message(call)
      assert.truthy(raised:find(text, 1, true), raised)
    end
  end)

  it("K6 writes from anything that gives parameters, and compares them with the config", function()
    local config = ms.huggingface.config(ms.huggingface.model(FIXTURES .. "gpt2_base"))
    local function source(change)
      local list, i = {}, 0
      for name, parameter in ms.huggingface.model(FIXTURES .. "gpt2_base"):named_parameters() do
        local dims = { unpack(parameter.shape) }
        list[#list + 1] = { name, dims }
      end
      change(list)
      return { config = config, parameters = function()
        i = i + 1
        return list[i] and list[i][1], list[i] and list[i][2], function(_, count) return ffi.new("float[?]", count) end
      end }
    end
    local function refused(change) return message(ms.huggingface.write, new_folder(), source(change)) end
    assert.truthy(refused(function(list) table.remove(list, 1) end):find("parameter embed.weight is missing", 1, true))
    assert.truthy(refused(function(list) list[1][2][2] = 9 end):find("parameter embed.weight is [41,9]", 1, true))
    assert.truthy(refused(function(list) list[1][2][1] = 40 end):find("parameter embed.weight is [40,8]", 1, true))
    local extra = refused(function(list) list[#list + 1] = { "more", { 1 } } end)
    assert.truthy(extra:find("parameter more has no place", 1, true))
    local written = ms.huggingface.write(new_folder(), source(function(list) list[1][2][1] = 48 end))
    assert.equal(4 * ms.huggingface.model(FIXTURES .. "gpt2_base"):num_parameters(), written.bytes)
  end)
end)
