-- What a software stack reaches on the hardware that this description extends.
-- Written by `make bench-price PART=published WRITE=folder`.

local FITTED = "fitted on 61 runs of mosaicml/llm-foundry by make bench-price"
local BEFORE = "usual of PyTorch: the fitted runs hardly tell it"
local HELD_OUT = "nine of ten of these runs are within it, each by a fit of others that held it out"

return {
  about = "what PyTorch's FSDP reached in 2023 on nodes of eight A100 80 GB (MosaicML's MPT runs on 8 to 64 GPUs)",
  extends = "a100-80x8",
  accuracy = { "6.5 %", HELD_OUT },
  device = {
    product = {
      efficiency = { "76 %", FITTED },
      k_half = { 66.2, FITTED },
    },
    attention = {
      forward = { "48.8 %", FITTED },
      backward = { "30.1 %", FITTED },
      keys_half = { 147, FITTED },
    },
    memory_rate = { "1.28 TB/s", FITTED },
    issue = { "6 us", BEFORE },
    step_gap = { "22.8 ms", FITTED },
    overlap = { "31.3 %", FITTED },
  },
  links = {
    ring_ll = {
      inside = { "65 GB/s", FITTED },
      between = { "11.2 GB/s", FITTED },
      step_between = { "2.7 us", BEFORE },
      log_between = { "4.51 %", FITTED },
    },
    ring_simple = {
      inside = { "174 GB/s", FITTED },
      between = { "54.4 %", FITTED },
      step_between = { "14 us", BEFORE },
      log_between = { "4.51 %", FITTED },
    },
    tree_simple = {
      inside = { "160 GB/s", FITTED },
      between = { "50.2 %", FITTED },
      step_between = { "14 us", BEFORE },
      log_between = { "4.51 %", FITTED },
    },
  },
  kernels = {
    source = FITTED .. ": the loss, which is not one kernel there",
    points = {
      { op = "cross_entropy_step", shape = "other", dtype = "bf16", variant = 0, threads = 1, size = { 1, 1, 1, 1 },
        flops = 0, bytes = 1000000000, time = "4.18 ms" },
      { op = "cross_entropy", shape = "other", dtype = "bf16", variant = 0, threads = 1, size = { 1, 1, 1, 1 },
        flops = 0, bytes = 1000000000, time = "4.18 ms" },
      { op = "cross_entropy_backward", shape = "other", dtype = "bf16", variant = 0, threads = 1, size = { 1, 1, 1, 1 },
        flops = 0, bytes = 1000000000, time = "4.18 ms" },
    },
  },
}
