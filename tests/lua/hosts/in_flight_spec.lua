-- Gathers between hosts that UPDATE leaves in flight (shard_optimizer_over_replicate): they arrive before anything
-- needs what they bring. The hosts are this machine under other names.

local json = require("moonshard.base.text.json")
local breadth = require("lua.support.breadth")
local program = require("lua.support.program")
local scratch = require("lua.support.scratch")

local release = os.getenv("MOONSHARD_CONFIG") == "release"

local function run(recipe, hosts, ...)
  local ended = program.run({ "run", recipe, "--hosts", hosts, "--agent", "tests/fuzz/agent.sh", "--rendezvous",
    "tcp://127.0.0.1", "--timeout", "60", ... })
  assert.equal(0, ended.status, ended.err)
  return ended.out
end

describe("gathers in flight", function()
  teardown(scratch.clear)

  -- More units than a queue takes, in the last case.
  for _, settings in ipairs(breadth.few({ "mesh=2x2", "mesh=2x2 dtype=bf16", "mesh=2x2 dtype=bf16 layers=11" })) do
    it("H11 give what comes next the bits of a run without them, " .. settings, function()
      local words = {}
      for word in settings:gmatch("%S+") do words[#words + 1] = word end
      local recipe = "tests/lua/hosts/recipes/in_flight.lua"
      local with = run(recipe, "a:2,b:2", "sliced=true", unpack(words))
      assert.equal(19, select(2, with:gsub("\n", "")))
      if not release then return end -- a sanitizer looks at no bits
      assert.equal(run(recipe, "a:2,b:2", "sliced=false", unpack(words)), with)
    end)
  end

  it("H11 begin in an update and end in the next step", function()
    local path = scratch.path()
    run("tests/lua/hosts/recipes/in_flight.lua", "a:1,b:1", "mesh=2x1", "sliced=true", "--trace", path,
      "--trace-steps", "2")
    local gathers, began = {}, nil
    for _, event in ipairs(assert(json.decode(scratch.read(path))).traceEvents) do
      if event.pid == 100 and event.name == "phase first" then began = event.ts end
      if event.pid == 100 and event.name:find("^all_gather ") and event.cat:find("^collective") then
        gathers[#gathers + 1] = event
      end
    end
    assert.equal(4, #gathers) -- one a unit
    for i, gather in ipairs(gathers) do
      assert.equal("first", gather.args.phase)
      assert.is_true(gather.dur > 0 and gather.ts >= (i > 1 and gathers[i - 1].ts or 0))
    end
    assert.is_true(gathers[1].ts < began)
  end)
end)
