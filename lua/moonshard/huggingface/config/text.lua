-- The text of a config.json. A config that was read is written with its own bytes: each field that did not change keeps
-- its digits, escapes, nulls and blanks, and its place. New fields follow the last one, in the same form.

local json = require("moonshard.base.text.json")

local text = {}

-- Fields whose numbers need a decimal point for the reference library.
local REAL = {
  factor = true, low_freq_factor = true, high_freq_factor = true, rope_theta = true, resid_pdrop = true,
  embd_pdrop = true, attn_pdrop = true, rope_local_base_freq = true, attn_logit_softcapping = true,
  final_logit_softcapping = true, hidden_dropout_prob = true, attention_probs_dropout_prob = true,
  attention_factor = true, beta_fast = true, beta_slow = true, mscale = true, mscale_all_dim = true,
  partial_rotary_factor = true, rotary_pct = true, rotary_emb_base = true, logit_scale = true,
  embedding_multiplier = true, attention_multiplier = true, residual_multiplier = true, logits_scaling = true,
}

local function value_text(key, value, indent)
  if type(value) == "table" and value ~= json.null and json.encode(value):sub(1, 1) == "{" and next(value) then
    local keys, parts = {}, {}
    for name in pairs(value) do keys[#keys + 1] = name end
    table.sort(keys)
    for i, name in ipairs(keys) do
      parts[i] = ("%s    %s: %s"):format(indent, json.encode(name), value_text(name, value[name], indent .. "  "))
    end
    return "{\n" .. table.concat(parts, ",\n") .. "\n" .. indent .. "  }"
  end
  if REAL[key] and type(value) == "number" and value % 1 == 0 then return ("%.1f"):format(value) end
  return json.encode(value)
end

-- The text around the members of an object that was not read.
local PLAIN = { head = "{", tail = "\n}\n" }

-- The comma before a new member, the blanks before its name, and what follows that, as the file's last member has them.
local function form_of(members)
  local last = members[#members]
  if not last then return ",", "\n  ", ": " end
  return last.comma or ",", last.before:match("^%s*"), last.before:match("%s*:%s*$")
end

---The table of a config.json's text. A null is json.null.
---@param given string
---@return table? config nil if the text is no JSON object
---@return string? why
function text.read(given)
  local members, why = json.fields(given)
  if not members then return nil, why end
  local config = {}
  for _, member in ipairs(members) do config[member.name] = member.value end
  return setmetatable(config, { members = members })
end

---The text of a config: the fields that were read, in their order and as they were, then others, sorted.
---@param object table
---@param read table? the config that it was made from, if that was read from a file
---@return string
function text.write(object, read)
  local meta = getmetatable(read or object)
  local members = meta and meta.members or PLAIN
  local parts, written, rest = { members.head }, {}, {}
  local comma, blanks, colon = form_of(members)
  for _, member in ipairs(members) do
    local value = rawget(object, member.name)
    if value ~= nil then
      local same = value == member.value
      parts[#parts + 1] = (#parts > 1 and member.comma or "") .. member.before
        .. (same and member.text or value_text(member.name, value, ""))
      written[member.name] = true
    end
  end
  for key in pairs(object) do
    if not written[key] then rest[#rest + 1] = key end
  end
  table.sort(rest)
  for _, key in ipairs(rest) do
    parts[#parts + 1] = (#parts > 1 and comma or "") .. blanks .. json.encode(key) .. colon
      .. value_text(key, object[key], "")
  end
  parts[#parts + 1] = members.tail
  return table.concat(parts)
end

return text
