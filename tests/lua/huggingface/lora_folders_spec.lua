-- Reading folders of adapters: which are refused, and which are read with a warning. lora_files_spec.lua compares what
-- is in them, lora_saving_spec.lua saves them.

local adapter = require("moonshard.nn.adapter")
local ffi = require("ffi")
local json = require("cjson")
local has = require("lua.support.message").has
local huggingface = require("lua.support.huggingface")
local message = require("lua.support.fixture").message
local ms = require("moonshard")
local peft_fields = require("moonshard.huggingface.peft.fields")
local program = require("lua.support.program")
local scratch = require("lua.support.scratch")
local re = ms.re

local FIXTURES = "tests/fixtures/lora/"
local ALL = { "q_proj", "v_proj", "down_proj", "lm_head" } -- the last one is a whole name

teardown(scratch.clear)

local function save(model, folder) return ms.lora.save(model, folder) end
local function model_of(name) return ms.huggingface.model(huggingface.FIXTURES .. name) end

-- A copy of a folder of adapters, changed.
local function copy_of(name, change_config, change_tensors)
  local folder, from = scratch.folder(), name:find("^/") and name or FIXTURES .. name
  local config = json.decode(scratch.read(from .. "/adapter_config.json"))
  if change_config then change_config(config) end
  scratch.write(folder .. "/adapter_config.json", json.encode(config))
  local file, tensors, declared = ms.safetensors.open(from .. "/adapter_model.safetensors"), {}, {}
  for i, tensor in ipairs(file.tensors) do
    tensors[i] = { name = tensor.name, dtype = tensor.dtype, shape = { unpack(tensor.shape) } }
  end
  if change_tensors then change_tensors(tensors) end
  for i, tensor in ipairs(tensors) do declared[i] = tensor end
  local writer = ms.safetensors.create(folder .. "/adapter_model.safetensors", declared)
  for _, tensor in ipairs(tensors) do
    local elements = tensor.shape[1] * (tensor.shape[2] or 1)
    writer:put(tensor.name, tensor.bytes or ("\0"):rep(elements * (tensor.dtype == "F32" and 4 or 1)))
  end
  writer:finish()
  return folder
end

local function refused(folder, model, ...)
  local text = message(ms.lora.load, model, folder)
  for _, facts in ipairs({ ... }) do has(text, facts) end
end

