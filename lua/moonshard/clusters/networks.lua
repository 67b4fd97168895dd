-- Descriptions of nodes with a network, which differ in their NICs alone: one row each, of the nodes that they extend
-- (a file of that name in this folder), what these are, how many NICs a node has, and the Gbit/s of each.

local H100, H200, B200 = "eight H100 SXM5 80 GB", "eight H200 SXM 141 GB", "eight B200 180 GB"

local ROWS = {
  ["h100x8-200g"] = { "h100x8", H100, 1, 200 },
  ["h100x8-400g"] = { "h100x8", H100, 1, 400 },
  ["h100x8-800g"] = { "h100x8", H100, 2, 400 },
  ["h100x8-1600g"] = { "h100x8", H100, 4, 400 },
  ["h100x8-3200g"] = { "h100x8", H100, 8, 400 },
  ["h200x8-3200g"] = { "h200x8", H200, 8, 400 },
  ["b200x8-3200g"] = { "b200x8", B200, 8, 400 },
}

local networks = {}

for name, row in pairs(ROWS) do
  local nodes, what, nics, rate = unpack(row)
  networks[name] = {
    about = ("nodes of %s, %d NIC%s of %d Gbit/s (InfiniBand or RoCE) per node"):format(what, nics,
      nics == 1 and "" or "s", rate),
    extends = nodes,
    network = {
      rails = { nics, "as the name says" },
      rail = { rate .. " Gbit/s", "line rate of the NIC" },
      oversubscription = { 1, "assumed: a fabric without oversubscription" },
    },
  }
end

return networks
