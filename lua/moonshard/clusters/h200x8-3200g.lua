-- H200 nodes with 8 NICs of 400 Gbit/s each.

return {
  about = "nodes of eight H200 SXM 141 GB, 8 NICs of 400 Gbit/s (InfiniBand or RoCE) per node",
  extends = "h200x8",
  network = {
    rails = { 8, "as the name says" },
    rail = { "400 Gbit/s", "line rate of the NIC" },
    oversubscription = { 1, "assumed: a fabric without oversubscription" },
  },
}
