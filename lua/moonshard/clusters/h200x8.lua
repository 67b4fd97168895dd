-- One node of eight H200 SXM: Hopper's multiprocessors with larger and faster memory.

local DATASHEET = "datasheet: NVIDIA H200 SXM"

return {
  about = "nodes of eight H200 SXM 141 GB with NVLink 4 and NVSwitch",
  extends = "h100x8",
  device = {
    memory = { "141 GB", DATASHEET },
    peak = {
      f8e4m3 = { "1979 TFLOP/s", DATASHEET .. ", FP8, dense" },
      f8e5m2 = { "1979 TFLOP/s", DATASHEET .. ", FP8, dense" },
    },
    memory_rate = { "4.3 TB/s", "90 % of the datasheet's 4.8 TB/s, Calculon's part for large accesses" },
  },
}
