-- Campaigns that are programs of their own: each case is one run of such a program, of bounded length, with a seed that
-- is drawn. Of a failure the last lines that it printed are shown.

local build = assert(os.getenv("MOONSHARD_BUILD"), "MOONSHARD_BUILD names the folder of the builds")

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
---@param command fun(seed: integer, seconds: number): string
---@param skip string?
---@return Campaign
local function of(name, command, skip)
  return { name = name, skip = skip, run = function(d, seconds)
    local words = command(d:integer(1, 1000000), seconds)
    local text, status = output_of(words)
    if status ~= "0" then return ("status %s\n      %s"):format(status, last_lines(text)), words end
  end }
end

local function libfuzzer(target)
  local here = os.execute("command -v clang >/dev/null") == 0
  return of("fuzz-" .. target, function(seed, seconds)
    return ("tests/fuzz/libfuzzer.sh %s %s %d %d"):format(build, target, math.max(5, math.floor(seconds)), seed)
  end, not here and "clang is not here" or nil)
end

return {
  of("api", function(seed) return ("tests/fuzz/api.sh %s %d"):format(build, seed) end),
  of("handles", function(seed)
    return ("env HANDLES_SEED=%d HANDLES_ROUNDS=50 ASAN_OPTIONS=detect_stack_use_after_return=0 "
      .. "LSAN_OPTIONS=suppressions=tests/sanitizers/leak.supp:print_suppressions=0 %s/address/tests/test_handles")
      :format(seed, build)
  end),
  of("plans", function(seed) return ("tests/fuzz/run.sh %s %d 10"):format(build, seed) end),
  of("placements", function(seed)
    return ("env SEED=%d CASES=20000 %s/release/tests/test_partition_random"):format(seed, build)
  end),
  of("checkpoints", function(seed) return ("tests/fuzz/crash_checkpoints.sh %s 5 %d"):format(build, seed) end),
  libfuzzer("safetensors"),
  libfuzzer("tokenizer"),
}
