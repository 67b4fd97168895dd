-- The plans in the guides are those of this version: readers compare fingerprints and instructions with their own.
--
-- A plan's peak and workspace depend on the machine's matrix products; fingerprint and instructions do not. When plans
-- change on purpose, the failure has the line to copy into the page.

local program = require("lua.support.program")
local scratch = require("lua.support.scratch")

local COMMANDS = {
  { "recipes/llama.lua -n 128 mesh=16x8 size=8B seq=4096 batch=1", "README.md", "recipes/guides/planning.md" },
  { "recipes/lora.lua -n 8 mesh=1x8 size=8B seq=4096 batch=1", "lua/guides/adapters.md" },
  { "recipes/lora.lua -n 2 size=8B seq=2048 batch=1 storage=nf4 stored=", "lua/guides/adapters.md" },
  { "tests/lua/plans/recipes/two_blocks.lua -n 2", "runtime/guides/passes.md" },
}
-- Pages with a plan that another test compares, or that has the dtype of the machine's processor.
local ELSEWHERE = { ["lua/guides/inspecting.md"] = 1, ["recipes/guides/bring_your_model.md"] = 1 }

local function plans_in(page) return select(2, scratch.read(page):gsub("fingerprint %x%x%x%x%x%x%x%x", "")) end

describe("the plans in the guides", function()
  it("are those that their commands print", function()
    local runs, shown = {}, {}
    for i, command in ipairs(COMMANDS) do
      runs[i] = { "plan" }
      for word in command[1]:gmatch("%S+") do table.insert(runs[i], word) end
      table.insert(runs[i], "--summary")
    end
    local ended = program.run_all(runs)
    for i, command in ipairs(COMMANDS) do
      local line = ended[i].out:match("^(plan: .-), peak ")
      assert.truthy(line, ended[i].err)
      for k = 2, #command do
        local page = command[k]
        assert.truthy(scratch.read(page):find(line, 1, true), page .. ": " .. line)
        shown[page] = (shown[page] or 0) + 1
      end
    end
    local pages = assert(io.popen("ls *.md */guides/*.md */*.md"))
    for page in pages:lines() do assert.equal(shown[page] or ELSEWHERE[page] or 0, plans_in(page), page) end
    pages:close()
  end)
end)
