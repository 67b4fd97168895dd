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
      efficiency = { "46.8 %", FITTED },
      k_half = { 157, FITTED },
    },
    attention = {
      forward = { "49.6 %", FITTED },
      backward = { "20.9 %", FITTED },
      keys_half = { 155, FITTED },
    },
    memory_rate = { "1.26 TB/s", FITTED },
    issue = { "6.11 us", FITTED },
    step_gap = { "49.7 ms", FITTED },
    overlap = { "9.01 %", FITTED },
  },
  links = {
    ring_ll = {
      inside = { "91.9 GB/s", FITTED },
      between = { "15.2 GB/s", FITTED },
      step_between = { "0.795 us", FITTED },
      log_between = { "4.5 %", FITTED },
    },
    ring_ll128 = {
      inside = { "216 GB/s", FITTED },
      between = { "63.5 %", FITTED },
      step_between = { "1.18 us", FITTED },
      log_between = { "4.5 %", FITTED },
    },
    ring_simple = {
      inside = { "235 GB/s", FITTED },
      between = { "68.7 %", FITTED },
      step_between = { "4.12 us", FITTED },
      log_between = { "4.5 %", FITTED },
    },
    tree_simple = {
      inside = { "216 GB/s", FITTED },
      between = { "63.5 %", FITTED },
      step_between = { "4.12 us", FITTED },
      log_between = { "4.5 %", FITTED },
    },
  },
  kernels = {
    source = FITTED .. ": the loss, which is not one kernel there",
    points = {
      { op = "cross_entropy_step", shape = "other", dtype = "bf16", variant = 0, threads = 1, size = { 1, 1, 1, 1 },
        flops = 0, bytes = 1000000000, time = "4.42 ms" },
      { op = "cross_entropy", shape = "other", dtype = "bf16", variant = 0, threads = 1, size = { 1, 1, 1, 1 },
        flops = 0, bytes = 1000000000, time = "4.42 ms" },
      { op = "cross_entropy_backward", shape = "other", dtype = "bf16", variant = 0, threads = 1, size = { 1, 1, 1, 1 },
        flops = 0, bytes = 1000000000, time = "4.42 ms" },
    },
  },
}
