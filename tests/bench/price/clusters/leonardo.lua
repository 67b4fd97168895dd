-- The booster nodes of Leonardo (CINECA), on which Modalities' runs were published.

return {
  about = "nodes of four custom A100 64 GB with NVLink 3, 400 Gbit/s (InfiniBand) per node",
  extends = "a100-40x8",
  ranks_per_node = { 4, "CINECA: booster nodes of Leonardo" },
  device = {
    memory = { "64 GB", "CINECA: custom A100" },
    memory_rate = { "1.48 TB/s", "90 % of the 1.64 TB/s of CINECA's custom A100" },
  },
  network = {
    rails = { 4, "CINECA: two cards with two ports each" },
    rail = { "100 Gbit/s", "CINECA: HDR100" },
    oversubscription = { 1, "assumed: the fitted rate includes what the fabric loses" },
  },
}
