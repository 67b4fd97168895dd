-- Attention under masks, compared with loops over queries and keys.

local fixture = require("lua.support.fixture")
local has = require("lua.support.message").has
local message = fixture.message
local ms = require("moonshard")
local program = require("lua.support.program")

-- What a mask says of query i and key j, both from 0; true, false, or a number that is added.
local function by_hand(q, k, v, o, seen)
  q, k, v = q:tolist(), k:tolist(), v:tolist()
  local shared, width, result = #q[1][1] / #k[1][1], #v[1][1][1], {}
  for b = 1, #q do
    result[b] = {}
    for i = 1, #q[b] do
      result[b][i] = {}
      for h = 1, #q[b][i] do
        local group, scores, sum, row = math.floor((h - 1) / shared) + 1, {}, 0, {}
        for j = 1, #k[b] do
          local dot, says = 0, seen(i - 1, j - 1, b, h)
          for d = 1, #q[b][i][h] do dot = dot + q[b][i][h][d] * k[b][j][group][d] end
          dot = dot * (o.scale or 1 / math.sqrt(#q[b][i][h]))
          if o.softcap then dot = o.softcap * (2 / (1 + math.exp(-2 * dot / o.softcap)) - 1) end
          scores[j] = says and math.exp(dot + (type(says) == "number" and says or 0)) or 0
          sum = sum + scores[j]
        end
        if o.sinks then sum = sum + math.exp(o.sinks:tolist()[h]) end
        for d = 1, width do
          row[d] = 0
          for j = 1, #k[b] do row[d] = row[d] + scores[j] / sum * v[b][j][group][d] end
        end
        result[b][i][h] = row
      end
    end
  end
  return result
end

local function flat(list, into)
  into = into or {}
  for _, item in ipairs(list) do
    if type(item) == "table" then flat(item, into) else into[#into + 1] = item end
  end
  return into
end

-- Five queries of four heads, and as many or more keys of two. Where values are as wide as keys, the op can be the one
-- that stores no scores.
local function check(o, seen, keys)
  for _, width in ipairs({ 3, 6 }) do
    ms.manual_seed(3)
    local q, k, v = ms.randn(2, 5, 4, 6), ms.randn(2, keys or 5, 2, 6), ms.randn(2, keys or 5, 2, width)
    local y = ms.nn.masked_attention(q, k, v, o)
    assert.same({ 2, 5, 4, width }, y.shape)
    fixture.assert_close(flat(by_hand(q, k, v, o, seen)), y:reshape(-1):tolist(), 1e-5, "attention")
  end
end

describe("masked attention", function()
  it("G3 is causal, or not", function()
    check({}, function(i, j) return j <= i end)
    check({ causal = false }, function() return true end)
    check({}, function(i, j) return j <= i + 3 end, 8) -- the last query sees the last key
  end)

  it("G3 has windows, of keys before a query or on both sides", function()
    check({ window = 2 }, function(i, j) return j <= i and i - j < 2 end)
    check({ window = 1 }, function(i, j) return i == j end)
    check({ window = 9 }, function(i, j) return j <= i end)
    check({ window = 2, causal = false }, function(i, j) return math.abs(i - j) < 2 end)
  end)

  it("G3 has a prefix that every query sees", function()
    check({ prefix = 3 }, function(i, j) return j < 3 or j <= i end)
    check({ prefix = 2, window = 2 }, function(i, j) return j < 2 or j <= i and i - j < 2 end)
  end)

  it("G3 has masks of a recipe's own, of ones or added to scores", function()
    local ones, added = {}, {}
    for i = 0, 4 do
      ones[i + 1], added[i + 1] = {}, {}
      for j = 0, 4 do
        ones[i + 1][j + 1] = (i + j) % 3 ~= 1 and 1 or 0
        added[i + 1][j + 1] = (i - 2 * j) / 4
      end
    end
    check({ causal = false, mask = ms.tensor(ones, { dtype = "u8" }) }, function(i, j) return (i + j) % 3 ~= 1 end)
    check({ mask = ms.tensor(added) }, function(i, j) return j <= i and (i - 2 * j) / 4 end)
    -- ALiBi: a slope for each head.
    local slopes = ms.tensor({ 1, 0.5, 0.25, 0.125 }):reshape(1, 4, 1, 1) * ms.tensor(added)
    check({ mask = slopes }, function(i, j, _, h) return j <= i and (i - 2 * j) / 4 * 2 ^ (1 - h) end)
  end)

  it("G3 caps and scales scores", function()
    check({ softcap = 0.7 }, function(i, j) return j <= i end)
    check({ softcap = 2, scale = 1.5, window = 3 }, function(i, j) return j <= i and i - j < 3 end)
  end)

  it("G3 has sinks in the denominators of softmax, however they are computed", function()
    local sinks = ms.tensor { 0.5, -3, 4, 0 }
    check({ sinks = sinks }, function(i, j) return j <= i end)
    check({ sinks = sinks, window = 2, softcap = 0.7 }, function(i, j) return j <= i and i - j < 2 end)
    check({ sinks = sinks, prefix = 2 }, function(i, j) return j < 2 or j <= i end)
    check({ sinks = sinks, causal = false }, function() return true end, 8)
  end)

  it("G3 gives sinks, queries, keys and values the gradients of their formula", function()
    local function gradients(o)
      local model = ms.module { layer = ms.nn.linear { 6, 6, bias = false }, sinks = ms.parameter { 2 },
        forward = function(self, x)
          local h = self.layer(x):reshape(2, 5, 2, 3)
          o.sinks = self.sinks
          return ms.nn.masked_attention(h, h, h, o)
        end }
      ms.fully_shard(model, { seed = 3 })
      local train = ms.trainer { model = model, optimizer = ms.optim.sgd { lr = 0.1 },
        loss = function(y, target) return ((y - target) * y):sum() end }
      train:step { inputs = ms.randn { 2, 5, 6, seed = 1 }, targets = ms.randn { 2, 5, 2, 3, seed = 2 } }
      return train:gradient("layer.weight"):reshape(-1):tolist(), train:gradient("sinks"):reshape(-1):tolist()
    end
    local ones = {}
    for i = 1, 5 do
      ones[i] = {}
      for j = 1, 5 do ones[i][j] = j <= i and 1 or 0 end
    end
    local layer, sinks = gradients { causal = false, mask = ms.tensor(ones, { dtype = "u8" }) }
    local by_op, of_sinks = gradients {}
    assert.is_true(math.abs(sinks[1]) > 1e-3 and math.abs(sinks[2]) > 1e-3)
    fixture.assert_close(layer, by_op, 1e-5, "d layer")
    fixture.assert_close(sinks, of_sinks, 1e-5, "d sinks")
  end)

  it("G3 takes parameters, such as learned queries", function()
    local function normal(parameter, seed)
      local o = { unpack(parameter.shape) }
      o.seed = seed
      return ms.randn(o)
    end
    for _, o in ipairs({ { causal = false }, { window = 2, prefix = 1 } }) do -- the op, and stored scores
      local model = ms.module {
        q = ms.parameter { 1, 3, 2, 4 }, k = ms.parameter { 1, 3, 1, 4 }, v = ms.parameter { 1, 3, 1, 5 },
        forward = function(self, x) return ms.nn.masked_attention(self.q, self.k, self.v, o) * x:sum() end,
      }
      ms.fully_shard(model, {})
      local given = {}
      for i, name in ipairs({ "q", "k", "v" }) do
        given[i] = normal(model[name], i)
        model:set_parameter(name, given[i])
      end
      local expected = ms.nn.masked_attention(given[1], given[2], given[3], o)
      assert.same(expected:tolist(), model(ms.ones(1)):tolist())
    end
    local keys = ms.ones(1, 3, 1, 4)
    has(message(ms.nn.masked_attention, ms.parameter { 1, 3, 2, 4 }, keys, keys), "q | model:parameter")
  end)

  it("G3 is the causal op where the mask is causal, with gradients", function()
    local function gradient(attend)
      ms.manual_seed(5)
      local layer = ms.nn.linear { 6, 6, bias = false }
      local model = ms.module { layer = layer, forward = function(self, x)
        local h = self.layer(x):reshape(1, 5, 2, 3)
        return attend(h, h, h)
      end }
      ms.fully_shard(model)
      local train = ms.trainer { model = model, optimizer = ms.optim.sgd { lr = 0.1 },
        loss = function(y, target) return ((y - target) * y):mean() end }
      local x = ms.randn(1, 5, 6)
      train:step { inputs = x, targets = ms.randn(1, 5, 2, 3) }
      return train:gradient("layer.weight"):reshape(-1):tolist()
    end
    local expected = gradient(function(q, k, v) return ms.ops.attention(q, k, v, { causal = true }) end)
    fixture.assert_close(expected, gradient(function(q, k, v) return ms.nn.masked_attention(q, k, v) end), 1e-5, "d")
  end)

  it("G3 refuses what makes no sense", function()
    local q = ms.randn(1, 4, 2, 4)
    local function refused(o, k) return message(ms.nn.masked_attention, q, k or q, k or q, o) end
    has(refused { softcap = 0 }, "softcap | above 0 | 0")
    has(refused { prefix = 2, causal = false }, "prefix | causal")
    has(refused { mask = 3 }, "mask | u8 | f32 | 3")
    has(refused { windows = 3 }, "windows | window")
    has(refused({}, ms.randn(1, 4, 3, 4)), "[1,4,2,4] | [1,4,3,4] | multiple")
    has(refused { sinks = 3 }, "sinks | [H] | 3")
    has(refused { sinks = ms.zeros(3) }, "sinks | [3] | [1,4,2,4] | 2 heads")
  end)
end)

describe("masked attention of ranks that share a head of keys", function()
  local function shared(ranks, ...)
    return { "check", "tests/lua/tensors/recipes/prefix_attention.lua", "-n", ranks, "heads=8", "kv_heads=2", ... }
  end

  local _, equals_one_rank = program.checks({
    ["a prefix"] = shared("4", "mesh=1x4"),
    ["a mask and caps"] = shared("4", "mesh=1x4", "prefix=0", "own_mask=true", "softcap=5", "sequence_parallel=true"),
    ["a prefix of eight ranks"] = shared("8", "mesh=1x8"),
    ["as many heads of keys as ranks"] = shared("4", "mesh=2x2", "own_mask=true"),
    ["sinks"] = shared("4", "mesh=2x2", "prefix=0", "sinks=true"),
    ["sinks and a prefix"] = shared("4", "mesh=1x4", "sinks=true"),
    ["sinks of divided positions"] = shared("4", "mesh=2x2", "names=shard context", "prefix=0", "sinks=true"),
  })

  it("G3 is that of one rank", function()
    equals_one_rank("a prefix", "a mask and caps", "a prefix of eight ranks", "as many heads of keys as ranks")
  end)

  it("G3 has the sinks of its own heads, and those of all for its own positions", function()
    equals_one_rank("sinks", "sinks and a prefix", "sinks of divided positions")
  end)
end)
