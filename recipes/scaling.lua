-- FSDP or HSDP, and with a tensor dimension or without, for a Llama on few nodes and on many? Prices every mesh on a
-- described cluster; needs neither a GPU nor a second machine.
--
--   moonshard sweep recipes/scaling.lua                                    # 8B on nodes of 8 H100 with 400 Gbit/s
--   moonshard sweep recipes/scaling.lua size=7B nodes=1,2,4,8,16 cluster=h100x8-200g
--
-- `moonshard price` alone lists the clusters; a description of your own is given by its path: cluster=./mine.lua.

local ms = require "moonshard"

local cfg = ms.args {
  cluster = "h100x8-400g", size = "8B", seq = 4096, batch = 1,
  nodes = "1,2,4,8,16,32,64",
  shapes = "fsdp,hsdp,hsdp:2,fsdp tensor:8,hsdp tensor:8",
  models = "1B,3B,8B,70B",        -- rows of the heat map
  out = "build/scaling",
}

local function list(text, convert)
  local items = {}
  for item in text:gmatch("[^,]+") do items[#items + 1] = convert and convert(item) or item end
  return items
end

ms.scaling {
  title = ("Llama %s: FSDP, HSDP and tensor parallelism"):format(cfg.size),
  recipe = "llama.lua", cluster = cfg.cluster,
  settings = { size = cfg.size, seq = cfg.seq, batch = cfg.batch, files = cfg.files },
  nodes = list(cfg.nodes, tonumber), shapes = list(cfg.shapes),
  models = { size = list(cfg.models) },
  tradeoffs = { batch = { 1, 2, 4 }, reshard = { true, false }, prefetch = { 0, 1, 2 } },
  out = cfg.out,
}
