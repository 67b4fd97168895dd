-- The booster nodes of Leonardo (CINECA), on which Modalities' runs were published.

local CUSTOM = "Turisini and others, LEONARDO (2023): the custom A100 has 124 multiprocessors"

return {
  about = "nodes of four custom A100 64 GB with NVLink 3, 400 Gbit/s (InfiniBand) per node",
  extends = "a100-40x8",
  ranks_per_node = { 4, "CINECA: booster nodes of Leonardo" },
  device = {
    memory = { "64 GB", "CINECA: custom A100" },
    peak = {
      bf16 = { "358 TFLOP/s", CUSTOM .. ", of the A100's 312 on 108" },
      f32 = { "22.4 TFLOP/s", CUSTOM .. ", of the A100's 19.5 on 108" },
    },
    product = { units = { 124, CUSTOM } },
    memory_rate = { "1.48 TB/s", "90 % of the 1.64 TB/s of CINECA's custom A100" },
  },
  network = {
    rails = { 4, "CINECA: two cards with two ports each" },
    rail = { "100 Gbit/s", "CINECA: HDR100" },
    oversubscription = { 1, "assumed: the fitted rate includes what the fabric loses" },
  },
}
