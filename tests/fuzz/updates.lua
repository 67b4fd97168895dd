-- What random cases vary of updates: optimizers other than AdamW and SGD, groups with settings of their own, clipping
-- by value and by the norm of groups, and units that every rank updates whole. Drawn last, so that other draws are
-- those of earlier versions.

local updates = {}

local NORMS = [[{ { re"bias|norm", %s, optional = true }, { re"fc1|embed", 0, optional = true }, ]]
  .. [[{ re"fc2|weight", %s, optional = true } }]]

local WHOLE = { "false", [[{ { re"layers", false, optional = true } }]],
  [=[{ { re[[layers\.1]], true, optional = true }, { re".", false, optional = true } }]=] }

-- Some that are AdamW become another one. Lion's steps are whole learning rates; Adafactor's are relative to weights,
-- and it has no moments.
local function other_optimizer(d, self)
  local optimizer = self.optimizer
  local kind = d:one_of { "adamw", "adamw", "adam", "lion", "adafactor" }
  if kind == "adafactor" then
    local more = d:chance(0.5) and ("beta2_decay = %s, d = %d, "):format(d:one_of { "-0.5", "0" }, d:integer(1, 2))
    optimizer = optimizer:gsub(", moments = %b\"\"", ""):gsub("lr = 1e%-%d", (more or "") .. "lr = 2e-2")
  end
  if kind == "lion" then
    optimizer = optimizer:gsub("lr = 1e%-(%d)", function(n) return ("lr = 2e-%d"):format(n + 1) end)
  end
  return (optimizer:gsub("ms%.optim%.adamw", "ms.optim." .. kind))
end

-- Their own betas, and rates that are not given as factors.
local function other_groups(d, optimizer)
  local has_betas = not (optimizer:find("sgd", 1, true) or optimizer:find("adafactor", 1, true))
  if d:chance(0.5) then optimizer = optimizer:gsub("lr_scale = 0.5", "lr = 3e-3") end
  if has_betas and d:chance(0.5) then optimizer = optimizer:gsub("weight_decay = 0, ", "%0betas = { 0.8, 0.9 }, ") end
  return optimizer
end

---Draws them for a case that is complete otherwise.
---@param d table of fuzz.draw
---@param self table a case
function updates.draw(d, self)
  if self.optimizer:find("adamw", 1, true) then self.optimizer = other_optimizer(d, self) end
  self.optimizer = other_groups(d, self.optimizer)
  local limit = self.trainer.clip_grad_norm
  if limit and d:chance(0.4) then self.trainer.clip_grad_norm = NORMS:format(d:one_of { "0.2", "0.01" }, limit) end
  -- A check has no bound for sums in few bits that are clipped by value.
  local in_few_bits = (self.sharding.mp_policy or ""):find('"i[48]"')
  if d:chance(0.2) and not in_few_bits then self.trainer.clip_grad_value = d:one_of { "0.05", "0.001" } end
  if self.optimizer:find("momentum = 0.9", 1, true) and d:chance(0.5) then
    self.optimizer = self.optimizer:gsub("{ weight_decay = 0, ", "%0momentum = " .. d:one_of { "0", "0.5" } .. ", ", 1)
  end
  local divided = self.muon or self.sharding.shard_optimizer_over_replicate
  if not divided and self.shard * (self.context or 1) > 1 and d:chance(0.25) then
    self.sharding.shard = d:one_of(WHOLE)
  end
end

return updates
