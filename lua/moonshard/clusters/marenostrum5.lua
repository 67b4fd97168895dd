-- The accelerated nodes of MareNostrum 5 (BSC).

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
    oversubscription = { 1, "assumed: a fabric without oversubscription" },
  },
  links = { nvls = false }, -- four GPUs are wired to each other, without the switch that NVLS needs
}
