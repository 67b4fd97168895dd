-- QK-clip (Kimi K2's MuonClip): the option qk_clip of a trainer, the outputs of its traces, and the engine's part.
--
--   qk_clip = 100                              heads with a score above 100 have queries and keys scaled
--   qk_clip = { threshold = 100, alpha = 0.5 } queries by gamma^alpha, keys by gamma^(1 - alpha)
--
-- gamma is threshold / the head's largest score. The engine takes the largest over micro-batches and ranks, and scales
-- after the update (runtime/plan/lower/lower_logits.c).

local engine = require("moonshard.base.ffi")
local errors = require("moonshard.base.error")
local options = require("moonshard.base.checks.options")
local ops = require("moonshard.tensor.ops")
local ffi = engine.ffi

local qk_clip = {}

---@class moonshard.QKClip
---@field threshold number
---@field alpha number

---@class moonshard.LogitClip what is scaled of a parameter; see ms_logit_clip
---@field param integer
---@field output string
---@field at integer
---@field heads integer
---@field shared integer
---@field from integer
---@field middle integer
---@field to integer
---@field shares "query"|"key" whose share of the factor it gets

---Reads a trainer's option.
---@param given number|table?
---@return moonshard.QKClip?
function qk_clip.read(given)
  if given == nil then return nil end
  local who = "ms.trainer: qk_clip"
  local o = type(given) == "number" and { threshold = given, alpha = 0.5 }
    or options.parse(who, given, { threshold = { "number", required = true }, alpha = { "number", default = 0.5 } })
  if not (o.threshold > 0 and o.threshold < math.huge) then
    errors.invalid("%s: threshold must be above 0 and finite, not %g", who, o.threshold)
  end
  if not (o.alpha >= 0 and o.alpha <= 1) then
    errors.invalid("%s: alpha, the share of queries, must be 0 to 1, not %g", who, o.alpha)
  end
  return o
end

---The option as text, for comparisons.
---@param o moonshard.QKClip?
---@return string
function qk_clip.text(o) return o and ("%.17g, alpha %.17g"):format(o.threshold, o.alpha) or "none" end

local function range(who, given, limit)
  local from, to = given[1], given[2]
  local are_numbers = type(from) == "number" and type(to) == "number"
  if are_numbers and from >= 0 and from <= to and to <= limit then return from, to end
  errors.invalid("%s: a range of a head's %d rows is { from, to }, not { %s, %s }", who, limit, tostring(from),
    tostring(to))
end

-- The engine's description of the rows of one parameter.
local function clip_of(trace, attention, shares, given, output, at)
  local index, parameter, rows, whole = trace.sharding.index[given], given, nil, nil
  local who = "qk_clip of " .. attention.path
  if not index then
    parameter, rows, whole = given[1], given.rows, given.whole
    index = trace.sharding.index[parameter]
  end
  if not index then errors.invalid("%s: what it scales must be parameters of the model", who) end
  local groups, heads = attention.groups, attention.heads
  if (rows or whole) and groups ~= heads then
    errors.raise("MS_EUNSUPPORTED", "%s: ranges of a head's rows need as many heads of keys (%d) as of queries (%d)",
      who, groups, heads)
  end
  local limit = parameter.shape[1] / groups
  local from, middle = range(who, rows or whole and { whole[1], whole[1] } or { 0, limit }, limit)
  local first, to = range(who, whole or { middle, middle }, limit)
  if first ~= middle then
    errors.invalid("%s: whole must begin where rows end, at %d, not at %d", who, middle, first)
  end
  return { param = index, output = output, at = at, heads = groups, shared = heads / groups, from = from,
    middle = middle, to = to, shares = shares }
end

---The outputs of a trace that has been collecting (tensor/attention_logits.lua); what they clip is trace.logit_clips.
---@param trace moonshard.Trace
---@return table<string, moonshard.Tensor> by name: f32 [attentions, heads]
function qk_clip.outputs(trace)
  local found, outputs, lists = trace.attentions, {}, {}
  for _, path in ipairs(found.ops or {}) do
    if not found.paths[path] then
      errors.raise("MS_EUNSUPPORTED", "qk_clip: the attention of %s does not say which projections make its queries "
        .. "and keys: call ms.nn.attention_logits there, or leave qk_clip out", path == "" and "the model" or path)
    end
  end
  if #found.declared == 0 then
    errors.raise("MS_EUNSUPPORTED", "qk_clip: the model has no attention that says which projections make its queries "
      .. "and keys: call ms.nn.attention_logits where it attends, or leave qk_clip out")
  end
  trace.logit_clips = {}
  for _, attention in ipairs(found.declared) do
    local name = ("attention logits of %d heads"):format(attention.heads)
    lists[name] = lists[name] or {}
    local at = #lists[name] * attention.heads
    table.insert(lists[name], attention.most)
    for _, shares in ipairs { "query", "key" } do
      for _, given in ipairs(attention[shares]) do
        table.insert(trace.logit_clips, clip_of(trace, attention, shares, given, name, at))
      end
    end
  end
  for name, list in pairs(lists) do outputs[name] = ops.stack(unpack(list)) end
  return outputs
end

---Fills the engine's part of it.
---@param clips moonshard.LogitClip[]? of the traced graph
---@param o moonshard.QKClip? nil: nothing is clipped
---@param config ffi.cdata* ms_plan_config, which keeps a pointer into `keep`
---@param keep table
function qk_clip.configure(clips, o, config, keep)
  if not (clips and o) then return end
  local list = ffi.new("ms_logit_clip[?]", #clips)
  keep.names = {}
  for i, clip in ipairs(clips) do
    local to = list[i - 1]
    keep.names[i] = ffi.new("char[?]", #clip.output + 1, clip.output)
    to.param, to.output, to.at, to.heads, to.shared = clip.param, keep.names[i], clip.at, clip.heads, clip.shared
    to.from, to.middle, to.to = clip.from, clip.middle, clip.to
    to.power, to.rest_power = clip.shares == "query" and o.alpha or 1 - o.alpha, 1
  end
  keep.list = list
  config.qk_clip_threshold, config.logit_clips, config.logit_clip = o.threshold, #clips, list
  config.logit_clip_size = ffi.sizeof("ms_logit_clip")
end

return qk_clip
