-- The H200 nodes of the Kempner AI cluster (Harvard), on which KempnerForge's runs were published.

local THIRD = "six of the eighteen NVLinks of a GPU: four GPUs without NVSwitch are wired in pairs"

return {
  about = "nodes of four H200 with NVLink 4, 4 NICs of 400 Gbit/s (InfiniBand) per node",
  extends = "h200x8",
  ranks_per_node = { 4, "the published table: 4 GPUs of a node" },
  network = {
    rails = { 4, "assumed: one NIC per GPU, of which the table states the rate" },
    rail = { "400 Gbit/s", "the published table: InfiniBand NDR" },
    oversubscription = { 1, "assumed: a fabric without oversubscription" },
  },
  links = {
    ring_ll = { inside_pair = { "47 GB/s", THIRD } },
    ring_ll128 = { inside_pair = { "111 GB/s", THIRD } },
    ring_simple = { inside_pair = { "120 GB/s", THIRD } },
    tree_simple = { inside_pair = { "111 GB/s", THIRD } },
    nvls = false, -- the switch's
  },
}
