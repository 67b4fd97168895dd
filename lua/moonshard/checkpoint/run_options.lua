-- The options of a run that decide what it computes and belong to its recipe alone: of the trainer, of the optimizer's
-- groups and schedule, of local steps, and of data. A checkpoint records them as texts, and a run that goes on from it
-- says which of them are others. What has to be the same is compared elsewhere, and refused; what only decides where
-- something is kept, or in which order it is computed, is not among them.

local json = require("moonshard.base.text.json")
local param_groups = require("moonshard.shard.param_groups")
local qk_clip = require("moonshard.engine.trace.qk_clip")
local rules = require("moonshard.shard.rules")
local sealed = require("moonshard.base.checks.sealed")

local run_options = {}

-- The rules of a policy as text, in their order: re"bias": 0; re".": 1.
local function text_of_rules(policy, text)
  local list = {}
  for i, rule in ipairs(policy and policy.rules or {}) do
    list[i] = ("%s: %s"):format(rules.describe(rule), text(rule.value))
  end
  return list[1] and table.concat(list, "; ") or "none"
end

local function text_of_pad(fields)
  local list = {}
  for i, field in ipairs(fields or {}) do list[i] = ("%s = %s"):format(field.name, json.encode(field.value)) end
  return list[1] and table.concat(list, ", ") or "none"
end

local function add_trainer(found, train)
  local clip = train.clip
  found.micro_batches = ("%d"):format(train.micro_batches)
  found.clip_grad_norm = clip.rules and text_of_rules(clip.rules, tostring) or json.encode(clip.norm)
  found.clip_grad_value = json.encode(clip.value)
  found.qk_clip = qk_clip.text(clip.qk)
  found.pad, found.freeze = text_of_pad(train.padded_fields), text_of_rules(train.freeze, tostring)
end

local function add_optimizer(found, optimizer)
  local parts = optimizer.parts or { optimizer }
  for _, part in ipairs(parts) do
    local prefix = #parts > 1 and part.kind .. "." or ""
    found[prefix .. "groups"] = text_of_rules(part:policy(), function(group)
      return param_groups.text(param_groups.complete(group, part.weight_decay))
    end)
    found[prefix .. "schedule"] = part:schedule_text()
  end
end

local function add_local_steps(found, sync)
  if not sync then return end
  local outer = sync.outer
  for name, value in pairs({ every = sync.every, fragments = sync.fragments, alpha = sync.alpha,
    momentum = outer.momentum, nesterov = outer.nesterov }) do
    found["replicate_sync." .. name] = json.encode(value)
  end
  found["replicate_sync.lr"] = outer:schedule_text()
end

local function add_data(found, data)
  local of = data and sealed.fields(data)
  if of and rawget(of, "mask") then of = sealed.fields(rawget(of, "data")) end -- masked data has those of its data
  local settings, share = of and rawget(of, "settings"), of and rawget(of, "share")
  if type(settings) ~= "string" or type(share) ~= "table" then return end
  found["data.global_batch"] = ("%d"):format(rawget(of, "batch") * share.ranks)
  found["data.settings"] = settings == "" and "defaults" or (settings:gsub("^[,; ]+", ""))
end

---@param train moonshard.Trainer
---@param data table? that is saved with it
---@return table<string, string> by name
function run_options.of(train, data)
  local found = {}
  add_trainer(found, train)
  add_optimizer(found, train.optimizer)
  add_local_steps(found, train.session.sharding.local_sync)
  add_data(found, data)
  return found
end

---What a checkpoint recorded and is otherwise now.
---@param list string[] receives "clip_grad_norm was 1 and is 0"
---@param saved table<string, string>? nil in checkpoints from before they were recorded
---@param train moonshard.Trainer
---@param data table? that is loaded with it
function run_options.compare(list, saved, train, data)
  if not saved then return end
  local mine, names = run_options.of(train, data), {}
  for name in pairs(mine) do names[#names + 1] = name end
  table.sort(names)
  for _, name in ipairs(names) do
    if saved[name] and saved[name] ~= mine[name] then
      list[#list + 1] = ("%s was %s and is %s"):format(name, saved[name], mine[name])
    end
  end
end

return run_options
