-- Nodes of four A100 40 GB and four Slingshot NICs, as Perlmutter has them. The links are fitted: the smaller of two
-- protocols over all-gathers of 32 KB to 1 GB on 2 to 128 nodes, 6.5 % mean error on nodes left out.

local FITTED = "fitted to NERSC's all-gathers and reduce-scatters on Perlmutter"

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
      start = { "8.3 us", FITTED },
      step_inside = { "0.68 us", FITTED .. ": 35 % of a step between nodes" },
      step_between = { "1.93 us", FITTED },
      between = { "6.9 GB/s", FITTED },
    },
    ring_simple = {
      start = { "22.8 us", FITTED },
      step_inside = { "4.3 us", FITTED .. ": 35 % of a step between nodes" },
      step_between = { "12.3 us", FITTED },
      inside = { "200 GB/s", FITTED },
      between = { "72.5 GB/s", FITTED },
    },
    tree_simple = { inside = { "200 GB/s", "as the ring's" }, between = { "72.5 GB/s", "as the ring's" } },
  },
}
