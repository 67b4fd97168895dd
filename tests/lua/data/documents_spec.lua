-- Documents that share a row of tokens: what a document's positions see of others is nothing, and learned positions
-- restart with each, so that a document has the numbers that it has in a row of its own.

local has = require("lua.support.message").has
local message = require("lua.support.fixture").message
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

local function gpt2(document_start)
  return ms.models.gpt2 { vocab = 20, layers = 2, dim = 16, heads = 4, seq = 12, document_start = document_start }
end

-- Layers that slide, and layers without rotary positions.
local function gemma2(document_start)
  return ms.models.gemma2 { vocab = 20, layers = 2, dim = 16, heads = 2, kv_heads = 1, head_dim = 8, ffn = 24, seq = 12,
    window = 3, slides = { true, false }, document_start = document_start }
end

local function smollm3(document_start)
  return ms.models.smollm3 { vocab = 20, layers = 2, dim = 16, heads = 2, kv_heads = 1, ffn = 24, seq = 12,
    rotates = { true, false }, document_start = document_start }
end

-- Rows of 12 tokens as the documents in them.
local ROWS = {
  { { 3, 4 }, { START, 5, 6, 7 }, { START }, { START, 8, 1, 2, 3 } },
  { { START, 1, 2, 3, 4, 5, 6 }, { START, 1, 2, 3, 4 } },
  { { 1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3, 4 } },
  { { 5 }, { START }, { START }, { START, 5, 5, 5, 5, 5, 5 }, { START, 5 } },
}

local function joined(documents)
  local row = {}
  for _, document in ipairs(documents) do
    for _, token in ipairs(document) do row[#row + 1] = token end
  end
  return row
end

describe("documents", function()
  for family, make in pairs({ llama = llama, gpt2 = gpt2, gemma2 = gemma2, smollm3 = smollm3 }) do
    it("G5 in a row of tokens have the logits that each has alone: " .. family, function()
      local model, rows = make(START), {}
      for i, documents in ipairs(ROWS) do rows[i] = joined(documents) end
      local packed = logits_of(model, rows)
      for i, documents in ipairs(ROWS) do
        local at = 1
        for _, document in ipairs(documents) do
          for t, logits in ipairs(logits_of(model, { document })[1]) do assert_near(logits, packed[i][at + t - 1]) end
          at = at + #document
        end
      end
    end)
  end

  it("G5 count their positions from 0, whatever stands before the first", function()
    ms.manual_seed(7)
    for _, length in ipairs({ 1, 2, 13, 64 }) do
      local tokens = (ms.rand(5, length) * 4):cast("i32")
      local positions = ms.nn.document_positions(tokens, 2):tolist()
      for row, list in ipairs(tokens:tolist()) do
        local first = 1
        for t, token in ipairs(list) do
          if token == 2 then first = t end
          assert.equal(t - first, positions[row][t])
        end
      end
    end
    has(message(ms.nn.document_positions, ms.zeros(3, { dtype = "i32" }), 2), "tokens | [batch, length] | [3]")
    has(message(ms.nn.document_positions, ms.zeros(3, 2, { dtype = "i32" }), 0.5), "integer | 0.5")
  end)

  it("G5 train learned positions as rows of their own do", function()
    local function gradient(rows, targets)
      ms.manual_seed(3)
      local model = gpt2(START)
      ms.fully_shard(model, {})
      local train = ms.trainer { model = model, loss = ms.loss.cross_entropy, optimizer = ms.optim.sgd { lr = 0 } }
      rows.dtype, targets.dtype = "i32", "i32"
      local loss = train:step({ tokens = ms.tensor(rows), targets = ms.tensor(targets) }).loss
      return loss, train:gradient("pos.weight"):tolist()
    end
    local loss, packed = gradient({ { START, 1, 2, 3, START, 4, 5, START } }, { { 1, 2, 3, -100, 4, 5, 6, 7 } })
    local apart_loss, apart = gradient({ { START, 1, 2, 3 }, { START, 4, 5, 0 }, { START, 0, 0, 0 } },
      { { 1, 2, 3, -100 }, { 4, 5, 6, -100 }, { 7, -100, -100, -100 } })
    assert.is_true(math.abs(loss - apart_loss) < 1e-5)
    for position, row in ipairs(packed) do assert_near(row, apart[position]) end
    assert.same(packed[5], packed[12]) -- zeros: no document is that long
  end)

  it("see each other where no token was named", function()
    for _, make in ipairs({ llama, gpt2 }) do
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
