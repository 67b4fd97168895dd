-- Where a model attends, for QK-clip (engine/trace/qk_clip.lua): the largest attention score of each head, without
-- stored scores, and which rows of which projections make a head's queries and keys. Only traces of trainers with
-- qk_clip compute it.

local context = require("moonshard.base.context")
local errors = require("moonshard.base.error")
local options = require("moonshard.base.checks.options")
local ops = require("moonshard.tensor.ops")

local attention_logits = {}

---@class moonshard.ScaledRows rows of a projection whose rows are those of heads, [heads rows, columns] or [heads rows]
---@field [1] moonshard.Parameter
---@field rows? integer[] { from, to } of each head, which get their share of the factor; default all
---@field whole? integer[] { from, to } of each head, right after `rows`, which get all of it: queries of a key that all
---  heads share

---@class moonshard.AttentionLogits what an attention declares
---@field query (moonshard.Parameter|moonshard.ScaledRows)[]
---@field key (moonshard.Parameter|moonshard.ScaledRows)[]
---@field refused? string why the projections cannot be scaled: "its queries and keys are normalised"
---@field causal? boolean default true; window, prefix, scale, softcap: as of the op `attention`
---@field window? integer
---@field prefix? integer
---@field scale? number
---@field softcap? number
---@field start? integer with tokens: as of the op `document_attention`
---@field tokens? moonshard.Tensor i32 [B,T]

local SPECS = {
  query = { "table", required = true }, key = { "table", required = true }, refused = { "string" },
  causal = { "boolean", default = true }, window = { "integer" }, prefix = { "integer" }, scale = { "number" },
  softcap = { "number" }, start = { "integer" }, tokens = { "table" },
}

---Begins to collect what the attentions of a trace declare.
---@param trace moonshard.Trace
function attention_logits.begin(trace) trace.attentions = { declared = {}, paths = {} } end

local function refuse(why)
  errors.raise("MS_EUNSUPPORTED", "qk_clip: %s, so scaling them does not bound its scores: leave qk_clip out",
    why)
end

local function largest(q, k, o)
  local attributes = { window = o.window, scale = o.scale }
  if o.start then
    attributes.start = o.start
    return ops.apply("document_attention_max", { q, k, o.tokens }, attributes)[1]
  end
  attributes.causal, attributes.prefix = o.causal and 1 or 0, o.prefix
  return ops.apply("attention_max", { q, k }, attributes)[1]
end

---Declares an attention, where forward computes it. Does nothing in traces without QK-clip.
---@param q moonshard.Tensor [B,T,H,D] as the attention reads it
---@param k moonshard.Tensor [B,S,G,D]
---@param given moonshard.AttentionLogits
function attention_logits.declare(q, k, given)
  local trace = context.trace
  local found = trace and trace.attentions
  if not found then return end
  local o = options.parse("ms.nn.attention_logits", given, SPECS)
  if o.refused then refuse(o.refused) end
  if o.softcap then refuse("scores are capped by softcap = " .. o.softcap) end
  local heads = q.shape[3]
  found.paths[context.path] = true
  found.declared[#found.declared + 1] = {
    most = largest(q, k, o):max(2):max(0), heads = heads, groups = k.shape[3], query = o.query, key = o.key,
    path = context.path,
  }
end

return attention_logits
