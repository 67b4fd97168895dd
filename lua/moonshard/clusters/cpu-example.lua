-- A computer with two cores, as an example of a description of CPUs: no two computers are alike, and
-- `moonshard calibrate` measures yours.

local MEASURED = "measured on two cores of a Zen 5 desktop"
local ASSUMED = "assumed, not measured"

return {
  about = "two cores of a desktop with AVX-512; `moonshard calibrate` describes your own machine",
  ranks_per_node = { 2, "one rank per core" },
  device = {
    kind = "cpu",
    cores = { 2, MEASURED },
    memory = { "16 GB", ASSUMED },
    peak = {
      f32 = { "0.21 TFLOP/s", MEASURED .. ": products of 1024 x 1024, OpenBLAS" },
      bf16 = { "0.436 TFLOP/s", MEASURED .. ": products of 1024 x 1024, oneDNN" },
    },
    clock = { "100 %", MEASURED .. " after minutes" },
    product = {
      efficiency = { "100 %", "the peaks are measured products" },
      k_half = { 64, ASSUMED },
    },
    attention = {
      forward = { "40 %", ASSUMED }, backward = { "40 %", ASSUMED },
      keys_half = { 64, ASSUMED },
      causal = { "60 %", ASSUMED },
    },
    memory_rate = { "14 GB/s", MEASURED .. ": copies, each byte read and written" },
    memory_half = { "4 KB", ASSUMED },
    kernel_start = { "1 us", ASSUMED },
    phase_gap = { "5 us", ASSUMED },
    step_gap = { "100 us", ASSUMED },
    overlap = { "0 %", "ranks compute and communicate in turn" },
  },
  links = {
    memory = {
      algorithm = "hosts",
      start = { "2 us", ASSUMED },
      step_inside = { "0.1 us", MEASURED .. ": a barrier of ranks with a core each" },
      inside = { "10 GB/s", MEASURED .. ": 64 MiB gathered in 5.5 ms by two ranks" },
    },
  },
}
