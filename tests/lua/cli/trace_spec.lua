-- Traces: that what was written can be true, agrees with the plan, and that a file which cannot be true is refused.

local chrome_trace = require("moonshard.cli.trace.trace_file")
local json = require("moonshard.base.text.json")
local has = require("lua.support.message").has
local program = require("lua.support.program")
local scratch = require("lua.support.scratch")

local RECIPE = "tests/lua/recipes/trouble.lua"

local function with_trace(arguments, action)
  local path = os.tmpname()
  local words = { "run", RECIPE, "--trace", path, unpack(arguments) }
  local ok, raised = pcall(function()
    local ended = program.run(words)
    assert.equal(0, ended.status, ended.err)
    local file = assert(io.open(path))
    local text = file:read("*a")
    file:close()
    action(json.decode(text).traceEvents, path, ended, text)
  end)
  os.remove(path)
  if not ok then error(raised, 0) end
end

local function count(events, wanted)
  local n = 0
  for _, event in ipairs(events) do
    local matches = true
    for key, value in pairs(wanted) do
      if key == "cat" then matches = matches and event.cat and (event.cat .. ","):find(value .. ",", 1, true) == 1
      elseif key == "step" then matches = matches and event.args and event.args.step == value
      else matches = matches and event[key] == value end
    end
    if matches then n = n + 1 end
  end
  return n
end

local function pid_of(rank) return 100 * (rank + 1) end

-- What the plan of a rank runs in a step: kernels and collectives of all phases but evaluate.
local function planned(ranks, rank, settings)
  local ended = program.run({ "plan", RECIPE, "-n", tostring(ranks), "--rank", tostring(rank), "--json",
    unpack(settings) })
  assert.equal(0, ended.status, ended.err)
  local kernels, collectives, flops = 0, 0, 0
  for _, phase in ipairs(json.decode(ended.out).phases) do
    if phase.name ~= "evaluate" and phase.name ~= "next" and phase.name ~= "last" then
      flops = flops + phase.flops
      for _, instruction in ipairs(phase.instructions) do
        if instruction.kind == "kernel" then kernels = kernels + 1 end
        if instruction.kind == "collective" then collectives = collectives + 1 end
      end
    end
  end
  return kernels, collectives, flops
end

