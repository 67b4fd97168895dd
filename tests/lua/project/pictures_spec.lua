-- The pictures of the guides are what their commands draw, small, and shown by a guide.

local scratch = require("lua.support.scratch")

local FOLDER = "recipes/guides/pictures/"
local GUIDES = { sweep = "sweeps", timeline = "pricing", memory = "pricing", mesh = "fsdp_or_hsdp", loss = "running" }
local MAX_BYTES = 16 * 1024

describe("the pictures of the guides", function()
  teardown(scratch.clear)

  it("are what make pictures draws, of a few KiB, and in a guide", function()
    local drawn = scratch.folder()
    local status = os.execute(("luajit %sdraw.lua '%s' '%s'"):format(FOLDER, os.getenv("MOONSHARD_BIN"), drawn))
    assert.is_true(status == 0 or status == true)
    for name, guide in pairs(GUIDES) do
      local file = name .. ".svg"
      local kept = scratch.read(FOLDER .. file)
      assert.is_true(kept == scratch.read(drawn .. "/" .. file), file .. " is old: run make pictures")
      assert.is_true(#kept < MAX_BYTES, file)
      assert.truthy(scratch.read("recipes/guides/" .. guide .. ".md"):find("](pictures/" .. file .. ")", 1, true), file)
    end
  end)
end)
