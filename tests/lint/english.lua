-- Finds phrases that a reader has to read twice: english.lua FILE...
--
-- Guides, comments and help are read by people who do not know the code yet. Some phrases were common here and cost
-- each reader a second look: a sentence that opens with what belongs to its object ("Of a query that ..., the sum"),
-- "that which", "tell apart", "with which it is fastest", and "behind" for "after". They must not come back.
-- In sources only comments are searched; in documents everything but code. A guide also opens with when to use what it
-- describes, and README.md lists every guide.

local findings = dofile((arg[0]:gsub("[^/]*$", "")) .. "findings.lua")

-- What stands between "Of" and the rest of such an opening.
local DETERMINERS = {}
for word in ("a all an both each every its one some that the their these this those two what which"):gmatch("%a+") do
  DETERMINERS[word] = true
end

local EVERYWHERE = {
  { "%f[%a]that which%f[%A]", "that which: say what it is" },
  { "%f[%a]those which%f[%A]", "those which: say what they are" },
  { "%f[%a]t[eo]ll?d?%s+apart%f[%A]", "tell apart: distinguish, or say which differ" },
  { "with which %w+ %w+ is fastest", "with which it is fastest: the fastest" },
}
-- Things are left behind, hide, lag or wait behind others, or are at a real place there; what follows comes after.
local BEHIND = {
  "left%s+[%w ]*behind", "[Ll]eaves?%s+[^.;:]-behind", "[Hh]id[%a]*%s+[^.;:]-behind", "lags?%s+behind",
  "waits?%s+behind",
  "is%s+behind%f[,%.]", "is%s+behind%s+and", "ahead,%s+or%s+behind", "ranks?%s+behind", "places%s+behind",
  "what%s+is%s+behind%s+it%f[%.]", "[Ww]hat%s+is%s+behind%s+`", "cores%s+behind", "behind%s+a%s+%a*gate",
  "behind%s+a%s+firewall", "behind%s+a%s+link", "behind%s+a%s+proxy", "behind%s+one%s+Ethernet%s+port",
}
-- Folders whose comments are not reworded yet.
local LATER = { "^lua/moonshard/data/", "^lua/moonshard/huggingface/", "^lua/moonshard/models/", "^runtime/comm/",
  "^lua/moonshard/cli/hosts/", "^tests/fixtures/" }

local function is_document(path) return path:find("%.md$") ~= nil end

-- Calls visit(line) for each sentence of a text that opens so; line: where the text begins.
local function openings(text, line, visit)
  local at = 1
  while at <= #text do
    local first, last, word = text:find("Of%s+(%a+)", at)
    if not first then return end
    local before = text:sub(1, first - 1)
    local opens = before:find("^%s*$") or before:find("[%.:!%?)]%s+$") or ("\n" .. before):find("\n%s*[-*|]%s*$")
      or before:find("\n%s*\n%s*$")
    if opens and DETERMINERS[word] then visit(line + select(2, before:gsub("\n", ""))) end
    at = last + 1
  end
end

-- The prose of a document: code, links' addresses and what is between backquotes are blank.
local function prose_of(text)
  local fenced, lines = false, {}
  for line in (text .. "\n"):gmatch("([^\n]*)\n") do
    if line:find("^```") then
      fenced, line = not fenced, ""
    elseif fenced or line:find("^    ") then
      line = ""
    end
    lines[#lines + 1] = line
  end
  local blank = function(part) return (part:gsub("[^\n]", "`")) end
  return (table.concat(lines, "\n"):gsub("`[^`\n]*`", blank):gsub("%]%([^)]*%)", blank))
end

-- The comments of a source: a line of it each, with neighbours joined; visit(text, first line).
local function comments_of(path, text, visit)
  if path:find("%.lua$") then
    local block, first, number = {}, nil, 0
    for line in (text .. "\n"):gmatch("([^\n]*)\n") do
      number = number + 1
      local said = line:match("^%s*%-%-+%s?(.*)$")
      if not said and #block > 0 then
        visit(table.concat(block, "\n"), first)
        block = {}
      end
      if said then
        if #block == 0 then first = number end
        block[#block + 1] = (said:gsub("^@%a+ ?", ""))
      else
        local trailing = line:match("%s%-%- (.*)$")
        if trailing then visit(trailing, number) end
      end
    end
    if #block > 0 then visit(table.concat(block, "\n"), first) end
  else
    local at = 1
    while true do
      local first, last, said = text:find("/%*(.-)%*/", at)
      if not first then return end
      local clean = said:gsub("\n[ \t]*%*?", "\n")
      visit(clean, 1 + select(2, text:sub(1, first):gsub("\n", "")))
      at = last + 1
    end
  end
end

local function is_later(path)
  for _, folder in ipairs(LATER) do
    if path:find(folder) then return true end
  end
  return false
end

local function check(path, text, line)
  openings(text, line, function(at)
    findings.report("%s:%d: a sentence opens with \"Of\": name its subject first", path, at)
  end)
  for _, phrase in ipairs(EVERYWHERE) do
    for at in text:gsub("\n", " "):gmatch("()" .. phrase[1]) do
      findings.report("%s:%d: %s", path, line + select(2, text:sub(1, at):gsub("\n", "")), phrase[2])
    end
  end
  if is_later(path) then return end
  local rest = text:gsub("`behind`", "`------`")
  for _, fine in ipairs(BEHIND) do rest = rest:gsub(fine, function(part) return (part:gsub("behind", "------")) end) end
  for at in rest:gmatch("()%f[%a]behind%f[%A]") do
    findings.report("%s:%d: behind: after, unless something is left or hidden there", path,
      line + select(2, rest:sub(1, at):gsub("\n", "")))
  end
end

local guides, readme = {}, nil
for _, path in ipairs(arg) do
  if path:find("tests/lint/english.lua", 1, true) then goto continue end -- it names the phrases
  local file = assert(io.open(path, "rb"))
  local text = file:read("*a")
  file:close()
  if is_document(path) then
    check(path, prose_of(text), 1)
    if path:find("/guides/") then guides[#guides + 1] = path end
    if path:find("/?README%.md$") and not path:find("/README%.md$") then readme = text end
    if (path:find("lua/guides/") or path:find("recipes/guides/")) and not text:find("\n%*%*When to use it%.%*%* ") then
      findings.report("%s:1: a guide says when to use what it describes: **When to use it.**", path)
    end
  else
    comments_of(path, text, function(said, line) check(path, said, line) end)
  end
  ::continue::
end
for _, path in ipairs(readme and guides or {}) do
  if not readme:find("(" .. path, 1, true) then findings.report("%s:1: README.md does not list this guide", path) end
end
findings.finish()
