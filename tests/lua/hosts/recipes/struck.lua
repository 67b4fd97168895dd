-- A small GPT that trains while its ranks, launchers, hosts and links are struck; see struck_hosts.lua. Every rank that
-- fails writes what it raised to said.RANK in `said`, so that the words of each survivor can be compared.

local ms = require "moonshard"

local cfg = ms.args {
  mesh = "2x2", steps = 5, dir = "", every = 0, async = false, replicate = "f32", shard = "f32",
  said = "", -- a folder; there `begun` appears after the first step, and `saving` when a save begins
}

local rank = tonumber(os.getenv("RANK"))

local function tell(name, text)
  if cfg.said == "" then return end
  local file = assert(io.open(cfg.said .. "/" .. name, "w"))
  file:write(text, "\n")
  file:close()
end

local function run()
  local names = { "replicate", "shard", select(2, cfg.mesh:gsub("x", "")) == 2 and "tensor" or nil }
  local mesh = ms.init_device_mesh(cfg.device, cfg.mesh, names)
  local model = ms.models.gpt2 { vocab = 256, layers = 2, dim = 32, heads = 4, seq = 32 }
  ms.fully_shard(model, {
    mesh = mesh, units = { ms.re [[^layers\.\d+$]] },
    mp_policy = { param_dtype = "f32", reduce_dtype = { replicate = cfg.replicate, shard = cfg.shard } },
    placements = mesh:has("tensor") and ms.rules.tensor_parallel(model) or nil,
  })
  local data = ms.data.text { files = "tests/lua/recipes/text.txt", seq = 32, batch = 1, mesh = mesh }
  local train
  -- The first rank is asked for it while it saves, and once after its first step.
  local position = {
    state = function()
      if rank == 0 and cfg.every > 0 and train.steps_done % cfg.every == 0 then tell("saving", "") end
      return data:state()
    end,
    load_state = function(_, state) data:load_state(state) end,
  }
  train = ms.trainer {
    model = model, optimizer = ms.optim.adamw { lr = 1e-3 }, loss = ms.loss.cross_entropy,
    checkpoint = { dir = cfg.dir, every = cfg.every, async = cfg.async, data = position,
      resume = cfg.dir ~= "" and "auto" or "" },
  }
  for step, batch in data:batches(cfg.steps) do
    ms.log(step, train:step(batch))
    if step == 1 and rank == 0 then tell("begun", "") end
  end
end

local ok, raised = xpcall(run, require("moonshard.base.error").locate)
if not ok then
  tell("said." .. rank, tostring(raised))
  error(raised, 0)
end
