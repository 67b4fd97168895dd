-- The methods of texts, as Python's str has them.

local arguments = require("moonshard.jinja.arguments")
local characters = require("moonshard.jinja.characters")
local faults = require("moonshard.jinja.faults")
local formats = require("moonshard.jinja.formats")
local limits = require("moonshard.jinja.limits")
local values = require("moonshard.jinja.values")

local function is_none(value) return value == nil or value == values.NONE end

local function stripper(left, right)
  return { "chars=", function(_, text, set)
    if is_none(set) then return characters.strip(text, nil, left, right) end
    return characters.strip(text, values.text(set, "strip: chars"), left, right)
  end }
end

local function splitter(of_words, of_parts)
  return { "sep= maxsplit=", function(_, text, separator, most)
    most = is_none(most) and -1 or values.whole(most, "split: maxsplit")
    if is_none(separator) then return values.list(of_words(text, most)) end
    if values.text(separator, "split: sep") == "" then faults.raise("split: sep is empty") end
    return values.list(of_parts(text, separator, most))
  end }
end

-- Whether a text has one of several parts at a place: startswith, endswith.
local function end_tester(has)
  return { "prefix start= end=", function(_, text, given, first, last)
    if first ~= nil or last ~= nil then
      local length = characters.length(text)
      local from = is_none(first) and 0 or values.whole(first, "start")
      local to = is_none(last) and length or values.whole(last, "end")
      if from < 0 then from = math.max(0, from + length) end
      if to < 0 then to = to + length end
      if from > length then return false end
      text = characters.sub(text, from, math.min(to, length))
    end
    if values.kind(given) ~= "tuple" then return has(text, values.text(given, "what a str starts or ends with")) end
    for i = 1, given.n do
      if has(text, values.text(given[i], "what a str starts or ends with")) then return true end
    end
    return false
  end }
end

