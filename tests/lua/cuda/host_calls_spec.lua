-- How many calls of CUDA, cuBLASLt, cuDNN and NCCL the host makes in a step: what is given to the emulated device is
-- logged, and runs of different lengths show what a step adds.

local has = require("lua.support.message").has
local program = require("lua.support.program")

local RECIPE = "tests/lua/cuda/recipes/host_calls.lua"
local SHORT, LONG = 4, 6

local function run_of(steps, folder, words, more)
  local run = { "run", RECIPE, "device=cuda", "steps=" .. steps, unpack(words) }
  run.environment = program.emulated_cuda(
    ("MOONSHARD_CUDA_LIBRARY=%s/tests/emulated/libmoonshard_cuda_emulated.so MOONSHARD_EMULATE_LOG=%s %s"):format(
      os.getenv("MOONSHARD_BIN"):match("^(.*)/"), folder, more or ""))
  return run
end

local function new_folder()
  local folder = os.tmpname()
  os.remove(folder)
  assert(os.execute("mkdir " .. folder))
  return folder
end

-- Calls by name: of kernels and libraries their own, else what the log calls them.
local function count(folder)
  local calls, pipe = {}, assert(io.popen("cat " .. folder .. "/*"))
  for line in pipe:lines() do
    local what, name = line:match("^(%l+) %d+ (%S+)")
    if what == "work" then what = name:match("^%(?([%w_]+)") end
    if what ~= "stream" and what ~= "communicator" then calls[what] = (calls[what] or 0) + 1 end
  end
  pipe:close()
  return calls
end

---The host's calls in a step of one rank, by name, and their number.
local function calls_of_a_step(words)
  local folders, runs = {}, {}
  for _, steps in ipairs({ SHORT, LONG }) do
    folders[steps] = new_folder()
    runs[steps] = run_of(steps, folders[steps], words)
  end
  for _, ended in pairs(program.run_all(runs)) do assert(ended.status == 0, ended.err) end
  local before, calls, all = count(folders[SHORT]), count(folders[LONG]), 0
  for name, n in pairs(calls) do
    calls[name] = (n - (before[name] or 0)) / (LONG - SHORT)
    all = all + calls[name]
  end
  for _, folder in pairs(folders) do os.execute("rm -rf " .. folder) end
  return calls, all
end

describe("the host's calls in a step of 12 layers", function()
  local calls, all
  setup(function() calls, all = calls_of_a_step({}) end)

  it("A1 are fewer than 600", function() assert(all > 300 and all < 600, all) end)

  it("A1 update all parameters with a few launches", function()
    assert.equal(5, calls.ms_update) -- of 196 parts of parameters, 40 a launch
  end)

  it("A1 read the logits once for the loss and its gradient", function()
    assert.equal(1, calls.step_rows)
    assert.is_nil(calls.forward_rows)
    assert.is_nil(calls.backward_rows)
  end)

  it("A1 copy scalars once, inputs, and what the host reads", function()
    assert.equal(5, calls.copy) -- scalars, tokens, targets; the norm, and whether a kernel found a fault
    assert.equal(3, calls.record) -- the end of each phase
  end)
end)

describe("a launch of several updates that fails", function()
  local folder
  setup(function() folder = new_folder() end)
  teardown(function() os.execute("rm -rf " .. folder) end)

  it("A4 says that it can be any of them", function()
    assert.equal(0, program.run_all({ run_of(1, folder, {}) })[1].status)
    local launches, pipe = 0, assert(io.popen("cat " .. folder .. "/*"))
    for line in pipe:lines() do -- all but copies, and what libraries launch themselves
      local name = line:match("^work %d+ (%S+)")
      if name and name ~= "copy" and not name:find("^cu[bd]") then launches = launches + 1 end
      if name and name:find("^%(?ms_update") then break end
    end
    pipe:close()
    local failed = program.run_all({ run_of(1, folder, {}, "MOONSHARD_EMULATE_FAIL=cudaLaunchKernel:" .. launches) })[1]
    has(failed.err, "adamw | 79 more calls")
  end)
end)

describe("the host's calls in a step of captured phases", function()
  it("A2 are nine", function()
    local calls, all = calls_of_a_step({ "--cuda-graph" })
    assert.equal(9, all)
    assert.equal(3, calls.graph)
  end)
end)
