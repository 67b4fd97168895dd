-- Two ways to train compared: both step in turns, so that what else the machine does meets both.
--
-- A pair is `window` steps of each, every other pair the other way round; ranks begin a window together, and it ends
-- with the last of them.

local ffi = require("ffi")
local clock = require("moonshard.base.clock")
local ms = require("moonshard")
local re = ms.re

local pairs_of = {}

local function sum(list)
  local total = 0
  for _, number in ipairs(list) do total = total + number end
  return total
end

-- Milliseconds of a step of a window, and those of all ranks' processors.
local function window(train, batch, steps)
  train.session:gather_numbers(0)
  local began, worked = clock.now(), os.clock()
  for _ = 1, steps do train:step(batch) end
  worked = os.clock() - worked
  local cpu = sum(train.session:gather_numbers(worked))
  return 1e3 * (clock.now() - began) / steps, 1e3 * cpu / steps
end

-- The value below which a share of the list lies.
local function quantile(list, share)
  local sorted = { unpack(list) }
  table.sort(sorted)
  local at = 1 + share * (#sorted - 1)
  local low = math.floor(at)
  return sorted[low] + (at - low) * ((sorted[low + 1] or sorted[low]) - sorted[low])
end

---A trainer of a language model whose layers are units, with AdamW.
---@param model moonshard.Module
---@param cfg { device: string, dtype: string } of the recipe
---@param mesh string "2x2": replicate x shard
---@return moonshard.Trainer
function pairs_of.trainer(model, cfg, mesh)
  ms.fully_shard(model, {
    mesh = ms.init_device_mesh(cfg.device, mesh, { "replicate", "shard" }), units = { re[[^layers\.\d+$]] },
    mp_policy = { param_dtype = cfg.dtype, reduce_dtype = "f32" },
  })
  return ms.trainer {
    model = model, loss = ms.loss.cross_entropy, optimizer = ms.optim.adamw { lr = 1e-3, weight_decay = 0.1 },
  }
end

---Tokens of this rank, which are their own targets.
---@param cfg { batch: integer, seq: integer, vocab: integer }
---@return table batch
function pairs_of.tokens(cfg)
  local count = cfg.batch * cfg.seq
  local tokens = ffi.new("int32_t[?]", count)
  for i = 0, count - 1 do tokens[i] = (i * 7 + ms.world().rank) % cfg.vocab end
  local array = { data = tokens, dtype = "i32", shape = { cfg.batch, cfg.seq } }
  return { tokens = array, targets = array }
end

---@param names string[] of the two
---@param train table<string, moonshard.Trainer> by name
---@param batch table
---@param o { pairs: integer, window: integer, warmup: integer } windows before the first pair: warmup
---@return table result for each name ms and cpu_ms of a step (the median; of all ranks' processors together), and of
---  the pairs' ratios, the first to the second, the median and the quartiles: of time (ratio, ratio_low, ratio_high),
---  of the processors' (cpu_ratio, ...)
function pairs_of.compare(names, train, batch, o)
  local first, second = unpack(names)
  for _ = 1, o.warmup do
    for _, name in ipairs(names) do window(train[name], batch, o.window) end
  end
  local took, worked, ratio, cpu_ratio = { {}, {} }, { {}, {} }, {}, {}
  for i = 1, o.pairs do
    for _, which in ipairs(i % 2 == 0 and { 1, 2 } or { 2, 1 }) do
      took[which][i], worked[which][i] = window(train[names[which]], batch, o.window)
    end
    ratio[i], cpu_ratio[i] = took[1][i] / took[2][i], worked[1][i] / worked[2][i]
  end
  local result = { pairs = o.pairs, window = o.window }
  for which, name in ipairs({ first, second }) do
    result[name .. "_ms"], result[name .. "_cpu_ms"] = quantile(took[which], 0.5), quantile(worked[which], 0.5)
  end
  for name, list in pairs({ ratio = ratio, cpu_ratio = cpu_ratio }) do
    result[name] = quantile(list, 0.5)
    result[name .. "_low"], result[name .. "_high"] = quantile(list, 0.25), quantile(list, 0.75)
  end
  return result
end

return pairs_of
