-- Campaigns that are programs of their own: each case is one run of such a program, of bounded length, with a seed that
-- is drawn. After a failure, the last lines that it printed are shown.
--
-- `make soak` has MOONSHARD_BUILD, the folder of the builds, and runs the fuzzer of the API and of handles under the
-- address sanitizer. Specs have MOONSHARD_LIB, a library of one build, and run the programs of that build.

local library = assert(os.getenv("MOONSHARD_LIB"), "MOONSHARD_LIB is the path of a build's library")
local one = library:match("^(.*)/") -- build/release
local build = os.getenv("MOONSHARD_BUILD") or one:match("^(.*)/")
local checked = os.getenv("MOONSHARD_BUILD") and build .. "/address" or one

-- A program that has not ended by then hangs.
local LONGEST_S = 900
local LINES_SHOWN = 60

local function output_of(command)
  local pipe = assert(io.popen(("timeout -k 5 %d %s 2>&1; echo status $?"):format(LONGEST_S, command)))
  local text = pipe:read("*a")
  pipe:close()
  return text:match("^(.*)status (%d+)\n$")
end

local function last_lines(text)
  local lines = {}
  for line in text:gmatch("[^\n]+") do lines[#lines + 1] = line end
  return table.concat(lines, "\n      ", math.max(1, #lines - LINES_SHOWN + 1))
end

---A campaign of runs of one command.
---@param name string
---@param command fun(seed: integer, seconds: number, brief: boolean): string
---@param skip string?
---@return Campaign
local function of(name, command, skip)
  return { name = name, skip = skip, run = function(d, seconds, brief)
    local words = command(d:integer(1, 1000000), seconds, brief)
    local text, status = output_of(words)
    if status ~= "0" then return ("status %s\n      %s"):format(status, last_lines(text)), words end
  end }
end

local function libfuzzer(target)
  local here = os.execute("command -v clang >/dev/null") == 0
  return of("fuzz-" .. target, function(seed, seconds, brief)
    return ("tests/fuzz/libfuzzer/libfuzzer.sh %s %s %d %d"):format(build, target, brief and 0 or math.max(5, seconds),
      seed)
  end, not here and "clang is not here" or nil)
end

return {
  of("api", function(seed, _, brief)
    return ("tests/fuzz/api/api.sh %s %d %d"):format(checked, seed, brief and 2000 or 20000)
  end),
  of("handles", function(seed, _, brief)
    return ("env HANDLES_SEED=%d HANDLES_ROUNDS=%d ASAN_OPTIONS=detect_stack_use_after_return=0 "
      .. "LSAN_OPTIONS=suppressions=tests/sanitizers/leak.supp:print_suppressions=0 %s/tests/test_handles")
      :format(seed, brief and 2 or 50, checked)
  end),
  of("plans", function(seed, _, brief)
    return ("tests/fuzz/run.sh %s %d %d"):format(build, seed, brief and 1 or 10)
  end),
  of("placements", function(seed, _, brief)
    return ("env SEED=%d CASES=%d %s/release/tests/test_partition_random"):format(seed, brief and 100 or 20000, build)
  end),
  of("checkpoints", function(seed, _, brief)
    return ("tests/fuzz/crash_checkpoints.sh %s %d %d"):format(build, brief and 1 or 5, seed)
  end),
  libfuzzer("safetensors"),
  libfuzzer("tokenizer"),
  libfuzzer("tokens"),
}
