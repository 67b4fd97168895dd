-- Nodes of four A100 40 GB and four Slingshot NICs, as Perlmutter has them. `make bench-price PART=collectives` fits
-- the links, and prints how far they are off for numbers of nodes that were held out.

local FITTED = "fitted by make bench-price PART=collectives to NERSC's collectives on 1 to 128 nodes"
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
      start = { "10.8 us", FITTED }, start_between = { "14.4 us", FITTED },
      step_inside = { "0.478 us", FITTED }, step_between = { "6.6 us", FITTED },
      inside = { "76.4 GB/s", FITTED }, between = { "6.26 GB/s", FITTED }, hidden = { "21.8 %", FITTED },
    },
    ring_simple = {
      kinds = { "all_gather", "reduce_scatter" },
      start = { "26.1 us", FITTED }, start_between = { "24.1 us", FITTED },
      step_inside = { "9.53 us", FITTED }, step_between = { "34.6 us", FITTED },
      inside = { "198 GB/s", FITTED }, between = { "70 GB/s", FITTED }, hidden = { "33.7 %", FITTED },
      between_rank = { "17.5 GB/s", QUARTER },
    },
    ring_sum = {
      algorithm = "ring", kinds = { "all_reduce" },
      start = { "47.7 us", FITTED }, start_between = { "14.9 us", FITTED },
      step_inside = { "5.27 us", FITTED }, step_between = { "31.4 us", FITTED },
      inside = { "217 GB/s", FITTED }, between = { "71 GB/s", FITTED }, hidden = { "22.4 %", FITTED },
      between_rank = { "17.75 GB/s", QUARTER },
    },
    tree_ll = {
      algorithm = "tree", kinds = { "all_reduce" },
      start = { "11.1 us", FITTED }, start_between = { "0.1 us", FITTED },
      step_inside = { "0.478 us", AS_RING }, step_between = { "15.7 us", FITTED },
      inside = { "76.4 GB/s", AS_RING }, between = { "1.11 GB/s", FITTED }, hidden = { "37.7 %", FITTED },
    },
    tree_simple = {
      start = { "14 us", FITTED }, start_between = { "0.1 us", FITTED },
      step_inside = { "5.27 us", AS_RING }, step_between = { "45.3 us", FITTED },
      inside = { "217 GB/s", AS_RING }, between = { "56.3 GB/s", FITTED }, hidden = { "0.1 %", FITTED },
      between_rank = { "14.1 GB/s", QUARTER },
    },
  },
}
