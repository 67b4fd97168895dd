-- What a build prints (runtime/make/quiet.sh): how many files are compiled, what goes wrong, and no more.

local has = require("lua.support.message").has
local scratch = require("lua.support.scratch")

-- Stands for make: with -n it prints the commands of `files` compilations, else what they print, and a warning.
local MAKE = [==[#!/bin/bash
for i in $(seq %d); do
  if [ "$1" = -n ]; then echo "echo \"cc    a/b$i.c\""; else echo "cc    a/b$i.c"; fi
done
[ "$1" = -n ] && exit
echo "link  build/program"
echo "b3.c:1: warning: unused" >&2
exit %d
]==]

-- The exit status and what is printed, on both outputs.
local function build(files, status, verbose)
  local make = scratch.path()
  scratch.write(make, MAKE:format(files, status))
  local command = ("chmod +x %s; MAKEFLAGS= runtime/make/quiet.sh '%s' %s 2>&1; echo status $?"):format(make,
    verbose and 1 or "", make)
  local pipe = assert(io.popen(command))
  local text = pipe:read("*a")
  pipe:close()
  return tonumber(text:match("status (%d+)\n$")), text
end

describe("a build", function()
  teardown(scratch.clear)

  it("says how many files it compiles, and shows warnings", function()
    local status, text = build(200, 0)
    assert.equal(0, status)
    has(text, "200 files | V=1 | 20/200 | 200/200 | compiled 200 files")
    assert.truthy(text:find("b3.c:1: warning", 1, true))
    assert.is_nil(text:find("cc  ", 1, true))
    assert.is_nil(text:find("link", 1, true))
    local _, lines = text:gsub("\n", "")
    assert.is_true(lines < 20, lines)
  end)

  it("prints nothing of its own where nothing is compiled, and each file with V=1", function()
    local _, text = build(0, 0)
    assert.is_nil(text:find("compil", 1, true))
    _, text = build(3, 0, true)
    assert.truthy(text:find("cc    a/b3.c", 1, true))
  end)

  it("ends as make does", function()
    assert.equal(2, (build(3, 2)))
    assert.equal(2, (build(3, 2, true)))
  end)
end)
