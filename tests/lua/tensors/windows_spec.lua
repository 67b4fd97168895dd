-- Attention within windows and with capped scores, as ops that never store scores: PyTorch's numbers and gradients
-- (tests/fixtures/ops), the same ones as by ops that store them, the memory of plans, and models of documents.

local fixture = require("lua.support.fixture")
local json = require("moonshard.base.text.json")
local has = require("lua.support.message").has
local message = fixture.message
local ms = require("moonshard")

local file = ms.safetensors.open("tests/fixtures/ops/attention.safetensors")

local function stored(name)
  local found = file:tensor(name)
  local x = ms.zeros(found.shape, { dtype = "f32" })
  file:read(name, 0, found.bytes, x.data)
  return x
end

local function numbers(x) return x:reshape(-1):tolist() end

-- Tokens whose documents begin at the positions, all with token 1.
local function documents(length, starts)
  local row = {}
  for i = 1, length do row[i] = 0 end
  for _, start in ipairs(starts) do row[start + 1] = 1 end
  return ms.tensor({ row }, { dtype = "i32" })
end

local CASES = {
  window = { window = 7 }, window_of_one = { window = 1 }, wide_window = { window = 36, scale = 0.7 },
  capped = { softcap = 0.8 }, capped_window = { window = 11, softcap = 1.5, scale = 0.9 },
  documents = { window = 6, starts = { 0, 5, 17 } },
  capped_documents = { window = 9, softcap = 0.6, scale = 0.5, starts = { 0, 30 } },
}

local function attend(o, q, k, v)
  local given = { window = o.window, softcap = o.softcap, scale = o.scale }
  if not o.starts then return ms.ops.attention(q, k, v, given) end
  given.start = 1
  return ms.ops.document_attention(q, k, v, documents(q.shape[2], o.starts), given)
end

-- The gradients of sum(w y) with respect to q, k and v, by a trainer.
local function gradients(o, q, k, v, w)
  local function shift(x) return ms.parameter { init = "zeros", unpack(x.shape) } end
  local model = ms.module {
    q = shift(q), k = shift(k), v = shift(v),
    forward = function(self, given) return attend(o, given + self.q, k + self.k, v + self.v) end,
  }
  ms.fully_shard(model)
  local train = ms.trainer {
    model = model, optimizer = ms.optim.sgd { lr = 0 },
    forward = function(net, batch) return (net(batch.inputs) * w):sum() end,
  }
  train:step { inputs = q }
  return { dx = train:gradient("q"), dk = train:gradient("k"), dv = train:gradient("v") }
end

describe("attention within windows and with capped scores", function()
  for name, o in pairs(CASES) do
    local function of(key) return stored(name .. "." .. key) end

    it("G3 gives PyTorch's numbers and gradients: " .. name, function()
      local q, k, v = of "x", of "k", of "v"
      fixture.assert_close(numbers(of "y"), numbers(attend(o, q, k, v)), 2e-6, name)
      for key, gradient in pairs(gradients(o, q, k, v, of "w")) do
        fixture.assert_close(numbers(of(key)), numbers(gradient), 5e-6, key .. " of " .. name)
      end
    end)
  end

  it("G3 has a case for each of the fixture's", function()
    for _, tensor in ipairs(file.tensors) do assert.truthy(CASES[tensor.name:match("^[^.]+")], tensor.name) end
  end)

  it("G3 gives what ops that store scores give, in both dtypes", function()
    ms.manual_seed(4)
    local q, k, v = ms.randn(2, 50, 4, 16), ms.randn(2, 70, 2, 16), ms.randn(2, 70, 2, 16)
    local all = ms.tensor({ 1 }, { dtype = "u8" }):reshape(1, 1, 1, 1) -- a mask that hides nothing: scores are stored
    for _, dtype in ipairs({ "f32", "bf16" }) do
      local function same(o)
        local function result()
          return numbers(ms.nn.masked_attention(q:cast(dtype), k:cast(dtype), v:cast(dtype), o))
        end
        local expected = result()
        o.mask = all
        fixture.assert_close(expected, result(), dtype == "f32" and 2e-6 or 2e-2, dtype)
      end
      same { window = 20 }
      same { window = 33, softcap = 1.5 }
      same { softcap = 20, scale = 3 }
      same { causal = false, softcap = 2 }
    end
  end)

  it("G3 refuses prefixes of attention that is not causal, or with a window, and what is no cap", function()
    local q = ms.randn(1, 4, 2, 4)
    has(message(ms.ops.attention, q, q, q, { causal = false, prefix = 2 }), "prefix | 2 | causal")
    has(message(ms.ops.attention, q, q, q, { window = 2, prefix = 3 }), "prefix | 3 | window")
    has(message(ms.ops.attention, q, ms.randn(1, 3, 2, 4), ms.randn(1, 3, 2, 4), { causal = false, window = 2 }),
      "[1,4,2,4] | [1,3,2,4] | window | keys")
    has(message(ms.ops.attention, q, q, q, { window = -1 }), "window | -1")
    has(message(ms.ops.attention, q, q, q, { softcap = -1 }), "softcap | -1 | above 0")
    has(message(ms.ops.document_attention, q, q, q, documents(4, { 0 }), { softcap = -1 }), "softcap | -1")
  end)
end)

