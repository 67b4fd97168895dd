-- What data:batches takes: a number of steps, or one that says whether it counts those before a resume; and how it
-- counts in a call that goes on after a resume.

local fixture = require("lua.support.fixture")
local has = require("lua.support.message").has
local json = require("moonshard.base.text.json")
local ms = require("moonshard")
local scratch = require("lua.support.scratch")
local taken = require("moonshard.data.taken")

describe("a call of data:batches", function()
  teardown(scratch.clear)

  it("takes a number of steps, the total or more, and refuses what is none of these", function()
    local path = scratch.path()
    scratch.write(path, ("some text. "):rep(99))
    local text = ms.data.text { files = path, seq = 8, batch = 2 }
    for _, data in ipairs({ text, ms.data.masked { text, mask = 256, vocab = 256 }, ms.data.mix { { text } } }) do
      local function count(steps)
        local n = 0
        for _ in data:batches(steps) do n = n + 1 end
        return n
      end
      assert.same({ 3, 3, 3, 0 }, { count(3), count { total = 3 }, count { more = 3 }, count(0) })
      for _, case in ipairs({ { 1.5, "1.5" }, { -1, "-1" }, { "3", '"3"' }, { { total = -2 }, "-2" },
        { { more = 0.5 }, "0.5" }, { {}, "total | more" }, { { total = 1, more = 1 }, "total | more" },
        { { 3 }, "3 has no name" }, { { left = 3 }, "unknown option left" } }) do
        has(fixture.message(count, case[1]), "data:batches | " .. case[2])
      end
    end
  end)

  it("K1 goes on counting after a resume, whatever the data", function()
    local path = scratch.path()
    scratch.write(path, ("some text. "):rep(99))
    local function text() return ms.data.text { files = path, seq = 8, batch = 2, valid_fraction = 0 } end
    for _, make in ipairs({ text, function() return ms.data.masked { text(), mask = 256, vocab = 256 } end,
      function() return ms.data.mix { { text() }, { text() } } end }) do
      for _, steps in ipairs({ 5, false }) do
        local state
        local function numbers(data, stop)
          local list = {}
          for number, batch in data:batches(steps or nil) do
            taken.by_step(batch)
            list[#list + 1] = number
            if number == stop then break end
          end
          state = data:state()
          return list
        end
        local whole = numbers(make(), nil)
        assert.same({ 1, 2 }, numbers(make(), 2))
        local data = make()
        data:load_state(state)
        data:count_from(2)
        local rest = numbers(data, nil)
        assert.same({ 3, #whole }, { rest[1], rest[#rest] })
      end
    end
  end)

  it("K1 random data and samplers go on counting in the rest of an epoch", function()
    local function order() return ms.data.sampler({ length = 24, seed = 9, rank = 1, world = 2 }) end
    local function source() return ms.data.random({ length = 24, inputs = 2, targets = 1, seed = 3 }) end
    -- The numbers that a loop over an epoch gives, and those of the run; the state after `stop` batches.
    local function numbers(data, from, batch, o)
      local found, of_run = {}, {}
      for number, one in data:batches(from, batch) do
        if o.trains then taken.by_step(one) end
        found[#found + 1], of_run[#of_run + 1] = number, one.batch_number
        if number == o.stop then return json.decode(json.encode(data:state())) end
        if number == o.back_at then
          data:load_state(o.back_to)
          o = {}
        end
      end
      return found, of_run
    end
    for _, trains in ipairs({ false, true }) do
      local state = numbers(source(), order(), 3, { stop = 2, trains = trains })
      local function after(batch, o)
        local data = source()
        data:load_state(state)
        return numbers(data, order(), batch, o or {})
      end
      assert.same({ { 3, 4 }, { 3, 4 } }, { after(3) })
      -- Of other sizes, a step counts the batches that the call gave, where a training step took them.
      assert.same({ trains and { 3, 4, 5 } or { 4, 5, 6 }, { 4, 5, 6 } }, { after(2) })
      assert.same({ 3, 4, 3, 4 }, (after(3, { back_at = 4, back_to = state })))
      local own = order()
      own:load_state(state.sampler)
      assert.same({ 3, 4 }, (numbers(source(), own, 3, {})))
      assert.same({ 1, 2, 3, 4 }, (numbers(source(), own, 3, {})))
      own:load_state(state.sampler)
      local positions = {}
      for at in own:samples() do positions[#positions + 1] = at end
      assert.same({ 7, 8, 9, 10, 11, 12 }, positions)
    end
  end)
end)