local function starts(text, part) return text:sub(1, #part) == part end
local function ends(text, part) return part == "" or text:sub(-#part) == part end

-- The part of a text from one position up to another, and the position at which it begins; nil: it begins after the
-- end.
local function range_of(text, first, last)
  local length = characters.length(text)
  local from = is_none(first) and 0 or values.whole(first, "start")
  local to = is_none(last) and length or values.whole(last, "end")
  if from < 0 then from = math.max(0, from + length) end
  if to < 0 then to = math.max(0, to + length) end
  if from > length or from > to then return nil, from end
  return characters.sub(text, from, math.min(to, length)), from
end

local function first_of(text, part) return (text:find(part, 1, true)) end
local function last_of(text, part)
  limits.text(#text)
  if part == "" then return #text + 1 end
  return characters.find_last(text, part, #text)
end

local function finder(find, is_needed)
  return { "sub start= end=", function(_, text, part, first, last)
    part = values.text(part, "find: sub")
    local within, from = range_of(text, first, last)
    local byte = within and find(within, part)
    if byte then return from + characters.position(within, byte) end
    if is_needed then faults.raise("index: the str has no such part") end
    return -1
  end }
end

local function tester(of_character)
  return { "", function(_, text)
    for _, character in ipairs((characters.list(text))) do
      if not of_character(character) then return false end
    end
    return text ~= ""
  end }
end

local function is_digit(character) return character:find("^%d") ~= nil end

local function filler(left, right)
  return { "width fillchar=", function(_, text, width, with)
    with = with == nil and " " or values.text(with, "fillchar")
    if characters.length(with) ~= 1 then faults.raise("fillchar must be one character") end
    local missing = values.whole(width, "width") - characters.length(text)
    if missing <= 0 then return text end
    limits.text(#text + missing * #with)
    local before = left and right and math.floor(missing / 2) + missing % 2 * (values.whole(width, "") % 2)
      or left and missing or 0
    return with:rep(before) .. text .. with:rep(missing - before)
  end }
end

local function partitioner(find, at_end)
  return { "sep", function(_, text, separator)
    if values.text(separator, "partition: sep") == "" then faults.raise("partition: sep is empty") end
    local byte = find(text, separator)
    local parts
    if byte then
      parts = { text:sub(1, byte - 1), separator, text:sub(byte + #separator) }
    else
      parts = at_end and { "", "", text } or { text, "", "" }
    end
    return values.list(parts, 3, "tuple")
  end }
end

local function count_of(text, part)
  if part == "" then return characters.length(text) + 1 end
  local _, n = characters.split(text, part, -1)
  return n - 1
end

return arguments.callables("the method", {
  strip = stripper(true, true), lstrip = stripper(true, false), rstrip = stripper(false, true),
  split = splitter(characters.words, characters.split),
  rsplit = splitter(characters.last_words, characters.split_last),
  splitlines = { "keepends=", function(_, text, keep)
    return values.list(characters.lines(text, keep ~= nil and values.truth(keep)))
  end },
  startswith = end_tester(starts), endswith = end_tester(ends),
  removeprefix = { "prefix", function(_, text, part)
    part = values.text(part, "removeprefix: prefix")
    return starts(text, part) and text:sub(#part + 1) or text
  end },
  removesuffix = { "suffix", function(_, text, part)
    part = values.text(part, "removesuffix: suffix")
    return part ~= "" and ends(text, part) and text:sub(1, -#part - 1) or text
  end },
  replace = { "old new count=", function(_, text, old, new, count)
    return characters.replace(text, values.text(old, "replace: old"), values.text(new, "replace: new"),
      count == nil and -1 or values.whole(count, "replace: count"))
  end },
  upper = { "", function(_, text) return characters.upper(text) end },
  lower = { "", function(_, text) return characters.lower(text) end },
  casefold = { "", function(_, text) return (characters.lower(text):gsub("ß", "ss")) end },
  title = { "", function(_, text) return characters.title(text) end },
  capitalize = { "", function(_, text) return characters.capitalize(text) end },
  swapcase = { "", function(_, text)
    return (text:gsub(characters.CHARACTER, function(character)
      local upper = characters.upper(character)
      return upper ~= character and upper or characters.lower(character)
    end))
  end },
  find = finder(first_of, false), index = finder(first_of, true),
  rfind = finder(last_of, false), rindex = finder(last_of, true),
  count = { "sub start= end=", function(_, text, part, first, last)
    local within = range_of(text, first, last)
    return within and count_of(within, values.text(part, "count: sub")) or 0
  end },
  join = { "iterable", function(_, text, given)
    local items, n = values.items(given)
    local parts, bytes = {}, 0
    for i = 1, n do
      parts[i] = values.text(items[i], "an item that join takes")
      bytes = bytes + #parts[i] + #text
    end
    limits.text(bytes)
    return table.concat(parts, text)
  end },
  format = { "*", function(_, text, given) return formats.braces(text, given) end },
  isupper = { "", function(_, text) return characters.is_in_case(text, characters.upper) end },
  islower = { "", function(_, text) return characters.is_in_case(text, characters.lower) end },
  isspace = tester(function(character) return characters.is_space(character) end),
  isalpha = tester(characters.is_letter), isdigit = tester(is_digit), isdecimal = tester(is_digit),
  isnumeric = tester(is_digit),
  isalnum = tester(function(character) return is_digit(character) or characters.is_letter(character) end),
  isascii = { "", function(_, text) return not text:find("[\128-\255]") end },
  center = filler(true, true), rjust = filler(true, false), ljust = filler(false, true),
  zfill = { "width", function(_, text, width)
    local sign, rest = text:match("^([+-]?)(.*)$")
    local missing = values.whole(width, "zfill: width") - characters.length(text)
    limits.text(math.max(0, missing))
    return sign .. ("0"):rep(missing) .. rest
  end },
  partition = partitioner(first_of, false), rpartition = partitioner(last_of, true),
  expandtabs = { "tabsize=", function(_, text, size)
    size = size == nil and 8 or values.whole(size, "expandtabs: tabsize")
    local column, parts = 0, {}
    for i, character in ipairs((characters.list(text))) do
      if character == "\t" then
        parts[i] = size > 0 and (" "):rep(size - column % size) or ""
        column = size > 0 and column + #parts[i] or column
      else
        parts[i] = character
        column = (character == "\n" or character == "\r") and 0 or column + 1
      end
    end
    return table.concat(parts)
  end },
})
