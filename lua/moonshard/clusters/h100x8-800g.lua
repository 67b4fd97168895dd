-- H100 nodes with 2 NICs of 400 Gbit/s each.

return {
  about = "nodes of eight H100 SXM5 80 GB, 2 NICs of 400 Gbit/s (InfiniBand or RoCE) per node",
  extends = "h100x8",
  network = {
    rails = { 2, "as the name says" },
    rail = { "400 Gbit/s", "line rate of the NIC" },
    oversubscription = { 1, "assumed: a fabric without oversubscription" },
  },
}
