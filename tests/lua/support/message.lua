-- What specs check of messages: the facts that they hold. Sentences are worded for their readers and change when
-- that reads better; names, numbers, values, places and commands are what a message must say.

local message = {}

local function is_word(byte) return byte ~= nil and byte:find("^[%w_]$") ~= nil end

-- Whether text holds fact at from..to as a whole: rank 1 is not in rank 12, nor 5 in 1.5, nor lr in clr. Words of more
-- than three letters may go on, so that "differ" is in "differs".
local function stands_alone(text, fact, from, to)
  local before, after = text:sub(from - 1, from - 1), text:sub(to + 1, to + 1)
  local first, last = fact:sub(1, 1), fact:sub(-1)
  if is_word(first) and is_word(before) then return false end
  if first:find("%d") and before == "." and text:sub(from - 2, from - 2):find("%d") then return false end
  if last:find("%d") and text:find("^%.%d", to + 1) then return false end
  return not (is_word(last) and is_word(after)) or (#fact > 3 and last:find("%a") ~= nil)
end

local function holds(text, fact)
  local from, to = text:find(fact, 1, true)
  while from do
    if stands_alone(text, fact, from, to) then return true end
    from, to = text:find(fact, from + 1, true)
  end
  return false
end

---The first fact that a text lacks, or nil. Facts are separated by " | ", in any order and case.
---@param text string
---@param facts string "rank 2 | layers.1 | all_gather"
---@return string? fact
function message.lacks(text, facts)
  local lower = text:lower()
  for fact in (facts .. " | "):gmatch("(.-) | ") do
    if fact == "" then error("an empty fact in: " .. facts, 3) end
    if not holds(lower, fact:lower()) then return fact end
  end
  return nil
end

---Fails unless a text holds every fact; shows all of it then.
---@param text string
---@param facts string "rank 2 | layers.1 | all_gather"
function message.has(text, facts)
  local lacks = message.lacks(text, facts)
  if lacks then error(("%q is not in: %s"):format(lacks, text), 2) end
end

---Fails unless a text is one line that holds every fact.
---@param text string
---@param facts string
function message.line_has(text, facts)
  local lacks = message.lacks(text, facts)
  if lacks then error(("%q is not in: %s"):format(lacks, text), 2) end
  if not text:find("^[^\n]+\n$") then error(("not one line: %s"):format(text), 2) end
end

return message
