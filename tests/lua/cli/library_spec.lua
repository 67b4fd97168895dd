-- Files that return what recipes use, and train nothing: commands say so, instead of nothing or of a missing step.

local has = require("lua.support.message").has
local program = require("lua.support.program")

local LIBRARY = "recipes/image_models.lua"
local TOLD = LIBRARY .. " | library | resnet, unet | image_models"

describe("a file that recipes share", function()
  it("says that it is a library when it is run or planned", function()
    local ended = program.run({ "run", LIBRARY, "-n", "2" })
    assert.equal(0, ended.status, ended.err)
    local _, times = ended.err:gsub("library", "")
    assert.equal(1, times)
    has(ended.err, TOLD)
    program.refused(2, { "plan", LIBRARY, "-n", "2" }, TOLD)
    program.refused(2, { "price", LIBRARY, "-n", "2", "--cluster", "h100x8" }, TOLD)
  end)

  it("is not what a recipe without training is that returns numbers", function()
    local path = program.recipe([[
      local ms = require "moonshard"
      return { mean = ms.tensor({ 1, 2 }):mean():item() }
    ]])
    local ended = program.run({ "run", path })
    os.remove(path)
    assert.equal("", ended.err)
    assert.equal(0, ended.status)
  end)
end)
