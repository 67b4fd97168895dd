-- Attention within documents, in models: what a document's positions see of others is nothing.

local has = require("lua.message").has
local message = require("lua.fixture").message
local ms = require("moonshard")

local START = 9

local function logits_of(model, tokens)
  local list = { dtype = "i32" }
  for i, row in ipairs(tokens) do list[i] = row end
  return model(ms.tensor(list)):tolist()
end

local function assert_near(a, b)
  for i = 1, #a do assert.is_true(math.abs(a[i] - b[i]) < 2e-4, ("%g and %g"):format(a[i], b[i])) end
end

local function differ(a, b)
  for i = 1, #a do
    if math.abs(a[i] - b[i]) > 1e-4 then return true end
  end
  return false
end

local function llama(document_start)
  return ms.models.llama { vocab = 20, layers = 2, dim = 16, heads = 4, kv_heads = 2, ffn = 24, seq = 12,
    document_start = document_start }
end

describe("documents", function()
  it("in a row of tokens have the logits that each has alone", function()
    local model = llama(START)
    local packed = logits_of(model, { { 3, 4, START, 5, 6, 7, START, START, 8, 1 } })[1]
    local at = 1
    for _, document in ipairs({ { 3, 4 }, { START, 5, 6, 7 }, { START }, { START, 8, 1 } }) do
      for i, logits in ipairs(logits_of(model, { document })[1]) do assert_near(logits, packed[at + i - 1]) end
      at = at + #document
    end
  end)

  it("see each other where no token was named", function()
    for _, make in ipairs({
      llama,
      function(start)
        return ms.models.gpt2 { vocab = 20, layers = 1, dim = 16, heads = 2, seq = 12, document_start = start }
      end,
    }) do
      local one, other = { 3, 4, START, 5, 6 }, { 7, 8, START, 5, 6 }
      local apart = logits_of(make(START), { one, other })
      for i = 3, 5 do assert_near(apart[1][i], apart[2][i]) end
      local seen = logits_of(make(nil), { one, other })
      for i = 3, 5 do assert.is_true(differ(seen[1][i], seen[2][i])) end
    end
  end)

  it("begin with a token of the vocabulary, or the model is refused", function()
    for _, token in ipairs({ 20, -1 }) do
      has(message(llama, token), "ms.models.llama: document_start | 0 to 19 | " .. token)
      has(message(ms.models.gpt2, { vocab = 20, layers = 1, dim = 16, heads = 2, seq = 12, document_start = token }),
        "ms.models.gpt2: document_start | 0 to 19 | " .. token)
    end
  end)

  it("train: a gradient reaches every parameter", function()
    local model = llama(START)
    ms.fully_shard(model, {})
    local train = ms.trainer { model = model, loss = ms.loss.cross_entropy, optimizer = ms.optim.adamw { lr = 1e-2 } }
    local tokens = ms.tensor { { 3, 4, START, 5, 6, 7, START, 8 }, { START, 1, 2, START, 2, 3, 1, 5 }, dtype = "i32" }
    local targets = ms.tensor { { 4, START, 5, 6, 7, START, 8, 1 }, { 1, 2, START, 2, 3, 1, 5, START }, dtype = "i32" }
    local first, last
    for _ = 1, 30 do
      last = train:step({ tokens = tokens, targets = targets }).loss
      first = first or last
    end
    assert.is_true(last < first / 2, ("%g after %g"):format(last, first))
    for name in model:named_parameters() do
      local sum = 0
      local function add(value)
        if type(value) == "number" then sum = sum + math.abs(value) else for _, v in ipairs(value) do add(v) end end
      end
      add(train:gradient(name):tolist())
      assert.is_true(sum > 0, name)
    end
  end)
end)
