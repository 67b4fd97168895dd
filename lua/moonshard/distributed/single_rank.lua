-- The world of one rank in which eager work runs: no other rank takes part, so ranks can do different things.

local engine = require("moonshard.base.ffi")
local meshes = require("moonshard.distributed.mesh")
local C, ffi, check = engine.C, engine.ffi, engine.check

local single_rank = {}

local world, mesh

---@return ffi.cdata* ms_world*
function single_rank.world()
  if not world then
    local out = ffi.new("ms_world *[1]")
    local config = engine.config("ms_world_config")
    config.alone = 1
    check(C.ms_world_join(config, out))
    world = ffi.gc(out[0], C.ms_free)
  end
  return world
end

---A mesh of one rank.
---@return moonshard.Mesh
function single_rank.mesh()
  mesh = mesh or meshes.of_ranks(1, "cpu", { 1 }, { "shard" })
  return mesh
end

return single_rank
