-- Comments and annotations of the Lua layer as text, for what describes a name at the prompt. The executable contains
-- the Lua sources, so they are the ones that editors read.

local arguments = require("moonshard.base.checks.arguments")
local input_file = require("moonshard.base.files.input_file")
local optimizer_classes = require("moonshard.repl.optimizer_classes")
local text_lines = require("moonshard.base.text.text_lines")

local annotations = {}

local sources = {}

---The lines of a file in the executable or on disk; nil if it does not exist.
---@param path string
---@return string[]?
function annotations.lines_of(path)
  if sources[path] == nil then
    local in_executable, host = pcall(require, "moonshard.host")
    local text = in_executable and host.source(path) or input_file.text(path)
    sources[path] = text and text_lines.all(text) or false
  end
  return sources[path] or nil
end

---The comment lines that end above line `number`, without their dashes.
---@param lines string[]
---@param number integer
---@return string[]
function annotations.comment_above(lines, number)
  local first = number
  while first > 1 and lines[first - 1]:match("^%s*%-%-%-") do first = first - 1 end
  local comment = {}
  for i = first, number - 1 do comment[#comment + 1] = lines[i]:match("^%s*%-%-%-(.*)$") end
  return comment
end

---The comment at the beginning of a file.
---@param lines string[]
---@return string[]
function annotations.comment_of_file(lines)
  local comment = {}
  for _, line in ipairs(lines) do
    local text = line:match("^%-%- ?(.*)$")
    if not text or text:sub(1, 1) == "-" then break end -- annotations follow it
    comment[#comment + 1] = text
  end
  return comment
end

---The fields of a parameter's class: the options of a function. The class is in the function's file, or made of rows.
---@param lines string[] of that file
---@param class string "moonshard.TrainerOptions"
---@return string[] text an option's name and type in a line that four spaces begin, what goes on in ones with six
function annotations.fields_of_class(lines, class)
  local fields = {}
  lines = optimizer_classes.lines(class) or lines
  for i, line in ipairs(lines) do
    if line:match("^%-%-%-@class%s+([%w_.]+)") == class then
      for at = i + 1, #lines do
        local name, kind = lines[at]:match("^%-%-%-@field%s+(%S+)%s+(.*)$")
        local more = lines[at]:match("^%-%-%-%s+(.*)$")
        if not (name or more) then break end
        fields[#fields + 1] = name and ("    %s  %s"):format(name, kind) or "      " .. more
      end
    end
  end
  return fields
end

---A comment with its annotations as a person reads them.
---@param comment string[]
---@param lines string[] of the file, which has the classes of parameters
---@return string[]
function annotations.text_of_comment(comment, lines)
  local text = {}
  for _, line in ipairs(comment) do
    local tag, rest = line:match("^@(%a+)%s*(.*)$")
    if tag == "param" then
      text[#text + 1] = "  " .. rest
      local class = rest:match("^%S+%s+(moonshard%.[%w_.]+)")
      for _, field in ipairs(class and annotations.fields_of_class(lines, class) or {}) do text[#text + 1] = field end
    elseif tag == "return" then
      text[#text + 1] = "  returns " .. rest
    elseif not tag then
      text[#text + 1] = line
    end
  end
  return text
end

---The lines of the file that defines a function, nil for a built-in one; and the numbers of its first and last line.
---@param func function
---@return string[]? lines, integer first, integer last
function annotations.source_of(func)
  local info = debug.getinfo(arguments.original(func), "S")
  local lines = info.source:sub(1, 1) == "@" and annotations.lines_of(info.source:sub(2)) or nil
  return lines, info.linedefined, info.lastlinedefined
end

---The beginning of a comment up to the end of a sentence, or of the part before a colon or a semicolon, for lists.
---@param comment string[]
---@return string? sentence nil: there is none
function annotations.sentence_of(comment)
  local text = {}
  for _, line in ipairs(comment) do
    if line:sub(1, 1) == "@" or line == "" then break end
    text[#text + 1] = text_lines.trim(line)
  end
  local sentence = table.concat(text, " "):gsub("^ms%.[%w_.]+: ", "")
  for _, stop in ipairs({ "%.%s+%u", "[:;]%s", "%.$" }) do sentence = sentence:match("^(.-)" .. stop) or sentence end
  return sentence ~= "" and sentence or nil
end

return annotations
