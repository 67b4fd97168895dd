-- Drawing tokens: which may come out, how often, and that a seed decides.

local sampling = require("moonshard.train.sampling")

local LOGITS = { [0] = 0.5, 2, -1, 2, 1, -3 }

local function counts(o, times)
  local draw, seen = sampling.random(7), {}
  for _ = 1, times do
    local token = sampling.choose(LOGITS, 6, o, draw)
    seen[token] = (seen[token] or 0) + 1
  end
  return seen
end

describe("sampling", function()
  it("finds the k largest, of equal ones the lower token first", function()
    assert.same({ 1, 3, 4 }, sampling.top(LOGITS, 6, 3))
    assert.same({ 1 }, sampling.top(LOGITS, 6, 1))
    assert.same({ 1, 3, 4, 0, 2, 5 }, sampling.top(LOGITS, 6, 100))
    local many, draw = {}, sampling.random(3)
    for i = 0, 2999 do many[i] = math.floor(draw() * 500) end
    local all = {}
    for i = 0, 2999 do all[i + 1] = i end
    table.sort(all, function(a, b)
      if many[a] ~= many[b] then return many[a] > many[b] end
      return a < b
    end)
    for _, k in ipairs({ 1, 2, 7, 50, 2999, 3000 }) do
      local top = sampling.top(many, 3000, k)
      assert.equal(k, #top)
      for i = 1, k do assert.equal(all[i], top[i]) end
    end
  end)

  it("draws as often as the softmax says", function()
    local temperature, sum = 0.7, 0
    for i = 0, 5 do sum = sum + math.exp(LOGITS[i] / temperature) end
    local seen = counts({ temperature = temperature, top_k = 0, top_p = 1 }, 20000)
    for i = 0, 5 do
      assert.is_true(math.abs((seen[i] or 0) / 20000 - math.exp(LOGITS[i] / temperature) / sum) < 0.012)
    end
  end)

  it("keeps to the k most likely, to a share p, and to the first at temperature 0", function()
    local seen = counts({ temperature = 1, top_k = 2, top_p = 1 }, 500)
    assert.is_true(seen[1] > 150 and seen[3] > 150 and seen[1] + seen[3] == 500)
    seen = counts({ temperature = 1, top_k = 0, top_p = 0.5 }, 500) -- 0.36 each for 1 and 3
    assert.equal(500, seen[1] + seen[3])
    assert.equal(500, counts({ temperature = 1, top_k = 0, top_p = 0.3 }, 500)[1])
    assert.equal(20, counts({ temperature = 0, top_k = 50, top_p = 1 }, 20)[1])
  end)

  it("draws a first token by the softmax over seeds, too, however they follow one another", function()
    local o = { temperature = 0.7, top_k = 0, top_p = 1 }
    local sum = 0
    for i = 0, 5 do sum = sum + math.exp(LOGITS[i] / o.temperature) end
    for _, apart in ipairs({ 1, 2, 65536, 2 ^ 32 }) do
      local seen = {}
      for seed = 0, 4999 do
        local draw = sampling.random(seed * apart)
        for at = 1, 2 do
          local token = sampling.choose(LOGITS, 6, o, draw)
          seen[at] = seen[at] or {}
          seen[at][token] = (seen[at][token] or 0) + 1
        end
      end
      for at = 1, 2 do
        for i = 0, 5 do
          local share = math.exp(LOGITS[i] / o.temperature) / sum
          local apart_by = math.abs((seen[at][i] or 0) / 5000 - share)
          assert.is_true(apart_by < 0.03, ("draw %d, seeds %g apart"):format(at, apart))
        end
      end
    end
  end)

  it("takes no token from logits that are NaN or infinite, and none that is at minus infinity", function()
    local nan, inf = 0 / 0, math.huge
    for _, o in ipairs({ { temperature = 0, top_k = 0, top_p = 1 }, { temperature = 1, top_k = 2, top_p = 0.9 } }) do
      for _, logits in ipairs({ { [0] = nan, 1 }, { [0] = 1, nan }, { [0] = inf, 1 }, { [0] = -inf, -inf } }) do
        assert.equal(-1, sampling.choose(logits, 2, o, sampling.random(1)))
      end
      assert.equal(1, sampling.choose({ [0] = -inf, 0 }, 2, o, sampling.random(1)))
    end
  end)
end)
