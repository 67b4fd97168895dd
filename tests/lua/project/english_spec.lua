-- The lint rule for plain English: what it must find in documents and comments, and what it must leave alone.

local has = require("lua.support.message").has
local scratch = require("lua.support.scratch")

-- Runs the rule over files (path -> text) in a folder; returns what it printed, and whether it found nothing.
local function lint(files)
  local root, paths = scratch.folder(), {}
  for path, text in pairs(files) do
    os.execute(("mkdir -p '%s/%s'"):format(root, path:match("^(.*)/") or "."))
    scratch.write(root .. "/" .. path, text)
    paths[#paths + 1] = path
  end
  table.sort(paths)
  local pipe = assert(io.popen(("cd '%s' && luajit \"$OLDPWD/tests/lint/english.lua\" %s; echo status $?"):format(root,
    table.concat(paths, " "))))
  local out = pipe:read("*a")
  pipe:close()
  return out:match("^(.*)status %d+\n$"), out:find("status 0\n$") ~= nil
end

local function finds(path, text, line)
  local out, fine = lint { [path] = text }
  assert.is_false(fine, text)
  has(out, path .. ":" .. line .. ":")
end

local function passes(path, text) assert.same({ "", true }, { lint { [path] = text } }) end

local OF = "O" .. "f" -- this file is read by the rule, too

describe("the lint rule for plain English", function()
  after_each(scratch.clear)

  it("finds a sentence that opens with what belongs to its object", function()
    finds("page.md", "# Title\n\n" .. OF .. " the runs, ten are long.", 3)
    finds("page.md", "A first sentence.\nAnother one ends. " .. OF .. "\nall runs, ten are long.", 2)
    finds("page.md", "- " .. OF .. " each pair, one is right.", 1)
    finds("page.lua", "local x = 1\n\n-- A line.\n-- " .. OF .. " two, the later one.\n", 4)
    finds("page.lua", "---" .. OF .. " a line; see there.\n", 1)
    finds("page.c", "int x;\n/* A line. " .. OF .. " a weight,\n * only codes. */", 2)
    finds("page.c", "struct s {\n  /* " .. OF .. " the state. */\n  int x;\n};", 2)
  end)

  it("leaves other sentences, names and code alone", function()
    -- prose: input of the rule
    passes("page.md", "The first of all runs. Office hours. None of the above.\n\n    " .. OF .. " a code block\n")
    passes("page.md", "```\n" .. OF .. " a fence\n```\n")
    passes("page.lua", 'local text = "' .. OF .. ' a string"\n')
    passes("page.c", 'const char *text = "' .. OF .. ' a string";')
  end)

  it("finds phrases that have to be read twice", function()
    finds("page.md", "Take that" .. " which fits.", 1) -- prose: input of the rule
    finds("page.lua", "-- x\n-- Names t" .. "ell\n-- them apart: no t" .. "ell apart.\n", 3)
    finds("page.md", "The second comes behind\nthe first.", 1) -- prose: input of the rule
    finds("page.lua", "local x\n-- what stands behind\n-- the last one\n", 2)
    finds("page.c", "int x; /* NULL behind the last */\n", 1)
    passes("page.lua", "-- It leaves some behind, `behind`.\nlocal behind = 1\n") -- prose: input of the rule
    -- prose: input of the rule
    passes("page.md", "Nothing is left behind. Sums hide behind kernels. A send waits\nbehind another one. `behind`")
  end)

  it("wants guides that say when to use them, and a README that lists them", function()
    local text = "# A guide\n\nThis page.\n\n**When to use it.** Now and then.\n"
    local listed = "[a guide](lua/guides/a.md)"
    assert.same({ "", true }, { lint { ["README.md"] = listed, ["lua/guides/a.md"] = text } })
    has((lint { ["README.md"] = listed, ["lua/guides/a.md"] = "# A guide\n" }), "lua/guides/a.md:1: | When")
    has((lint { ["README.md"] = "none", ["lua/guides/a.md"] = text }), "README.md | lua/guides/a.md")
  end)
end)
