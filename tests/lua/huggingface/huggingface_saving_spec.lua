-- Models that are written as Hugging Face folders: from ranks in parts, rounded, in several files, and what is refused.

local ffi = require("ffi")
local fixture = require("lua.support.fixture")
local huggingface = require("lua.support.huggingface")
local has = require("lua.support.message").has
local scratch = require("lua.support.scratch")
local json = require("cjson")
local ms = require("moonshard")
local program = require("lua.support.program")

local FIXTURES = huggingface.FIXTURES
local new_folder = scratch.path
local copy_of = huggingface.copy_of
local logits_of = huggingface.logits_of
local message = fixture.message

teardown(scratch.clear)

describe("a parameter", function()
  it("K6 is gathered in parts and written in parts by its owners", function()
    local recipe = program.recipe([[
      local ms, engine = require "moonshard", require "moonshard.base.ffi"
      local C, ffi, check = engine.C, engine.ffi, engine.check
      local model = ms.fully_shard(ms.nn.sequential { ms.nn.linear(7, 11) }, { mesh = { 2, 2 } })
      local whole = model:parameter("0.weight"):reshape(-1):tolist()
      local state, out = model.session:ensure_state(), ffi.new("float[77]")
      for _, range in ipairs { { 0, 77 }, { 0, 1 }, { 76, 1 }, { 20, 37 }, { 41, 2 }, { 40, 37, -1 } } do
        for i = 0, 76 do out[i] = 9 end
        check(C.ms_state_gather(state, 0, C.MS_TENSOR_PARAM, range[1], range[3] or range[2],
          ms.world().rank ~= 3 and out or nil))
        for i = 1, range[2] do assert(ms.world().rank == 3 or out[i - 1] == whole[range[1] + i]) end
        local after = range[2]
        assert(out[after] == 9 or after == 77)
      end
      for _, range in ipairs { { 0, 0 }, { 0, 78 }, { 77, 1 }, { 77, -1 }, { 5, -2 }, { -1, 2 } } do
        assert(C.ms_state_gather(state, 0, C.MS_TENSOR_PARAM, range[1], range[2], out) == C.MS_EINVAL)
        C.ms_error_clear()
      end
      local info = ffi.new("ms_tensor_info")
      check(C.ms_model_describe(model.sharding:handle(), 0, info, ffi.sizeof(info)))
      local first, count = tonumber(info.first), tonumber(info.count)
      for i = 0, 76 do out[i] = i end
      local cut = math.floor(count / 2)
      check(C.ms_state_write(state, 0, C.MS_TENSOR_PARAM, first + cut, count - cut, out + first + cut))
      check(C.ms_state_write(state, 0, C.MS_TENSOR_PARAM, first, cut, out + first))
      assert(C.ms_state_write(state, 0, C.MS_TENSOR_PARAM, first + 1, count, out) == C.MS_EINVAL)
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

describe("saving", function()
  it("K6 copies the tokenizer and what a folder says of generation, but no other files", function()
    local from, to = copy_of("llama"), new_folder()
    local names = { "generation_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
      "chat_template.jinja", "tokenizer.model", "vocab.json", "merges.txt", "chat_template.json",
      "tiktoken.model", "tekken.json", "additional_chat_templates/tool_use.jinja" }
    assert.equal(0, os.execute("mkdir " .. from .. "/additional_chat_templates"))
    for _, name in ipairs(names) do scratch.write(from .. "/" .. name, "\0 text of " .. name .. "\r\n") end
    scratch.write(from .. "/notes.txt", "mine")
    assert.equal(0, os.execute("mkdir " .. to))
    scratch.write(to .. "/tokenizer.json", "another")
    os.remove(from .. "/special_tokens_map.json")
    local recipe = program.recipe(([[
      local ms = require "moonshard"
      local model = ms.fully_shard(ms.huggingface.model(%q), { mesh = { 1, 2 } })
      ms.huggingface.save(model, %q)
    ]]):format(from, to))
    local ended = program.run({ "run", recipe, "-n", "2" })
    os.remove(recipe)
    assert.equal(0, ended.status, ended.err)
    for _, name in ipairs({ names[1], names[3], unpack(names, 5) }) do
      assert.equal(scratch.read(from .. "/" .. name), scratch.read(to .. "/" .. name))
    end
    assert.equal("another", scratch.read(to .. "/tokenizer.json"))
    local listing = io.popen("ls " .. to)
    assert.equal("additional_chat_templates chat_template.jinja chat_template.json config.json "
      .. "generation_config.json merges.txt model.safetensors tekken.json tiktoken.model tokenizer.json "
      .. "tokenizer.model tokenizer_config.json vocab.json ", (listing:read("*a"):gsub("\n", " ")))
    listing:close()
  end)

  it("K6 says the saved type under every name that the config had it", function()
    for _, case in ipairs({
      { { dtype = "bfloat16", torch_dtype = "bfloat16" }, { dtype = "float32", torch_dtype = "float32" } },
      { { dtype = "bfloat16" }, { dtype = "float32" } }, { { torch_dtype = "float16" }, { torch_dtype = "float32" } },
      { {}, { torch_dtype = "float32" } },
    }) do
      local given, expected = unpack(case)
      local from, to = copy_of("llama", function(config)
        config.dtype, config.torch_dtype = given.dtype, given.torch_dtype
      end), new_folder()
      ms.huggingface.save(ms.huggingface.model(from), to)
      local saved = json.decode(scratch.read(to .. "/config.json"))
      assert.same(expected, { dtype = saved.dtype, torch_dtype = saved.torch_dtype })
    end
  end)

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

  it("K6 refuses models that it cannot write", function()
    local model = ms.huggingface.model(FIXTURES .. "gpt2")
    local folder = copy_of("gpt2")
    for text, call in pairs({
      ["already"] = function() ms.huggingface.save(model, folder) end,
      ['max_shard_size | "5GB"'] = function()
        ms.huggingface.save(model, new_folder(), { max_shard_size = "big" })
      end,
      ["f32 | bf16 | f16"] = function() ms.huggingface.save(model, new_folder(), { dtype = "f64" }) end,
      ["biases | Hugging Face"] = function()
        ms.huggingface.save(fixture.gpt2 { bias = false }, new_folder())
      end,
      ["Linear | Hugging Face"] = function() ms.huggingface.save(ms.nn.linear(2, 2), new_folder()) end,
      ["model | trainer"] = function() ms.huggingface.save({}, new_folder()) end,
    }) do
      local raised = message(call)
      has(raised, text)
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
    has(refused(function(list) table.remove(list, 1) end), "embed.weight | missing")
    has(refused(function(list) list[1][2][2] = 9 end), "embed.weight | [41,9]")
    has(refused(function(list) list[1][2][1] = 40 end), "embed.weight | [40,8]")
    local longer = refused(function(list) list[2][2][1] = 1000 end) -- more rows than a vocabulary's padding
    has(longer, "pos.weight | [1000,8]")
    local extra = refused(function(list) list[#list + 1] = { "more", { 1 } } end)
    has(extra, "parameter more")
    local written = ms.huggingface.write(new_folder(), source(function(list) list[1][2][1] = 48 end))
    assert.equal(4 * ms.huggingface.model(FIXTURES .. "gpt2_base"):num_parameters(), written.bytes)
  end)
end)

-- Ranks that save into a folder that cannot be written, and where the writer fails on the way; then they go on.
local FAILING = [[
  local ms, safetensors = require "moonshard", require "moonshard.base.files.safetensors"
  local cfg = ms.args { base = "", wrong = "", out = "" }
  local model = ms.lora(ms.huggingface.model(cfg.base), { { ms.re"attn\\.w[qv]$", { rank = 2 } } })
  ms.fully_shard(model, { mesh = "1x2" })
  local create, said = safetensors.create, {}
  local function failing() error("no room") end
  for _, save in ipairs { ms.huggingface.save, ms.lora.save } do
    for i, at in ipairs { cfg.wrong, cfg.out .. #said } do
      safetensors.create = i == 2 and failing or create
      local ok, raised = pcall(save, model, at)
      assert(not ok)
      said[#said + 1] = tostring(raised)
    end
    safetensors.create = create
    save(model, cfg.out .. "saved" .. #said)
  end
  for i, text in ipairs(said) do
    assert(ms.world().rank == 0 or text:find("rank 0", 1, true), text)
    assert(text:find(i % 2 == 1 and cfg.wrong or "no room", 1, true), text)
  end
  print "saved"
]]

describe("a save that one rank cannot write", function()
  it("fails on all ranks, which then go on", function()
    local recipe, file, out = program.recipe(FAILING), scratch.path(), scratch.folder()
    scratch.write(file, "no folder")
    local run = program.run { "run", recipe, "-n", "2", "--timeout", "60", "base=" .. FIXTURES .. "llama",
      "wrong=" .. file .. "/x", "out=" .. out .. "/" }
    os.remove(recipe)
    assert.equal(0, run.status, run.err)
    has(run.out, "saved")
  end)
end)
