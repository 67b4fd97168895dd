-- The names of the shipped cluster descriptions: each is a row of networks.lua, or the file of that name in this
-- folder. Those that end with "-pytorch", in the folder pytorch, say what PyTorch reached on the hardware of others.

return {
  "a100-40x8", "a100-40x8-pytorch", "a100-80x8", "a100-80x8-pytorch", "a100x4", "b200x8", "b200x8-3200g", "cpu-example",
  "h100x8", "h100x8-100gbe", "h100x8-1600g", "h100x8-200g", "h100x8-25gbe", "h100x8-3200g", "h100x8-3200g-pytorch",
  "h100x8-400g", "h100x8-800g", "h200x8", "h200x8-3200g", "marenostrum5", "marenostrum5-pytorch",
}
