-- Compiled loops do what they say: those over `pairs` visit every item and keep its key, and fields get what is stored
-- in them.

require("moonshard")
local fixture = require("lua.support.fixture")
local has = require("lua.support.message").has
local program = require("lua.support.program")
local scratch = require("lua.support.scratch")

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

-- On a LuaJIT with the defect a quarter of the stores is lost.
local STORES = [[
local function replace_first_found(list)
  for _, each in ipairs(list) do
    for _, name in ipairs({ "out", "inner", "size" }) do
      if each[name] then each[name] = 16 end
    end
  end
end

local lost = 0
for round = 1, 4000 do
  local list = {}
  for i = 1, round % 5 + 1 do
    local kind = (round * 7 + i * i) % 3
    list[i] = kind == 1 and { out = 9, bias = true, activation = "x" } or kind == 2 and { inner = 9, activation = "x" }
      or { heads = 1, keys = 1, size = 9, options = "x" }
  end
  replace_first_found(list)
  for _, each in ipairs(list) do
    if (each.out or each.inner or each.size) ~= 16 then lost = lost + 1 end
  end
end
]]

-- On a LuaJIT with the defect most of the largest keys are those of the round before.
local KEYS = [[
local function survey(list)
  local count, last = 0, 0
  for key in pairs(list) do
    count = count + 1
    if key > last then last = key end
  end
  return count, last
end

local wrong = 0
for round = 1, 100000 do
  local list = { 1, 2, 3 }
  list[round % 2 + 1] = nil
  local count, last = survey(list)
  if count ~= 2 or last ~= 3 then wrong = wrong + 1 end
end
]]

describe("a compiled loop", function()
  teardown(scratch.clear)

  for _, iterate in ipairs({ "pairs(lists)", "next, lists" }) do
    it(("over %s visits every item in a program that requires moonshard"):format(iterate), function()
      assert.equal(0, assert(loadstring(LOOPS:gsub("ITERATE", iterate) .. "return short"))())
    end)
  end

  it("stores in the fields that it names", function()
    assert.equal(0, assert(loadstring(STORES .. "return lost"))())
  end)

  -- In a process of its own, where nothing else was compiled before.
  it("keeps the key that it was given", function()
    local path = scratch.path()
    scratch.write(path, 'require("moonshard.base.luajit_defects")\n' .. KEYS .. "print(wrong)")
    local pipe = assert(io.popen("luajit " .. path))
    assert.equal("0\n", pipe:read("*a"))
    pipe:close()
  end)

  it("does all of it in a recipe", function()
    local recipe = scratch.path() .. ".lua"
    scratch.write(recipe, LOOPS:gsub("ITERATE", "pairs(lists)") .. STORES .. KEYS
      .. 'print(("%d loops ended early, %d stores were lost, %d keys were wrong"):format(short, lost, wrong))')
    local ended = program.run { "run", recipe }
    assert.equal(0, ended.status, ended.err)
    has(ended.out, "0 loops ended early, 0 stores were lost, 0 keys were wrong")
  end)

  it("over no table is reported as Lua does, at the line of the caller", function()
    has(fixture.message(function() pairs(nil) end), "luajit_defects_spec.lua", "bad argument #1 to 'pairs'")
    has(fixture.message(function() next({}, "absent") end), "invalid key to 'next'")
    assert.is_nil(next({}))
    assert.equal("key", (next({ key = 1 })))
  end)
end)
