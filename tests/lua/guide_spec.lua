-- What the guides print is what comes out.

local program = require("lua.program")

local function read(path)
  local file = assert(io.open(path))
  local text = file:read("*a")
  file:close()
  return text
end

-- The first program of a section, and the indented lines behind it.
local function program_and_output(path, section)
  local text = read(path):match("\n## " .. section .. "\n(.*)")
  local source, rest = text:match("```lua\n(.-)```\n(.*)")
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

describe("the guide from DeviceMesh", function()
  it("D3 D4 D5 prints what the program prints", function()
    local source, expected = program_and_output("lua/README.md", "From DeviceMesh to Moonshard")
    local path = program.recipe(source)
    local ended = program.run({ "run", path, "-n", "8" })
    os.remove(path)
    assert.equal("", ended.err)
    local got = ended.out:gsub("\t", (" "):rep(8)):gsub(path:gsub("%p", "%%%0"), "mesh.lua")
    assert.equal(expected, got)
  end)
end)
