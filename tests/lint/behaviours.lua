-- The catalogue of behaviours against the names of tests: every id of tests/BEHAVIOURS.md has a test whose name begins
-- with it, and every id that a name begins with is in the catalogue.
--
--   luajit tests/lint/behaviours.lua FILE...   the test files; prints what is missing, and ends with 1 if anything is
--
-- A name is a string of a spec ("S1 M6 cases equal one rank"; "D10" of a describe) or a function of a C test
-- (S6_accumulates), which may begin with several ids.

local CATALOGUE = "tests/BEHAVIOURS.md"

local known, order = {}, {}
for line in io.lines(CATALOGUE) do
  local id, text = line:match("^| (%u%d+) | (.-) |$")
  if id and known[id] then
    print(("%s: %s is there twice"):format(CATALOGUE, id))
    os.exit(1)
  end
  if id and text ~= "" then
    known[id] = { tests = 0 }
    order[#order + 1] = id
  end
end

local findings = dofile((arg[0]:gsub("[^/]*$", "")) .. "findings.lua")

local function count(ids, path, number)
  for id in ids:gmatch("%u%d+") do
    if known[id] then
      known[id].tests = known[id].tests + 1
    else
      findings.report("%s:%d: a name begins with %s, which %s does not have", path, number, id, CATALOGUE)
    end
  end
end

-- By the end of a file's name: calls `found` with the ids at the beginning of each name in a line.
local READERS = {
  lua = function(line, found)
    for text in line:gmatch('"([^"]*)"') do
      local first, rest = text:match("^(%u%d%d?)%f[^%w](.*)$")
      local is_group = rest == "" and line:find("describe(", 1, true)
      if first and (is_group or rest:find("^ %l") or rest:find("^ %u%d")) then
        while first do
          found(first)
          first, rest = rest:match("^ (%u%d%d?)%f[^%w](.*)$")
        end
      end
    end
  end,
  c = function(line, found)
    for ids in line:gmatch("%f[%w_](%u%d[%w_]*)%(void") do
      local first, rest = ids:match("^(%u%d+)_(.*)$")
      while first do
        found(first)
        first, rest = rest:match("^(%u%d+)_(.*)$")
      end
    end
  end,
}
READERS.cpp = READERS.c

for _, path in ipairs(arg) do
  local read, number = READERS[path:match("%.(%w+)$")], 0
  for line in io.lines(path) do
    number = number + 1
    read(line, function(id) count(id, path, number) end)
  end
end

for _, id in ipairs(order) do
  if known[id].tests == 0 then findings.report("%s: %s has no test", CATALOGUE, id) end
end
if #order == 0 then findings.report("%s: no ids", CATALOGUE) end
findings.finish()