describe("a model with windows and capped scores", function()
  local LENGTH = 512

  local function compiled(family, more)
    local o = { vocab = 32, layers = 2, dim = 64, heads = 4, kv_heads = 2, ffn = 96, seq = LENGTH }
    for key, value in pairs(more) do o[key] = value end
    local function rows() return { data = 0, dtype = "i32", shape = { 1, LENGTH } } end
    local model = ms.models[family](o)
    ms.fully_shard(model)
    local train = ms.trainer { model = model, loss = ms.loss.cross_entropy, optimizer = ms.optim.sgd { lr = 0.1 } }
    return train:compile({ tokens = rows(), targets = rows() })
  end

  local function activations(family, more) return compiled(family, more):summary().bytes.activations end

  -- Forward 4, and backward 10, of each of two layers' heads, queries, keys and elements.
  it("G3 counts the operations of the keys that a window leaves", function()
    local function flops_of(family, more)
      for _, phase in ipairs(json.decode(compiled(family, more):json()).phases) do
        if phase.name == "first" then return phase.flops end
      end
    end
    local whole, window = LENGTH * (LENGTH + 1) / 2, 64
    local seen = window * (window + 1) / 2 + (LENGTH - window) * window
    local all = 2 * 14 * 4 * LENGTH * LENGTH * 16
    fixture.assert_close({ all * (1 - seen / whole) }, { flops_of("llama", {}) - flops_of("mistral", { window = 64 }) },
      1e-7, "operations")
  end)

  -- One layer's scores are 4 heads x 512 x 512 x 4 bytes.
  it("G3 takes no memory for scores, so that it fits where a plain one does", function()
    local scores = 4 * LENGTH * LENGTH * 4
    local plain = activations("llama", {})
    for _, of in ipairs({ { "mistral", { window = 64 } }, { "gemma2", { window = 64, attention_softcap = 20,
      slides = { true, false } } } }) do
      local bytes = activations(of[1], of[2])
      assert.is_true(bytes < plain + scores / 4, ("%s: %d bytes, and %d without"):format(of[1], bytes, plain))
    end
  end)

  it("G3 stays within documents: each is as in a row of its own", function()
    ms.manual_seed(6)
    for family, more in pairs({ mistral = { window = 3 }, gemma2 = { window = 3, slides = { true, false },
      attention_softcap = 2 } }) do
      local o = { vocab = 17, layers = 2, dim = 8, heads = 2, kv_heads = 1, ffn = 12, seq = 12, document_start = 0,
        rotates = { false, false } } -- positions of a document depend on the row
      for key, value in pairs(more) do o[key] = value end
      local model, first, second = ms.models[family](o), { 0, 5, 9, 3, 11, 7, 2 }, { 0, 8, 16, 4, 1 }
      local both = {}
      for _, document in ipairs({ first, second }) do
        for _, token in ipairs(document) do both[#both + 1] = token end
      end
      local function logits(row) return model(ms.tensor({ row }, { dtype = "i32" })) end
      local together = logits(both)
      fixture.assert_close(numbers(logits(first)), numbers(together:slice(1, 0, #first)), 1e-5, family)
      fixture.assert_close(numbers(logits(second)), numbers(together:slice(1, #first, #both)), 1e-5, family)
    end
  end)
end)
