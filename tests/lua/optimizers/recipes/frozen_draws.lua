-- Initial values of frozen parameters in units whose optimizer is sharded over the replicas are those of units whose
-- optimizer is not. The replicas of a host draw the former into one copy of the chunks, at the same time.
local ms = require "moonshard"

local function drawn(over_replicate)
  local model = ms.nn.sequential { ms.nn.linear(1024, 1024), ms.nn.linear(1024, 16) }
  ms.fully_shard(model, {
    mesh = { ms.world().size, 1 }, units = { ms.re[[^\d+$]] }, freeze = { ms.re[[^0\.weight$]] },
    shared_masters = false, shard_optimizer_over_replicate = over_replicate,
  })
  local train = ms.trainer { model = model, optimizer = ms.optim.sgd { lr = 1e-2 }, loss = ms.loss.mse }
  return model:state_dict { full = true }, train
end

local expected, got = drawn(false), drawn(true)
for name, values in pairs(expected) do
  local other = got[name]
  for i = 0, values:numel() - 1 do
    if values.data[i] ~= other.data[i] then
      error(("%s[%d] is %.9g, not %.9g"):format(name, i, other.data[i], values.data[i]))
    end
  end
end
