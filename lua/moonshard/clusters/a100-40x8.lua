-- Nodes of eight A100 SXM4 40 GB, as MosaicML's published runs used them.

local DATASHEET = "datasheet: NVIDIA A100 SXM4 40 GB"
local NCCL = "NCCL 2.30, tuning.cc"
local ASSUMED = "assumed, not measured"

return {
  about = "nodes of eight A100 SXM4 40 GB with NVLink 3 and NVSwitch, 8 NICs of 200 Gbit/s (RoCE) per node",
  ranks_per_node = { 8, "HGX A100: one rank per GPU" },
  device = {
    kind = "cuda",
    memory = { "40 GB", DATASHEET },
    reserved = { "2 GB", ASSUMED .. ": CUDA's context and NCCL" },
    peak = {
      bf16 = { "312 TFLOP/s", DATASHEET .. ", dense" },
      f32 = { "19.5 TFLOP/s", DATASHEET .. ", without TF32" },
    },
    clock = { "100 %", "the efficiencies below are measured at the clocks that the GPU kept up" },
    product = {
      efficiency = { "86.9 %", "largest bf16 product that reaches 271.2 TFLOP/s, measured by S. Bekman (MAMF finder)" },
      tile_m = { 128, "cuBLAS, the usual tile of Ampere's kernels" },
      tile_n = { 256, "cuBLAS, the usual tile of Ampere's kernels" },
      units = { 108, DATASHEET .. ": multiprocessors" },
      half_tile = { "75 %", ASSUMED },
      k_half = { 128, ASSUMED },
    },
    attention = {
      forward = { "72 %", "FlashAttention 2: up to 225 TFLOP/s, from the paper" },
      backward = { "62 %", "FlashAttention 2: backward up to 63 % of the peak, from the paper" },
      keys_half = { 150, "assumed to be that of FlashAttention 3 on an H100" },
      causal = { "55 %", "assumed: half of the work, and the tiles on the diagonal" },
    },
    memory_rate = { "1.4 TB/s", "90 % of the datasheet's 1.555 TB/s, Calculon's part for large accesses" },
    memory_half = { "1 MB", ASSUMED },
    kernel_start = { "2 us", ASSUMED },
    issue = { "4 us", ASSUMED },
    phase_gap = { "20 us", ASSUMED },
    step_gap = { "0 s", ASSUMED },
    overlap = { "2 %", "Calculon: what collectives take of the multiprocessors" },
  },
  network = {
    rails = { 8, "one NIC per GPU" },
    rail = { "200 Gbit/s", "line rate of the NIC" },
    oversubscription = { 1, "assumed: a fabric without oversubscription" },
  },
  links = {
    ring_ll = {
      algorithm = "ring",
      start = { "6.6 us", NCCL .. ": ring, LL" },
      step_inside = { "1 us", NCCL .. ": NVLink .6 us, below the overhead of 1 us" },
      step_between = { "2.7 us", NCCL .. ": network, LL" },
      inside = { "87.7 GB/s", NCCL .. ": LL on one node of Ampere" },
      between = { "19 GB/s", NCCL .. ": LL on four and more nodes with AMD's processors" },
      max_between = { "50 %", NCCL .. ": half of what LL sends is flags" },
    },
    ring_simple = {
      algorithm = "ring",
      start = { "8.4 us", NCCL .. ": ring, Simple" },
      step_inside = { "3.4 us", NCCL .. ": NVLink, Simple" },
      step_between = { "14 us", NCCL .. ": network, Simple" },
      inside = { "235 GB/s", "large collectives on eight A100, nccl-tests" },
      between = { "92 %", "23.4 to 24.1 of 25 GB/s of a NIC of 200 Gbit/s, two nodes over RoCE" },
    },
    tree_simple = {
      algorithm = "tree", kinds = { "all_reduce" },
      start = { "8.4 us", NCCL .. ": tree, Simple" },
      step_inside = { "4 us", NCCL .. ": NVLink, Simple" },
      step_between = { "14 us", NCCL .. ": network, Simple" },
      inside = { "216 GB/s", NCCL .. ": 92 % of the ring's" },
      between = { "85 %", NCCL .. ": 92 % of the ring's" },
    },
  },
}
