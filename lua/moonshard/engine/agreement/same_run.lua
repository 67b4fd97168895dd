-- Ranks must run the same thing at the same time: one that is given another field, type or shape compiles another plan,
-- and its collectives would meet those of a plan that computes something else, or wait for ranks that never come.
--
-- Before every run each rank describes what it is about to run, and sends a hash of that along with numbers that ranks
-- exchange anyway. Only if hashes differ do ranks exchange the texts, so that all of them raise the same error, which
-- names what differs. Nothing has run or changed by then.

local agreement = require("moonshard.distributed.agreement")
local errors = require("moonshard.base.error")
local hash = require("moonshard.base.hash")
local world = require("moonshard.distributed.world")

---@class moonshard.SameRun what this rank is about to run
---@field who string for messages: "train:step"
---@field text string a line for each fact, input and note about a fact: "fact", "input" or "note", its name and its
---  value, between tabs. Notes are not compared
---@field number number its hash, which ranks exchange
---@field advice table<string, string> by name of a fact: what to do where ranks differ in it
local SameRun = {}
SameRun.__index = SameRun

local same_run = {}

local function without_breaks(value) return (tostring(value):gsub("[\t\n]", " ")) end

local function line(kind, name, value)
  return ("%s\t%s\t%s\n"):format(kind, without_breaks(name), without_breaks(value))
end