describe("a folder of adapters", function()
  local set = huggingface.set

  it("Q8 is refused for another model, rank or shape, by tensor", function()
    refused(FIXTURES .. "gpt2", model_of("llama"), "transformer.h.0.attn.c_attn | no linear layer")
    refused("nowhere", model_of("llama"), "nowhere has no adapter_model.safetensors | not a folder of adapters")
    local whole, pickled = scratch.folder(), scratch.folder()
    scratch.write(whole .. "/config.json", "{}")
    scratch.write(pickled .. "/adapter_model.bin", "")
    refused(whole, model_of("llama"), "a whole model | ms.huggingface.model")
    local several = scratch.folder()
    for _, name in ipairs({ "first", "second" }) do
      os.execute(("mkdir '%s/%s' && cp %sllama/* '%s/%s/'"):format(several, name, FIXTURES, several, name))
    end
    refused(several, model_of("llama"), "several | " .. several .. "/first | first, second")
    refused(pickled, model_of("llama"), "adapter_model.bin | torch.load | save_file")
    refused(copy_of("llama", nil, function(list) list[1].shape[2] = 5 end), model_of("llama"), "5 | another model")
    refused(copy_of("llama", set("r", 8)), model_of("llama"), "lora_A.weight | [4,16] | [8,16]")
    refused(copy_of("gpt2", set("rank_pattern", {})), model_of("gpt2"), "mlp.c_proj | [3,48] | [2,48]")
    refused(copy_of("llama", set("r", 4.5)), model_of("llama"), "adapter_config.json | r | q_proj | 4.5 | whole")
    refused(copy_of("llama", set("rank_pattern", { q_proj = 4.5 })), model_of("llama"), "rank_pattern | q_proj | 4.5")
    refused(FIXTURES .. "llama", ms.lora(model_of("llama"), { { re"wq", { rank = 4, alpha = 4 } } }),
      "v_proj | none there")
    refused(FIXTURES .. "llama", ms.lora(model_of("llama"), { { re"w", { rank = 4, alpha = 4 } },
      { "head", { rank = 4, alpha = 4 } } }), "no adapter | layers.")
    refused(FIXTURES .. "llama", ms.lora(model_of("llama"), { { re"wq|wv|head|layers.1.mlp.w2", { rank = 4 } } }),
      "multiplied by 1 | alpha / rank = 2 | alpha = 4")
    refused(FIXTURES .. "gpt2", ms.lora(model_of("gpt2"), { { re"wq|wk|wv", { rank = 1, alpha = 1.5 } },
      { re"fc2", { rank = 3 } } }), "rank 2 | 3")
  end)

  it("Q8 is read whatever the length of its header, whose bytes begin the file", function()
    local PATH = "/adapter_model.safetensors"
    local plain, folder = copy_of("llama"), scratch.folder()
    local whole = scratch.read(plain .. PATH)
    local old = whole:byte(1) + 256 * whole:byte(2)
    scratch.write(folder .. "/adapter_config.json", scratch.read(plain .. "/adapter_config.json"))
    for protocol = 2, 5 do -- as a pickle begins
      local length = 65536 + 256 * protocol + 128
      scratch.write(folder .. PATH, string.char(128, protocol, 1) .. ("\0"):rep(5) .. whole:sub(9, 8 + old)
        .. (" "):rep(length - old) .. whole:sub(9 + old))
      assert.equal("table", type(ms.lora.load(model_of("llama"), folder)))
    end
    assert.equal(0, program.run({ "inspect", folder .. PATH }).status)
  end)

  it("Q8 can be multiplied by 0, as in PEFT: it adds nothing, and is saved as it was read", function()
    local WEIGHTS = "/adapter_model.safetensors"
    local tokens = ms.tensor { dtype = "i32", { 1, 2, 3 } }
    local function values(folder)
      local file, list = ms.safetensors.open(folder .. WEIGHTS), {}
      for _, tensor in ipairs(file.tensors) do
        local x = ms.zeros(tensor.shape)
        file:read_f32(tensor.name, nil, 0, tensor.shape[1] * tensor.shape[2], x.data)
        list[tensor.name] = x:tolist()
      end
      return list
    end
    for _, name in ipairs({ "llama", "gpt2" }) do
      for what, change in pairs({
        lora_alpha = function(config) config.lora_alpha, config.alpha_pattern = 0, nil end,
        rslora = function(config) config.lora_alpha, config.alpha_pattern, config.use_rslora = 0, nil, true end,
        alpha_pattern = function(config) config.alpha_pattern = { [".*"] = 0 } end,
        one = function(config)
          config.alpha_pattern = { ["h.1.attn.c_attn"] = 0, ["layers.1.self_attn.q_proj"] = 0 }
        end,
      }) do
        local folder, saved = copy_of(name, change), scratch.path()
        scratch.write(folder .. WEIGHTS, scratch.read(FIXTURES .. name .. WEIGHTS))
        local model = ms.lora.load(model_of(name), folder)
        save(model, saved)
        assert.same(values(FIXTURES .. name), values(saved), name .. what)
        local logits = model(tokens):tolist()
        assert.same(logits, ms.lora.load(model_of(name), saved)(tokens):tolist(), name .. what)
        if what ~= "one" then assert.same(model_of(name)(tokens):tolist(), logits, name .. what) end
        refused(folder, ms.lora(model_of(name), { { re"wq|wk|wv|w2|fc2", { rank = 1 } } }), "adapter")
      end
    end
    refused(copy_of("llama", set("lora_alpha", 1e300)), model_of("llama"), "adapter_config.json | alpha | f32")
    refused(copy_of("llama", set("rank_pattern", { q_proj = 0 })), model_of("llama"), "rank_pattern | q_proj | above 0")
    refused(copy_of("llama", set("lora_alpha", -1)), model_of("llama"), "lora_alpha | at least 0 | -1")
  end)

  it("Q8 is refused with missing tensors, of another dtype, and with names that are not adapters", function()
    refused(copy_of("llama", nil, function(list) table.remove(list, 2) end), model_of("llama"),
      "lora_B.weight | missing")
    refused(copy_of("llama", nil, function(list) list[1].dtype = "U8" end), model_of("llama"), "U8 | F32, BF16, F16")
    refused(copy_of("llama", nil, function(list) list[1].name = "base_model.model.embed.lora_embedding_A" end),
      model_of("llama"), "lora_embedding_A | lora_A")
    refused(scratch.folder(), model_of("llama"), "adapter_model.safetensors")
    local folder = copy_of("llama")
    os.remove(folder .. "/adapter_config.json")
    refused(folder, model_of("llama"), "adapter_config.json")
    has(message(ms.lora.load, model_of("llama"), 3), "folder | 3")
  end)

  it("Q8 is refused for what plain LoRA does not compute, by field", function()
    for field, value in pairs({ peft_type = "LOHA", use_dora = true, bias = "some", init_lora_weights = "pissa_niter_4",
      modules_to_save = { "other" }, layer_replication = { { 0, 1 } }, lora_bias = true, brand_new = 3,
      lora_dropout = 1, r = 0, alpha_pattern = { q_proj = -1 }, target_modules = 3, lora_alpha = json.null,
      trainable_token_indices = { 41 }, ensure_weight_tying = 1, layers_pattern = "layers" }) do
      refused(copy_of("llama", set(field, value)), model_of("llama"), "adapter_config.json | " .. field)
    end
    for _, value in ipairs({ { "q_proj", 3 }, { q_proj = true }, true }) do
      refused(copy_of("llama", set("target_modules", value)), model_of("llama"), "target_modules | names")
    end
    for name, row in pairs(peft_fields.ROWS) do
      local folder = copy_of("llama", set(name, { set = true }), function(list)
        list[#list + 1] = { name = "base_model.model.other", dtype = "F32", shape = { 1, 1 } }
      end)
      if row[1] == "refused" then
        refused(folder, model_of("llama"), "adapter_config.json: " .. name .. " is | merge_and_unload")
      end
    end
    for _, kind in ipairs({ "IA3", "PREFIX_TUNING", "ADALORA", "VERA" }) do
      refused(copy_of("llama", set("peft_type", kind)), model_of("llama"),
        "peft_type | " .. kind .. " | merge_and_unload")
    end
    for _, field in ipairs({ "target_modules", "exclude_modules" }) do
      refused(copy_of("llama", set(field, "(q_proj")), model_of("llama"),
        "adapter_config.json: " .. field .. ' has "(q_proj" | PCRE2')
    end
    refused(copy_of("llama", set("alpha_pattern", { ["q_proj["] = 2 })), model_of("llama"),
      'adapter_config.json: alpha_pattern has "q_proj[" | PCRE2')
    refused(copy_of("llama", set("rank_pattern", 3)), model_of("llama"), "rank_pattern | object | 3")
  end)

  it("Q8 can have weights of the model itself, if they are those that the model has", function()
    local function weight_of(model, layer)
      local weight = model[layer].weight
      local values = ffi.new("float[?]", weight.numel)
      weight.source.read(0, weight.numel, values)
      return { dtype = "F32", shape = { unpack(weight.shape) }, bytes = ffi.string(values, 4 * weight.numel) }
    end
    local whole = model_of("llama")
    local head, embed = weight_of(whole, "head"), weight_of(whole, "embed")
    local function load(tensor, given, model, folder)
      return ms.lora.load(model or model_of("llama"), copy_of(folder or "llama", nil, function(list)
        list[#list + 1] = { name = "base_model.model." .. tensor, dtype = given.dtype, shape = given.shape,
          bytes = given.bytes }
      end))
    end
    assert.truthy(load("lm_head.base_layer.weight", head))
    assert.truthy(load("lm_head.weight", head))
    assert.truthy(load("model.embed_tokens.weight", embed))
    assert.truthy(load("model.embed_tokens.base_layer.weight", embed))
    local function says(tensor, given, facts, model) has(message(load, tensor, given, model), facts) end
    says("lm_head.base_layer.weight", embed, "lm_head.base_layer.weight | differs | save_embedding_layers=False")
    says("model.embed_tokens.weight", { dtype = "F32", shape = { 1, 1 } }, "embed_tokens | differs")
    local tied = weight_of(model_of("llama_tied"), "embed")
    local folder = scratch.path()
    save(ms.lora(model_of("llama_tied"), { { re"wq", { rank = 2 } } }), folder)
    assert.truthy(load("lm_head.weight", tied, model_of("llama_tied"), folder))
    tied.bytes = "\1" .. tied.bytes:sub(2)
    has(message(load, "lm_head.weight", tied, model_of("llama_tied"), folder), "lm_head.weight | differs")
    says("model.other.weight", head, "model.other.weight | lora_A")
    local config = model_of("llama").config
    local made = ms.models.llama { vocab = config.vocab, layers = config.layers, dim = config.dim, heads = config.heads,
      kv_heads = config.kv_heads, head_dim = config.head_dim, ffn = config.ffn, seq = config.seq }
    says("lm_head.base_layer.weight", head, "not from a folder | save_embedding_layers=False", made)
  end)

  it("Q8 takes of several keys of a pattern that match a layer the first in the file, as PEFT does", function()
    local function alphas(pattern)
      local folder = copy_of("llama")
      local path = folder .. "/adapter_config.json"
      local config = json.decode(scratch.read(path))
      config.alpha_pattern, config.use_rslora = "HERE", false
      scratch.write(path, (json.encode(config):gsub('"HERE"', function() return pattern end)))
      local model = ms.lora.load(model_of("llama"), folder)
      local found = {}
      for _, record in ipairs(adapter.records(model)) do found[record.layer] = record.alpha end
      return { found["layers.0.attn.wq"], found["layers.1.attn.wq"] }
    end
    assert.same({ 16, 3 }, alphas '{"layers.1.self_attn.q_proj": 3, "q_proj": 16}')
    assert.same({ 16, 16 }, alphas '{"q_proj": 16, "layers.1.self_attn.q_proj": 3}')
    -- One layer's name is the end of another's.
    local function pass(_, x) return x end
    local function nested()
      return ms.module { a = ms.nn.linear(4, 4), forward = pass,
        b = ms.module { a = ms.nn.linear(4, 4), forward = pass } }
    end
    local folder = scratch.path()
    save(ms.lora(nested(), { { re"^b", { rank = 2, alpha = 8 } }, { re"^a", { rank = 1, alpha = 4 } } }), folder)
    local records = adapter.records(ms.lora.load(nested(), folder))
    assert.same({ a = { 1, 4 }, ["b.a"] = { 2, 8 } }, { [records[1].layer] = { records[1].rank, records[1].alpha },
      [records[2].layer] = { records[2].rank, records[2].alpha } })
  end)

  it("Q8 is refused where its fields leave out modules of which it has tensors, as PEFT reads them", function()
    local function read(name, fields)
      return copy_of(name, function(config)
        for field, value in pairs(fields) do config[field] = value end
      end)
    end
    for _, case in ipairs({
      { { target_modules = { "q_proj" } }, "target_modules | v_proj" },
      { { target_modules = "model.layers.0.*" }, "target_modules | layers.1" },
      { { target_modules = "all-linear" }, "target_modules | lm_head" },
      { { target_modules = "proj" }, "target_modules | q_proj" },
      { { target_modules = "all-linear", exclude_modules = { "v_proj" } }, "exclude_modules | v_proj" },
      { { target_modules = "all-linear", exclude_modules = ".*q_proj" }, "exclude_modules | q_proj" },
      { { target_modules = "all-linear", layers_to_transform = { 0 } }, "target_modules | layers_to_transform" },
      { { target_modules = ALL, layers_to_transform = { 0 } }, "layers_to_transform | layers.1" },
      { { target_modules = ALL, layers_to_transform = 1, layers_pattern = "layers" },
        "layers_to_transform | layers.0" },
      { { target_modules = ALL, layers_to_transform = { 0, 1 }, layers_pattern = "h" },
        "layers_to_transform | layers.0" },
      { { exclude_modules = 3 }, "exclude_modules | names" },
      { { use_rslora = 0 }, "use_rslora | true or false" },
      { { fan_in_fan_out = "false" }, "fan_in_fan_out | true or false" },
    }) do
      refused(read("llama", case[1]), model_of("llama"), "adapter_config.json | " .. case[2])
    end
    for _, fields in ipairs({
      { target_modules = ALL, layers_to_transform = { 0, 1 } },
      { target_modules = [[.*\.(self_attn\.[qv]_proj|mlp\..*)|lm_head]] },
      { target_modules = json.null }, { exclude_modules = { "o_proj" } },
    }) do
      assert.truthy(ms.lora.load(model_of("llama"), read("llama", fields)))
    end
  end)

  it("Q8 is read as older versions of PEFT wrote it: without newer fields, biases under their layers' names", function()
    local kept = { peft_type = true, r = true, lora_alpha = true, target_modules = true }
    assert.truthy(ms.lora.load(model_of("llama"), copy_of("llama", function(config)
      for field in pairs(config) do config[field] = kept[field] and config[field] or nil end
    end)))
    local renamed = 0
    local folder = copy_of("gpt2_dora", nil, function(list)
      for _, tensor in ipairs(list) do
        local name, count = tensor.name:gsub("%.base_layer%.bias$", ".bias")
        tensor.name, renamed = name, renamed + count
      end
    end)
    assert.equal(4, renamed)
    assert.truthy(ms.lora.load(model_of("gpt2"), folder))
  end)

  it("Q8 is loaded with a warning if it lacks modules that it names, or is for another model", function()
    local recipe = program.recipe [[
      local ms = require "moonshard"
      local cfg = ms.args { model = "", adapters = "" }
      print(ms.lora.load(ms.huggingface.model(cfg.model), cfg.adapters) ~= nil)
    ]]
    local function ended(adapters)
      return program.run { "run", recipe, "model=" .. huggingface.FIXTURES .. "llama", "adapters=" .. adapters }
    end
    local cut = ended(copy_of("llama", nil, function(list)
      for i = #list, 1, -1 do
        if list[i].name:find("layers%.1%.self_attn%.v_proj") then table.remove(list, i) end
      end
    end))
    assert.equal(0, cut.status, cut.err)
    has(cut.err, "warning | adapter_config.json | target_modules | layers.1.self_attn.v_proj")
    assert.equal("", ended(FIXTURES .. "llama").err)
    local other = ended(copy_of("llama", set("base_model_name_or_path", "someone/another-7b"))).err
    has(other, "warning | someone/another-7b | base_model_name_or_path | fixtures/huggingface/llama")
    os.remove(recipe)
  end)
end)
