-- Prints the tables of `make bench-gpu`: trainings, compared with the first one of the model, and our kernels, compared
-- with the speed of copies.
--
--   luajit tests/gpu/bench_table.lua LINES TFLOPS FOLDER
--
-- LINES: JSON lines of bench.lua, peer_torch.py and peer_copy.py. TFLOPS: the GPU's peak, for MFU.
-- FOLDER/summary-MODEL: the output of `moonshard trace --json` for our traced steps.

local json = require("moonshard.base.text.json")

local path, peak, folder = arg[1], 1e12 * tonumber(arg[2]), arg[3]
local runs, copy = {}, nil
local order = {}

for line in io.lines(path) do
  local m = json.decode(line)
  if m and m.copy_gb_s then copy = m.copy_gb_s end
  if m and m.tokens_per_s and m.name ~= "traced" then
    if not runs[m.model] then
      runs[m.model] = {}
      order[#order + 1] = m.model
    end
    table.insert(runs[m.model], m)
  end
end

-- Arithmetic bounds these kernels, so comparing them with copies would be meaningless.
local BY_ARITHMETIC = {
  matmul = true, matmul_accumulate = true, attention = true, attention_backward = true, document_attention = true,
  document_attention_backward = true,
}

local function print_kernels(model, step_ms)
  local file = io.open(("%s/summary-%s"):format(folder, model))
  local summary = file and json.decode(file:read("*a"))
  if file then file:close() end
  if not summary then return end
  local steps = summary.steps[2] - summary.steps[1] + 1
  print(("\n%s: kernels take %.2f ms of a step of %.2f ms; no kernel runs for %.1f %% of it"):format(model,
    summary.kernel_ms / steps, step_ms, math.max(0, 100 * (1 - summary.kernel_ms / steps / step_ms))))
  local row = "%-26s %7s %9s %9s %9s"
  print(row:format("kernel, per step", "calls", "ms", "GB/s", "of copy"))
  for _, op in ipairs(summary.ops) do
    local rate = op.bytes / op.ms * 1e-6
    print(row:format(op.name, ("%.0f"):format(op.calls / steps), ("%.3f"):format(op.ms / steps), ("%.0f"):format(rate),
      copy and not BY_ARITHMETIC[op.name] and ("%.0f %%"):format(100 * rate / copy) or "-"))
  end
end

for _, model in ipairs(order) do print_kernels(model, runs[model][1].step_ms) end
if copy then print(("\ncopies read and write %.0f GB/s"):format(copy)) end

local row = "%-8s %-26s %12s %10s %7s %12s %8s %8s"
print("\n" .. row:format("model", "name", "tokens/s", "step ms", "MFU", "peak MiB", "speed", "memory"))
for _, model in ipairs(order) do
  local ours = runs[model][1]
  for _, m in ipairs(runs[model]) do
    print(row:format(m.model, m.name, ("%.0f"):format(m.tokens_per_s), ("%.2f"):format(m.step_ms),
      ("%.1f %%"):format(100 * m.tokens_per_s * m.flops_per_token / peak), ("%.0f"):format(m.peak_bytes / 2 ^ 20),
      ("%.2fx"):format(ours.tokens_per_s / m.tokens_per_s),
      m.peak_bytes > 0 and ("%.2fx"):format(ours.peak_bytes / m.peak_bytes) or "-"))
  end
end
for _, model in ipairs(order) do
  for _, m in ipairs(runs[model]) do
    if (m.collective_us or 0) > 0 then
      print(("%s, %s: a collective takes %.0f us of the host"):format(m.model, m.name, m.collective_us))
    end
  end
end
print("speed, memory: relative to the first line of the model; MFU: 6 N + 12 layers dim seq per token, over the peak")
