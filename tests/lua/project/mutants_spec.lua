-- The faults that `make mutants` puts into the sources fit them. That takes a quarter of an hour, so it would find
-- late that a fault's line was reworded.

local mutants = require("mutants.mutants")
local scratch = require("lua.support.scratch")

describe("the table of faults", function()
  it("has lines that stand once in their files, faults that differ from them, and specs that are there", function()
    local titles = {}
    for _, mutant in ipairs(mutants) do
      local title, path, line, instead, spec = unpack(mutant)
      assert.is_nil(titles[title], title)
      titles[title] = true
      local text = scratch.read(path)
      local first, last = text:find(line, 1, true)
      assert(first, ("%s: %s has no line %q"):format(title, path, line))
      assert.is_nil(text:find(line, last + 1, true), title)
      assert.not_equal(line, instead, title)
      local is_c = spec:find("/test_[%w_]+$")
      local file = io.open(("tests/%s/%s.%s"):format(is_c and "c" or "lua", spec, is_c and "c" or "lua"))
      assert(file, ("%s: there is no spec %s"):format(title, spec)):close()
    end
  end)
end)
