-- What a software stack reaches on the hardware that this description extends.
-- Written by `make bench-price PART=published WRITE=folder`.

local FITTED = "fitted on 61 runs of mosaicml/llm-foundry by make bench-price"
local BEFORE = "usual of PyTorch: the fitted runs hardly tell it"
local HELD_OUT = "nine of ten of these runs are within it, each by a fit of others that held it out"

return {
  about = "what PyTorch's FSDP reached in 2023 on nodes of eight A100 80 GB (MosaicML's MPT runs on 8 to 64 GPUs)",
  extends = "a100-80x8",
  accuracy = { "6.8 %", HELD_OUT },
  device = {
    product = {
      efficiency = { "77.1 %", FITTED },
      k_half = { 62.1, FITTED },
    },
    attention = {
      forward = { "47.8 %", FITTED },
      backward = { "30.3 %", FITTED },
      keys_half = { 137, FITTED },
    },
    memory_rate = { "1.4 TB/s", FITTED },
    issue = { "6.06 us", FITTED },
    step_gap = { "21 ms", FITTED },
    overlap = { "36.4 %", FITTED },
  },
  links = {
    ring_ll = {
      inside = { "67.5 GB/s", FITTED },
      between = { "10.6 GB/s", FITTED },
      step_between = { "2.7 us", BEFORE },
      log_between = { "4.62 %", FITTED },
    },
    ring_simple = {
      inside = { "181 GB/s", FITTED },
      between = { "51.1 %", FITTED },
      step_between = { "14 us", BEFORE },
      log_between = { "4.62 %", FITTED },
    },
    tree_simple = {
      inside = { "166 GB/s", FITTED },
      between = { "47.2 %", FITTED },
      step_between = { "14 us", BEFORE },
      log_between = { "4.62 %", FITTED },
    },
  },
  kernels = {
    source = FITTED .. ": the loss, which is not one kernel there",
    points = {
      { op = "cross_entropy", shape = "other", dtype = "bf16", variant = 0, threads = 1, size = { 1, 1, 1, 1 },
        flops = 0, bytes = 1000000000, time = "2.59 ms" },
      { op = "cross_entropy_backward", shape = "other", dtype = "bf16", variant = 0, threads = 1, size = { 1, 1, 1, 1 },
        flops = 0, bytes = 1000000000, time = "2.59 ms" },
    },
  },
}
