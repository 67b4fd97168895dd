-- Units as Lua: a list whose entries repeat with a number that counts up is a loop, so that 32 layers take three lines.
--
--   local units = { "embed", { "norm", "head" } }
--   for i = 0, 28, 4 do units[#units + 1] = { "layers." .. i, "layers." .. i + 1, "layers." .. i + 2, ... } end

local unit_loops = {}

-- Fewer steps are not worth a loop.
local MIN_STEPS = 3

-- A name as text around a number; nil if it has none.
local function split(name)
  local before, number, after = name:match("^(.*%.)(%d+)(.-)$")
  if not before then
    number, after = name:match("^(%d+)(.*)$")
    before = number and ""
  end
  return before, tonumber(number), after
end

local function quoted(text) return ("%q"):format(text) end

-- An expression for a name in a step of the loop; `ahead`: how much its number is above that of the step.
local function expression(before, ahead, after)
  local parts = { before ~= "" and quoted(before) or nil }
  parts[#parts + 1] = ahead == 0 and "i" or ("i + %d"):format(ahead)
  if after ~= "" then parts[#parts + 1] = quoted(after) end
  if #parts == 1 then parts[2] = '""' end
  return table.concat(parts, " .. ")
end

-- The number of an entry and its text in a loop; nil if it has another form.
local function template_of(entry)
  local names, first, texts = type(entry) == "string" and { entry } or entry, nil, {}
  for i, name in ipairs(names) do
    local before, number, after
    if type(name) == "string" then before, number, after = split(name) end
    if not number then return nil end
    first = first or number
    texts[i] = expression(before, number - first, after)
  end
  if not first or next(names, #names) ~= nil then return nil end
  return first, #texts == 1 and texts[1] or "{ " .. table.concat(texts, ", ") .. " }"
end

-- Entries that begin with the same number are one step.
local function steps_of(list, from)
  local steps = {}
  for i = from, #list do
    local number, text = template_of(list[i])
    if not number then break end
    local step = steps[#steps]
    if step and step.number == number then
      step.texts[#step.texts + 1] = text
    else
      steps[#steps + 1] = { number = number, texts = { text } }
    end
    steps[#steps].last = i
  end
  return steps
end

-- The longest loop that begins at an entry.
local function loop_at(list, from)
  local steps = steps_of(list, from)
  local first, stride, count = steps[1], steps[2] and steps[2].number - steps[1].number, 1
  if not stride or stride <= 0 then return nil end
  local body = table.concat(first.texts, "\n")
  while steps[count + 1] and steps[count + 1].number == first.number + count * stride
    and table.concat(steps[count + 1].texts, "\n") == body do
    count = count + 1
  end
  if count < MIN_STEPS then return nil end
  return { from = from, to = steps[count].last, first = first.number, last = steps[count].number, stride = stride,
    texts = first.texts }
end

---@param list table the option `units`
---@param of_value fun(value: any): string
---@return string[]? lines that make `local units`; nil: a loop would not help
function unit_loops.of(list, of_value)
  local before, loop, rest = {}, nil, {}
  for i, entry in ipairs(list) do
    loop = loop or loop_at(list, i)
    if not loop then before[#before + 1] = of_value(entry)
    elseif i > loop.to then rest[#rest + 1] = of_value(entry) end
  end
  if not loop then return nil end
  local lines = { before[1] and "local units = { " .. table.concat(before, ", ") .. " }" or "local units = {}" }
  local step = loop.stride == 1 and "" or ", " .. loop.stride
  lines[#lines + 1] = ("for i = %d, %d%s do"):format(loop.first, loop.last, step)
  for _, text in ipairs(loop.texts) do lines[#lines + 1] = "  units[#units + 1] = " .. text end
  lines[#lines + 1] = "end"
  for _, text in ipairs(rest) do lines[#lines + 1] = "units[#units + 1] = " .. text end
  return lines
end

return unit_loops
