-- Nodes of eight A100 SXM4 80 GB.

local DATASHEET = "datasheet: NVIDIA A100 SXM4 80 GB"

return {
  about = "nodes of eight A100 SXM4 80 GB with NVLink 3 and NVSwitch, 8 NICs of 200 Gbit/s (RoCE) per node",
  extends = "a100-40x8",
  device = {
    memory = { "80 GB", DATASHEET },
    memory_rate = { "1.8 TB/s", "90 % of the datasheet's 2.04 TB/s, Calculon's part for large accesses" },
  },
}
