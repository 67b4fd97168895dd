rockspec_format = "3.0"
package = "moonshard"
version = "dev-1"
source = {
  url = "git+file://.",
}
description = {
  summary = "Training of neural networks sharded over a mesh of devices",
  detailed = [[
    FSDP and HSDP training described by short Lua recipes: the engine compiles the whole step, forward, backward,
    collectives and optimizer, to a static, verified plan whose memory peak is known before it starts.
  ]],
  license = "Apache-2.0",
}
supported_platforms = { "linux" }
dependencies = {
  "lua == 5.1",
}
-- The engine is C built by make; the Lua modules are installed beside the library that they load.
build = {
  type = "make",
  build_variables = {
    PREFIX = "$(PREFIX)",
  },
  install_variables = {
    PREFIX = "$(PREFIX)",
  },
}
