-- FSDP, HSDP or DDP? The same GPT over two hosts of two ranks each, at several speeds of the link between them.
--
--   make two-hosts                      # as root: two network namespaces with a link of real, limited speed
--   moonshard sweep recipes/fsdp_vs_hsdp.lua --hosts a:2,b:2 links=as-it-is
--
-- `shape` is a command that sets the link's speed, which is its last argument: recipes/two_hosts.sh can.

local ms = require "moonshard"

local cfg = ms.args {
  links = "1gbit,200mbit", shape = "",
  meshes = "1x4,2x2,4x1",           -- FSDP, HSDP, DDP
  shard_optimizer = "2x2",          -- the meshes that run with and without hybrid.lua's shard_optimizer
  dtypes = "f32,bf16", accumulate = "1,4",
  steps = 5, repeats = 1,
}

local function list(text, convert)
  local items = {}
  for item in text:gmatch("[^,]+") do items[#items + 1] = convert and convert(item) or item end
  return items
end

ms.sweep {
  title = "FSDP, HSDP and DDP over two hosts",
  recipe = "hybrid.lua",
  over = {
    mesh = list(cfg.meshes), dtype = list(cfg.dtypes), accumulate = list(cfg.accumulate, tonumber),
    shard_optimizer = { false, true },
  },
  where = function(point)
    for _, mesh in ipairs(list(cfg.shard_optimizer)) do
      if mesh == point.mesh then return true end
    end
    return not point.shard_optimizer
  end,
  conditions = { link = list(cfg.links) },
  prepare = function(point)
    if cfg.shape == "" then return end
    local command = ("%s %s"):format(cfg.shape, point.link)
    if os.execute(command) ~= 0 then error("failed: " .. command, 0) end
  end,
  settings = { files = cfg.files },
  steps = cfg.steps, repeats = cfg.repeats, order = "given",
  out = "build/sweep/fsdp_vs_hsdp",
}
