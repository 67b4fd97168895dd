-- Loops over `pairs` visit every item, also those that LuaJIT gives up compiling while they run.

require("moonshard")
local fixture = require("lua.fixture")
local has = require("lua.message").has
local program = require("lua.program")
local scratch = require("lua.scratch")

-- The inner loop is compiled first, so the outer one is not compiled; LuaJIT tries again and again, and after some
-- 40,000 rounds patches it for good, while it runs. On a LuaJIT with the defect most later rounds then end early.
local LOOPS = [[
local list = { 1, 2, 3, 4, 5 }
local lists = { a = list, b = list, c = list, d = list, e = list }

local function leave_compiled_code(...)
  for _ = 1, 100 do end
end

local short = 0
for _ = 1, 100000 do
  leave_compiled_code()
  local visited = 0
  for _, each in ITERATE do
    for _ in pairs(each) do end
    visited = visited + 1
  end
  if visited ~= 5 then short = short + 1 end
end
]]

describe("pairs", function()
  teardown(scratch.clear)

  for _, iterate in ipairs({ "pairs(lists)", "next, lists" }) do
    it(("visits every item in a program that requires moonshard, by %s"):format(iterate), function()
      assert.equal(0, assert(loadstring(LOOPS:gsub("ITERATE", iterate) .. "return short"))())
    end)
  end

  it("visits every item in a recipe", function()
    local recipe = scratch.path() .. ".lua"
    scratch.write(recipe, LOOPS:gsub("ITERATE", "pairs(lists)") .. 'print(("%d loops ended early"):format(short))')
    local ended = program.run { "run", recipe }
    assert.equal(0, ended.status, ended.err)
    has(ended.out, "0 loops ended early")
  end)

  it("reports what Lua's do, at the line of the caller", function()
    has(fixture.message(function() pairs(nil) end), "traversal_spec.lua", "bad argument #1 to 'pairs'")
    has(fixture.message(function() next({}, "absent") end), "invalid key to 'next'")
    assert.is_nil(next({}))
    assert.equal("key", (next({ key = 1 })))
  end)
end)
