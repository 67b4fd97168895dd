-- H100 nodes behind one Ethernet port of 25 Gbit/s, over TCP.

local TCP = "IBM: TCP reaches 120 of 200 Gbit/s"
local SOCKETS = "assumed: a round through the kernel's sockets"

return {
  about = "nodes of eight H100 SXM5 80 GB, one Ethernet port of 25 Gbit/s per node, TCP sockets",
  extends = "h100x8",
  network = {
    rails = { 1, "as the name says" },
    rail = { "25 Gbit/s", "line rate of the port" },
    oversubscription = { 1, "assumed: a fabric without oversubscription" },
  },
  links = {
    ring_ll = { step_between = { "30 us", SOCKETS }, between = { "30 %", TCP .. "; LL halves it" } },
    ring_ll128 = false, -- NCCL does not use LL128 over sockets
    ring_simple = { step_between = { "50 us", SOCKETS }, between = { "60 %", TCP } },
    tree_simple = { step_between = { "50 us", SOCKETS }, between = { "60 %", TCP } },
  },
}
