-- Shows the outcomes of a line on all ranks: equal results once, different results per rank.

local text_lines = require("moonshard.base.text.text_lines")

local results = { INTERRUPTED = "interrupted" }

-- ---- between ranks -------------------------------------------------------------------------------------------------

---@param outcome moonshard.Outcome
---@return string without zero bytes
function results.encode(outcome)
  local text, output = outcome.text:gsub("%z", "\\0"), outcome.output:gsub("%z", "\\0")
  return ("%s %d %.0f %d\n%s%s"):format(outcome.kind, outcome.code or 0, outcome.digest or 0, #text, text, output)
end

---@param encoded string
---@return moonshard.Outcome
function results.decode(encoded)
  local kind, code, number, length, rest = encoded:match("^(%a+) (%d+) (%d+) (%d+)\n(.*)$")
  return { kind = kind, code = tonumber(code), digest = tonumber(number), text = rest:sub(1, length),
    output = rest:sub(length + 1) }
end

-- ---- summaries -----------------------------------------------------------------------------------------------------

-- "rank 2", "ranks 0, 2-5".
local function name_ranks(ranks)
  local parts, i = {}, 1
  while ranks[i] do
    local last = i
    while ranks[last + 1] == ranks[last] + 1 do last = last + 1 end
    parts[#parts + 1] = last > i and ranks[i] .. "-" .. ranks[last] or ranks[i]
    i = last + 1
  end
  return (#ranks == 1 and "rank " or "ranks ") .. table.concat(parts, ", ")
end

-- Groups ranks with the same text, made of the same values, ordered by first rank. shown: the text is also that
-- of an earlier group.
local function group(outcomes, ranks, field)
  local groups, by_key, texts = {}, {}, {}
  for _, rank in ipairs(ranks) do
    local outcome = outcomes[rank + 1]
    local text = outcome[field]
    local key = field == "text" and ("%.0f %s"):format(outcome.digest or 0, text) or text
    if not by_key[key] then
      by_key[key] = { text = text, ranks = {}, shown = texts[text] }
      texts[text] = true
      groups[#groups + 1] = by_key[key]
    end
    table.insert(by_key[key].ranks, rank)
  end
  return groups
end

local function with_name(name, text)
  local lines = text_lines.all(text)
  if #lines == 1 then return name .. ": " .. text end
  return name .. ":\n  " .. table.concat(lines, "\n  ")
end

-- The lines of a long text that differ from the previous one, if they are few; else nil.
local function difference(text, other)
  local lines, others = text_lines.all(text), text_lines.all(other)
  if #lines ~= #others or #lines < 2 then return nil end
  local different = {}
  for i, line in ipairs(lines) do
    if line ~= others[i] then different[#different + 1] = (line:gsub("^%s+", ""):gsub(",$", "")) end
  end
  return #different <= #lines / 2 and table.concat(different, ", ") or nil
end

---Texts of ranks as lines to print.
---@param outcomes moonshard.Outcome[] rank 0's first
---@param ranks integer[] whose texts are merged
---@param field string "text" or "output"
---@param apart boolean? every rank separately, even when all are equal
---@return string[]
function results.merge(outcomes, ranks, field, apart)
  local merged = {}
  if apart then
    for _, rank in ipairs(ranks) do merged[#merged + 1] = with_name(name_ranks({ rank }), outcomes[rank + 1][field]) end
    return merged
  end
  local groups = group(outcomes, ranks, field)
  if #groups == 1 and #ranks == #outcomes then return groups[1].text ~= "" and { groups[1].text } or {} end
  for i, one in ipairs(groups) do
    local name = name_ranks(one.ranks)
    local few = i > 1 and difference(one.text, groups[1].text)
    if one.shown then
      merged[#merged + 1] = name .. ": shown alike, but digits, elements or entries that are left out differ"
    elseif few then merged[#merged + 1] = name .. ": the same but " .. few
    elseif one.text ~= "" then merged[#merged + 1] = with_name(name, one.text) end
  end
  return merged
end

local function ranks_of(outcomes, accept)
  local ranks = {}
  for i, outcome in ipairs(outcomes) do
    if accept(outcome) then ranks[#ranks + 1] = i - 1 end
  end
  return ranks
end

-- Rank 0's output has already been shown.
local function hidden_output(outcomes)
  local ranks = ranks_of(outcomes, function(outcome)
    return outcome.output ~= "" and outcome.output ~= outcomes[1].output
  end)
  local merged = {}
  for _, one in ipairs(group(outcomes, ranks, "output")) do
    merged[#merged + 1] = with_name(name_ranks(one.ranks) .. " printed", (one.text:gsub("\n$", "")))
  end
  return merged
end

-- The causes; for ranks stopped by another rank's failure, only which they are.
local function failures(outcomes)
  local causes = ranks_of(outcomes, function(outcome) return outcome.kind == "error" end)
  local stopped = ranks_of(outcomes, function(outcome) return outcome.kind == "stopped" end)
  local interrupted = ranks_of(outcomes, function(outcome) return outcome.kind == "interrupted" end)
  if #causes == 0 and #interrupted > 0 then return { results.INTERRUPTED } end
  if #causes == 0 then causes = stopped end
  local merged = results.merge(outcomes, causes, "text")
  if causes ~= stopped and #stopped > 0 then
    merged[#merged + 1] = ("%s stopped there"):format(name_ranks(stopped))
  end
  return merged
end

---@class moonshard.OutcomeSummary
---@field lines string[] of standard output
---@field failures string[] of standard error
---@field quit integer? exit status, if a rank ended the session

---@param outcomes moonshard.Outcome[] rank 0's first
---@param apart boolean? show every rank separately
---@return moonshard.OutcomeSummary
function results.summarize(outcomes, apart)
  local merged = { lines = hidden_output(outcomes), failures = {} }
  for _, outcome in ipairs(outcomes) do
    if outcome.kind == "quit" then
      merged.quit = outcome.code
      return merged
    end
  end
  local failed = ranks_of(outcomes, function(outcome) return outcome.kind ~= "ok" and outcome.kind ~= "idle" end)
  if #failed > 0 then
    merged.failures = failures(outcomes)
    return merged
  end
  local ran = ranks_of(outcomes, function(outcome) return outcome.kind == "ok" end)
  local loud = ranks_of(outcomes, function(outcome) return outcome.kind == "ok" and outcome.text ~= "" end)
  if #loud == 0 then return merged end
  for _, line in ipairs(results.merge(outcomes, ran, "text", apart)) do merged.lines[#merged.lines + 1] = line end
  return merged
end

return results
