-- A preset: rules for models whose blocks are named layers.0, layers.1, ...

local re = require("moonshard").re

return {
  units = { re[[^layers\.\d+$]] },
  reshard_after_forward = {
    { re[[^layers\.\d+$]], true },
    { "layers.1", false },
    { "root", false },
  },
  freeze = { "embed", { "head.bias", optional = true } },
}
