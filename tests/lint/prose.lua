-- Finds tests that quote prose: prose.lua FILE...
--
-- A message is worded for its reader, and is reworded when that reads better. What a test may depend on is what the
-- message must say: names, numbers, values, places, commands, and one or two key words where two errors differ in
-- nothing else. So no string literal that a test compares holds more than three plain words in a row. Titles of tests,
-- texts of a test's own failures, and programs that a test runs are not compared. A literal that has to quote more says
-- why in a comment on its line or the line above: `-- prose: REASON`, in C `/* prose: REASON */`.

local WORDS = 3 -- as many may follow each other

local function set(names)
  local found = {}
  for name in names:gmatch("%S+") do found[name] = true end
  return found
end

-- Calls whose literals people read, or a shell: titles, failures of the test itself, commands and programs.
local READ = set [[it describe pending error assert fail fail_msg print_message print_error perror EXPECT REQUIRE
  fprintf printf execute popen case cmocka_run_group_tests_name recipe with_recipe cdef write write_text MS_FAIL ms_note
  ms_error_prefix ms_world_abort ms_job_abort ms_store_abort output_of program_and_output assert_close]]
-- The arguments after these first ones are texts of failures.
local COMPARED = { equal = 2, same = 2, truthy = 1, falsy = 1, is_truthy = 1, is_true = 1, is_false = 1, is_nil = 1,
  is_not_nil = 1, not_equal = 2 }

-- Words of programs: a recipe in a literal is no prose.
local CODE = set [[and break do else elseif end false for function if in local nil not or repeat return then true until
  while const int char void static struct]]

---The longest run of plain words of a text. What separates ends a run: columns, the items of a list, sentences.
---@param text string
---@return integer
local function count(text)
  local longest, run = 0, 0
  for token in (text:gsub("\\[nrt]", " \0 "):gsub("%s%s+", " \0 ")):gmatch("%S+") do
    local word, stop = token:match("^%(*(%a+)([%.,;:!?)]*)$")
    run = word and word:find("%l") and not CODE[word] and run + 1 or 0
    longest = math.max(longest, run)
    if stop and stop:find("[%.,:;]") then run = 0 end
  end
  return longest
end

---@class Literal
---@field line integer where it begins
---@field last_line integer
---@field text string what it holds, escapes as written
---@field call string the call that it is an argument of, or ""
---@field place integer of the argument
---@field long boolean between [[ and ]]

---The string literals of a source. Neighbours that `..`, or in C nothing, joins are one.
---@param source string
---@param c boolean C, not Lua
---@return Literal[] literals
---@return table<integer, boolean> excused lines with a reason, and those below them
local function read(source, c)
  local literals, excused, calls = {}, {}, { { name = "", place = 1, called = false } }
  local at, line, last, joins, name = 1, 1, nil, false, ""
  local function skip(text)
    line = line + select(2, text:gsub("\n", ""))
    at = at + #text
  end
  local function take(text, whole, long)
    local began, call = line, calls[#calls]
    skip(whole)
    if joins and last then
      last.text, last.last_line = last.text .. text, line
    else
      last = { line = began, last_line = line, text = text, call = name ~= "" and name or call.name, place = call.place,
        long = long }
      literals[#literals + 1] = last
    end
    last.stop, joins, name = at, c, ""
  end
  while at <= #source do
    local quote, level = source:match("^[\"']", at), not c and source:match("^%[(=*)%[", at)
    local comment = c and (source:match("^//[^\n]*", at) or source:match("^/%*.-%*/", at))
      or not c and (source:match("^%-%-%[%[.-%]%]", at) or source:match("^%-%-[^\n]*", at))
    local space, word = source:match("^%s+", at), source:match("^[%a_][%w_]*", at)
    if space then
      skip(space)
    elseif comment then
      skip(comment)
      if comment:find("prose: %w") then excused[line], excused[line + 1] = true, true end
    elseif quote then
      local stop = at + 1
      while source:sub(stop, stop) ~= quote do stop = stop + (source:sub(stop, stop) == "\\" and 2 or 1) end
      take(source:sub(at + 1, stop - 1), source:sub(at, stop), false)
    elseif level then
      local stop = assert(source:find("]" .. level .. "]", at, true), "a long string without an end")
      take(source:sub(at + #level + 2, stop - 1), source:sub(at, stop + #level + 1), true)
    elseif word then
      name, joins = not CODE[word] and word or "", false
      skip(word)
    elseif not c and source:find("^%.%.", at) then
      joins = last ~= nil and source:sub(last.stop, at - 1):find("^%s*$") ~= nil
      name = ""
      skip("..")
    else
      local char = source:sub(at, at)
      if char == "]" and last and source:find("^%]%s*=[^=]", at) and source:sub(last.stop, at - 1) == "" then
        last.call = "it" -- a key of a table names a case
      end
      if char:find("[%(%[{]") then
        local called = char == "(" and name ~= ""
        calls[#calls + 1] = { name = called and name or calls[#calls].name, place = called and 1 or calls[#calls].place,
          called = called }
      elseif char:find("[%)%]}]") and #calls > 1 then
        calls[#calls] = nil
      elseif char == "," and calls[#calls].called then
        calls[#calls].place = calls[#calls].place + 1
      end
      if char ~= "." and char ~= ":" then name = "" end
      joins = false
      skip(char)
    end
  end
  return literals, excused
end

local function is_compared(literal)
  if READ[literal.call] or literal.call:find("^it_") then return false end
  if literal.place > (COMPARED[literal.call] or math.huge) then return false end
  return not literal.long or COMPARED[literal.call] ~= nil
end

local findings = dofile((arg[0]:gsub("[^/]*$", "")) .. "findings.lua")

for _, path in ipairs(arg) do
  local file = assert(io.open(path, "rb"))
  local source = file:read("*a")
  file:close()
  local literals, excused = read(source, path:find("%.[ch]$") ~= nil)
  -- What a test says itself, in an error or on a stream, it may expect to find again.
  local own = {}
  for _, literal in ipairs(literals) do
    if READ[literal.call] and literal.text:find("%a %a") then own[#own + 1] = (literal.text:gsub("\\n$", "")) end
  end
  for _, literal in ipairs(literals) do
    local text = literal.text
    for _, said in ipairs(own) do text = text:gsub(said:gsub("%p", "%%%0"), "\0") end
    if is_compared(literal) and count(text) > WORDS and not excused[literal.line] then
      findings.report("%s:%d: a test compares prose: \"%s\"", path, literal.line, literal.text:sub(1, 80))
    end
  end
end
findings.finish()
