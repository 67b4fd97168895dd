-- Windows that are held out for validation: passes over them that are under way at once, and states of data that held
-- out others.

local fixture = require("lua.support.fixture")
local has = require("lua.support.message").has
local ms = require("moonshard")
local scratch = require("lua.support.scratch")
local message = fixture.message

-- Numbers of three digits, so that all windows differ.
local function text(more)
  local parts = {}
  for i = 1, 300 do parts[i] = ("%03d"):format(i) end
  local path = scratch.path()
  scratch.write(path, table.concat(parts))
  local o = { files = path, seq = 8, batch = 1, valid_fraction = 0.2 }
  for name, value in pairs(more or {}) do o[name] = value end
  return ms.data.text(o)
end

local function tokens_of(batch)
  local list = {}
  for i = 0, batch.tokens.shape[2] - 1 do list[i] = batch.tokens.data[i] .. ">" .. batch.targets.data[i] end
  return table.concat(list, " ", 0)
end

-- The batches of a pass; probe: called after each.
local function all(batches, probe)
  local list = {}
  for i, batch in batches do
    list[i] = tokens_of(batch)
    if probe then probe(i) end
  end
  return list
end

describe("the share that is held out", function()
  teardown(scratch.clear)

  it("is the one that was asked for, and training sees none of it", function()
    local path, parts = scratch.path(), {}
    for i = 1, 4000 do parts[i] = ("%04d "):format(i) end
    scratch.write(path, table.concat(parts))
    for asked, held in pairs({ [0.3] = 0.3, [0.35] = 0.35, [0.4] = 0.4, [0.45] = 0.45, [0.5] = 0.5, [0.25] = 0.25,
      [0.2] = 0.2, [0.104] = 0.1, [0.05] = 0.05, [1 / 3] = 1 / 3, [0.28] = 5 / 18 }) do
      local data = ms.data.text { files = path, seq = 8, batch = 1, valid_fraction = asked }
      local trained, n = {}, 0
      for _, batch in data:batches(data.n) do trained[tokens_of(batch)] = true end
      for _, batch in data.valid:batches() do
        assert.is_nil(trained[tokens_of(batch)])
        n = n + 1
      end
      assert.equal(data.valid.n, n)
      assert.is_true(math.abs(n / (data.n + n) - held) < 0.02, ("%g: %g"):format(asked, n / (data.n + n)))
      assert.near(held, data:state().valid_fraction, 1e-12)
    end
  end)
end)

describe("passes over validation data", function()
  teardown(scratch.clear)

  it("G5 that are under way at once each have every sample once", function()
    local data = text()
    local whole = all(data.valid:batches())
    assert(#whole > 4)
    local a, b, of_a, of_b = data.valid:batches(), data.valid:batches(), {}, {}
    for i = 1, #whole do
      of_a[i], of_b[i] = tokens_of(select(2, a())), tokens_of(select(2, b()))
    end
    assert.same(whole, of_a)
    assert.same(whole, of_b)
    assert.same(whole, all(data.valid:batches(), function() for _ in data.valid:batches(2) do end end))
  end)

  it("G5 have the same masks then", function()
    local data = text()
    local hidden = ms.data.masked { data, mask = 256, vocab = 256, fraction = 0.5 }
    local whole = all(hidden.valid:batches())
    assert.are_not.equal(whole[1], whole[2])
    for _, other in ipairs { data, hidden } do
      assert.same(whole, all(hidden.valid:batches(), function() for _ in other.valid:batches(3) do end end))
    end
  end)

  it("G5 leave the run's own data where it is", function()
    local alone, data = all(text():batches(6)), text()
    assert.same(alone, all(data:batches(6), function() for _ in data.valid:batches(2) do end end))
  end)
end)

-- Windows that were held out would be trained on, and nothing else would show it: counts of samples are equal.
describe("a state of other windows", function()
  teardown(scratch.clear)

  it("K1 is refused, with another fraction or length", function()
    local data = text { seq = 32, valid_fraction = 0.1 }
    for _, more in ipairs { { valid_fraction = 0.11 }, { valid_fraction = 0.09 }, { seq = 31 } } do
      local other, name, state = text { seq = 32, valid_fraction = 0.1, [next(more)] = select(2, next(more)) },
        next(more), data:state()
      state.samples, state.contents = other.n, other:contents()
      has(message(function() other:load_state(state) end), name .. "=")
    end
  end)

  it("K1 is loaded where the windows are the same, and from earlier versions", function()
    local data, other = text { valid_fraction = 0.1 }, text { valid_fraction = 0.102 }
    local state = data:state()
    state.contents = other:contents()
    other:load_state(state)
    state.seq, state.valid_fraction = nil, nil
    other:load_state(state)
  end)

  it("K1 is refused of a mix, too", function()
    local function of(fraction) return ms.data.mix { { text { valid_fraction = fraction } } } end
    local state, other = of(0.1):state(), of(0.2)
    state.samples, state.contents = other:state().samples, nil
    has(message(function() other:load_state(state) end), "valid_fraction=0.1 | valid_fraction=0.2")
  end)
end)
