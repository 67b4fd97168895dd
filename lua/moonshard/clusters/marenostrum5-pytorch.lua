-- What a software stack reaches on the hardware that this description extends.
-- Written by `make bench-price PART=published WRITE=folder`.

local FITTED = "fitted on 91 runs of Modalities/modalities by make bench-price"
local HELD_OUT = "nine of ten of these runs are within it, each by a fit of others that held it out"

return {
  about = "what PyTorch's FSDP reached on MareNostrum 5 (Modalities' runs on 4 to 256 GPUs)",
  extends = "marenostrum5",
  accuracy = { "8.2 %", HELD_OUT },
  device = {
    product = {
      efficiency = { "48.1 %", FITTED },
      k_half = { 153, FITTED },
    },
    attention = {
      forward = { "42.1 %", FITTED },
      backward = { "22 %", FITTED },
      keys_half = { 156, FITTED },
    },
    memory_rate = { "1.25 TB/s", FITTED },
    issue = { "7.17 us", FITTED },
    step_gap = { "46.7 ms", FITTED },
    overlap = { "9.3 %", FITTED },
  },
  links = {
    ring_ll = {
      inside = { "87.3 GB/s", FITTED },
      between = { "15.2 GB/s", FITTED },
      step_between = { "1.31 us", FITTED },
      log_between = { "4.33 %", FITTED },
    },
    ring_ll128 = {
      inside = { "205 GB/s", FITTED },
      between = { "63.4 %", FITTED },
      step_between = { "1.94 us", FITTED },
      log_between = { "4.33 %", FITTED },
    },
    ring_simple = {
      inside = { "223 GB/s", FITTED },
      between = { "68.6 %", FITTED },
      step_between = { "6.8 us", FITTED },
      log_between = { "4.33 %", FITTED },
    },
    tree_simple = {
      inside = { "205 GB/s", FITTED },
      between = { "63.4 %", FITTED },
      step_between = { "6.8 us", FITTED },
      log_between = { "4.33 %", FITTED },
    },
  },
  kernels = {
    source = FITTED .. ": the loss, which is not one kernel there",
    points = {
      { op = "cross_entropy", shape = "other", dtype = "bf16", variant = 0, threads = 1, size = { 1, 1, 1, 1 },
        flops = 0, bytes = 1000000000, time = "1.58 ms" },
      { op = "cross_entropy_backward", shape = "other", dtype = "bf16", variant = 0, threads = 1, size = { 1, 1, 1, 1 },
        flops = 0, bytes = 1000000000, time = "1.58 ms" },
    },
  },
}
