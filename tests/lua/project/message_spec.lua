-- What the specs' own look at messages finds, and what it does not take for a fact.

local message = require("lua.support.message")

describe("the facts of a message", function()
  local text = "recipe.lua:12: Rank 12 differs from rank 2: lr is 1.5, not 0.25 (max_norm [8,16])\n"

  it("are found in any order and case", function()
    message.has(text, "RANK 2 | rank 12 | recipe.lua:12")
    message.has(text, "[8,16] | max_norm | differ | lr | 1.5 | 0.25")
  end)

  it("are whole names and numbers", function()
    for _, fact in ipairs({ "rank 1", "ank 2", "5", "25", "1", "norm", "recipe.lua:1", "max", "dif", "lua:13" }) do
      assert.equal(fact, message.lacks(text, fact))
      assert.equal(fact, message.lacks(text, "rank 2 | " .. fact .. " | lr"))
    end
  end)

  it("are reported with the whole text where one lacks", function()
    local ok, raised = pcall(message.has, text, "lr | rank 3")
    assert.is_false(ok)
    message.has(raised, "rank 3 | recipe.lua:12 | max_norm")
    assert.has_error(function() message.has(text, "") end)
    assert.has_error(function() message.has(text, "lr |  | rank 2") end)
  end)

  it("may have to be those of one line", function()
    message.line_has(text, "rank 2 | rank 12")
    assert.has_error(function() message.line_has(text .. "more\n", "rank 2") end)
    assert.has_error(function() message.line_has(text:sub(1, -2), "rank 2") end)
    assert.has_error(function() message.line_has(text, "rank 3") end)
  end)
end)
