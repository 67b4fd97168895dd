-- Standard descriptors that are closed when a run begins: what is opened next must not get their numbers.

local has = require("lua.support.message").has


local BIN = assert(os.getenv("MOONSHARD_BIN"), "MOONSHARD_BIN names the executable under test")

-- Runs a recipe with redirections; its exit status, and what it wrote where a descriptor was open.
local function run(arguments, redirections)
  local path = os.tmpname()
  local status = os.execute(("{ timeout -k 5 60 %s run %s %s; } >%s 2>&1 3>&1"):format(BIN, arguments, redirections,
    path))
  local file = assert(io.open(path))
  local text = file:read("*a")
  file:close()
  os.remove(path)
  return status / 256, text
end

describe("a run with closed standard descriptors", function()
  local folder

  before_each(function()
    folder = os.tmpname()
    os.remove(folder)
    assert(os.execute("mkdir " .. folder) == 0)
  end)

  after_each(function() os.execute("rm -r " .. folder) end)

  it("L5 trains as any other", function()
    local toy = "recipes/toy_hsdp.lua mesh=1x2 steps=3 -n 2 --metrics " .. folder .. "/metrics "
    for _, closed in ipairs({ "<&-", ">&-", "2>&-", ">&- 2>&-", "<&- >&- 2>&-" }) do
      for _, options in ipairs({ "", "--log-ranks all", "--log-dir " .. folder }) do
        os.remove(folder .. "/metrics")
        local status, text = run(toy .. options, closed)
        assert.equal(0, status, closed .. " " .. options .. ": " .. text)
        local steps = 0
        for line in io.lines(folder .. "/metrics") do
          steps = steps + 1
          assert.truthy(line:find(('^{"step":%d,"loss":'):format(steps)), line)
        end
        assert.equal(3, steps)
        assert.equal(not closed:find(">&-", 1, true) or closed == "2>&-", text:find("step 3/3", 1, true) ~= nil, text)
      end
    end
  end)

  it("L5 fails as any other", function()
    assert.equal(2, (run("recipes/toy_hsdp.lua -n 2 mesh=1x3", "2>&-")))
    local status, text = run("recipes/toy_hsdp.lua -n 2 mesh=1x3", ">&- <&-")
    assert.equal(2, status)
    has(text, "3 ranks | 2")
  end)
end)
