-- One node of eight B200. What no one has measured on it is taken from the H100.

local DATASHEET = "datasheet: NVIDIA HGX B200"
local NCCL = "NCCL 2.30, tuning.cc"

return {
  about = "nodes of eight B200 180 GB with NVLink 5 and NVSwitch",
  extends = "h100x8",
  ranks_per_node = { 8, "HGX B200: one rank per GPU" },
  device = {
    memory = { "180 GB", DATASHEET },
    peak = {
      bf16 = { "2250 TFLOP/s", DATASHEET .. ", dense" },
      f32 = { "75 TFLOP/s", DATASHEET .. ", without TF32" },
      f8e4m3 = { "4500 TFLOP/s", DATASHEET .. ", FP8, dense" },
      f8e5m2 = { "4500 TFLOP/s", DATASHEET .. ", FP8, dense" },
    },
    product = {
      efficiency = { "77.6 %", "largest bf16 product that reaches 1745 TFLOP/s, measured by S. Bekman (MAMF finder)" },
      units = { 148, DATASHEET .. ": multiprocessors" },
    },
    memory_rate = { "7.2 TB/s", "90 % of the datasheet's 8 TB/s, Calculon's part for large accesses" },
  },
  links = {
    ring_ll128 = { inside = { "619 GB/s", NCCL .. ": 92 % of Simple's" } },
    ring_simple = { inside = { "673 GB/s", "large all-gathers on eight B200, nccl-tests" } },
    tree_simple = { inside = { "619 GB/s", NCCL .. ": 92 % of the ring's" } },
    nvls = { inside = { "480 GB/s", NCCL .. ": 74 % of the rate of NVLink 5 on Blackwell" } },
  },
}
