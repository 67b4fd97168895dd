-- What the host gives to the device cuda, as the emulated runtime logs it: one launch for all segments of a unit, no
-- two accesses of the same bytes that events leave unordered, and no event wait that could be left out.

local device_log = require("lua.cuda.device_log")
local program = require("lua.support.program")

local PARITY = "tests/lua/recipes/parity.lua"

local folders, logs = {}, {}

local CASES = {
  shards = { 2, "mesh=1x2", "micro=3", "dtype=bf16", "reshard=true" },
  hsdp = { 4, "mesh=2x2", "micro=3", "reshard=true", "sync=shard" },
  replicas = { 2, "mesh=2x1", "micro=2", "dtype=bf16" },
  groups = { 4, "mesh=1x4", "reshard=2", "rows=12", "mixed=true", "dtype=bf16" },
}
if os.getenv("MOONSHARD_CONFIG") ~= "release" then CASES = { shards = CASES.shards } end

local function log_all()
  local runs, out = {}, os.tmpname()
  for name, case in pairs(CASES) do
    folders[name] = os.tmpname()
    os.remove(folders[name])
    assert(os.execute("mkdir " .. folders[name]))
    runs[name] = { "run", PARITY, "-n", tostring(case[1]), "steps=4", "device=cuda", "out=" .. out, unpack(case, 2) }
    runs[name].environment = program.emulated_cuda("MOONSHARD_EMULATE_LOG=" .. folders[name])
  end
  for name, ended in pairs(program.run_all(runs)) do
    assert(ended.status == 0, name .. ": " .. ended.err)
    local list = assert(io.popen("ls " .. folders[name]))
    logs[name] = {}
    for file in list:lines() do table.insert(logs[name], device_log.read(folders[name] .. "/" .. file)) end
    list:close()
    assert(#logs[name] == CASES[name][1], "a log for each rank")
  end
  os.remove(out)
end

local function each_log(check)
  for name, of_case in pairs(logs) do
    for rank, log in ipairs(of_case) do check(log, ("%s, rank %d"):format(name, rank - 1)) end
  end
end

local COLLECTIVES = { all_gather = true, reduce_scatter = true, all_reduce = true }

describe("what the device cuda is given", function()
  setup(log_all)
  teardown(function()
    for _, folder in pairs(folders) do os.execute("rm -rf " .. folder) end
  end)

  it("A1 all segments of a unit are cast by one launch, and what has the gathered dtype is sent as it is", function()
    each_log(function(log, what)
      local launches, gathers = 0, 0
      local casts, sends = what:find("shards", 1, true), what:find("hsdp", 1, true) -- bf16; f32
      local last = {} -- of each stream
      for _, entry in ipairs(log) do
        if entry.what == "work" then
          local before = last[entry.stream]
          if entry.name == "move_parts" then
            launches = launches + 1
            assert.are_not.equal("move_parts", before, what)
          elseif entry.name == "all_gather" and before ~= "all_gather" then
            gathers = gathers + 1
            if casts then assert.equal("move_parts", before, what) end
            if sends then assert.are_not.equal("move_parts", before, what) end
          end
          last[entry.stream] = entry.name
        elseif entry.what == "wait" and COLLECTIVES[last[entry.stream]] then
          last[entry.stream] = nil
        end
      end
      assert.truthy(launches > 0, what)
      if casts or sends then assert.truthy(gathers > 0, what) end
    end)
  end)

  it("A1 collectives go before what computes", function()
    each_log(function(log, what)
      local priority, urgent, other = {}, 0, 0
      for _, entry in ipairs(log) do
        if entry.what == "stream" then
          priority[entry.stream] = entry.priority
        elseif entry.what == "work" and COLLECTIVES[entry.name] then
          assert.truthy(priority[entry.stream] < 0, what)
          urgent = urgent + 1
        elseif entry.what == "work" and entry.name:find("matmul", 1, true) then
          assert.equal(0, priority[entry.stream], what)
          other = other + 1
        end
      end
      assert.truthy(urgent > 0 and other > 0, what)
    end)
  end)

  it("M4 accesses of the same bytes are ordered by events", function()
    each_log(function(log, what)
      local before, after = device_log.unordered(log)
      assert.is_nil(before, before and ("%s: %s on stream %d and %s on stream %d"):format(what, before.name,
        before.stream, after.name, after.stream))
    end)
  end)

  it("M4 no event wait can be left out", function()
    each_log(function(log, what)
      local waits, idle = 0, {}
      for i, entry in ipairs(log) do
        if entry.what == "wait" and i > 0.1 * #log and i < 0.7 * #log then
          waits = waits + 1
          if not device_log.unordered(log, i) then idle[#idle + 1] = i end
        end
      end
      assert.truthy(waits > 10, what)
      assert.same({}, idle, what)
    end)
  end)
end)
