-- What data:batches takes: a number of steps, or one that says whether it counts those before a resume.

local fixture = require("lua.support.fixture")
local has = require("lua.support.message").has
local ms = require("moonshard")
local scratch = require("lua.support.scratch")

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
end)
