-- Clipping of gradients: the options clip_grad_norm and clip_grad_value of a trainer, and the engine's part of them;
-- qk_clip, which clips attention scores, is read with them (trace/qk_clip.lua).
--
--   clip_grad_norm = 1.0,                                              one norm of all parameters
--   clip_grad_norm = { { "embed", 0.5 }, { re[[^layers]], 1.0 } },     one norm for each rule; others are not clipped
--   clip_grad_value = 0.5,                                             each element, after the norms

local engine = require("moonshard.base.ffi")
local errors = require("moonshard.base.error")
local options = require("moonshard.base.checks.options")
local qk_clip = require("moonshard.engine.trace.qk_clip")
local rules = require("moonshard.shard.rules")
local C, ffi = engine.C, engine.ffi

local clipping = {}

local POLICY = "clip_grad_norm"

---@class moonshard.Clipping
---@field norm number 0: not by one norm of all parameters
---@field value number 0: not by value
---@field qk moonshard.QKClip? of attention scores
---@field rules moonshard.Policy? groups that have a norm each
---@field decided table<string, moonshard.Decision>? with rules, once decided: the limit of each parameter's group
---@field unmatched moonshard.Rule[]? optional rules that match no parameter

local function check_limit(who, limit)
  if type(limit) == "number" and limit >= 0 then return limit end
  errors.invalid("%s must be a number of at least 0, not %s", who, options.describe(limit))
end

local function read_rules(list)
  local policy = rules.policy(POLICY, list, { read = function(limit, rule)
    return check_limit(POLICY .. ": " .. rule, limit)
  end })
  if #policy.rules > C.MS_MAX_NORM_GROUPS then
    errors.raise("MS_EUNSUPPORTED", "%s: %d rules; at most %d groups can have a norm of their own", POLICY,
      #policy.rules, tonumber(C.MS_MAX_NORM_GROUPS))
  end
  return #policy.rules > 0 and policy or nil
end

---Reads a trainer's options.
---@param norm number|table a limit, or rules
---@param value number
---@param qk number|table?
---@return moonshard.Clipping
function clipping.read(norm, value, qk)
  local by_rule = type(norm) == "table"
  return {
    value = check_limit("ms.trainer: clip_grad_value", value), qk = qk_clip.read(qk),
    rules = by_rule and read_rules(norm) or nil,
    norm = by_rule and 0 or check_limit("ms.trainer: clip_grad_norm", norm),
  }
end

---Decides which group each parameter belongs to. Refuses rules with which replicas that take local steps would wait for
---each other.
---@param self moonshard.Clipping
---@param sharding moonshard.Sharding
---@return string[] warnings rules that match parameters but never decide
function clipping.decide(self, sharding)
  if not self.rules then return {} end
  if sharding.local_sync then
    errors.raise("MS_EUNSUPPORTED", "%s: norms of groups do not go with replicate_sync: give one number", POLICY)
  end
  local fqns = {}
  for i, param in ipairs(sharding.params) do fqns[i] = param.fqn end
  local decided, warnings, unmatched = self.rules:resolve(fqns, nil, sharding.tied)
  self.groups, self.decided, self.unmatched = ffi.new("int[?]", #fqns), {}, unmatched
  for i, fqn in ipairs(fqns) do
    self.groups[i - 1], self.decided[fqn] = (decided[i].rule or 0) - 1, decided[i]
  end
  self.limits = ffi.new("double[?]", #self.rules.rules)
  for g, rule in ipairs(self.rules.rules) do self.limits[g - 1] = rule.value end
  return warnings
end

---Fills the engine's part of it.
---@param self moonshard.Clipping? nil: gradients are not clipped
---@param config ffi.cdata* ms_plan_config, which keeps pointers into self
function clipping.configure(self, config)
  if not self then return end
  config.max_norm, config.max_value = self.norm, self.value
  if not self.rules then return end
  config.norm_groups, config.norm_group, config.max_norms = #self.rules.rules, self.groups, self.limits
end

---The norms of groups of a step, in the order of the rules; nil without rules.
---@param self moonshard.Clipping
---@param outputs ffi.cdata* ms_step_outputs
---@return number[]?
function clipping.norms(self, outputs)
  if not self.rules then return nil end
  local norms = {}
  for g = 1, #self.rules.rules do norms[g] = outputs.norms_of_groups[g - 1] end
  return norms
end

return clipping
