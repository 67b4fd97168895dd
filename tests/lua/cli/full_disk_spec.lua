-- Disks that are full, and limits of files and memory: a message that names the file, a status that is not 0.

local has = require("lua.support.message").has
local program = require("lua.support.program")
local TOY = "recipes/toy_hsdp.lua"
local LIMIT = 64 * 2 ^ 20 -- bytes; the ranks' control segment is smaller

-- Runs the program after shell words (limits, redirections); only standard error is given.
local function command(arguments, before, after)
  local path = os.tmpname()
  local status = os.execute(("(%s timeout -k 5 60 %s %s) 2>%s %s"):format(before or "",
    os.getenv("MOONSHARD_BIN"), arguments, path, after or ">/dev/null"))
  local file = assert(io.open(path))
  local text = file:read("*a")
  file:close()
  os.remove(path)
  return status / 256, text
end

local function run(arguments, before, after) return command("run " .. arguments, before, after) end

local function fails(says, arguments, before, after)
  local status, text = run(arguments, before, after)
  assert.equal(3, status, text)
  has(text, says)
  local _, lines = text:gsub("\n", "")
  assert.is_true(lines <= 3, text)
end

describe("a run on a full disk", function()
  it("fails where standard output is on it", function()
    fails("standard output: | No space left", TOY .. " mesh=1x1 steps=9", "", ">/dev/full")
    fails("standard output: | No space left", TOY .. " -n 2 mesh=1x2 steps=9", "", ">/dev/full")
    fails("standard output: | No space left", TOY .. " -n 2 --log-ranks all mesh=1x2 steps=9", "", ">/dev/full")
    local path = program.recipe('print("one line")')
    fails("standard output: ", path, "", ">/dev/full")
    os.remove(path)
  end)

  it("fails in commands that only print, too", function()
    for _, words in ipairs({ "help", "doctor", "plan " .. TOY .. " -n 4 --json" }) do
      local status, text = command(words, "", ">/dev/full")
      assert.equal(3, status, words)
      has(text, "moonshard: standard output: ")
    end
  end)

  it("fails where the reader of standard output is gone and the program around it ignores SIGPIPE", function()
    -- Descriptor 9 is a pipe that was opened with a reader, which is closed.
    local before = "trap '' PIPE; p=$(mktemp -u); mkfifo $p; exec 8<>$p 9>$p; exec 8<&-; rm $p;"
    local path = program.recipe('require("moonshard"); print("one line")')
    for _, arguments in ipairs({ path, path .. " -n 2", path .. " -n 2 --log-ranks all",
      TOY .. " -n 2 mesh=1x2 steps=9" }) do
      fails("standard output: ", arguments .. " >&9", before)
    end
    os.remove(path)
    for _, words in ipairs({ "help", "doctor", "plan " .. TOY .. " -n 4 --json" }) do
      local status, text = command(words .. " >&9", before)
      assert.equal(3, status, words)
      has(text, "moonshard: standard output: ")
    end
  end)

  it("fails where metrics, event files or the trace are on it", function()
    fails("metrics | /dev/full: | No space left", TOY .. " -n 2 mesh=1x2 steps=9 --metrics /dev/full")
    fails("trace | /dev/full: | No space left", TOY .. " -n 2 mesh=1x2 steps=9 --trace /dev/full")
  end)

  it("fails at a limit of file sizes, which it reports with the file", function()
    local path = os.tmpname()
    os.execute(("truncate -s %d %s"):format(LIMIT - 100, path))
    fails("standard output: | File too large", TOY .. " -n 2 mesh=1x2 steps=9", "prlimit --fsize=" .. LIMIT,
      ">>" .. path)
    fails("standard output: | File too large", TOY .. " -n 2 mesh=1x2 steps=9 --log-ranks all",
      "prlimit --fsize=" .. LIMIT, ">>" .. path)
    os.remove(path)
    -- Memory that ranks share counts as a file.
    local status, text = run(TOY .. " -n 2 mesh=1x2 steps=2", "prlimit --fsize=4096")
    assert.equal(2, status)
    has(text, "File too large")
    has(text, "ulimit -f")
  end)
end)
