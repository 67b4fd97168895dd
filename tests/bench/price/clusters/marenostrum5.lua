-- The accelerated nodes of MareNostrum 5 (BSC), on which Modalities' runs were published.

return {
  about = "nodes of four H100 64 GB with NVLink 4, 4 NICs of 200 Gbit/s (InfiniBand) per node",
  extends = "h100x8",
  ranks_per_node = { 4, "BSC: accelerated partition" },
  device = {
    memory = { "64 GB", "BSC: H100 with 64 GB of HBM2" },
    memory_rate = { "1.8 TB/s", "90 % of 2 TB/s, what such HBM2 reaches" },
  },
  network = {
    rails = { 4, "BSC: one NIC per GPU" },
    rail = { "200 Gbit/s", "BSC: NDR200" },
    oversubscription = { 1, "assumed: the fitted rate includes what the fabric loses" },
  },
}
