-- What a software stack reaches on the hardware that this description extends.
-- Written by `make bench-price PART=published WRITE=folder`.

local FITTED = "fitted on 52 runs of mosaicml/llm-foundry by make bench-price"
local BEFORE = "usual of PyTorch: the fitted runs hardly tell it"
local HELD_OUT = "nine of ten of these runs are within it, each by a fit of others that held it out"

return {
  about = "what PyTorch's FSDP reached in 2023 on nodes of eight H100 (MosaicML's MPT runs on 8 to 64 GPUs)",
  extends = "h100x8-3200g",
  accuracy = { "4.8 %", HELD_OUT },
  device = {
    product = {
      efficiency = { "61.5 %", FITTED },
      k_half = { 143, FITTED },
    },
    attention = {
      forward = { "26.1 %", FITTED },
      backward = { "16.2 %", FITTED },
      keys_half = { 156, FITTED },
    },
    memory_rate = { "2.13 TB/s", FITTED },
    issue = { "6.01 us", BEFORE },
    step_gap = { "17.5 ms", FITTED },
    overlap = { "21 %", FITTED },
  },
  links = {
    nvls = {
      inside = { "105 GB/s", FITTED },
    },
    ring_ll = {
      inside = { "53.9 GB/s", FITTED },
      between = { "18.4 GB/s", BEFORE },
      step_between = { "2.66 us", BEFORE },
      log_between = { "4 %", BEFORE },
    },
    ring_ll128 = {
      inside = { "127 GB/s", FITTED },
      between = { "76.5 %", BEFORE },
      step_between = { "3.94 us", BEFORE },
      log_between = { "4 %", BEFORE },
    },
    ring_simple = {
      inside = { "138 GB/s", FITTED },
      between = { "82.8 %", BEFORE },
      step_between = { "13.8 us", BEFORE },
      log_between = { "4 %", BEFORE },
    },
    tree_simple = {
      inside = { "127 GB/s", FITTED },
      between = { "76.5 %", BEFORE },
      step_between = { "13.8 us", BEFORE },
      log_between = { "4 %", BEFORE },
    },
  },
  kernels = {
    source = FITTED .. ": the loss, which is not one kernel there",
    points = {
      { op = "cross_entropy_step", shape = "other", dtype = "bf16", variant = 0, threads = 1, size = { 1, 1, 1, 1 },
        flops = 0, bytes = 1000000000, time = "2.73 ms" },
      { op = "cross_entropy", shape = "other", dtype = "bf16", variant = 0, threads = 1, size = { 1, 1, 1, 1 },
        flops = 0, bytes = 1000000000, time = "2.73 ms" },
      { op = "cross_entropy_backward", shape = "other", dtype = "bf16", variant = 0, threads = 1, size = { 1, 1, 1, 1 },
        flops = 0, bytes = 1000000000, time = "2.73 ms" },
    },
  },
}
