-- The rates of ms.schedule, step by step: warm-ups, the way down, and what is after the end.

local ms = require("moonshard")

local schedule = ms.schedule

local function assert_rates(expected, rate_of)
  for step, rate in pairs(expected) do assert.near(rate, rate_of(step), 1e-12, ("step %d"):format(step)) end
end

describe("schedules", function()
  it("rise to the peak in equal steps, and a constant one stays there", function()
    assert_rates({ 0.5, 1, 1.5, 2, 2, [1000] = 2 }, schedule.constant { peak = 2, warmup = 4 })
    assert_rates({ 2, 2 }, schedule.constant { peak = 2 })
  end)

  it("of a line fall from the peak to the floor as the steps pass", function()
    assert_rates({ 1, 2, 1.75, 1.5, 1.25, 1, 1, [1000] = 1 },
      schedule.linear { peak = 2, floor = 1, warmup = 2, total = 6 })
    assert_rates({ 1.5, 1, 0.5, 0, 0 }, schedule.linear { peak = 2, total = 4 })
  end)

  it("of a cosine fall by half of it", function()
    local part = math.sqrt(0.5)
    assert_rates({ 1, 2, 1.5 + 0.5 * part, 1.5, 1.5 - 0.5 * part, 1, 1, [1000] = 1 },
      schedule.cosine { peak = 2, floor = 1, warmup = 2, total = 6 })
  end)

  it("of one step have the peak there, as it is the first", function()
    for _, o in ipairs({ { peak = 2, total = 1 }, { peak = 2, total = 1, warmup = 1 } }) do
      for _, kind in ipairs { "linear", "cosine" } do assert_rates({ 2, 0, 0 }, schedule[kind](o)) end
    end
    assert_rates({ 2, 1, 1 }, schedule.wsd { peak = 2, floor = 1, total = 1, decay = 1 })
  end)

  it("of three parts stay at the peak until the last steps", function()
    assert_rates({ 1, 2, 2, 2, 1.5, 1, 1, [1000] = 1 },
      schedule.wsd { peak = 2, floor = 1, warmup = 2, total = 6, decay = 2 })
  end)
end)
