-- What a software stack reaches on the hardware that this description extends.
-- Written by `make bench-price PART=published WRITE=folder`.

local FITTED = "fitted on 76 runs of mosaicml/llm-foundry by make bench-price"
local BEFORE = "usual of PyTorch: the fitted runs hardly tell it"
local HELD_OUT = "nine of ten of these runs are within it, each by a fit of others that held it out"

return {
  about = "what PyTorch's FSDP reached in 2023 on nodes of eight A100 40 GB (MosaicML's MPT runs on 8 to 128 GPUs)",
  extends = "a100-40x8",
  accuracy = { "7.9 %", HELD_OUT },
  device = {
    product = {
      efficiency = { "67.3 %", FITTED },
      k_half = { 40.4, FITTED },
    },
    attention = {
      forward = { "39.7 %", FITTED },
      backward = { "32.3 %", FITTED },
      keys_half = { 90.8, FITTED },
    },
    memory_rate = { "1.75 TB/s", FITTED },
    issue = { "6.01 us", BEFORE },
    step_gap = { "30.5 ms", FITTED },
    overlap = { "18 %", FITTED },
  },
  links = {
    ring_ll = {
      inside = { "53.4 GB/s", FITTED },
      between = { "15.2 GB/s", FITTED },
      step_between = { "3.28 us", FITTED },
      log_between = { "4.4 %", FITTED },
    },
    ring_simple = {
      inside = { "143 GB/s", FITTED },
      between = { "73.4 %", FITTED },
      step_between = { "17 us", FITTED },
      log_between = { "4.4 %", FITTED },
    },
    tree_simple = {
      inside = { "132 GB/s", FITTED },
      between = { "67.9 %", FITTED },
      step_between = { "17 us", FITTED },
      log_between = { "4.4 %", FITTED },
    },
  },
  kernels = {
    source = FITTED .. ": the loss, which is not one kernel there",
    points = {
      { op = "cross_entropy_step", shape = "other", dtype = "bf16", variant = 0, threads = 1, size = { 1, 1, 1, 1 },
        flops = 0, bytes = 1000000000, time = "4.45 ms" },
      { op = "cross_entropy", shape = "other", dtype = "bf16", variant = 0, threads = 1, size = { 1, 1, 1, 1 },
        flops = 0, bytes = 1000000000, time = "4.45 ms" },
      { op = "cross_entropy_backward", shape = "other", dtype = "bf16", variant = 0, threads = 1, size = { 1, 1, 1, 1 },
        flops = 0, bytes = 1000000000, time = "4.45 ms" },
    },
  },
}