describe("a trace", function()
  teardown(scratch.clear)

  it("holds what the plan runs, for the steps that were asked for and every rank", function()
    local settings = { "mesh=2x2" }
    local _, _, flops = planned(4, 0, settings)
    with_trace({ "-n", "4", "--trace-steps", "3-4", unpack(settings) }, function(events, path, ended)
      has(ended.err, "steps 3-4 | " .. path)
      for rank = 0, 3 do
        local kernels, collectives = planned(4, rank, settings)
        assert.truthy(kernels > 20 and collectives > 5)
        for step = 3, 4 do
          assert.equal(kernels, count(events, { ph = "X", pid = pid_of(rank), cat = "kernel", step = step }))
          assert.equal(collectives, count(events, { ph = "X", pid = pid_of(rank), cat = "collective", step = step }))
          assert.equal(3, count(events, { ph = "X", pid = pid_of(rank), cat = "phase", step = step }))
          assert.equal(1, count(events, { ph = "X", pid = pid_of(rank), cat = "step", step = step }))
        end
        assert.equal(0, count(events, { pid = pid_of(rank), cat = "kernel", step = 2 }))
        assert.equal(0, count(events, { pid = pid_of(rank), cat = "kernel", step = 5 }))
        assert.equal(1, count(events, { ph = "M", pid = pid_of(rank), name = "process_name" }))
      end
      local total, starts = 0, count(events, { ph = "s" })
      assert.truthy(starts > 0 and starts == count(events, { ph = "f" }))
      for _, event in ipairs(events) do
        local args = event.args or {}
        if event.cat == "phase" and args.step == 3 and event.pid == pid_of(0) and event.name == "phase first" then
          total = args.flops
        end
        if event.ph == "X" and event.cat:find("^collective") then
          assert.equal(args.bytes > 0, event.name:find("^barrier") == nil, event.name)
          assert.truthy(args.waiting_us >= 0 and args.waiting_us <= event.dur + 0.01)
          assert.truthy(#args.unit > 0)
        end
      end
      assert.truthy(math.abs(total - flops) <= 0.02 * flops, total .. " of " .. flops)
    end)
  end)

  it("gives each collective its own times, whichever ranks take part", function()
    for _, settings in ipairs { { "mesh=2x2" }, { "mesh=1x4", "reshard=2" } } do
      local path = scratch.path()
      local ended = program.run({ "run", "tests/lua/recipes/parity.lua", "-n", "4", "dtype=bf16",
        "out=" .. scratch.path(), "--trace", path, "--trace-steps", "2", unpack(settings) })
      assert.equal(0, ended.status, ended.err)
      local seen, n = {}, 0
      for _, event in ipairs(json.decode(scratch.read(path)).traceEvents) do
        if event.ph == "X" and event.cat:find("^collective") then
          local one = ("%d %s %.3f"):format(event.pid, event.tid, event.ts)
          assert.falsy(seen[one], event.name .. " at " .. one)
          seen[one], n = true, n + 1
        end
      end
      assert.truthy(n > 20)
    end
  end)

  it("records all micro-batches, and evaluations between the steps", function()
    with_trace({ "-n", "2", "--trace-steps", "2", "micro_batches=2" }, function(events, path, ended)
      has(ended.err, "moonshard: | step 2 | " .. path)
      assert.equal(2, count(events, { ph = "X", name = "phase first" }))
      assert.equal(2, count(events, { ph = "X", name = "phase norm" }))
      assert.equal(8, count(events, { ph = "X", cat = "phase" }))
    end)
  end)

  it("is checked and summed up by moonshard trace", function()
    with_trace({ "-n", "2" }, function(_, path, _, text)
      local ended = program.run({ "trace", path })
      assert.equal(0, ended.status, ended.err)
      local words = "ranks 0-1|steps 2-4|matmul|all_gather|reduce_scatter|layers.1|outside the engine|until met|TFLOP/s"
      for word in words:gmatch("[^|]+") do
        has(ended.out, word)
      end
      local sum = json.decode(program.run({ "trace", path, "--json" }).out)
      assert.same({ 2, 3, 4 }, sum.steps)
      local ms = 0
      for _, op in ipairs(sum.ops) do ms = ms + op.ms end
      assert.truthy(math.abs(ms - sum.kernel_ms) < 1e-6)
      for _, rank in ipairs(sum.ranks) do
        assert.truthy(rank.kernel_ms <= rank.phase_ms and rank.phase_ms <= rank.step_ms + 1e-6)
      end

      local function refused(changed, why)
        local other = program.recipe(changed)
        local told = program.run({ "trace", other })
        os.remove(other)
        assert.equal(2, told.status)
        has(told.err, why)
      end
      program.refused(2, { "trace", "a.json", "extra" }, "extra | a.json | one TRACE.json")
      refused(text:sub(1, #text / 2), "JSON | byte")
      refused('{"events":[]}', "traceEvents")
      refused("null", "traceEvents")
      refused('{"traceEvents":[]}', "no slices")
      refused(text:gsub('"dur":', '"duration":', 1), "no duration")
      refused(text:gsub('"ph":"f"', '"ph":"t"', 1), "arrows")
      refused(text:gsub('("cat":"phase","name":"phase norm")', '"cat":"other","name":"phase norm"'), "phase")
      local function with_slices(more)
        return '{"traceEvents":[{"ph":"X","pid":100,"tid":100,"ts":0,"dur":10,"name":"a"},' .. more .. "]}"
      end
      refused(with_slices '{"ph":"X","pid":100,"tid":100,"ts":5,"dur":10,"name":"b"}', "b | 5.000 | a")
    end)
  end)

  -- What Perfetto merges, drops or draws elsewhere is refused here.
  it("has processes, threads and arrows that Perfetto separates", function()
    with_trace({ "-n", "4", "mesh=2x2" }, function(events, _, _, text)
      local process_of, arrows, lanes = {}, {}, 0
      for _, event in ipairs(events) do
        assert.equal(0, event.pid % 100)
        assert.truthy(event.tid >= event.pid and event.tid < event.pid + 100)
        assert.equal(process_of[event.tid] or event.pid, event.pid)
        if not process_of[event.tid] then process_of[event.tid], lanes = event.pid, lanes + 1 end
        if event.ph == "s" then
          assert.truthy(event.id % 1 == 0 and event.id > 0 and event.id < 2 ^ 53)
          assert.is_nil(arrows[event.id])
          arrows[event.id] = true
        end
      end
      assert.truthy(lanes >= 4 * 3 and next(arrows) ~= nil)

      local function refused(pattern, replacement, why)
        local changed, n = text:gsub(pattern, replacement, 1)
        assert.equal(1, n, pattern)
        local wrong = chrome_trace.check(json.decode(changed).traceEvents)
        assert.truthy(wrong)
        has(wrong, why)
      end
      assert.is_nil(chrome_trace.check(events))
      refused('"id":(%d+)', '"id":"%1"', "positive")
      refused('"id":(%d+)', '"id":0.5', "positive")
      refused('("ph":"s".-"id":)%d+(.-"ph":"s".-"id":)(%d+)', "%1%3%2%3", "arrows | id")
      refused('("ph":"s","pid":)100,"tid":%d+', "%1100,\"tid\":199", "slice | rank 0")
      refused('"pid":100,"tid":100', '"pid":100,"tid":0', "thread | pid 100")
      refused('"pid":200,"tid":200', '"pid":1,"tid":1', "multiple of 100")
      refused('"name":"process_name"', '"name":"process_labels"', "process 100 | name")
      refused('"tid":201(.-)"name":"thread_name"', '"tid":200%1"name":"thread_name"', "thread_name")
      local first, second
      for i, event in ipairs(events) do
        if event.ph == "X" and event.tid == 101 then first, second = second, i end
        if first then break end
      end
      events[first], events[second] = events[second], events[first]
      has(chrome_trace.check(events), "later")
    end)
  end)

  it("of steps that never come is an error, and bad ranges and files are", function()
    local path = os.tmpname()
    local function refused(words, why, status)
      local ended = program.run({ "run", RECIPE, unpack(words) })
      assert.equal(status or 2, ended.status, ended.err)
      has(ended.err, why)
    end
    refused({ "--trace", path, "--trace-steps", "20-30", "mesh=1x1" }, "before step 20", 3)
    refused({ "--trace", path, "--trace-steps", "5-3", "mesh=1x1" }, "--trace-steps 5-3")
    refused({ "--trace", path, "--trace-steps", "0", "mesh=1x1" }, "--trace-steps 0")
    refused({ "--trace-steps", "3", "mesh=1x1" }, "give --trace FILE")
    refused({ "--trace", path .. "/x/y.json", "mesh=1x1" }, "--trace | no folder")
    os.remove(path)
  end)
end)
