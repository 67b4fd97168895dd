-- What a recipe prints while a command has something of its own to print: it goes to standard error, so that standard
-- output holds the plan, the JSON object or the text alone, and can be piped into other programs.

local redirect_output = {}

---From now on print, io.write and io.stdout lead to standard error.
---@return file* out standard output, for the command
function redirect_output.begin()
  local out = io.stdout
  rawset(io, "stdout", io.stderr)
  io.output(io.stderr)
  rawset(_G, "print", function(...)
    local texts = {}
    for i = 1, select("#", ...) do texts[i] = tostring((select(i, ...))) end
    io.stderr:write(table.concat(texts, "\t"), "\n")
  end)
  return out
end

return redirect_output
