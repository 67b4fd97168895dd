-- Files that a run writes when it ends: folders on the way, and a check when it begins that changes nothing.

local file_status = require("moonshard.base.files.file_status")
local output_file = require("moonshard.base.files.output_file")
local has = require("lua.support.message").has
local program = require("lua.support.program")
local scratch = require("lua.support.scratch")

local function fails(text, call, ...)
  local ok, raised = pcall(call, ...)
  assert.is_false(ok)
  has(tostring(raised), text)
end

describe("output_file", function()
  local folder

  before_each(function() folder = scratch.path() end)

  after_each(scratch.clear)

  it("writes, with the folders on the way", function()
    output_file.write("chart", folder .. "/a/b.svg", "<svg/>")
    assert.equal("<svg/>", scratch.read(folder .. "/a/b.svg"))
    output_file.write("chart", folder .. "/a/b.svg", "")
    assert.equal("", scratch.read(folder .. "/a/b.svg"))
  end)

  it("says why a file cannot be written", function()
    fails("chart /dev/null/x.svg: Not a directory", output_file.write, "chart", "/dev/null/x.svg", "")
    fails("No space left", output_file.write, "chart", "/dev/full", ("x"):rep(100000))
  end)

  it("checks beforehand, and leaves no trace of that but folders", function()
    fails("chart /dev/null/x.svg: Not a directory", output_file.check, "chart", "/dev/null/x.svg")
    fails("chart /proc/a/b.svg: folder /proc/a: ", output_file.check, "chart", "/proc/a/b.svg")
    fails("chart /proc: ", output_file.check, "chart", "/proc")
    output_file.check("chart", folder .. "/a/b.svg")
    assert.is_nil(io.open(folder .. "/a/b.svg"))
    output_file.write("chart", folder .. "/a/b.svg", "before")
    output_file.check("chart", folder .. "/a/b.svg")
    assert.equal("before", scratch.read(folder .. "/a/b.svg"))
  end)

  it("of an option of any command is refused before anything runs, and leaves no folder behind", function()
    os.execute("mkdir " .. folder)
    local nowhere, toy = folder .. "/nope", "recipes/toy_hsdp.lua"
    for _, words in ipairs({
      { "run", toy, "-n", "4", "--metrics", nowhere .. "/m.jsonl" },
      { "run", toy, "-n", "4", "--trace", nowhere .. "/t.json" },
      { "run", toy, "-n", "4", "--tensorboard", nowhere .. "/events" },
      { "run", toy, "-n", "4", "--log-dir", nowhere .. "/logs" },
      { "price", toy, "-n", "4", "--cluster", "h100x8", "--trace", nowhere .. "/t.json" },
      { "calibrate", "--out", nowhere .. "/cluster.lua" },
      { "sweep", "--compare", "a", "b", "--out", nowhere .. "/page" },
      { "tokenize", "--tokenizer", "t", "--out", nowhere .. "/text.bin", toy },
    }) do
      local ended = program.run(words)
      assert.equal(2, ended.status, table.concat(words, " "))
      has(ended.err, "no folder | " .. nowhere)
      assert.equal("", ended.out)
    end
    assert.is_nil(file_status.of_path(nowhere))
    fails("--log-dir | this is not a folder", output_file.check_option, "--log-dir", "/dev/null", true)
    fails("--metrics | Is a directory", output_file.check_option, "--metrics", folder)
    for _, path in ipairs({ folder .. "/events", folder .. "/events/", "events", "/events" }) do
      output_file.check_option("--tensorboard", path, true)
    end
  end)

  it("does not wait for a pipe without a reader, and does not end one that has a reader", function()
    os.execute(("mkdir %s && mkfifo %s/pipe"):format(folder, folder))
    local pipe = folder .. "/pipe"
    fails("pipe | reader", output_file.check, "chart", pipe)
    fails("pipe | reader", output_file.write, "chart", pipe, "x")
    local file, why = output_file.open_lines(pipe, "ae")
    assert.is_nil(file)
    has(why, "pipe | reader")
    os.execute(("timeout 30 head -n 1 %s >%s/read &"):format(pipe, folder))
    for _ = 1, 400 do -- until the reader has opened it
      if pcall(output_file.check, "metrics", pipe) then break end
      os.execute("sleep 0.02")
    end
    output_file.check("metrics", pipe)
    file = assert(output_file.open_lines(pipe, "ae"))
    file:write("a line\n")
    file:close()
    for _ = 1, 400 do
      if scratch.read(folder .. "/read") ~= "" then break end
      os.execute("sleep 0.05")
    end
    assert.equal("a line\n", scratch.read(folder .. "/read"))
  end)
end)
