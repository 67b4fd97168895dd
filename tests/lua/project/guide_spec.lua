-- What the guides print is what comes out.

local program = require("lua.support.program")
local pty = require("lua.support.pty")
local scratch = require("lua.support.scratch")

-- The nth program of a section, which can be a whole page, and the indented lines after it.
local function program_and_output(path, section, n)
  local rest, source = ("\n" .. scratch.read(path)):match("\n#+ " .. section .. "\n(.*)"), nil
  for _ = 1, n or 1 do source, rest = rest:match("```lua\n(.-)```\n(.*)") end
  local lines = {}
  for line in rest:gmatch("([^\n]*)\n") do
    if line:sub(1, 4) == "    " then
      lines[#lines + 1] = line:sub(5)
    elseif #lines > 0 then
      break
    end
  end
  return source, table.concat(lines, "\n") .. "\n"
end

local function output_of(source, ranks, ...)
  local path = program.recipe(source)
  local ended = program.run({ "run", path, "-n", tostring(ranks), ... })
  os.remove(path)
  assert.equal("", ended.err)
  return (ended.out:gsub("\t", (" "):rep(8)):gsub(path:gsub("%p", "%%%0"), "mesh.lua"))
end

describe("the guide to meshes", function()
  it("D3 D4 D5 prints what the program prints", function()
    local source, expected = program_and_output("lua/guides/meshes.md", "Slices of a mesh")
    assert.equal(expected, output_of(source, 8))
  end)

  it("D4 prints what the slices' training prints", function()
    local source, expected = program_and_output("lua/guides/meshes.md", "Slices of a mesh", 2)
    local lines = {}
    for line in output_of(source, 8, "--log-ranks", "all"):gmatch("[^\n]+\n") do lines[#lines + 1] = line end
    table.sort(lines)
    assert.equal(expected, table.concat(lines))
  end)
end)

describe("the guide to batches", function()
  it("G5 has a program that trains on masked tokens as it stands", function()
    local source, text = program_and_output("recipes/guides/batches.md", "Masked tokens"), scratch.path()
    scratch.write(text, ("A line of the text. "):rep(200))
    assert.truthy(output_of(source, 1, "steps=1", "files=" .. text):find("step 1/1  loss", 1, true))
  end)
end)

describe("the guides to the Lua layer", function()
  -- A plan's workspace changes with the machine's matrix products.
  local function of_any_machine(text)
    return (text:gsub("(peak) [%d.]+ %a+", "%1"):gsub("(workspace) [%d.]+ %a+", "%1"))
  end

  it("I2 prints what looking into a model prints", function()
    local title = "Looking into a model, and changing its rules"
    local source, expected = program_and_output("lua/guides/inspecting.md", title)
    assert.equal(of_any_machine(expected), of_any_machine(output_of(source, 4)))
  end)

  it("T4 prints what dividing by hand prints, on two ranks and on one", function()
    local source, expected = program_and_output("lua/guides/collectives.md", "Collectives, and dividing by hand")
    assert.equal(expected, output_of(source, 2))
    assert.equal(expected, output_of(source:gsub("{ 1, 2 }", "{ 1, 1 }"), 1))
  end)

  it("I2 prints what eager work prints", function()
    local source, expected = program_and_output("lua/guides/tensors.md", "Eager work")
    local got = output_of('local ms = require "moonshard"\n' .. source, 1)
    assert.equal((expected:gsub(" +", " ")), (got:gsub(" +", " "))) -- tabs are as wide as the page likes
  end)
end)

describe("the guide to what is wrong", function()
  it("shows the errors that its commands print", function()
    local guide, compared = scratch.read("recipes/guides/when_something_is_wrong.md"), 0
    for line, expected in guide:gmatch("\n    %$ moonshard (run [^\n]*)\n    (moonshard: [^\n]*)") do
      local arguments = {}
      for word in line:gmatch("%S+") do arguments[#arguments + 1] = word end
      local ended = program.run(arguments)
      local function any_length(text) return (text:gsub("hostname has %d+ bytes", "hostname has # bytes")) end
      assert.equal(2, ended.status)
      assert.equal(any_length(expected .. "\n"), any_length(ended.err))
      compared = compared + 1
    end
    assert.is_true(compared >= 4)
  end)
end)

describe("the recipe that does everything by hand", function()
  it("K1 goes on from a checkpoint with the next batch, bit for bit", function()
    local folder = os.tmpname()
    os.remove(folder)
    local function last_line(steps, ...)
      local ended = program.run({ "run", "recipes/own_data.lua", "-n", "4", "steps=" .. steps, "eval_every=4", ... })
      assert.equal("", ended.err)
      local line = ended.out:match(("step %d/%d (.-)\n"):format(steps, steps))
      return (line:gsub("%S+ samples/s", ""):gsub("%S+ KiB per rank", "")) -- one has evaluated before, one has not
    end
    last_line(6, "checkpoint=" .. folder)
    local resumed = last_line(8, "checkpoint=" .. folder, "resume=auto")
    os.execute("rm -r " .. folder)
    assert.equal(last_line(8), resumed)
    assert.truthy(resumed:find("validation %d"))
  end)
end)

describe("the guide to a fine-tune", function()
  local function share(text, when) return tonumber(text:match(when .. ": validation loss [%d.]+  acc ([%d.]+)")) end

  it("G5 has commands that train, evaluate and answer", function()
    local folder = scratch.folder()
    local lines = { "set -e", 'ln -s "$OLDPWD/recipes" .' }
    local page = scratch.read("recipes/guides/conversations.md")
    local section = page:match("\n## A fine%-tune from end to end\n(.-)\n## ")
    for line in section:gmatch("\n    %$ ([^\n]+)") do
      lines[#lines + 1] = line
    end
    assert.equal(10, #lines)
    scratch.write(folder .. "/commands.sh", table.concat(lines, "\n"))
    local bin = os.getenv("MOONSHARD_BIN")
    local status = os.execute(("cd '%s' && PATH='%s':$PATH bash commands.sh >out 2>err"):format(folder,
      bin:match("^(.*)/")))
    local out, err = scratch.read(folder .. "/out"), scratch.read(folder .. "/err")
    assert.equal(0, status, err)
    assert.truthy(out:find(section:match('\n    ({"context"[^\n]+)'), 1, true))
    local first, second = out:match("^(.-after:[^\n]*\n)(.*)$")
    assert.is_true(share(first, "before") < 1)
    assert.equal(1, share(first, "after"))
    assert.equal(1, share(second, "before"))
    assert.equal(first:match("after: ([^\n]*)"), second:match("before: ([^\n]*)"))
    assert.truthy(second:find("answer: moo", 1, true))
    assert.truthy(second:find("assistant\n%l+"))
    scratch.clear()
  end)
end)

-- Lines that are typed at the prompt in a page, with what is shown after each; ^C is a key.
local function typed_and_shown(path)
  local entries, entry = {}, nil
  for line in scratch.read(path):gmatch("([^\n]*)\n") do
    local typed, more = line:match("^    moonshard> (.*)"), line:match("^            %.%. (.*)")
    if typed then
      entry = { typed = { typed }, shown = "" }
      entries[#entries + 1] = entry
    elseif entry and more then
      entry.typed[#entry.typed + 1] = more
    elseif entry and line:sub(1, 4) == "    " then
      if line == "    ^C" then entry.stopped = true end
      entry.shown = entry.shown .. line:sub(5) .. "\n"
    else
      entry = nil
    end
  end
  return entries
end

-- What differs from run to run is how long something took; from machine to machine, the last digits, and the peak,
-- which has the workspace of the machine's matrix products in it.
local function comparable(text)
  text = ("\n" .. text):gsub("\n(peak) [^\n]*", "\n%1"):gsub("\n(workspace) [^\n]*", "\n%1")
  return (text:gsub("(%l+_ms = )[%w.+-]+", "%1#"):gsub("(%l+_per_s = )[%w.+-]+", "%1#")
    :gsub("(peak_bytes = )%d+", "%1#"):gsub("(plan_bytes = )%d+", "%1#"):gsub("(waits_ms = )%b{}", "%1#")
    :gsub("%d+%.%d+", function(number) return ("%.4g"):format(tonumber(number)) end))
end

describe("the tour of the prompt", function()
  it("I1 I2 I3 I4 shows what a user sees after typing it", function()
    local state = os.tmpname()
    os.remove(state)
    local terminal = pty.spawn({ os.getenv("MOONSHARD_BIN"), "repl", "-n", "4" }, { XDG_STATE_HOME = state })
    terminal:expect("Ctrl-D ends.")
    terminal:expect("moonshard> ")
    local entries = typed_and_shown("lua/guides/prompt.md")
    assert.is_true(#entries >= 20)
    local ok, raised = pcall(function()
      local was_stopped
      for _, entry in ipairs(entries) do
        for i, line in ipairs(entry.typed) do
          terminal:send(line .. "\n")
          if i < #entry.typed then terminal:expect(".. ") end
        end
        if entry.stopped then
          require("ffi").C.usleep(300000)
          terminal:send("\3")
        end
        -- What is typed is echoed, in pieces where it is long; its end stands before what is shown.
        local echo, shown = entry.typed[#entry.typed]:sub(-5) .. "\n", terminal:expect("moonshard> ")
        local _, begin = shown:find(echo, 1, true)
        assert.is_truthy(begin, shown)
        shown = shown:sub(begin + 1, -#"moonshard> " - 1)
        if was_stopped then -- how far that came is unknown
          assert.is_truthy(shown:find("^%d+\n$"), shown)
        else
          assert.equal(comparable(entry.shown), comparable(shown))
        end
        was_stopped = entry.stopped
      end
    end)
    terminal:close()
    os.execute("rm -rf " .. state)
    if not ok then error(raised, 0) end
  end)
end)