---@param who string whose run it is, for messages; equal on all ranks
---@param facts [string, any, string?, string?][] what else ranks must agree on: names, values, what to do where they
---  differ, and a note about this rank's value
---@param inputs { name: string, dtype: string, shape: integer[] }[]
---@param of string? what messages call an input: "batch.", before its name
---@return moonshard.SameRun
function same_run.new(who, facts, inputs, of)
  local lines, advice, notes = {}, {}, {}
  for i, fact in ipairs(facts) do
    advice[fact[1]] = fact[3]
    lines[i] = line("fact", fact[1], fact[2])
    if fact[4] then notes[#notes + 1] = line("note", fact[1], fact[4]) end
  end
  for _, input in ipairs(inputs) do
    lines[#lines + 1] = line("input", (of or "") .. input.name,
      ("%s [%s]"):format(input.dtype, table.concat(input.shape, ",")))
  end
  local compared = table.concat(lines)
  return setmetatable({
    who = who, text = compared .. table.concat(notes), number = hash.of_text(compared), advice = advice,
  }, SameRun)
end

---Options as facts.
---@param rows { name: string, of: (fun(o: table): any)?, advice: string? }[] of: what to compare; default: o[name]
---@param o table parsed options
---@param format string of a fact's name, with %s for the option's
---@return [string, string, string][]
function same_run.options(rows, o, format)
  local facts = {}
  for i, row in ipairs(rows) do
    local value = row.of
    if value then value = value(o) else value = o[row.name] end
    facts[i] = { format:format(row.name), value == "" and "none" or tostring(value),
      row.advice or "give all ranks the same" }
  end
  return facts
end

---Compares what ranks are to write, which the first one alone writes. Collective.
---@param who string "ms.huggingface.save"
---@param session moonshard.Session
---@param folder string
---@param given table? options
---@param names string[] of the options to compare
function same_run.of_save(who, session, folder, given, names)
  local facts = { { "the folder", folder, "give all ranks the same" } }
  for i, name in ipairs(names) do
    local value = given and given[name]
    facts[i + 1] = { name, value == nil and "not given" or tostring(value), "give all ranks the same" }
  end
  same_run.new(who, facts, {}):require(session, "of what is saved")
end

---What to compare of an option that is a table or a function: whether there is one.
---@param name string
---@return fun(o: table): string
function same_run.presence(name)
  return function(o) return o[name] ~= nil and "given" or "not given" end
end

-- ---- what differs ------------------------------------------------------------------------------------------------

local function read(text)
  local names, values, kinds, notes = {}, {}, {}, {}
  for kind, name, value in text:gmatch("(%a+)\t([^\t\n]*)\t([^\n]*)\n") do
    if kind == "note" then notes[name] = value
    else names[#names + 1], values[name], kinds[name] = name, value, kind end
  end
  return names, values, kinds, notes
end

local function without_notes(text) return (("\n" .. text):gsub("\nnote\t[^\n]*", "")) end

local function with_note(value, note) return value and note and ("%s (%s)"):format(value, note) or value end

---@class moonshard.RunDifference
---@field name string
---@field kind "fact"|"input"
---@field one string? nil: missing
---@field other string?

-- What differs between two texts: facts alone if some do, because other inputs then follow from them.
local function differences_of(text, other_text)
  local names, one, kinds, notes = read(text)
  local others, other, other_kinds, other_notes = read(other_text)
  for _, name in ipairs(others) do
    if one[name] == nil then names[#names + 1] = name end
  end
  local found = { fact = {}, input = {} }
  for _, name in ipairs(names) do
    local kind = kinds[name] or other_kinds[name]
    if one[name] ~= other[name] then
      table.insert(found[kind], { name = name, kind = kind, one = with_note(one[name], notes[name]),
        other = with_note(other[name], other_notes[name]) })
    end
  end
  return found.fact[1] and found.fact or found.input
end

-- "f32 [4,7]" without what padding changes: "f32 [4,*]".
local function without_lengths(value) return (value:gsub(",%d+", ",*")) end

local function rows_of(value) return value:match("%[(%d*)") end

local function advice_about(self, differences)
  if differences[1].kind == "fact" then
    return self.advice[differences[1].name] or "all ranks must make the same calls"
  end
  local lengths, pads = true, {}
  for i, d in ipairs(differences) do
    if not d.one or not d.other then
      return "give it to all ranks (zeros where a rank has none, which forward can mask), or to none"
    elseif rows_of(d.one) ~= rows_of(d.other) then
      return "give all ranks as many rows"
    end
    lengths = lengths and without_lengths(d.one) == without_lengths(d.other)
    pads[i] = ("%s = %s"):format(d.name:match("[^.]*$"), d.name:find("targets$") and "-100" or "0")
  end
  if not lengths or not self.who:find("^train:") then return "give all ranks the same types and shapes" end
  return ("where each rank pads rows to its own longest, pad = { %s } of ms.trainer pads them to the longest of all "
    .. "ranks"):format(table.concat(pads, ", "))
end

-- How many differences a message names.
local NAMED = 6

local function report(self, ranks, texts)
  local place, parts = 2, {}
  while without_notes(texts[place]) == without_notes(texts[1]) do place = place + 1 end
  local differences = differences_of(texts[1], texts[place])
  for i = 1, math.min(NAMED, #differences) do
    local d = differences[i]
    parts[i] = ("%s is %s on %s and %s on %s"):format(d.name, d.one or "missing", world.rank_name(ranks[1]),
      d.other or "missing", world.rank_name(ranks[place]))
  end
  if #differences > NAMED then parts[NAMED + 1] = ("and %d more"):format(#differences - NAMED) end
  errors.raise("MS_EMISMATCH", "%s: ranks would not run the same, so none runs: %s: %s", self.who,
    table.concat(parts, "; "), advice_about(self, differences))
end

-- ---- comparing ---------------------------------------------------------------------------------------------------

---Raises MS_EMISMATCH on all ranks unless all are about to run the same. Collective, but only if they are not.
---@param session moonshard.Session
---@param numbers number[] of all ranks, in the order of session:ranks()
function SameRun:check(session, numbers)
  for _, number in ipairs(numbers) do
    if number ~= numbers[1] then
      return report(self, session:ranks(), agreement.texts(session, "of what ranks run", self.text))
    end
  end
end

---Exchanges the hashes, and compares them. Collective.
---@param session moonshard.Session
---@param what string for reports: "of the call"
function SameRun:require(session, what)
  if #session:ranks() > 1 then self:check(session, session:gather_numbers(self.number, what)) end
end

return same_run
