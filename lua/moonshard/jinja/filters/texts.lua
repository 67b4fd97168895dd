-- Filters that make a text from what they are applied to. They take any value, by what it would be printed as.

local characters = require("moonshard.jinja.characters")
local faults = require("moonshard.jinja.faults")
local formats = require("moonshard.jinja.formats")
local json_text = require("moonshard.jinja.json_text")
local limits = require("moonshard.jinja.limits")
local printing = require("moonshard.jinja.printing")
local values = require("moonshard.jinja.values")

local function is_none(value) return value == nil or value == values.NONE end

-- A filter of the text of its value.
local function of_text(change) return { "", function(_, value) return change(printing.text(value)) end } end

-- Words begin after these.
local BEGINS_WORD = "[-%s({%[<]"

local function title(text)
  local list, n = characters.list(text)
  local begins = true
  for i = 1, n do
    local separates = list[i]:find("^" .. BEGINS_WORD) or characters.is_space(list[i])
    if not separates then list[i] = begins and characters.upper(list[i]) or characters.lower(list[i]) end
    begins = separates
  end
  return table.concat(list)
end

local MARKUP = { ["&"] = "&amp;", ["<"] = "&lt;", [">"] = "&gt;", ["'"] = "&#39;", ['"'] = "&#34;" }

local function escaped(text) return (text:gsub("[&<>'\"]", MARKUP)) end

local function indent(_, text, width, first, blank)
  text = values.text(text, "what is indented")
  local indention = (" "):rep(4)
  if type(width) == "string" then
    indention = width
  elseif width ~= nil then
    width = values.whole(width, "indent: width")
    limits.text(math.max(width, 0))
    indention = (" "):rep(width)
  end
  local lines, n = characters.lines(text .. "\n", false)
  limits.text(#text + n * #indention)
  local every = blank ~= nil and values.truth(blank)
  for i = 2, n do
    if every or lines[i] ~= "" then lines[i] = indention .. lines[i] end
  end
  local result = table.concat(lines, "\n")
  return first ~= nil and values.truth(first) and indention .. result or result
end

local function truncate(_, text, length, kill_words, ending, leeway)
  text = values.text(text, "what is truncated")
  length = length == nil and 255 or values.whole(length, "truncate: length")
  ending = ending == nil and "..." or values.text(ending, "truncate: end")
  leeway = is_none(leeway) and 5 or values.whole(leeway, "truncate: leeway")
  local all, kept = characters.length(text), length - characters.length(ending)
  if kept < 0 then faults.raise("truncate: length is less than that of the ending") end
  if all <= length + leeway then return text end
  text = characters.sub(text, 0, kept)
  if kill_words == nil or not values.truth(kill_words) then text = characters.split_last(text, " ", 1)[1] end
  return text .. ending
end

local function count_words(text)
  local count, inside = 0, false
  for _, character in ipairs((characters.list(text))) do
    local is_word = character:find("^[%w_]") ~= nil or #character > 1 and characters.is_letter(character)
    if is_word and not inside then count = count + 1 end
    inside = is_word
  end
  return count
end

local function url_quoted(text)
  return (text:gsub("[^%w_.~/-]", function(byte) return ("%%%02X"):format(byte:byte()) end))
end

return {
  string = of_text(function(text) return text end),
  upper = of_text(characters.upper), lower = of_text(characters.lower), title = of_text(title),
  capitalize = of_text(characters.capitalize),
  trim = { "chars=", function(_, value, set)
    local taken = not is_none(set) and values.text(set, "trim: chars") or nil
    return characters.strip(printing.text(value), taken, true, true)
  end },
  replace = { "old new count=", function(_, value, old, new, count)
    return characters.replace(printing.text(value), printing.text(old), printing.text(new),
      is_none(count) and -1 or values.whole(count, "replace: count"))
  end },
  escape = of_text(escaped), e = of_text(escaped), forceescape = of_text(escaped),
  safe = of_text(function(text) return text end), -- pages escape what is not safe; chat templates escape nothing
  indent = { "width= first= blank=", indent },
  truncate = { "length= killwords= end= leeway=", truncate },
  center = { "width=", function(_, value, width)
    local text = printing.text(value)
    width = width == nil and 80 or values.whole(width, "center: width")
    local missing = math.max(0, width - characters.length(text))
    limits.text(#text + missing)
    local before = math.floor(missing / 2) + missing % 2 * (width % 2)
    return (" "):rep(before) .. text .. (" "):rep(missing - before)
  end },
  format = { "*", function(_, value, given)
    local text = printing.text(value)
    if #given.names == 0 then
      return formats.percent(text, values.list({ unpack(given, 1, given.n) }, given.n, "tuple"))
    end
    if given.n > 0 then faults.raise("the filter format takes arguments with names, or without") end
    local dict = values.dict()
    for _, name in ipairs(given.names) do values.set(dict, name, given.named[name]) end
    return formats.percent(text, dict)
  end },
  wordcount = { "", function(_, value) return count_words(printing.text(value)) end },
  urlencode = { "", function(_, value) return url_quoted(values.text(value, "what urlencode is applied to")) end },
  tojson = { "ensure_ascii= indent= separators= sort_keys=", function(_, value, ...)
    return json_text.dumps(value, ...)
  end },
}
