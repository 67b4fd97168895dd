-- The table of `make bench-gpu`: each line of a file of JSON lines beside the first of its model.
--
--   luajit tests/gpu/bench_table.lua LINES TFLOPS      TFLOPS: the GPU's peak, for MFU

local json = require("moonshard.json")

local path, peak = arg[1], 1e12 * tonumber(arg[2])
local first, row = {}, "%-8s %-18s %12s %10s %7s %12s %8s %8s"
print(row:format("model", "who", "tokens/s", "step ms", "MFU", "peak MiB", "speed", "memory"))
for line in io.lines(path) do
  local m = json.decode(line)
  if m then
    local ours = first[m.model] or m
    first[m.model] = ours
    print(row:format(m.model, m.name, ("%.0f"):format(m.tokens_per_s), ("%.2f"):format(m.step_ms),
      ("%.1f %%"):format(100 * m.tokens_per_s * m.flops_per_token / peak), ("%.0f"):format(m.peak_bytes / 2 ^ 20),
      ("%.2fx"):format(ours.tokens_per_s / m.tokens_per_s),
      m.peak_bytes > 0 and ("%.2fx"):format(ours.peak_bytes / m.peak_bytes) or "-"))
  end
end
print("speed, memory: the first line of a model beside this one; MFU: 6 N + 12 layers dim seq a token, of the peak")
