-- A pattern that matches a list of module names and no others: "^layers\.([0-9]|1[0-5])$" for the first sixteen layers.

-- The numbers from..to as alternatives, each with fixed leading digits and a range of last ones.
local function of_range(from, to)
  local parts = {}
  while from <= to do
    local tens = math.floor(from / 10)
    local last = math.min(to, 10 * tens + 9)
    local head = tens > 0 and tostring(tens) or ""
    local low, high = from % 10, last % 10
    if low == 0 and high == 9 then parts[#parts + 1] = head .. "\\d"
    elseif low == high then parts[#parts + 1] = head .. low
    else parts[#parts + 1] = ("%s[%d-%d]"):format(head, low, high) end
    from = last + 1
  end
  return parts
end

local function of_numbers(numbers)
  local parts, i = {}, 1
  table.sort(numbers)
  while i <= #numbers do
    local last = i
    while numbers[last + 1] == numbers[last] + 1 do last = last + 1 end
    for _, part in ipairs(of_range(numbers[i], numbers[last])) do parts[#parts + 1] = part end
    i = last + 1
  end
  return #parts == 1 and parts[1] or "(" .. table.concat(parts, "|") .. ")"
end

local function escaped(text) return (text:gsub("[^%w_]", "\\%0")) end

---@param names string[] not empty
---@return string pattern
return function(names)
  local families, by_family = {}, {}
  for _, name in ipairs(names) do
    -- The number of the innermost list: layers.3.attn is layers. 3 .attn.
    local before, number, after = name:match("^(.*%.)(%d+)(.-)$")
    if not before then
      number, after = name:match("^(%d+)(.*)$")
      before = number and ""
    end
    local family = before and before .. "#" .. after or name
    if not by_family[family] then
      by_family[family] = { before = before or name, after = after or "", numbers = {} }
      families[#families + 1] = by_family[family]
    end
    if number then table.insert(by_family[family].numbers, tonumber(number)) end
  end
  local texts = {}
  for i, family in ipairs(families) do
    local numbers = #family.numbers > 0 and of_numbers(family.numbers) or ""
    texts[i] = escaped(family.before) .. numbers .. escaped(family.after)
  end
  return #texts == 1 and "^" .. texts[1] .. "$" or "^(" .. table.concat(texts, "|") .. ")$"
end
