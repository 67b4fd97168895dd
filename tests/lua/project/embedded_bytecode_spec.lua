-- The Lua modules in the executable: the same bytes in every build, and the lines of their sources in messages.

local has = require("lua.support.message").has
local scratch = require("lua.support.scratch")

local SOURCE = [==[
local many = { zulu = 1, yankee = 2.5, xray = "s", whiskey = true, victor = false, 10, 20, 30, [-7] = 1e300, [0.5] = 3 }
local function inner(x) return { papa = x, ["long string " .. x] = -1, oscar = 7LL, november = 12345678901234ULL } end
local complex = 3i
return { many = many, inner = inner, fails = function(t) return t.missing.field end, complex = complex }
]==]

describe("the Lua modules in the executable", function()
  teardown(scratch.clear)

  it("are the same bytes in every build", function()
    local folder = scratch.folder()
    scratch.write(folder .. "/module.lua", SOURCE)
    local made
    for i = 1, 5 do
      local path = ("%s/%d.c"):format(folder, i)
      local status = os.execute(("luajit runtime/make/embed_lua.lua %s %s %s/module.lua"):format(path, folder, folder))
      assert.equal(0, status)
      made = made or scratch.read(path)
      assert.equal(made, scratch.read(path))
    end
  end)

  it("do as their sources do", function()
    local bytecode = dofile("runtime/make/bytecode.lua")
    local loaded = assert(loadstring(bytecode(SOURCE, "@some/module.lua"), "ignored"))()
    local source = assert(loadstring(SOURCE))()
    assert.same(source.many, loaded.many)
    assert.same(source.inner("k"), loaded.inner("k"))
    assert.equal(tostring(source.complex), tostring(loaded.complex))
    local _, message = pcall(loaded.fails, {})
    has(message, "some/module.lua:4 | field 'missing'")
  end)
end)
