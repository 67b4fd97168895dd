-- H100 nodes behind one Ethernet port of 25 Gbit/s, over TCP.

return {
  about = "nodes of eight H100 SXM5 80 GB, one Ethernet port of 25 Gbit/s per node, TCP sockets",
  extends = "h100x8-100gbe",
  network = { rail = { "25 Gbit/s", "line rate of the port" } },
}
