-- What a run was set to that a trainer which goes on from its checkpoint is not: changed on purpose, as a smaller
-- learning rate is, or lost, as what ms.set_rules changed while the run went on. A resume says it.

local json = require("moonshard.base.text.json")
local manifest = require("moonshard.checkpoint.manifest")
local optimizers = require("moonshard.engine.optimizers")
local run_options = require("moonshard.checkpoint.run_options")

local other_settings = {}

local NO_SETTINGS = { kind = true, states = true, muon = true } -- compared, and refused, where state is loaded
local NEAR = 1e-9 -- a schedule's rounding

-- Settings of the optimizers that rules choose; a checkpoint of an older build lacks Muon's.
local OF_PARTS = { muon_settings = "muon." }
for _, kind in ipairs(optimizers.kinds) do OF_PARTS[kind] = kind .. "." end

local function compare(list, prefix, saved, mine)
  local names, seen = {}, {}
  for _, from in ipairs({ saved, mine }) do
    for name in pairs(from) do
      if not seen[name] and not NO_SETTINGS[name] then names[#names + 1] = name end
      seen[name] = true
    end
  end
  table.sort(names, function(a, b) return tostring(a) < tostring(b) end)
  for _, name in ipairs(names) do
    local before, now = json.encode(saved[name]), json.encode(mine[name])
    if OF_PARTS[name] and saved[name] and mine[name] then
      compare(list, OF_PARTS[name], saved[name], mine[name])
    elseif before ~= now and not OF_PARTS[name] then
      list[#list + 1] = ("%s%s was %s and is %s"):format(prefix, tostring(name),
        saved[name] == nil and "not set" or before, mine[name] == nil and "not set" or now)
    end
  end
end

---@param train moonshard.Trainer
---@param read moonshard.Manifest
---@param data table? that is loaded with it
---@return string? "weight_decay was 0.5 and is 0.1; the learning rate of step 5 was to be 0.05 and is 0.01"
function other_settings.of(train, read, data)
  local list = {}
  -- As JSON has them.
  local mine = assert(json.decode(json.encode(manifest.optimizer_of(train.optimizer))))
  compare(list, "", read.optimizer or {}, mine)
  if train.ema and read.ema then
    compare(list, "ema.", read.ema, { decay = train.ema.decay, warmup = train.ema.warmup == true })
  end
  run_options.compare(list, read.options, train, data)
  local planned, now = read.schedule and read.schedule.next_lr, train.optimizer:planned_lr(read.step + 1)
  if planned and now then
    if math.abs(now - planned) > NEAR * math.max(now, planned) then
      list[#list + 1] = ("the learning rate of step %d was to be %.6g and is %.6g"):format(read.step + 1, planned, now)
    end
  end
  return list[1] and table.concat(list, "; ") or nil
end

return other_settings
