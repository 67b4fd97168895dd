-- Converts the output of `moonshard help` into the manual page moonshard(1), so that the two cannot differ.
--
--   luajit runtime/make/make_man.lua VERSION OUTPUT
--
-- Lines of lua/moonshard/cli/help.lua: two blanks and "moonshard" begin a command, six blanks and a dash begin one of
-- its options, and lines with more indentation continue the text of either. A bracket before a command's text continues
-- its arguments.

package.path = "lua/?.lua;" .. package.path
local version, output_path = arg[1], arg[2]
local text = require("moonshard.cli.help").text

local function escaped(words)
  return (words:gsub("\\", "\\e"):gsub("%-", "\\-"):gsub("^([.'])", "\\&%1"))
end

local lines = {}
local function add(line) lines[#lines + 1] = line end

local purpose, commands, rest = text:match("^(.-)\n\n(  moonshard .-\n)\n(key=value.*)$")
assert(purpose, "lua/moonshard/cli/help.lua: its text is not of the form that make_man.lua reads")

add(('.TH MOONSHARD 1 "" "Moonshard %s" "User Commands"'):format(version))
add(".SH NAME")
add("moonshard \\- train neural networks that are sharded over a mesh of ranks")
add(".SH SYNOPSIS")
add(".B moonshard\n.I command\n[\\fIoptions\\fR] [\\fIkey\\fR=\\fIvalue\\fR ...]")
add(".SH DESCRIPTION")
add(escaped(purpose))
add(".SH COMMANDS")

local usage -- the command whose arguments may go on
local function flush_usage()
  if usage then add((".TP\n.B %s"):format(escaped(usage))) end
  usage = nil
end

for line in commands:gmatch("([^\n]*)\n") do
  local command = line:match("^  (moonshard .*)$")
  local option = line:match("^      (%-.*)$")
  local more = line:match("^%s+(.*)$")
  if command then
    flush_usage()
    local arguments, words = command:match("^(.-)%s%s%s+(.*)$")
    usage = arguments or command
    if words then
      flush_usage()
      add(escaped(words))
    end
  elseif option then
    flush_usage()
    local name, words = option:match("^(.-)%s%s+(.*)$")
    add((".RS\n.TP\n.B %s"):format(escaped(name or option)))
    if words then add(escaped(words)) end
    add(".RE")
  elseif usage and more:find("^%[") then
    usage = usage .. " " .. more
  else
    flush_usage()
    if lines[#lines] == ".RE" then
      lines[#lines] = escaped(more)
      add(".RE")
    else
      add(escaped(more))
    end
  end
end
flush_usage()

local settings, status = rest:match("^(.-)Exit status: (.*)$")
add(".SH SETTINGS\n" .. escaped((settings:gsub("\n$", ""))))
add(".SH EXIT STATUS\n" .. escaped((status:gsub("\n$", ""))))
add(".SH SEE ALSO\nThe guides in the folder of the package's documentation.")

local output = assert(io.open(output_path, "wb"))
output:write(table.concat(lines, "\n"), "\n")
output:close()
