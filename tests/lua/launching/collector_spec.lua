-- When garbage of a run is collected: not while modules are loaded, which every start would pay for, and not before a
-- rank has as much as short runs never have.

local launched = require("lua.support.launched")
local program = require("lua.support.program")

describe("the collector of a run", function()
  it("waits for the first 30 MiB, and then works", function()
    launched.with_recipe([[
      local most = 0
      for i = 1, 2000 do -- 200 MB
        local text = ("x"):rep(1e5) .. i
        most = math.max(most, #text > 0 and collectgarbage("count") / 1024)
      end
      print(most > 30, most < 150)
    ]], function(recipe)
      assert.equal("true\ttrue\n", program.run({ "run", recipe }).out)
    end)
  end)
end)
