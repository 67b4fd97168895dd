-- The memory in use at each instruction (`moonshard plan --json`): at its fullest it is the peak that `explain`
-- reports, and each category by itself reaches the maximum that the plan reports.

local breadth = require("lua.support.breadth")
local decode = require("moonshard.base.text.json").decode
local has = require("lua.support.message").has
local plans = require("moonshard.engine.plan")
local program = require("lua.support.program")

local TOY = "recipes/toy_hsdp.lua"
local LLAMA = { "recipes/llama.lua", "files=recipes", "seq=32" }

local CASES = {
  { TOY, "-n", "4" },
  { "recipes/hybrid.lua", "-n", "4", "files=recipes", "accumulate=4" },
  { LLAMA[1], LLAMA[2], LLAMA[3], "-n", "8", "mesh=1x8", "dtype=bf16" },
  { LLAMA[1], LLAMA[2], LLAMA[3], "-n", "8", "mesh=2x4", "dtype=bf16", "--device", "cuda" },
}

local function run(command, case)
  local ended = program.run({ command, "--json", unpack(case) })
  assert.equal(0, ended.status, ended.err)
  return decode(ended.out)
end

-- The bytes of each category from each listed instruction on, by phase.
local function unpacked(phases)
  local list = {}
  for _, phase in ipairs(phases) do
    local now = {}
    for _, item in ipairs(phase.memory) do
      local bytes, changes = {}, 0
      for _, category in ipairs(plans.CATEGORIES) do
        changes = changes + (item[category] and 1 or 0)
        now[category] = item[category] or now[category]
        bytes[category] = now[category]
      end
      assert.is_true(changes > 0, "an instruction at which nothing changes")
      list[#list + 1] = { phase = phase.name, instruction = item.instruction, bytes = bytes }
    end
  end
  return list
end

describe("the memory in use at each instruction", function()
  it("is the plan's peak where it is fullest, and each category's own where that is", function()
    for _, case in ipairs(breadth.few(CASES)) do
      local plan, peak = run("plan", case), run("explain", case).peak
      local most, at, fullest = -1, nil, {}
      for _, item in ipairs(unpacked(plan.phases)) do
        local total = 0
        for category, bytes in pairs(item.bytes) do
          total = total + bytes
          fullest[category] = math.max(fullest[category] or 0, bytes)
        end
        if total > most then most, at = total, item end
      end
      assert.same(plan.fullest, fullest)
      assert.equal(peak.in_use_bytes, most)
      assert.same({ peak.phase, peak.instruction, peak.bytes }, { at.phase, at.instruction, at.bytes })
      assert.is_true(most <= plan.peak_bytes)
    end
  end)

  it("is a curve and a table of phases with plan --memory, and the list with --json", function()
    local case = CASES[2]
    local peak = run("explain", case).peak
    local ended = program.run({ "plan", "--memory", unpack(case) })
    assert.equal(0, ended.status, ended.err)
    has(ended.out, "memory in use, | ┤ | └ | instruction | phase | most | first | next | last | update")
    local most, at = ended.out:match("\n  " .. peak.phase .. " +(%S+ %a+) +(%d+)  [^\n]+\n")
    assert.equal(peak.instruction, tonumber(at))
    has(ended.out, ("peak %s: parameters | activations"):format(most))
    local list = decode(program.run({ "plan", "--memory", "--json", unpack(case) }).out)
    local fullest = 0
    for _, item in ipairs(list) do fullest = math.max(fullest, item.total) end
    assert.equal(peak.in_use_bytes, fullest)
  end)
end)
