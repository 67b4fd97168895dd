-- moonshard generate: a recipe with the weights of a checkpoint.

local program = require("lua.program")

local RECIPE = "tests/lua/recipes/generated.lua"
local folder

local function generated(...)
  local ended = program.run({ "generate", ... })
  assert.equal(0, ended.status, ended.err)
  return ended.out
end

local function refused(text, ...)
  local ended = program.run({ "generate", ... })
  assert.equal(2, ended.status)
  assert.truthy(ended.err:find(text, 1, true), ended.err)
end

describe("moonshard generate", function()
  setup(function()
    folder = os.tmpname()
    os.remove(folder)
    assert.equal(0, os.execute("mkdir " .. folder))
  end)

  teardown(function() os.execute("rm -rf " .. folder) end)

  it("gives what the trained model gave, on any mesh", function()
    local ended = program.run({ "run", RECIPE, "-n", "2", "checkpoint=" .. folder, "out=" .. folder .. "/text" })
    assert.equal(0, ended.status, ended.err)
    local file = assert(io.open(folder .. "/text", "rb"))
    local text = file:read("*a")
    file:close()
    local arguments = { RECIPE, "--checkpoint", folder, "--prompt", "the", "--tokens", "10", "--seed", "4" }
    assert.equal(text, generated(unpack(arguments)))
    assert.equal(text, generated("-n", "2", "mesh=2x1", unpack(arguments)))
    arguments[#arguments] = "5"
    assert.are_not.equal(text, generated(unpack(arguments)))
    refused("is no checkpoint", RECIPE, "--checkpoint", folder .. "/none")
    refused("needs --checkpoint DIR", RECIPE)
  end)
end)
