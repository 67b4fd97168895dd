-- H100 nodes with 8 NICs of 400 Gbit/s each.

return {
  about = "nodes of eight H100 SXM5 80 GB, 8 NICs of 400 Gbit/s (InfiniBand or RoCE) per node",
  extends = "h100x8",
  network = {
    rails = { 8, "as the name says" },
    rail = { "400 Gbit/s", "line rate of the NIC" },
    oversubscription = { 1, "assumed: a fabric without oversubscription" },
  },
}
