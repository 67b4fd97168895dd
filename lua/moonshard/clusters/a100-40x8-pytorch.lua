-- What a software stack reaches on the hardware that this description extends.
-- Written by `make bench-price PART=published WRITE=folder`.

local FITTED = "fitted on 76 runs of mosaicml/llm-foundry by make bench-price"
local BEFORE = "usual of PyTorch: the fitted runs hardly tell it"
local HELD_OUT = "nine of ten of these runs are within it, each by a fit of others that held it out"

return {
  about = "what PyTorch's FSDP reached in 2023 on nodes of eight A100 40 GB (MosaicML's MPT runs on 8 to 128 GPUs)",
  extends = "a100-40x8",
  accuracy = { "8.3 %", HELD_OUT },
  device = {
    product = {
      efficiency = { "67.9 %", FITTED },
      k_half = { 39.5, FITTED },
    },
    attention = {
      forward = { "38.8 %", FITTED },
      backward = { "32.7 %", FITTED },
      keys_half = { 87.9, FITTED },
    },
    memory_rate = { "1.96 TB/s", FITTED },
    issue = { "5.97 us", BEFORE },
    step_gap = { "30.1 ms", FITTED },
    overlap = { "19.1 %", FITTED },
  },
  links = {
    ring_ll = {
      inside = { "39.4 GB/s", FITTED },
      between = { "17.1 GB/s", BEFORE },
      step_between = { "3.41 us", FITTED },
      log_between = { "4 %", BEFORE },
    },
    ring_simple = {
      inside = { "106 GB/s", FITTED },
      between = { "82.8 %", BEFORE },
      step_between = { "17.7 us", FITTED },
      log_between = { "4 %", BEFORE },
    },
    tree_simple = {
      inside = { "97.1 GB/s", FITTED },
      between = { "76.5 %", BEFORE },
      step_between = { "17.7 us", FITTED },
      log_between = { "4 %", BEFORE },
    },
  },
  kernels = {
    source = FITTED .. ": the loss, which is not one kernel there",
    points = {
      { op = "cross_entropy", shape = "other", dtype = "bf16", variant = 0, threads = 1, size = { 1, 1, 1, 1 },
        flops = 0, bytes = 1000000000, time = "3.15 ms" },
      { op = "cross_entropy_backward", shape = "other", dtype = "bf16", variant = 0, threads = 1, size = { 1, 1, 1, 1 },
        flops = 0, bytes = 1000000000, time = "3.15 ms" },
    },
  },
}
