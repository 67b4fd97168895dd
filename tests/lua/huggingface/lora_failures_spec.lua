-- What a call that failed leaves of a model with adapters: nothing of it, so that the corrected call works.

local ffi = require("ffi")
local ms = require("moonshard")
local fixture = require("lua.support.fixture")
local has = require("lua.support.message").has
local huggingface = require("lua.support.huggingface")
local scratch = require("lua.support.scratch")
local message = fixture.message
local re = ms.re

local RULES = { { re[[attn\.w[qv]$]], { rank = 2 } } }

local function counts(model)
  local all, frozen = 0, 0
  for _, param in model:named_parameters() do
    all, frozen = all + 1, frozen + (param.frozen and 1 or 0)
  end
  return { all, frozen }
end

local function tokens() return ms.tensor { { 3, 1, 40, 7 }, dtype = "i32" } end

-- A copy of the adapters of a folder with one more tensor, a weight of the base that differs.
local function with_other_base(folder, name, shape)
  local from, declared, values = ms.safetensors.open(folder), {}, {}
  for i, tensor in ipairs(from.tensors) do
    declared[i] = { name = tensor.name, dtype = "F32", shape = tensor.shape }
    values[tensor.name] = huggingface.values_of(from, tensor.name)
  end
  declared[#declared + 1], values[name] = { name = name, dtype = "F32", shape = shape }, {}
  for i = 1, shape[1] * shape[2] do values[name][i] = 7 end
  local other = scratch.folder()
  os.execute(("cp '%s/adapter_config.json' '%s/'"):format(folder, other))
  local writer = ms.safetensors.create(other .. "/adapter_model.safetensors", declared)
  for _, tensor in ipairs(declared) do
    local list = values[tensor.name]
    writer:put_f32(tensor.name, nil, 0, #list, ffi.new("float[?]", #list, list))
  end
  writer:finish()
  return other
end

describe("adapters after a call that failed", function()
  after_each(scratch.clear)

  it("Q8 are not there where ms.lora has refused what is to train", function()
    local model = ms.huggingface.model(huggingface.FIXTURES .. "llama")
    local before = counts(model)
    has(message(ms.lora, model, RULES, { train = { re"nosuch" } }), "train | nosuch")
    assert.same(before, counts(model))
    ms.lora(model, RULES)
    assert.equal(before[1], counts(model)[2])
  end)

  it("Q8 are not there where ms.lora.load has refused a folder's values", function()
    local base = huggingface.FIXTURES .. "llama"
    local model = ms.lora(ms.huggingface.model(base), RULES)
    ms.fully_shard(model, {})
    local folder = scratch.path()
    ms.lora.save(model, folder)
    local other = ms.huggingface.model(base)
    local before = counts(other)
    local wrong = with_other_base(folder, "base_model.model.lm_head.weight", other.head.weight.shape)
    has(message(ms.lora.load, other, wrong), "lm_head.weight | differs")
    assert.same(before, counts(other))
    ms.lora.load(other, folder)
    assert.equal(before[1], counts(other)[2])
  end)

  it("Q8 are merged where the base stayed gathered, and what trains then follows the default", function()
    local model = ms.lora(ms.huggingface.model(huggingface.FIXTURES .. "llama"), RULES)
    ms.fully_shard(model, { units = { re[[^layers\.\d+$]] }, reshard_after_forward = "run" })
    local function trainer(lr)
      return ms.trainer { model = model, optimizer = ms.optim.adamw { lr = lr }, loss = ms.loss.cross_entropy }
    end
    local batch = { tokens = tokens(), targets = tokens() }
    local train = trainer(0.1)
    for _ = 1, 3 do train:step(batch) end
    local adapted = model(tokens()):reshape(-1):tolist()
    ms.lora.merge(model)
    fixture.assert_close(adapted, model(tokens()):reshape(-1):tolist(), 1e-5, "logits")
    assert.equal("default", model.sharding.decisions.reshard_after_forward["layers.0"].value)
    train = trainer(1e-4)
    assert.is_true(train:step(batch).loss > train:step(batch).loss)
  end)
end)
