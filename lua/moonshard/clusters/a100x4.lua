-- Nodes of four A100 40 GB and four Slingshot NICs, as Perlmutter has them. `make bench-price PART=collectives` fits
-- the links, and prints how far they are off for numbers of nodes that were held out.

local FITTED = "fitted by make bench-price PART=collectives to NERSC's collectives on 1 to 128 nodes"
local AS_LL = "ring_ll's"
local AS_RING = "the ring's, which has more rows to fit"
local QUARTER = "a quarter of the node's: one NIC for each GPU"

return {
  about = "nodes of four A100 SXM4 40 GB with NVLink 3, 4 NICs of 200 Gbit/s (Slingshot 11) per node",
  extends = "a100-40x8",
  ranks_per_node = { 4, "NERSC: Perlmutter's GPU nodes" },
  network = {
    rails = { 4, "NERSC: Perlmutter's GPU nodes" },
    rail = { "200 Gbit/s", "line rate of the NIC" },
    oversubscription = { 1, "assumed: the fitted rates include what the fabric loses" },
  },
  links = {
    ring_ll = {
      start = { "10.7 us", FITTED }, start_between = { "18.9 us", FITTED },
      step_inside = { "0.51 us", FITTED }, step_between = { "6.47 us", FITTED },
      inside = { "75.7 GB/s", FITTED }, between = { "6.19 GB/s", FITTED }, hidden = { "24 %", FITTED },
    },
    ring_ll_two = { -- LL is faster between two nodes than between more, in NCCL's table, too
      algorithm = "ring", max_nodes = { 2, "NCCL 2.30, tuning.cc: its table of LL's rates by nodes" },
      start = { "10.7 us", AS_LL }, start_between = { "18.9 us", AS_LL },
      step_inside = { "0.51 us", AS_LL }, step_between = { "6.47 us", AS_LL },
      inside = { "75.7 GB/s", AS_LL }, between = { "11 GB/s", FITTED }, hidden = { "24 %", AS_LL },
    },
    ring_simple = {
      kinds = { "all_gather", "reduce_scatter" },
      start = { "24.4 us", FITTED }, start_between = { "32.9 us", FITTED },
      step_inside = { "10.3 us", FITTED }, step_between = { "31.9 us", FITTED },
      inside = { "197 GB/s", FITTED }, between = { "70 GB/s", FITTED }, hidden = { "33.7 %", FITTED },
      between_rank = { "17.5 GB/s", QUARTER },
    },
    ring_sum = {
      algorithm = "ring", kinds = { "all_reduce" },
      start = { "39.5 us", FITTED }, start_between = { "25.2 us", FITTED },
      step_inside = { "4.81 us", FITTED }, step_between = { "34 us", FITTED },
      inside = { "217 GB/s", FITTED }, between = { "70.9 GB/s", FITTED }, hidden = { "23.6 %", FITTED },
      between_rank = { "17.7 GB/s", QUARTER },
    },
    tree_ll = {
      algorithm = "tree", kinds = { "all_reduce" },
      start = { "11.2 us", FITTED }, start_between = { "0.288 us", FITTED },
      step_inside = { "0.51 us", AS_RING }, step_between = { "16.2 us", FITTED },
      inside = { "75.7 GB/s", AS_RING }, between = { "1.03 GB/s", FITTED }, hidden = { "50.1 %", FITTED },
    },
    tree_simple = {
      start = { "18.3 us", FITTED }, start_between = { "0.101 us", FITTED },
      step_inside = { "4.81 us", AS_RING }, step_between = { "46.5 us", FITTED },
      inside = { "217 GB/s", AS_RING }, between = { "55.2 GB/s", FITTED }, hidden = { "0.101 %", FITTED },
      between_rank = { "13.8 GB/s", QUARTER },
    },
  },
}
