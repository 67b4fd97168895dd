-- The lint rule of the Lua layer's floors: what it must find, in trees that are wrong on purpose.

local has = require("lua.support.message").has
local scratch = require("lua.support.scratch")

-- Runs the rule over files (path below lua/moonshard/ -> text); returns what it printed and whether it found nothing.
local function lint(files)
  local root, paths = scratch.path(), {}
  for path, text in pairs(files) do
    path = root .. "/lua/moonshard/" .. path
    os.execute("mkdir -p " .. path:match("^(.*)/"))
    scratch.write(path, text)
    paths[#paths + 1] = path
  end
  table.sort(paths)
  local pipe = assert(io.popen(("luajit tests/lint/requires.lua %s; echo status $?"):format(table.concat(paths, " "))))
  local out = pipe:read("*a"):gsub(root:gsub("%p", "%%%0") .. "/", "")
  pipe:close()
  return out:match("^(.*)status %d+\n$"), out:find("status 0\n$") ~= nil
end

describe("the floors of the Lua layer", function()
  after_each(scratch.clear)

  it("let a module require from below and from its own folder", function()
    local out, fine = lint {
      ["base/error.lua"] = "return {}",
      ["tensor/ops.lua"] = 'local errors = require("moonshard.base.error")\nreturn require "moonshard.tensor.class"',
      ["tensor/class.lua"] = '-- require("moonshard.cli.run") is only mentioned\nreturn {}',
      ["init.lua"] = 'local PARTS = { ops = { "moonshard.tensor.ops" } }',
    }
    assert.equal("", out)
    assert.is_true(fine)
  end)

  it("refuse a require that looks up, lazy or as a name in a table", function()
    local out, fine = lint {
      ["base/error.lua"] = "return function()\n  return require('moonshard.cli.status')\nend",
      ["tensor/ops.lua"] = 'return { later = "moonshard.train.trainer" }',
      ["data/text.lua"] = 'return require("moonshard")',
      ["cli/status.lua"] = "return {}",
      ["train/trainer.lua"] = "return {}",
      ["init.lua"] = "return {}",
    }
    assert.is_false(fine)
    local found = {}
    for line in out:gmatch("[^\n]+") do found[#found + 1] = line end
    assert.equal(3, #found, out)
    has(found[1], "lua/moonshard/base/error.lua:2: | moonshard.cli.status")
    has(found[2], "lua/moonshard/data/text.lua:1: | moonshard")
    has(found[3], "lua/moonshard/tensor/ops.lua:1: | moonshard.train.trainer")
  end)

  it("refuse a circle within a folder, with every step of it", function()
    local out, fine = lint {
      ["data/files.lua"] = 'return require("moonshard.data.text")',
      ["data/text.lua"] = '\nreturn function() return require("moonshard.data.tokens") end',
      ["data/tokens.lua"] = 'return require("moonshard.data.text")',
    }
    assert.is_false(fine)
    has(out, "circle | 2 modules | \n  lua/moonshard/data/text.lua:2 | moonshard.data.tokens\n")
    has(out, "\n  lua/moonshard/data/tokens.lua:1 | moonshard.data.text\n")
    assert.equal(3, select(2, out:gsub("\n", "")), out)
  end)

  it("refuse a folder that has none", function()
    local out, fine = lint { ["attic/old.lua"] = "return {}" }
    assert.is_false(fine)
    has(out, "lua/moonshard/attic/old.lua: | folder lua/moonshard/attic | floor")
  end)
end)
