-- One node of eight H100 SXM5. The other H100 descriptions extend it with a network.

local DATASHEET = "datasheet: NVIDIA H100 SXM5 80 GB"
local NCCL = "NCCL 2.30, tuning.cc"
local ASSUMED = "assumed, not measured"

return {
  about = "nodes of eight H100 SXM5 80 GB with NVLink 4 and NVSwitch",
  ranks_per_node = { 8, "HGX H100: one rank per GPU" },
  device = {
    kind = "cuda",
    memory = { "80 GB", DATASHEET },
    reserved = { "5.8 GB", "CUDA's context and NCCL, one nvidia-smi reading on an H100 of Megatron-LM" },
    peak = {
      bf16 = { "989 TFLOP/s", DATASHEET .. ", dense" },
      f32 = { "67 TFLOP/s", DATASHEET .. ", without TF32" },
      f8e4m3 = { "1979 TFLOP/s", DATASHEET .. ", FP8, dense" },
      f8e5m2 = { "1979 TFLOP/s", DATASHEET .. ", FP8, dense" },
    },
    clock = { "100 %", "the efficiencies below are measured at the clocks that the GPU kept up" },
    product = {
      efficiency = { "80.3 %", "largest bf16 product that reaches 794.5 TFLOP/s, measured by S. Bekman (MAMF finder)" },
      tile_m = { 128, "cuBLAS, the usual tile of Hopper's kernels" },
      tile_n = { 256, "cuBLAS, the usual tile of Hopper's kernels" },
      units = { 132, DATASHEET .. ": multiprocessors" },
      half_tile = { "75 %", ASSUMED },
      k_half = { 256, ASSUMED },
    },
    attention = {
      forward = { "65.5 %", "FlashAttention 3, head dim 128: 648 TFLOP/s at 16k, from the paper's figure" },
      backward = { "54.7 %", "541 TFLOP/s with cuDNN at 8k on an H200, as NVIDIA reports" },
      keys_half = { 150, "FlashAttention 3: 565 TFLOP/s at 1k, 648 at 16k" },
      causal = { "52.6 %", "FlashAttention 3 at 16k: 616 TFLOP/s of half the work, against 648 of all" },
    },
    memory_rate = { "3.0 TB/s", "90 % of the datasheet's 3.35 TB/s, Calculon's part for large accesses" },
    memory_half = { "1 MB", ASSUMED },
    kernel_start = { "2 us", ASSUMED },
    issue = { "4 us", ASSUMED },
    phase_gap = { "20 us", ASSUMED },
    step_gap = { "0 s", ASSUMED },
    overlap = { "2 %", "Calculon: what collectives take of the multiprocessors" },
  },
  links = {
    -- NCCL's protocols: LL has short steps and half the rate, Simple long steps and the full rate.
    ring_ll = {
      algorithm = "ring",
      start = { "6.6 us", NCCL .. ": ring, LL" },
      step_inside = { "1 us", NCCL .. ": NVLink .6 us, below the overhead of 1 us" },
      step_between = { "2.7 us", NCCL .. ": network, LL" },
      inside = { "141 GB/s", NCCL .. ": LL on one node of Hopper" },
      between = { "20.4 GB/s", NCCL .. ": LL on four and more nodes" },
      max_between = { "50 %", NCCL .. ": half of what LL sends is flags" },
    },
    ring_ll128 = {
      algorithm = "ring",
      start = { "14 us", NCCL .. ": ring, LL128" },
      step_inside = { "1.9 us", NCCL .. ": NVLink, LL128" },
      step_between = { "4 us", NCCL .. ": network, LL128" },
      inside = { "332 GB/s", NCCL .. ": 92 % of Simple's" },
      between = { "85 %", NCCL .. ": 92 % of Simple's" },
    },
    ring_simple = {
      algorithm = "ring",
      start = { "8.4 us", NCCL .. ": ring, Simple" },
      step_inside = { "3.4 us", NCCL .. ": NVLink, Simple" },
      step_between = { "14 us", NCCL .. ": network, Simple" },
      inside = { "361 GB/s", "all-gather of 16 GiB on eight H200, nccl-tests" },
      between = { "92 %", "46 to 48 GB/s of a NIC of 400 Gbit/s, NVIDIA's maintainers" },
    },
    tree_simple = {
      algorithm = "tree", kinds = { "all_reduce" },
      start = { "8.4 us", NCCL .. ": tree, Simple" },
      step_inside = { "4 us", NCCL .. ": NVLink, Simple" },
      step_between = { "14 us", NCCL .. ": network, Simple" },
      inside = { "332 GB/s", NCCL .. ": 92 % of the ring's" },
      between = { "85 %", NCCL .. ": 92 % of the ring's" },
    },
    nvls = {
      algorithm = "switch", kinds = { "all_reduce" }, max_nodes = { 1, "NCCL: NVLS Tree is the tree across nodes" },
      start = { "25 us", NCCL .. ": NVLS" },
      step_inside = { "0 us", "part of the start" },
      inside = { "274 GB/s", "all-reduce of 16 GiB on eight H200, nccl-tests: a bus bandwidth of 480 GB/s" },
    },
  },
}
